"""A server that is shutting down requests a reply again and again, at the same position."""

import pytest

from pgsluice.pipeline import shutdown as module
from pgsluice.pipeline.shutdown import ShutdownWatch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Provide a replacement of the monotonic clock, which the test controls."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_a_second_request_shortly_after_the_first_is_a_sign(clock: list[float]) -> None:
    watch = ShutdownWatch()
    watch.asked(5000)
    assert not watch.suspected
    clock[0] += module.SIGN_S / 2
    watch.asked(5000)
    assert watch.suspected
    assert watch.wal_end == 5000


@pytest.mark.parametrize(("wal_end", "after_s"), [(5001, module.SIGN_S / 2), (5000, 2 * module.SIGN_S)])
def test_a_request_at_another_position_or_much_later_is_not_a_sign(
    clock: list[float], wal_end: int, after_s: float
) -> None:
    watch = ShutdownWatch()
    watch.asked(5000)
    clock[0] += after_s
    watch.asked(wal_end)
    assert not watch.suspected
    assert watch.wal_end == wal_end


def test_a_shutdown_is_overdue_after_a_long_wait(clock: list[float]) -> None:
    watch = ShutdownWatch()
    assert not watch.overdue
    for _ in range(2):
        watch.asked(5000)
    clock[0] += module.PATIENCE_S / 2
    watch.asked(5000)  # the server continues to request replies
    assert not watch.overdue
    clock[0] += module.PATIENCE_S
    assert watch.overdue
