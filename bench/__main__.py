"""The command line of the bench: which loads, which contenders, how often."""

import argparse
from collections.abc import Sequence

from bench import report
from bench.contenders import Contender, Drain, Pgsluice
from bench.loads import LOADS
from bench.results import Run
from bench.rounds import BROKER, SERVER, race
from sandbox.kafka import Kafka
from sandbox.postgres import DEFAULT_VERSION, Postgres

SHORT = ("orders-20", "orders-1")
"""The loads of ``make bench``."""


def contenders() -> list[Contender]:
    """Return who takes part."""
    pure = {"PGSLUICE_SPEEDUPS": "off"}
    return [
        Drain(),
        Pgsluice("exactly once, Python", variables=pure),
        Pgsluice("discard, Python", variables=pure, discard=True),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the loads and print a table."""
    options = _parser().parse_args(arguments)
    chosen = [LOADS[key].scaled(options.scale) for key in options.loads]
    with Postgres(options.postgres, SERVER) as postgres, Kafka(settings=BROKER) as kafka:
        print(report.heading())
        for load in chosen:
            found = race(postgres, kafka, load, contenders(), options.runs, _say)
            print(*report.lines(load.key, found), sep="\n", flush=True)


def _say(key: str, name: str, run: Run) -> None:
    print(f"  {key} {name}: {run.whole.rate:,.0f}/s", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=SHORT, metavar="LOAD", help=", ".join(LOADS))
    parser.add_argument("--runs", type=int, default=3, help="of each contender (default: 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="times the rows of each load (default: 1)")
    parser.add_argument("--postgres", type=int, default=DEFAULT_VERSION, help="version of the server")
    return parser


if __name__ == "__main__":
    main()
