import pytest

from pgsluice.pipeline.pace import LEAST_ROWS, SLOW_S, Pace


def test_without_a_limit_there_is_no_pause() -> None:
    pace = Pace(None)
    pace.on_read(10**9, now=5.0)
    assert pace.wait_s(5.0) == 0.0
    assert pace.at_once(20_000) == 20_000


def test_the_next_read_waits_as_long_as_the_rows_so_far_require() -> None:
    pace = Pace(100)
    assert pace.wait_s(5.0) == 0.0
    pace.on_read(100, now=5.0)
    pace.on_read(50, now=5.5)
    assert pace.wait_s(5.5) == pytest.approx(1.0)
    assert pace.wait_s(7.0) == 0.0


def test_time_without_reads_does_not_allow_a_higher_rate() -> None:
    pace = Pace(100)
    pace.on_read(10, now=1000.0)
    assert pace.wait_s(1000.0) == pytest.approx(0.1)


def test_a_chunk_has_at_most_the_rows_of_one_second() -> None:
    assert Pace(100).at_once(20_000) == 100
    assert Pace(100).at_once(7) == 7


@pytest.mark.parametrize(
    ("held_s", "read_s", "rows"),
    [
        (0.30, 0.25, 10_000),  # reading alone takes too long, so fewer rows are read
        (0.06, 0.04, 20_000),  # reading does not take too long
        (1.00, 0.45, 20_000),  # other work takes longer, and fewer rows would not change that
        (0.00, 0.50, 20_000),  # no transaction has waited
        (0.02, 0.50, 20_000),  # transactions have waited only at the end
    ],
)
def test_chunks_shrink_while_changes_wait_for_them(held_s: float, read_s: float, rows: int) -> None:
    pace = Pace(None)
    pace.on_round(held_s, read_s)
    assert pace.at_once(20_000) == rows


def test_a_chunk_does_not_shrink_below_a_thousand_rows() -> None:
    pace = Pace(None)
    for _ in range(100):
        pace.on_round(9.0, 8.0)
    assert pace.at_once(20_000) == LEAST_ROWS
    assert pace.at_once(7) == 7


@pytest.mark.parametrize(("held_s", "read_s"), [(0.03, 0.01), (0.0, 8.0)])
def test_chunks_grow_again_if_reading_is_quick_or_nothing_waits(held_s: float, read_s: float) -> None:
    pace = Pace(None)
    pace.on_round(9.0, 8.0)
    for _ in range(3):
        pace.on_round(held_s, read_s)
    assert pace.at_once(20_000) == 20_000


def test_chunks_shrink_after_a_timeout_until_reading_is_quick_again() -> None:
    pace = Pace(None)
    pace.on_timeout()
    assert pace.at_once(20_000) == 5_000
    pace.on_timeout()
    assert pace.at_once(20_000) == 1_250
    pace.on_round(0.0, SLOW_S)
    assert pace.at_once(20_000) == 1_250
    for expected in (2_500, 5_000, 10_000, 20_000, 20_000):
        pace.on_round(0.0, SLOW_S / 2)
        assert pace.at_once(20_000) == expected


def test_one_row_is_always_read() -> None:
    pace = Pace(None)
    for _ in range(100):
        pace.on_timeout()
    assert pace.at_once(20_000) == 1
