import pytest

from bench.__main__ import DOCUMENT
from bench.results import Moment
from bench.spark import report
from bench.spark.__main__ import RESULTS
from bench.spark.results import Audited, AuditResult, DriverResult, Race, Results, Step

MOMENT = Moment("2026-11-26T01:02:03+00:00", (1.0, 2.0))


def results() -> Results:
    return Results(
        {"Spark": "4"},
        {"decode": 0.1, "audit": 1.0},
        decode=Race(1_000, [900.0, 1_100.0], [1_000.0, 1_000.0], MOMENT),
        load=Race(1_000, [150.4], [100.0], MOMENT),
        audit=AuditResult(MOMENT, [Audited("undamaged", 1_000_000, 20.0, 1_234, (0, 0, 0))]),
        driver=DriverResult(MOMENT, [Step(250, 12, 99.6, 200.0)], [Step(250, 2_500, 100.2, 201.0)]),
    )


def test_the_document_is_written_from_the_results() -> None:
    """Compare the document with the results. If they differ, run ``python -m bench.spark --render``."""
    document, found = DOCUMENT.read_text(), Results.read(RESULTS)
    assert found is not None
    assert report.replaced(document, found) == document


def test_a_document_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="the markers around Spark's figures are missing"):
        report.replaced("# Performance\n", results())


def test_a_race_has_both_rates_and_their_ratio() -> None:
    text = report.markdown(results())
    assert (
        "| decoding all events of a topic | 1,000 | 1,000 (900 to 1,100) | 1,000 (1,000 to 1,000) | 1.00 | 0.9 |"
        in text
    )
    assert "| first load of a mirror | 1,000 | 150 (150 to 150) | 100 (100 to 100) | 1.50 | 150,000 rows/s |" in text
    assert "Decoding all events of a topic: 2 runs each. Begun 2026-11-26 01:02 UTC; load average 1.0 before" in text
    assert "updates" not in text


def test_the_line_of_an_audit_names_the_differences() -> None:
    assert "| undamaged | 1,000,000 | 20.0 | 50,000 | 1,234 | 0, 0, 0 |" in report.markdown(results())


def test_memory_is_that_of_each_step() -> None:
    text = report.markdown(results())
    assert "| 250 | 12 | 100 | 200 |\n| 250 | 2,500 | 100 | 201 |" in text


def test_parts_keep_their_own_scales() -> None:
    assert "| scale (1: the usual number of rows) | decode 0.1, audit 1 |" in report.markdown(results())


def test_results_that_were_not_measured_are_left_out() -> None:
    text = report.markdown(Results({"Spark": "4"}))
    assert "####" not in text
