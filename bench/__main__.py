"""The command line of the bench: what is measured, with which contenders, how often, and whether a report is written.

https://docs.python.org/3/library/argparse.html
"""

import argparse
from collections.abc import Mapping, Sequence

from bench import latency, machine, memory, plot, report, startup, transactions
from bench.contenders import (
    DAEMONS,
    PATIENT_DRAIN,
    RECV_LOGICAL,
    Contender,
    Pgsluice,
    RecvLogical,
    contenders,
    encoders,
)
from bench.loads import LOADS, Load
from bench.processes import ROOT
from bench.results import DRAIN, LOADING, LatencyResult, LoadingLatencyResult, MemoryResult, Results, StartsResult
from bench.rounds import course, race
from bench.servers import SERVER, broker
from sandbox.installation import VERSIONS
from sandbox.kafka import Kafka
from sandbox.postgres import DEFAULT_VERSION, Postgres

RESULTS = ROOT / "bench" / "results.json"
DOCUMENT = ROOT / "docs" / "performance.md"

SUBJECTS = (*LOADS, "latency", "snapshot-latency", "starts", "memory")

KINDS = (DRAIN, PATIENT_DRAIN, RECV_LOGICAL, *(kind for kind, _, _ in DAEMONS), LOADING)
FEW_KINDS = (DRAIN, "exactly once")
"""The contenders for a load that is a single transaction, and for the loads of the series ``columns``."""
TABLES_KINDS = (*FEW_KINDS, "discard")
"""The contenders for the loads of the series ``tables`` and ``partitions``, whose flag ``opened`` is true. The
contender ``discard`` shows which part of the cost is Kafka's."""
LOADED_KINDS = (*FEW_KINDS, LOADING)
"""The contenders for a load whose flag ``loaded`` is true. ``LOADING`` reads the rows from the tables, and the others
stream them."""

SHORT = ("orders-20", "orders-1")
SHORT_KINDS = (DRAIN, PATIENT_DRAIN, "exactly once", "discard")
"""The contenders of ``make bench``, which measures the loads in ``SHORT``."""

WARM_UP = LOADS["orders-20"].scaled(0.2)
WARM_UP_TRANSACTIONS = 3_000
TRANSACTIONS = 300


class Bench:
    """Runs the measurements that the command line selects."""

    def __init__(self, postgres: Postgres, kafka: Kafka, options: argparse.Namespace) -> None:
        self._postgres, self._kafka, self._options = postgres, kafka, options
        self._encoders = encoders()
        self._results = Results(machine.describe(postgres, RecvLogical.version()))
        kept = Results.read(RESULTS) if options.report else None
        if kept is not None and kept.machine == self._results.machine:
            self._results = kept  # so that the report keeps the results that this run does not measure
        self._results.left_out = _left_out(self._encoders)

    def run(self) -> None:
        """Run the selected measurements. Write the report after each measurement, so that no result is lost."""
        self._warm_up()
        print(report.heading())
        for subject in self._options.only:
            self._measure(subject)
            if self._options.report:
                self._results.loads = {key: self._results.loads[key] for key in LOADS if key in self._results.loads}
                self._results.write(RESULTS)
                write_document(self._results)

    def _measure(self, subject: str) -> None:
        match subject:
            case "latency":
                self._results.latency = self._latency()
            case "snapshot-latency":
                self._results.loading_latency = self._loading_latency()
            case "starts":
                self._results.starts = self._starts()
            case "memory":
                self._results.memory = self._memory()
            case load:
                self._race(LOADS[load].scaled(self._options.scale))

    def _warm_up(self) -> None:
        """Warm up the broker's JVM, because the first thousands of requests take longer than later ones."""
        _, variables = self._fastest
        with course(self._postgres, self._kafka, WARM_UP) as on:
            Pgsluice("warm-up", variables=variables).run(on)
        transactions.measure(self._kafka, WARM_UP_TRANSACTIONS)

    @property
    def _fastest(self) -> tuple[str, Mapping[str, str]]:
        return next(iter(self._encoders.items()))

    def _race(self, load: Load) -> None:
        taking_part = field(load, self._options.contenders, self._encoders)
        found = race(self._postgres, self._kafka, load, taking_part, self._options.runs, _say)
        self._results.loads[load.key] = found
        print(*report.lines(load.key, found), sep="\n", flush=True)

    def _latency(self) -> LatencyResult:
        name, variables = self._fastest
        moment, found = machine.begin(), []
        seconds_at = {rate: max(1, round(one * self._options.scale)) for rate, one in latency.SECONDS_AT.items()}
        for mode in ("exactly_once", "at_least_once"):
            for one in latency.measure(self._postgres, self._kafka, mode, variables, seconds_at):
                found.append(one)
                print(report.latency_line(one), flush=True)
        steps = transactions.measure(self._kafka, TRANSACTIONS)
        print("a bare transaction:", ", ".join(f"{step} {taken:.2f} ms" for step, taken in steps.items()), flush=True)
        return LatencyResult(name, machine.end(moment), found, steps)

    def _loading_latency(self) -> LoadingLatencyResult:
        name, variables = self._fastest
        moment = machine.begin()
        found, loaded_per_s = latency.measure_loading(self._postgres, self._kafka, variables, self._options.scale)
        print(f"{report.latency_line(found)}, while {loaded_per_s:,.0f} rows/s were loaded", flush=True)
        return LoadingLatencyResult(name, machine.end(moment), found, loaded_per_s)

    def _starts(self) -> StartsResult:
        name, variables = self._fastest
        moment = machine.begin()
        found = startup.measure(self._postgres, self._kafka, variables, self._options.runs)
        print(f"starts: {found}", flush=True)
        return StartsResult(name, machine.end(moment), found)

    def _memory(self) -> MemoryResult:
        name, variables = self._fastest
        moment, loads = machine.begin(), {}
        for load, found in memory.measure(self._options.postgres, variables, self._options.scale):
            loads[load] = found
            print(f"waiting, {load}: {found}", flush=True)
        return MemoryResult(name, machine.end(moment), loads)


