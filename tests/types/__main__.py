"""``python -m tests.types --count 5000 [--version 14] [--seed n]`` sends values of every type through real servers."""

import argparse
import asyncio
import sys
import time
from functools import partial

from sandbox.postgres import Postgres
from tests.types.proof import Outcome, prove

VERSIONS = (10, 14, 18)
_SHOWN = 20


def main() -> int:
    """Run, and print how many values of each type were compared. Return 1 if one of them was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.types", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="number of values of each type, in each shape")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--version", type=int, choices=range(10, 19), action="append")
    options = parser.parse_args()
    began, versions = time.monotonic(), options.version or VERSIONS
    outcomes = {version: _run(version, options.seed, options.count) for version in versions}
    say = partial(print, flush=True)
    say(table(outcomes))
    for version, outcome in outcomes.items():
        say(f"PostgreSQL {version}: {len(outcome.problems)} problems", *outcome.problems[:_SHOWN], sep="\n  ")
    say(f"{time.monotonic() - began:.0f} s")
    return int(any(outcome.problems for outcome in outcomes.values()))


def _run(version: int, seed: int, count: int) -> Outcome:
    with Postgres(version) as server, server.database() as database:
        return asyncio.run(prove(database, seed, count))


def table(outcomes: dict[int, Outcome]) -> str:
    """Return a table of the numbers of values, by type and version.

    The numbers in brackets count the marked values, which their Avro types cannot hold.
    """
    names = sorted({name for outcome in outcomes.values() for name in outcome.tallies})
    lines = [f"{'type':<18}" + "".join(f"{f'PostgreSQL {version}':>22}" for version in outcomes)]
    for name in names:
        cells = [outcome.tallies.get(name) for outcome in outcomes.values()]
        lines.append(
            f"{name:<18}" + "".join(f"{f'{cell.tried} ({cell.marked})' if cell else '-':>22}" for cell in cells)
        )
    sums = [sum(tally.tried for tally in outcome.tallies.values()) for outcome in outcomes.values()]
    return "\n".join([*lines, f"{'all':<18}" + "".join(f"{total:>22}" for total in sums)])


if __name__ == "__main__":
    sys.exit(main())
