"""Turns results into text: lines for the terminal, and the generated part of docs/performance.md. No I/O.

``goals`` compares each goal with the result of the fastest encoder that was measured.
"""

from collections.abc import Iterator, Sequence

from bench.results import DRAIN, LOADING, Latency, LoadResult, Moment, Results, Spread

ROLES = ("client", "walsender", "broker", "others")

BEGIN = "<!-- written by `make bench-report` from bench/results.json; a test compares it. -->\n"
END = "<!-- end of the generated part -->\n"

NOTHING = "Nothing has been measured yet. `make bench-report` measures, and writes the results here.\n"

PLOT = "performance.svg"

HEAD = (
    "events/s (least to greatest)",
    "of drain",
    "later",
    "MB/s",
    "CPU µs/event: client",
    "walsender",
    "broker",
    "others",
    "MiB",
)


# -- for the terminal ----------------------------------------------------------------------------


def heading() -> str:
    """Return the heading above the lines that :func:`lines` returns."""
    return (
        f"{'load':<13} {'contender':<24} {'events/s':>10} {'of drain':>9} {'later':>6} {'MB/s':>7}   "
        f"{'CPU µs per event: client':>24} {'walsender':>10} {'broker':>7} {'others':>7} {'MiB':>6}"
    )


def lines(key: str, result: LoadResult) -> list[str]:
    """Return one line for each contender, with the median, the least and the greatest rate."""
    return [_line(key, name, result) for name in result.runs]


def _line(key: str, name: str, result: LoadResult) -> str:
    rate = result.rate(name)
    client, walsender, broker, others = (_number(result.cpu_us(name, role), ".1f") for role in ROLES)
    return (
        f"{key:<13} {name:<24} {rate.median:>10,.0f} {result.ratio(name):>9.2f} {result.later_ratio(name):>6.2f} "
        f"{result.megabytes(name):>7.1f}   {client:>24} {walsender:>10} {broker:>7} {others:>7} "
        f"{_number(result.peak_mib(name), '.0f'):>6}   ({rate.least:,.0f} to {rate.greatest:,.0f})"
    )


def latency_line(latency: Latency) -> str:
    """Return one line about the latency at a rate."""
    return (
        f"{latency.mode} {latency.rate:,}/s (achieved {latency.achieved:,.0f}): p50 {latency.p50:.1f} ms, "
        f"p95 {latency.p95:.1f}, p99 {latency.p99:.1f}, greatest {latency.greatest:.1f}"
    )


# -- for docs/performance.md ---------------------------------------------------------------------


def replaced(document: str, results: Results | None) -> str:
    """Return the document with the generated part replaced."""
    return with_part(document, BEGIN, markdown(results), END, "the markers around the report are missing")


def with_part(document: str, begin: str, part: str, end: str, missing: str) -> str:
    """Return the document with ``part`` between the markers ``begin`` and ``end``.

    If the document lacks a marker, raise ValueError with the text ``missing``.
    """
    before, is_begun, rest = document.partition(begin)
    _, is_ended, after = rest.partition(end)
    if not is_begun or not is_ended:
        raise ValueError(missing)
    return f"{before}{begin}\n{part}\n{end}{after}"


def markdown(results: Results | None) -> str:
    """Return the generated part of the document."""
    if results is None:
        return NOTHING
    return "\n".join(
        [
            *_machine(results),
            *_goals(results),
            *(["![Throughput relative to the bare drain](performance.svg)\n"] if results.loads else []),
            *_loads(results),
            *_latency(results),
            *_loading_latency(results),
            *_starts(results),
            *_memory(results),
        ]
    )


def _machine(results: Results) -> Iterator[str]:
    yield table(("Measured with", ""), [(name, value) for name, value in results.machine.items()])
    for missing in results.left_out:
        yield f"Left out: {missing}\n"


def _goals(results: Results) -> Iterator[str]:
    rows = list(goals(results))
    if rows:
        yield "### In short\n"
        yield table(("", "goal", "measured"), rows)


