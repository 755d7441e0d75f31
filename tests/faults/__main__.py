"""The command ``python -m tests.faults --kills 500 [--seed n [--round n]] [--version 16]``, for ``make faults``."""

import argparse
import random
import sys
import time
from functools import partial

from tests.faults.daemon import RULES
from tests.faults.run import VERSIONS, StormError, Subject, run


def main() -> int:
    """Run the storms (see ``storm``), and print the counts. Return 1 if a storm fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", default=str(random.randrange(10**6)))
    parser.add_argument("--round", type=int, default=1, help="begin with this round of the seed")
    parser.add_argument("--version", type=int, choices=VERSIONS, action="append")
    parser.add_argument("--mode", choices=("exactly_once", "at_least_once"), default="exactly_once")
    parser.add_argument("--without", choices=RULES, default="", help="disable this rule of the product")
    options = parser.parse_args()
    say = partial(print, flush=True)
    began = time.monotonic()
    say(f"seed {options.seed}")
    subject = Subject(options.version or VERSIONS, options.mode, options.without)
    try:
        run(options.seed, options.kills, subject, say, first_round=options.round)
    except StormError as error:
        say(str(error))
        return 1
    say(f"{time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
