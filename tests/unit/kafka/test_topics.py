"""Requests about topics without a broker. tests/integration/test_kafka_topics.py tests everything else."""

from threading import Event

import pytest

from pgsluice.errors import SinkUnavailable
from pgsluice.kafka import topics as module
from pgsluice.kafka.client import ClientOptions
from pgsluice.kafka.topic_spec import TopicSpec
from pgsluice.kafka.topics import Topics

NOBODY = ClientOptions({"bootstrap.servers": "127.0.0.1:9"}, "pgsluice-test")


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 1.0)
    topics = Topics(NOBODY, Event())
    with pytest.raises(SinkUnavailable, match=r"^Asking Kafka for its brokers: .*last reported: .*Connection refused"):
        topics.brokers()


def test_whoever_gives_up_is_not_kept_waiting() -> None:
    given_up = Event()
    given_up.set()
    topics = Topics(NOBODY, given_up)
    for call in (lambda: topics.ensure(TopicSpec("t", 1)), lambda: topics.next_offsets([("t", 0)])):
        with pytest.raises(SinkUnavailable, match="abandoned because the session ends"):
            call()


def test_nothing_has_to_be_asked_about_nothing() -> None:
    topics = Topics(NOBODY, Event())
    assert topics.describe([]) == {}
    assert topics.next_offsets([]) == {}
