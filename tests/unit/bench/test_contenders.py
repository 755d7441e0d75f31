import pytest

from bench.__main__ import KINDS
from bench.contenders import RecvLogical, contenders, count_events, pause_s


@pytest.mark.parametrize(
    ("elapsed_s", "done", "seconds"),
    [
        (1.0, 0, 0.06),  # the duration is not known yet
        (10.0, 0, 0.15),
        (1.0, 500, 0.25),  # far from the end
        (1.0, 900, 1 / 18),  # half of the remaining time
        (1.0, 999, 0.01),
    ],
)
def test_progress_is_queried_rarely_until_the_end_is_near(elapsed_s: float, done: int, seconds: float) -> None:
    assert pause_s(elapsed_s, done, 1000) == pytest.approx(seconds)


def test_events_of_all_kinds_are_counted() -> None:
    metrics = (
        'pgsluice_events_total{op="c"} 7.0\npgsluice_events_total{op="u"} 3.0\npgsluice_cuts_total{kind="data"} 9.0\n'
    )
    assert count_events(metrics) == 10


def test_the_daemon_takes_part_once_with_each_encoder() -> None:
    found = [one.name for one in contenders(KINDS, {"compiled": {}, "Python": {}})]
    assert found[0] == "drain"
    assert ("pg_recvlogical" in found) == (RecvLogical.version() is not None)
    kinds = ("exactly once", "at least once", "discard", "loading")
    assert [name for name in found if "," in name] == [
        f"{kind}, {encoder}" for kind in kinds for encoder in ("compiled", "Python")
    ]


def test_only_the_requested_contenders_take_part() -> None:
    assert [one.name for one in contenders(["discard"], {"Python": {}})] == ["discard, Python"]
