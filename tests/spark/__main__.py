"""The command ``python -m tests.spark --kills 100 [--seed n]``, for ``make spark-faults``."""

import argparse
import random
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from sandbox.kafka import Kafka
from sandbox.postgres import Postgres
from tests.spark.ledger import SETTINGS, SETUP, TABLES, run
from tests.spark.session import INTERPRETED, new_session
from tests.spark.shop import opened


def main() -> int:
    """Kill drivers, compare the tables, and print the counts. Return 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", default=str(random.randrange(10**6)))
    options = parser.parse_args()
    say = partial(print, flush=True)
    say(f"seed {options.seed}")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(stack.enter_context(Postgres(17)).database())
        kafka = stack.enter_context(Kafka())
        spark = new_session(directory / "spark", INTERPRETED)
        stack.callback(spark.stop)
        shop = stack.enter_context(opened(spark, database, kafka, "ledger", SETUP, SETTINGS))
        shop.wait_until_loaded(len(TABLES) + 1)
        tally = run(shop, directory, options.kills, random.Random(options.seed), say)
    say(str(tally))
    return 0 if tally.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
