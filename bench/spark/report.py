"""Turns the results of Spark's bench into its part of docs/performance.md. This module does no I/O."""

from collections.abc import Iterator

from bench.report import said, table, with_part
from bench.results import Spread
from bench.spark.results import AuditResult, DriverResult, Race, Results

BEGIN = "<!-- written by `make bench-spark` from bench/spark/results.json; a test compares it. -->\n"
END = "<!-- end of Spark -->\n"

GOAL_DECODE, GOAL_MIRROR, GOAL_LOAD = 0.9, 0.8, 150_000


def replaced(document: str, results: Results) -> str:
    """Return the document with the generated part replaced."""
    return with_part(document, BEGIN, markdown(results), END, "the markers around Spark's figures are missing")


def markdown(results: Results) -> str:
    """Return the generated part of the document."""
    parts = [_machine(results), _races(results)]
    if results.audit is not None:
        parts.append(_audit(results.audit))
    if results.driver is not None:
        parts.append(_driver(results.driver))
    return "\n".join(line for part in parts for line in part)


def _machine(results: Results) -> Iterator[str]:
    scales = ", ".join(f"{name} {scale:g}" for name, scale in results.scales.items())
    yield table(("Measured with", ""), [*results.machine.items(), ("scale (1: the usual number of rows)", scales)])


def _races(results: Results) -> Iterator[str]:
    races = {
        "decoding all events of a topic": (results.decode, f"{GOAL_DECODE}"),
        "first load of a mirror": (results.load, f"{GOAL_LOAD:,} rows/s"),
        "updates applied to a mirror": (results.updates, f"{GOAL_MIRROR}"),
    }
    found = {title: (race, goal) for title, (race, goal) in races.items() if race is not None}
    if found:
        yield "#### Compared with a job written by hand\n"
        head = ("", "events", "pgsluice, events/s (least to greatest)", "by hand", "ratio", "goal")
        yield table(head, [(title, *_race(race), goal) for title, (race, goal) in found.items()])
        for title, (race, _) in found.items():
            yield f"{title[0].upper()}{title[1:]}: {_runs(race)} {said(race.moment)}\n"


def _runs(race: Race) -> str:
    return f"{len(race.ours)} runs each." if len(race.ours) > 1 else "one run each."


def _race(race: Race) -> tuple[str, ...]:
    return f"{race.events:,}", _rate(race.ours), _rate(race.theirs), f"{race.ratio:.2f}"


def _rate(rates: list[float]) -> str:
    rate = Spread.of(rates)
    return f"{rate.median:,.0f} ({rate.least:,.0f} to {rate.greatest:,.0f})"


def _audit(result: AuditResult) -> Iterator[str]:
    yield "#### Audits of one table while it is written to\n"
    head = (
        "the mirror",
        "rows",
        "seconds",
        "rows/s",
        "commits meanwhile",
        "differences that the audit named: values, missing rows, extra rows",
    )
    rows = [
        (
            one.title,
            f"{one.rows:,}",
            f"{one.seconds:.1f}",
            f"{one.rows / one.seconds:,.0f}",
            f"{one.commits:,}",
            ", ".join(map(str, one.damage)),
        )
        for one in result.audits
    ]
    yield table(head, rows)
    yield f"{said(result.moment)}\n"


def _driver(result: DriverResult) -> Iterator[str]:
    yield "#### Memory of the driver\n"
    head = ("tables", "cuts", "Java's heap after a collection, MiB", "Python, MiB")
    steps = [*result.by_tables, *result.by_cuts]
    rows = [(f"{one.tables:,}", f"{one.cuts:,}", f"{one.heap_mib:,.0f}", f"{one.python_mib:,.0f}") for one in steps]
    yield table(head, rows)
    yield f"{said(result.moment)}\n"
