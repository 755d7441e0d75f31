import pytest

from bench import report
from bench.__main__ import DOCUMENT, RESULTS
from bench.results import (
    DRAIN,
    Latency,
    LatencyResult,
    LoadingLatencyResult,
    LoadResult,
    MemoryResult,
    Part,
    Results,
    Run,
    Starts,
    StartsResult,
    Waiting,
)
from tests.unit.bench.test_results import MOMENT, result

FAST = "exactly once, compiled"
SLOW = "exactly once, Python"
LOADED = "loading, compiled"
CPU_BY_TABLES = "CPU for an event by number of tables, the highest figure compared with the lowest"


def load(title: str, seconds: float, cpu: float, *, series: str = "") -> LoadResult:
    runs = {
        DRAIN: [Run(Part(1.0, 1000, {"client": 0.002, "walsender": 0.006}), None, 30.0)],
        FAST: [Run(Part(seconds, 1000, {"client": cpu, "walsender": 0.005, "broker": 0.004}), None, 90.0)],
        SLOW: [Run(Part(5.0, 1000, {"client": 0.04, "walsender": 0.005, "broker": 0.004}), None, 80.0)],
    }
    if series:
        runs["discard, compiled"] = [Run(Part(seconds, 1000, {"client": 0.004}), None, 70.0)]
    return LoadResult(title, 1000, 200.0, bool(series), series, MOMENT, runs)


def loaded(title: str, rows: int, seconds: float) -> LoadResult:
    cpu = {"client": 0.006, "walsender": 0.002, "broker": 0.003}
    runs = {
        DRAIN: [Run(Part(1.0, rows, {"client": 0.002, "walsender": 0.006}), None, 30.0)],
        FAST: [Run(Part(2.0, rows, cpu), None, 90.0)],
        LOADED: [Run(Part(seconds, rows, cpu), None, 100.0), Run(Part(seconds, rows, cpu), None, 110.2)],
    }
    return LoadResult(title, rows, 200.0, opened=False, series="", moment=MOMENT, runs=runs)


def results() -> Results:
    cores = {"client": 0.1, "walsender": 0.2, "broker": 0.3, "others": 0.4}
    return Results(
        {"processor": "2 x Fast 9000"},
        {
            "orders-20": load("Orders", 1.25, 0.006),
            "tables-1": load("Orders in 1 table", 1.25, 0.006, series="tables"),
            "tables-1000": load("Orders in 1,000 tables", 2.0, 0.009, series="tables"),
            "snapshot": loaded("Orders, loaded", 1000, 2.5),
            "snapshot-tables": loaded("Orders in 1,000 tables, loaded", 100_000, 30.0),
        },
        LatencyResult(
            "compiled",
            MOMENT,
            [
                Latency("exactly_once", 100, 99.9, 2000, 8.25, 15.0, 40.0, 60.0, cores),
                Latency("exactly_once", 5000, 4900.0, 2000, 80.0, 90.0, 95.0, 99.0, cores),
                Latency("at_least_once", 100, 100.0, 2000, 3.0, 5.0, 9.0, 10.0, cores),
            ],
            {"begin": 0.04, "all": 5.5},
        ),
        LoadingLatencyResult(
            "compiled", MOMENT, Latency("exactly_once", 100, 100.0, 2000, 30.0, 99.6, 120.0, 150.0, cores), 80_000.4
        ),
        StartsResult("compiled", MOMENT, Starts([1.5, 1.4, 1.6], [0.9, 1.1, 1.0], [1.9, 1.2, 1.3])),
        MemoryResult("compiled", MOMENT, {"one": Waiting(50, 120, 130.4, 5000), "many": Waiting(40, 90, 150.2, 4000)}),
        ["pg_recvlogical, which is not installed."],
    )


def test_each_contender_has_a_line() -> None:
    drain, slow = report.lines("orders", result())
    assert drain.split()[:5] == ["orders", "drain", "1,000", "1.00", "1.00"]
    assert slow.split()[:6] == ["orders", "slow", "250", "0.25", "0.50", "0.1"]
    assert slow.endswith("(200 to 500)")
    assert len(report.heading()) == len(drain.partition("   (")[0])


def test_goals_are_judged_by_the_fastest_encoder() -> None:
    found = {what: measured for what, _, measured in report.goals(results())}
    assert found == {
        f"Orders: {FAST}, relative to the drain": "0.80",
        f"Orders: {FAST}, CPU of the daemon": "6.0 µs",
        "Latency at 100 transactions a second, exactly once: p50, p95, p99": "8.2, 15.0, 40.0 ms",
        "Latency at 100 transactions a second, at least once: p50": "3.0 ms",
        f"1,000 rows of 10 columns: {LOADED}, relative to {FAST}": "0.80",
        f"1,000 tables of 100 rows: {LOADED}": "30 s at most",
        "Latency at 100 transactions a second while a table is loaded: p95": "100 ms",
        "Memory of the daemon while it loads tables": "110 MiB at most",
        "First start, which creates the topics, to the first event": "1.60 s at most",
        "Later start to the first event": "1.10 s at most",
        "`kill -9` to streaming again": "1.90 s at most",
        f"{CPU_BY_TABLES}: exactly once": "50 % more",
        f"{CPU_BY_TABLES}: discard": "0 % more",
        "Memory of the daemon, in all workloads": "110 MiB at most",
        "Memory of the daemon while transactions wait for their commit": "150 MiB at most",
    }


def test_results_that_were_not_measured_are_left_out() -> None:
    assert list(report.goals(Results({}))) == []
    assert report.markdown(Results({"processor": "one"})).splitlines()[-1] == "| processor | one |"


def test_the_report_has_everything() -> None:
    text = report.markdown(results())
    said = "Begun 2026-01-01 00:00 UTC; load average 0.1 before, 0.2 after."
    for line in (
        "| processor | 2 x Fast 9000 |",
        "Left out: pg_recvlogical, which is not installed.",
        "#### Orders",
        f"| {FAST} | 800 (800 to 800) | 0.80 | 0.80 | 0.2 | 6.0 | 5.0 | 4.0 |  | 90 |",
        f"1,000 rows, 200 bytes each as the server sends them. {said}",
        "#### By the number of tables",
        f"| 1000 (1,000 rows) | {FAST} | 500 (500 to 500) | 0.50 | 0.50 | 0.1 | 9.0 | 5.0 | 4.0 |  | 90 |",
        "| 5,000 (4,900) | exactly once | 80.0 | 90.0 | 95.0 | 99.0 | 0.10 | 0.20 | 0.30 | 0.40 |",
        "| 0.04 | 5.50 |",
        "| 100 | 80,000 | 30.0 | 99.6 | 120.0 | 150.0 | 0.10 | 0.20 | 0.30 | 0.40 |",
        "| `kill -9` to streaming again, restarted immediately | 1.30 | 1.20 | 1.90 |",
        "| one | 50 | 120 | 130 | 5,000 |",
    ):
        assert line in text.splitlines()


def test_only_the_text_between_the_marks_is_replaced() -> None:
    document = f"before\n{report.BEGIN}old\n{report.END}after\n"
    found = report.replaced(document, None)
    assert found == f"before\n{report.BEGIN}\n{report.NOTHING}\n{report.END}after\n"
    assert report.replaced(found, None) == found


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="markers"):
        report.replaced("nothing\n", None)


def test_the_document_is_current() -> None:
    """Compare the document with the results. If they differ, run ``python -m bench --render``."""
    assert DOCUMENT.read_text() == report.replaced(DOCUMENT.read_text(), Results.read(RESULTS))
