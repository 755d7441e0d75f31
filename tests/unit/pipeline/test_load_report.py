from typing import Any

import pytest
import structlog

from pgsluice.pipeline.load_report import SAY_S, SHOWN_MAX, STATES, LoadReport, LoadWatch, TableReport

TABLES = [
    TableReport("public.done", "loaded", 100, 90),
    TableReport("public.queued", "waiting", 0, 1000),
    TableReport("public.at_work", "loading", 300, 400),
    TableReport("public.larger", "loading", 20, 10),
    TableReport("public.locked", "blocked", 0, 50, "lock timeout"),
    TableReport("public.odd", "left_out", 0, 70, "no key"),
    TableReport("public.altered", "stale", 30, is_stale=True),
    TableReport("public.audit", "skipped", 0, 80),
    TableReport("public.former", "assumed"),
]


def test_only_tables_that_have_to_be_read_are_counted() -> None:
    report = LoadWatch().report(TABLES, 5.0)
    states = {
        "waiting": 1,
        "loading": 2,
        "blocked": 1,
        "left_out": 1,
        "stale": 1,
        "skipped": 1,
        "assumed": 1,
        "loaded": 1,
    }
    assert report.tables == states
    assert report.rows == 100 + 300 + 20
    assert report.estimated_rows == 100 + 1000 + 400 + 20 + 50
    assert report.unfinished == 4
    assert [one.table for one in report.named] == [
        f"public.{name}" for name in ("at_work", "larger", "locked", "queued", "odd", "altered")
    ]
    assert (report.rows_per_s, report.seconds_left) == (0, None)


def test_every_state_is_counted_and_few_tables_are_named() -> None:
    report = LoadWatch().report([TableReport(str(number), "waiting") for number in range(1000)], 5.0)
    assert set(report.tables) == set(STATES)
    assert len(report.named) == SHOWN_MAX


def loading(rows: int, *, is_loaded: bool = False) -> list[TableReport]:
    return [TableReport("t", "loaded" if is_loaded else "loading", rows, 10_000)]


def look(watch: LoadWatch, tables: list[TableReport], now: float) -> tuple[LoadReport, list[dict[str, Any]]]:
    with structlog.testing.capture_logs() as said:
        report = watch.report(tables, now)
        watch.say(report, now)
    return report, [dict(one) for one in said]


def test_progress_is_logged_at_the_beginning_every_minute_and_at_the_end() -> None:
    watch = LoadWatch()
    assert look(watch, [], 1.0)[1] == []
    (begin,) = look(watch, loading(0), 10.0)[1]
    assert (begin["event"], begin["tables"], begin["estimated_rows"]) == ("tables are to be loaded", 1, 10_000)
    assert look(watch, loading(500), 10.0 + SAY_S / 2)[1] == []
    (minute,) = look(watch, loading(1200), 10.0 + SAY_S)[1]
    assert minute["event"] == "tables are being loaded"
    assert (minute["rows"], minute["rows_per_second"], minute["seconds_left"]) == (1200, 20, 440)
    (end,) = look(watch, loading(2000, is_loaded=True), 100.0)[1]
    assert (end["event"], end["rows"], end["seconds"]) == ("tables are loaded", 2000, 90)
    assert look(watch, loading(2000, is_loaded=True), 200.0)[1] == []


def test_nothing_is_logged_while_all_tables_are_blocked() -> None:
    watch, blocked = LoadWatch(), [TableReport("t", "blocked", 0, 10_000, "no right")]
    assert look(watch, blocked, 1.0)[1] == []
    (begin,) = look(watch, loading(0), 10.0)[1]
    assert begin["event"] == "tables are to be loaded"
    assert look(watch, blocked, 10.0 + SAY_S)[1] == []
    (later,) = look(watch, [TableReport("t", "blocked", 5, 10_000, "cut off")], 11.0 + SAY_S)[1]
    assert (later["event"], later["rows"]) == ("tables are being loaded", 5)


def test_the_rate_is_that_of_the_last_minutes() -> None:
    watch = LoadWatch()
    for minute, rows in enumerate((0, 6000, 12_000, 12_600)):
        report, _ = look(watch, loading(rows), 10.0 + minute * SAY_S)
    assert report.rows_per_s == pytest.approx((12_600 - 6000) / (2 * SAY_S))


def test_a_load_that_begins_again_has_no_rate() -> None:
    watch = LoadWatch()
    look(watch, loading(500), 10.0)
    report, _ = look(watch, loading(0), 20.0)
    assert (report.rows_per_s, report.seconds_left) == (0, None)
