"""Requests about topics if no broker runs. tests/integration/test_kafka_topics.py tests everything else."""

from threading import Event

import pytest

from pgsluice.errors import SinkUnavailable
from pgsluice.kafka import topics as module
from pgsluice.kafka.client import ClientOptions
from pgsluice.kafka.topic_spec import TopicSpec
from pgsluice.kafka.topics import Topics

NOBODY = ClientOptions({"bootstrap.servers": "127.0.0.1:9"}, "pgsluice-test")


def test_requests_without_an_answer_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 1.0)
    topics = Topics(NOBODY, Event())
    with pytest.raises(SinkUnavailable, match=r"^Asking Kafka for its brokers: .*last reported: .*Connection refused"):
        topics.brokers()


def test_a_request_ends_when_the_session_ends() -> None:
    given_up = Event()
    given_up.set()
    topics = Topics(NOBODY, given_up)
    for call in (lambda: topics.ensure(TopicSpec("t", 1)), lambda: topics.next_offsets([("t", 0)])):
        with pytest.raises(SinkUnavailable, match="abandoned because the session ends"):
            call()


def test_without_topics_no_request_is_sent() -> None:
    topics = Topics(NOBODY, Event())
    assert topics.describe([]) == {}
    assert topics.next_offsets([]) == {}
