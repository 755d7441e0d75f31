"""Unit tests of pgsluice_spark.progress."""

from pgsluice_spark.cuts import Cut, TopicCut
from pgsluice_spark.progress import Progress


def cut(number: int, ts_us: int | None, **counts: int) -> Cut:
    return Cut(number, 1, number * 100, ts_us, number * 2, 0, 1, {"a": TopicCut("id", {}, counts)})


def test_the_applied_cuts_are_reported() -> None:
    found = Progress.of([cut(3, 1_000_000, c=2), cut(4, 5_000_000, u=1), cut(5, None)], 1, 2.04, now_s=7.5)
    assert found == Progress(first_cut=3, last_cut=5, end_lsn=500, events=3, topics=1, seconds=2.04, lag_s=2.5)
    assert str(found) == "cuts 3 to 5 applied: 3 changes in 1 topics, 2.0 s; the last transaction is 2.5 s old"


def test_the_lag_is_unknown_without_times() -> None:
    found = Progress.of([cut(3, None)], 0, 0.1, now_s=7.5)
    assert found.lag_s is None
    assert str(found) == "cuts 3 to 3 applied: 0 changes in 0 topics, 0.1 s"


def test_a_clock_that_is_behind_causes_no_negative_lag() -> None:
    assert Progress.of([cut(3, 9_000_000)], 0, 0.1, now_s=7.5).lag_s == 0