def field(load: Load, kinds: Sequence[str], variants: Mapping[str, Mapping[str, str]]) -> list[Contender]:
    """Return the contenders of a load in the order of ``kinds``. Within a kind, the fastest encoder comes first."""
    fastest = dict([next(iter(variants.items()))])
    if load.loaded:
        return contenders([kind for kind in kinds if kind in LOADED_KINDS], fastest)
    kinds = [kind for kind in kinds if kind != LOADING]
    if load.series or load.per_transaction == load.rows:
        kinds = [kind for kind in kinds if kind in (TABLES_KINDS if load.opened else FEW_KINDS)]
    return contenders(kinds, fastest if load.series else variants)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print. Write the report only if the options ask for it."""
    options = _parser().parse_args(arguments)
    if options.render:
        write_document(Results.read(RESULTS))
        return
    if options.report:
        options.only = options.only or list(SUBJECTS)
        options.contenders = options.contenders or list(KINDS)
    else:
        options.only = options.only or list(SHORT)
        options.contenders = options.contenders or list(SHORT_KINDS)
    with Postgres(options.postgres, SERVER) as postgres, broker() as kafka:
        Bench(postgres, kafka, options).run()


def write_document(results: Results | None) -> None:
    """Write the generated part of docs/performance.md, and its chart."""
    DOCUMENT.write_text(report.replaced(DOCUMENT.read_text(), results))
    if results is not None:
        (DOCUMENT.parent / report.PLOT).write_text(plot.svg(results))


def _left_out(variants: Mapping[str, object]) -> list[str]:
    missing = []
    if RecvLogical.version() is None:
        missing.append("pg_recvlogical, which is not installed.")
    if "compiled" not in variants:
        missing.append("the compiled encoder, which this installation does not have.")
    return missing


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Throughput, latency and starts of pgsluice.")
    what = ", ".join(SUBJECTS)
    parser.add_argument("--only", nargs="+", choices=SUBJECTS, metavar="WHAT", help=f"what to measure: {what}")
    parser.add_argument("--contenders", nargs="+", choices=KINDS, metavar="WHO", help=f"contenders: {', '.join(KINDS)}")
    parser.add_argument("--runs", type=int, default=3, help="how often each contender runs (default: 3)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="multiplies the usual numbers of rows and seconds (default: 1)"
    )
    parser.add_argument("--postgres", type=int, choices=VERSIONS, default=DEFAULT_VERSION, help="version of the server")
    parser.add_argument(
        "--report",
        action="store_true",
        help=f"write {RESULTS.relative_to(ROOT)} and the docs; without --only, measure everything",
    )
    parser.add_argument("--render", action="store_true", help="measure nothing, and write docs from existing results")
    return parser


if __name__ == "__main__":
    main()
