import pytest

from bench.__main__ import DOCUMENT
from bench.debezium import report
from bench.debezium.__main__ import BACKLOGS, RESULTS
from bench.debezium.results import Backlog, Delay, Drained, Live, Restart, Results
from bench.debezium.rows import Digest
from bench.loads import LOADS
from bench.results import Moment

MOMENT = Moment("2026-11-26T01:02:03+00:00", (1.0, 2.0))


def drained(rate: float, peak: float) -> Drained:
    cpu = {"client": 5.04, "walsender": 6.0, "broker": 7.0}
    return Drained(rate, 2 * rate, cpu, {**cpu, "client": 4.0}, peak)


def results() -> Results:
    runs = {"pgsluice": [drained(1000.0, 90.0), drained(3000.0, 100.0)], "Debezium": [drained(500.0, 1200.0)]}
    delay = Delay(1000, 999.6, 10.0, 20.0, 30.04, {"client": 0.5, "broker": 0.25, "walsender": 0.1})
    return Results(
        {"Debezium": "3"},
        0.1,
        {"orders-20": Backlog("Orders", 1_000, MOMENT, {"orders": Digest(1_002, -5)}, runs)},
        Live(MOMENT, {"pgsluice": [delay]}, {"pgsluice": [Restart(0.9, 1.0)]}),
    )


def test_the_document_is_written_from_the_results() -> None:
    """Compare the document with the results. If they differ, run ``python -m bench.debezium --render``."""
    document, results = DOCUMENT.read_text(), Results.read(RESULTS)
    assert results is not None
    assert report.replaced(document, results) == document


def test_a_document_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="markers"):
        report.replaced("# Performance\n", results())


def test_a_backlog_has_a_line_for_each_contender() -> None:
    text = report.markdown(results())
    assert "| pgsluice | 2,000 (1,000 to 3,000) | 4,000 | 5.0 | 4.0 | 6.0 | 7.0 | 100 |" in text
    assert "| Debezium | 500 (500 to 500) | 1,000 | 5.0 | 4.0 | 6.0 | 7.0 | 1,200 |" in text
    assert "and 2 more that mark the beginning and the end of the load. In each of the 3 runs, the row count" in text
    assert "load average 1.0 before, 2.0 after" in text


def test_a_short_run_says_so() -> None:
    assert "| scale | 0.1 times the usual rows and seconds |" in report.markdown(results())


def test_latency_and_restarts_are_one_line() -> None:
    text = report.markdown(results())
    assert "| pgsluice | 1,000 (1,000) | 10.0 | 20.0 | 30.0 | 0.50 | 0.25 | 0.9 | 1.0 |" in text
    assert "Medians of 1 run each." in text


def test_results_that_were_not_measured_are_left_out() -> None:
    part = results()
    part.live = None
    assert "Latency" not in report.markdown(part)


def test_the_loads_of_the_comparison_only_insert() -> None:
    assert not any(LOADS[key].updates for key in BACKLOGS)
