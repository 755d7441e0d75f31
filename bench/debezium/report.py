"""Turns the results of the comparison with Debezium into its part of docs/performance.md. No I/O."""

from collections.abc import Iterator, Sequence

from bench.debezium.results import Backlog, Delay, Drained, Live, Results
from bench.report import said, table, with_part
from bench.results import Spread

BEGIN = "<!-- written by `make bench-debezium` from bench/debezium/results.json; a test compares it. -->\n"
END = "<!-- end of the comparison -->\n"


def replaced(document: str, results: Results) -> str:
    """Return the document with the generated part replaced."""
    return with_part(document, BEGIN, markdown(results), END, "the markers around the comparison are missing")


def markdown(results: Results) -> str:
    """Return the generated part of the document."""
    parts = [_machine(results), *(_backlog(one) for one in results.backlogs.values())]
    if results.live is not None:
        parts.append(_live(results.live))
    return "\n".join(line for part in parts for line in part)


def _machine(results: Results) -> Iterator[str]:
    scale = f"{results.scale:g} times the usual rows and seconds"
    yield table(("Measured with", ""), [*results.machine.items(), ("scale", scale)])


def _backlog(backlog: Backlog) -> Iterator[str]:
    yield f"#### {backlog.title}\n"
    yield table(
        (
            "",
            "events/s (least to greatest)",
            "second half",
            "CPU s per million events",
            "second half",
            "walsender",
            "broker",
            "peak MiB",
        ),
        [(name, *_drained(runs)) for name, runs in backlog.runs.items()],
    )
    rows = sum(digest.rows for digest in backlog.tables.values())
    runs = sum(map(len, backlog.runs.values()))
    yield (
        f"{backlog.rows:,} rows, and {rows - backlog.rows:,} more that mark the beginning and the end of the load. In "
        f"each of the {runs} runs, the row count and the checksum of each topic equalled those of its table. "
        f"{said(backlog.moment)}"
    )


def _drained(runs: Sequence[Drained]) -> tuple[str, ...]:
    rate = Spread.of([run.events_per_s for run in runs])
    later = Spread.of([run.later_events_per_s for run in runs])
    return (
        f"{rate.median:,.0f} ({rate.least:,.0f} to {rate.greatest:,.0f})",
        f"{later.median:,.0f}",
        _median([run.cpu["client"] for run in runs]),
        _median([run.later_cpu["client"] for run in runs]),
        _median([run.cpu["walsender"] for run in runs]),
        _median([run.cpu["broker"] for run in runs]),
        f"{max(run.peak_mib for run in runs):,.0f}",
    )


def _live(live: Live) -> Iterator[str]:
    yield "#### Latency and restarts\n"
    yield table(
        (
            "",
            "transactions/s (achieved)",
            "p50 ms",
            "p95",
            "p99",
            "cores",
            "broker",
            "restart s",
            "`kill -9` to the next row s",
        ),
        [
            (
                name,
                *_delay(delays),
                _median([one.again for one in live.restarts[name]]),
                _median([one.killed for one in live.restarts[name]]),
            )
            for name, delays in live.delays.items()
        ],
    )
    runs = len(next(iter(live.delays.values())))
    yield f"Medians of {runs} run{'s' if runs > 1 else ''} each. {said(live.moment)}"


def _delay(delays: Sequence[Delay]) -> tuple[str, ...]:
    return (
        f"{delays[0].rate:,} ({Spread.of([one.achieved for one in delays]).median:,.0f})",
        *(_median([getattr(one, name) for one in delays]) for name in ("p50", "p95", "p99")),
        *(f"{Spread.of([one.cores[role] for one in delays]).median:.2f}" for role in ("client", "broker")),
    )


def _median(values: Sequence[float]) -> str:
    return f"{Spread.of(values).median:,.1f}"
