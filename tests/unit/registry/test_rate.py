"""Unit tests of pgsluice.registry.rate."""

from pgsluice.registry.rate import VERSIONS_MAX, WINDOW_S, VersionRate


def test_each_subject_is_reported_once_per_window() -> None:
    now = 1000.0
    rate = VersionRate(lambda: now)
    assert [rate.is_exceeded("a") for _ in range(VERSIONS_MAX + 3)] == [False] * VERSIONS_MAX + [True, False, False]
    assert not rate.is_exceeded("b")
    now += WINDOW_S
    assert [rate.is_exceeded("a") for _ in range(VERSIONS_MAX + 1)] == [False] * VERSIONS_MAX + [True]
