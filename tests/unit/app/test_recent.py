"""The last minutes of a pipeline, as the status page shows them: rates, open transactions, and the limits of both."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from pgsluice.app.log import RecentWarnings
from pgsluice.app.recent import OPEN_SHOWN, RATE_SAMPLES, SAMPLE_S, SAMPLES_MAX, TOPICS_SHOWN, Recent
from pgsluice.app.status import Status
from pgsluice.config import Settings
from pgsluice.cut import Cut, TopicUse
from pgsluice.metrics import Delivered, Metrics
from pgsluice.pipeline.session import Session
from pgsluice.transaction import Prepared, Transaction


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def recent(settings: Settings, seen: Callable[..., Status], metrics: Metrics) -> Recent:
    return Recent(settings, seen(None), metrics, RecentWarnings())


def deliver(metrics: Metrics, **counts: int) -> None:
    cut = Cut(topics={topic: TopicUse(counts={"c": count}) for topic, count in counts.items()})
    cut.events, cut.transactions, cut.size = sum(counts.values()), 1, 100
    metrics.count_cut(cut, 0.5)


def test_the_overview_is_empty_at_first(recent: Recent) -> None:
    found = recent.overview()
    assert (list(found.lag), list(found.topics), list(found.open), list(found.warnings)) == ([], [], [], [])
    assert found.last_minute == Delivered()
    assert 'topic_prefix = "shop"\n' in found.settings


def test_rates_are_those_of_the_last_minute(recent: Recent, metrics: Metrics) -> None:
    began = time.monotonic() - 2 * RATE_SAMPLES * SAMPLE_S
    deliver(metrics, old=6000, busy=10)
    for number in range(2 * RATE_SAMPLES):
        recent.sample(began + number * SAMPLE_S)
        deliver(metrics, busy=10)
    found = recent.overview()
    assert [(one.topic, one.per_s, one.total) for one in found.topics] == [("busy", 2.0, 260), ("old", 0.0, 6000)]
    assert found.last_minute.cuts == RATE_SAMPLES
    assert found.last_minute.seconds == pytest.approx(RATE_SAMPLES * 0.5)
    assert {value for _, value in found.events_per_s} == {2.0}


def test_the_busiest_of_many_topics_are_shown(recent: Recent, metrics: Metrics) -> None:
    recent.sample(time.monotonic() - 60)
    deliver(metrics, **{f"t{number}": number + 1 for number in range(1000)})
    recent.sample(time.monotonic())
    found = recent.overview()
    assert [one.topic for one in found.topics] == [f"t{999 - number}" for number in range(TOPICS_SHOWN)]
    assert found.more_topics == 1000 - TOPICS_SHOWN


def test_the_curve_is_bounded(recent: Recent) -> None:
    for number in range(2 * SAMPLES_MAX):
        recent.sample(number * SAMPLE_S)
    assert len(recent.overview().lag) == SAMPLES_MAX


def session(**given: object) -> Session:
    """Return an object with the only part of a session that is needed here, its open transactions."""
    return cast("Session", SimpleNamespace(status=SimpleNamespace(**{"own": None, "prepared": [], **given})))


def test_the_age_of_an_open_transaction_counts_from_its_first_sample(
    recent: Recent, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, now_us = recent._status, int((time.time() - 946_684_800) * 1_000_000)
    monkeypatch.setattr(status, "lag", lambda: (0.0, 0))
    status.pipeline.session = session(streamed=[5], prepared=[])
    recent.sample(time.monotonic() - 100)
    prepared = Prepared(6, "gid", 0x10, 0x20, now_us - 50_000_000, has_rows=True)
    own = Transaction(4, 1, now_us), 1_000_000, 3.0
    status.pipeline.session = session(streamed=[5, 7], prepared=[prepared], own=own)
    recent.sample(time.monotonic())
    found = recent.overview().open
    assert [(one.kind, one.xid, round(one.age_s)) for one in found] == [
        ("large", 4, 3),
        ("open", 5, 100),
        ("open", 7, 0),
        ("prepared", 6, 50),
    ]
    assert found[0].detail == "1,000,000 bytes written to Kafka so far"
    assert found[-1].detail == "prepared as gid at 0/10"


def test_many_open_transactions_are_counted(recent: Recent) -> None:
    recent._status.pipeline.session = session(streamed=list(range(100)), prepared=[])
    found = recent.overview()
    assert (len(found.open), found.more_open) == (OPEN_SHOWN, 100 - OPEN_SHOWN)
