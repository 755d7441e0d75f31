"""The command line of the comparison with Debezium: measures, prints, and writes its part of docs/performance.md.

https://docs.python.org/3/library/argparse.html
"""

import argparse
from collections.abc import Mapping, Sequence

from bench import machine
from bench.__main__ import DOCUMENT
from bench.contenders import encoders
from bench.debezium import jars, live, report
from bench.debezium.connect import JVM_OPTIONS
from bench.debezium.contenders import Make, contenders
from bench.debezium.race import race
from bench.debezium.results import Live, Results
from bench.loads import LOADS
from bench.processes import ROOT
from bench.servers import SERVER, broker
from pgsluice import __version__
from sandbox.apicurio import Apicurio
from sandbox.kafka import Kafka
from sandbox.postgres import DEFAULT_VERSION, Postgres

RESULTS = ROOT / "bench" / "debezium" / "results.json"

BACKLOGS = ("orders-20", "orders-1", "tables-10")
LIVE = "live"
SUBJECTS = (*BACKLOGS, LIVE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the options select, and write the report. With ``--render``, only write the report."""
    options = _parser().parse_args(arguments)
    if options.render:
        kept = Results.read(RESULTS)
        if kept is None:
            raise SystemExit(f"{RESULTS} does not exist. Run make bench-debezium first.")
        write_document(kept)
        return
    if "compiled" not in encoders():
        raise SystemExit("pgsluice has no compiled encoder here. Run make setup.")
    with Postgres(DEFAULT_VERSION, SERVER) as postgres, broker() as kafka, Apicurio() as registry:
        taking_part = contenders(registry.url)
        results = Results(_describe(postgres), options.scale)
        for key in [key for key in BACKLOGS if key in options.only]:
            load = LOADS[key].scaled(options.scale)
            results.backlogs[key] = race(postgres, kafka, load, taking_part, options.runs, _say)
            _keep(results)
        if LIVE in options.only:
            results.live = _live(postgres, kafka, taking_part, options)
            _keep(results)


def _keep(results: Results) -> None:
    """Write the results so far. The caller does this after each measurement, so that no result is lost."""
    results.write(RESULTS)
    write_document(results)


def _live(postgres: Postgres, kafka: Kafka, taking_part: Mapping[str, Make], options: argparse.Namespace) -> Live:
    moment = machine.begin()
    found = Live(moment, {name: [] for name in taking_part}, {name: [] for name in taking_part})
    for _ in range(options.runs):
        for name, make in taking_part.items():
            found.delays[name].append(delay := live.delay(postgres, kafka, make, options.scale))
            _say(f"{name}: {delay}")
            found.restarts[name].append(restart := live.restart(postgres, kafka, make))
            _say(f"{name}: {restart}")
    found.moment = machine.end(moment)
    return found


def write_document(results: Results) -> None:
    """Write the comparison into its part of docs/performance.md."""
    DOCUMENT.write_text(report.replaced(DOCUMENT.read_text(), results))


def _describe(postgres: Postgres) -> dict[str, str]:
    worker, connector = " ".join(JVM_OPTIONS[:2]), jars.versions()
    return {
        **machine.describe(postgres, None),
        "Java": machine.java_version(),
        "pgsluice": f"{__version__}, exactly once, compiled, default settings",
        "Debezium": f"{connector.pop('Debezium')}, in Kafka Connect of the broker's version, exactly once, {worker}",
        **connector,
    }


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.debezium", description="Compare pgsluice with Debezium.")
    what = ", ".join(SUBJECTS)
    parser.add_argument(
        "--only", nargs="+", choices=SUBJECTS, default=SUBJECTS, metavar="WHAT", help=f"what to measure: {what}"
    )
    parser.add_argument("--runs", type=int, default=3, help="how often each contender runs (default: 3)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="multiplies the usual numbers of rows and seconds (default: 1)"
    )
    parser.add_argument("--render", action="store_true", help="measure nothing, write docs from the results")
    return parser


if __name__ == "__main__":
    main()