def goals(results: Results) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each goal, the goal itself, and the measured value."""
    for key, goal in (("orders-20", 0.9), ("orders-1", 0.8)):
        if (load := results.loads.get(key)) and (name := fastest(load)):
            yield f"{load.title}: {name}, relative to the drain", f"{goal}", f"{load.ratio(name):.2f}"
    if (load := results.loads.get("orders-20")) and (name := fastest(load)):
        cpu = _number(load.cpu_us(name, "client"), ".1f")
        yield f"{load.title}: {name}, CPU of the daemon", "6 µs an event", f"{cpu} µs"
    yield from _goals_of_latency(results)
    yield from _goals_of_loading(results)
    if (found := results.starts) is not None:
        yield (
            "First start, which creates the topics, to the first event",
            "1.5 s",
            f"{max(found.starts.first):.2f} s at most",
        )
        yield "Later start to the first event", "1.5 s", f"{max(found.starts.again):.2f} s at most"
        yield "`kill -9` to streaming again", "2 s", f"{max(found.starts.killed):.2f} s at most"
    yield from _goals_of_tables(results)
    peaks = [peak for load in results.loads.values() for name in load.runs if (peak := _daemon_peak(load, name))]
    if peaks:
        yield "Memory of the daemon, in all workloads", "150 MiB", f"{max(peaks):.0f} MiB at most"
    if results.memory is not None:
        most = max(load.resident_mib for load in results.memory.loads.values())
        yield "Memory of the daemon while transactions wait for their commit", "200 MiB", f"{most:.0f} MiB at most"


def _goals_of_latency(results: Results) -> Iterator[tuple[str, str, str]]:
    for one in results.latency.latencies if results.latency else []:
        if one.rate != 100:
            continue
        name = f"Latency at 100 transactions a second, {one.mode.replace('_', ' ')}"
        if one.mode == "exactly_once":
            found = f"{one.p50:.1f}, {one.p95:.1f}, {one.p99:.1f} ms"
            yield f"{name}: p50, p95, p99", "10, 20, 50 ms", found
        else:
            yield f"{name}: p50", "5 ms", f"{one.p50:.1f} ms"


def _goals_of_loading(results: Results) -> Iterator[tuple[str, str, str]]:
    peaks = []
    for key, load in results.loads.items():
        name, streaming = fastest(load, LOADING), fastest(load)
        if name is None:
            continue
        peaks.append(load.peak_mib(name) or 0.0)
        if key == "snapshot" and streaming:
            ratio = load.rate(name).median / load.rate(streaming).median
            yield f"{load.rows:,} rows of 10 columns: {name}, relative to {streaming}", "0.8", f"{ratio:.2f}"
        elif key == "snapshot-tables":
            seconds = max(part.seconds for part in load.parts(name))
            yield f"1,000 tables of {load.rows // 1000:,} rows: {name}", "120 s", f"{seconds:.0f} s at most"
    if (found := results.loading_latency) is not None:
        name = f"Latency at {found.latency.rate} transactions a second while a table is loaded: p95"
        yield name, "250 ms", f"{found.latency.p95:.0f} ms"
    if peaks:
        yield "Memory of the daemon while it loads tables", "200 MiB", f"{max(peaks):.0f} MiB at most"


def _goals_of_tables(results: Results) -> Iterator[tuple[str, str, str]]:
    loads = [load for load in results.loads.values() if load.series == "tables"]
    for kind in ("discard", "exactly once"):
        costs = [cost for load in loads if (name := fastest(load, kind)) and (cost := load.cpu_us(name, "client"))]
        if len(costs) > 1:
            yield (
                f"CPU for an event by number of tables, the highest figure compared with the lowest: {kind}",
                "at most 10 % more",
                f"{(max(costs) / min(costs) - 1) * 100:.0f} % more",
            )
    if (load := results.loads.get("partitions-1")) and (name := fastest(load)):
        what = f"1,000 tables, topics with one partition: {name}"
        yield f"{what}, relative to the drain", "0.7", f"{load.ratio(name):.2f}"
        yield f"{what}, CPU of the daemon", "10 µs an event", f"{_number(load.cpu_us(name, 'client'), '.1f')} µs"


def fastest(load: LoadResult, kind: str = "exactly once") -> str | None:
    """Return the contender of this kind with the fastest encoder, which is the first of its kind in the runs."""
    return next((name for name in load.runs if name.startswith(kind)), None)


def _daemon_peak(load: LoadResult, name: str) -> float | None:
    return None if name.endswith(DRAIN) else load.peak_mib(name)


def _loads(results: Results) -> Iterator[str]:
    if results.loads:
        yield "### Throughput\n"
    for load in results.loads.values():
        if not load.series:
            yield f"#### {load.title}\n"
            yield table(("", *HEAD), [(name, *_cells(load, name)) for name in load.runs])
            yield f"{load.rows:,} rows, {load.bytes_per_row:,.0f} bytes each as the server sends them. " + said(
                load.moment
            )
    for series in dict.fromkeys(load.series for load in results.loads.values() if load.series):
        members = [(key, load) for key, load in results.loads.items() if load.series == series]
        yield f"#### By the number of {series}\n"
        rows = [
            (f"{key.rpartition('-')[2]} ({load.rows:,} rows)", name, *_cells(load, name))
            for key, load in members
            for name in load.runs
        ]
        yield table((series, "", *HEAD), rows)
        yield said(members[0][1].moment)


def _cells(load: LoadResult, name: str) -> tuple[str, ...]:
    rate = load.rate(name)
    return (
        f"{rate.median:,.0f} ({rate.least:,.0f} to {rate.greatest:,.0f})",
        f"{load.ratio(name):.2f}",
        f"{load.later_ratio(name):.2f}",
        f"{load.megabytes(name):,.1f}",
        *(_number(load.cpu_us(name, role), ",.1f") for role in ROLES),
        _number(load.peak_mib(name), ".0f"),
    )


def _latency(results: Results) -> Iterator[str]:
    found = results.latency
    if found is None:
        return
    yield "### Latency\n"
    yield table(
        ("transactions/s (achieved)", "", "p50 ms", "p95", "p99", "greatest", "cores: daemon", *ROLES[1:]),
        [
            (
                f"{one.rate:,} ({one.achieved:,.0f})",
                one.mode.replace("_", " "),
                *(f"{value:.1f}" for value in (one.p50, one.p95, one.p99, one.greatest)),
                *(f"{one.cores[role]:.2f}" for role in ROLES),
            )
            for one in found.latencies
        ],
    )
    yield f"Encoder: {found.encoder}. {said(found.moment)}"
    yield "A bare Kafka transaction of three records through confluent-kafka, median milliseconds:\n"
    steps = found.transaction
    yield table(tuple(steps), [tuple(f"{value:.2f}" for value in steps.values())])


def _loading_latency(results: Results) -> Iterator[str]:
    found = results.loading_latency
    if found is None:
        return
    yield "### Latency while a table is loaded\n"
    one = found.latency
    yield table(
        ("transactions/s", "loaded rows/s", "p50 ms", "p95", "p99", "greatest", "cores: daemon", *ROLES[1:]),
        [
            (
                f"{one.rate:,}",
                f"{found.loaded_per_s:,.0f}",
                *(f"{value:.1f}" for value in (one.p50, one.p95, one.p99, one.greatest)),
                *(f"{one.cores[role]:.2f}" for role in ROLES),
            )
        ],
    )
    yield f"Exactly once. Encoder: {found.encoder}. {said(found.moment)}"


def _starts(results: Results) -> Iterator[str]:
    found = results.starts
    if found is None:
        return
    yield "### Start\n"
    starts = {
        "first start, which creates the topics, to the first event": found.starts.first,
        "later start to the first event": found.starts.again,
        "`kill -9` to streaming again, restarted immediately": found.starts.killed,
    }
    spreads = {name: Spread.of(taken) for name, taken in starts.items()}
    yield table(
        ("", "seconds, median", "least", "greatest"),
        [(name, f"{of.median:.2f}", f"{of.least:.2f}", f"{of.greatest:.2f}") for name, of in spreads.items()],
    )
    yield f"Encoder: {found.encoder}. {said(found.moment)}"


def _memory(results: Results) -> Iterator[str]:
    found = results.memory
    if found is None:
        return
    yield "### Transactions that wait for their commit\n"
    yield table(
        ("", "written s", "delivered s", "resident MiB", "on disk MiB"),
        [
            (load, f"{of.written_s:.0f}", f"{of.delivered_s:.0f}", f"{of.resident_mib:.0f}", f"{of.spilled_mib:,.0f}")
            for load, of in found.loads.items()
        ],
    )
    yield f"Rows of 1 KB, `logical_decoding_work_mem` 64 kB. Encoder: {found.encoder}. {said(found.moment)}"


def said(moment: Moment) -> str:
    """Return a sentence about the time of a measurement and the load average."""
    before, after = moment.load_average
    return f"Begun {moment.begun[:16].replace('T', ' ')} UTC; load average {before:.1f} before, {after:.1f} after.\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown. All columns except the first are aligned to the right."""
    right = ["---", *("--:" for _ in head[1:])]
    body = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([body[0], f"|{'|'.join(right)}|", *body[1:], ""])


def _number(value: float | None, style: str) -> str:
    return "" if value is None else format(value, style)
