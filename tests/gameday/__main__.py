"""The command ``python -m tests.gameday [--seed n] [--only name ...]``, for ``make game-day``.

The game day breaks a running pipeline on purpose in many ways, one after the other, and repairs it each time as the
runbook says. The tool measures how long it takes until an alert fires and until the pipeline is repaired.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from sandbox.errors import ServerError
from sandbox.prometheus import missing
from tests.gameday.breakages import BREAKAGES, Breakage
from tests.gameday.run import Day, GameDayError, Result, table
from tests.gameday.scene import game_day


def main() -> int:
    """Carry out all breakages in random order, and print the table of times. Return 1 if one of them went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.gameday", description=__doc__)
    parser.add_argument("--seed", default=str(random.randrange(10**6)))
    parser.add_argument("--only", nargs="+", help="carry out only breakages whose names contain one of these words")
    options = parser.parse_args()
    say = partial(print, flush=True)
    if reason := missing():
        say(f"no Prometheus here: {reason}")
        return 1
    say(f"seed {options.seed}")
    chosen = [one for one in BREAKAGES if not options.only or any(word in one.name for word in options.only)]
    random.Random(options.seed).shuffle(chosen)
    results: list[Result] = []
    failed = 0
    while chosen:
        day = _play(chosen, say)
        results += day.results
        failed += day.played - len(day.results)
        chosen = chosen[day.played :]
    say(table(results))
    say(f"{failed} of {len(results) + failed} breakages went wrong")
    return 1 if failed else 0


def _play(chosen: Sequence[Breakage], say: Callable[[str], object]) -> Day:
    """Carry out breakages until one goes wrong. The remaining breakages then need a new pipeline."""
    with tempfile.TemporaryDirectory() as directory, game_day(Path(directory)) as (scene, prometheus):
        day = Day(scene, prometheus, say)
        try:
            day.play(chosen)
        except (GameDayError, AssertionError, ServerError) as error:
            say(f"FAILED: {error}")
        return day


if __name__ == "__main__":
    sys.exit(main())
