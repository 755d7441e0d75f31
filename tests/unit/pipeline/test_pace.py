import pytest

from pgsluice.pipeline.pace import Pace


def test_without_a_limit_nobody_waits() -> None:
    pace = Pace(None)
    pace.on_read(10**9, now=5.0)
    assert pace.wait_s(5.0) == 0.0
    assert pace.at_once(20_000) == 20_000


def test_rows_take_their_time() -> None:
    pace = Pace(100)
    assert pace.wait_s(5.0) == 0.0
    pace.on_read(100, now=5.0)
    pace.on_read(50, now=5.5)
    assert pace.wait_s(5.5) == pytest.approx(1.0)
    assert pace.wait_s(7.0) == 0.0


def test_what_was_not_used_is_not_made_up_for() -> None:
    pace = Pace(100)
    pace.on_read(10, now=1000.0)
    assert pace.wait_s(1000.0) == pytest.approx(0.1)


def test_no_more_is_read_at_once_than_in_a_second() -> None:
    assert Pace(100).at_once(20_000) == 100
    assert Pace(100).at_once(7) == 7
