"""The probe: a record that a session writes before it reads a topic, so that it can recognise an outdated answer.

A broker that has lost touch with its cluster still answers as the leader, with its last known high watermark. If a
session relied on such an answer, it would continue from an old checkpoint. All in-sync replicas have acknowledged the
probe, so it is in the partition, and an answer without the probe is outdated. The probe's transaction is aborted, so
readers normally do not see the probe.

``tests/integration/test_kafka_outdated.py`` covers this module.

https://kafka.apache.org/documentation/#semantics
"""

import threading
import time
from collections.abc import Collection, Iterable
from contextlib import closing
from uuid import uuid4

import structlog
from confluent_kafka import Consumer, KafkaError, TopicPartition

from pgsluice.errors import SinkUnavailable
from pgsluice.kafka.client import ClientOptions, failure
from pgsluice.kafka.topics import Topics

log = structlog.get_logger(__name__)

OUTDATED_S = 20.0
"""How long we look for the probe. A cluster gives a partition a new leader within ``broker.session.timeout.ms``, 9 s by
default, and new clients find that leader soon."""

LOOK_S = 1.0
"""How long the first attempt may take, including the time to connect. Each further attempt may take twice as long as
the one before it. One second is enough if a follower serves reads, because it gets the probe a moment after the leader.
It is also enough for a distant cluster, where the first answer takes a dozen round trips."""

PAUSE_S = 0.2
"""The pause between two attempts. Each attempt has a new client, which looks up the leader again."""

WINDOW = 64
"""We look for the probe in this many offsets before the high watermark. The probe is followed by the marker of its
transaction, and perhaps by records of other programs, although other programs must not write to these topics."""

_POLL_S = 0.1

_PREFIX = b"mark "
"""The beginning of a probe's value. A probe used to be called a mark, and old probes may still be in Kafka."""


def new_probe() -> bytes:
    """Return the value of a new probe, which is unique."""
    return _PREFIX + uuid4().hex.encode()


def is_probe(value: bytes) -> bool:
    """Return whether a record is a probe.

    Readers can see a probe if a second copy of the previous transaction's marker arrives late and commits the probe.
    """
    return value.startswith(_PREFIX)


class Probe:
    """Finds the probe in the topics that have one. Call :meth:`find` before you read these topics."""

    def __init__(self, options: ClientOptions, given_up: threading.Event) -> None:
        self._options = options
        self._given_up = given_up
        self._ends: dict[str, int] = {}

    def end(self, topic: str) -> int:
        """Return the offset after the probe in ``topic``, or 0 if there is none.

        A read of the topic has to reach this offset.
        """
        return self._ends.get(topic, 0)

    def find(self, value: bytes, topics: Collection[str], admin: Topics) -> None:
        """Find the probe in ``topics``. Raise SinkUnavailable if no broker shows it in time.

        The first attempt uses ``admin``, and all others use new clients.
        """
        deadline, look_s, said = time.monotonic() + OUTDATED_S, LOOK_S, False
        found = self._look(value, topics, admin, look_s)
        while missing := [topic for topic in topics if topic not in found]:
            if not said:
                log.info("a broker does not show a record that was just written: trying again", topic=missing[0])
                said = True
            if self._given_up.wait(PAUSE_S):
                raise SinkUnavailable("Looking for the probe was abandoned because the session ends.")
            if time.monotonic() > deadline:
                raise outdated(missing[0])
            look_s *= 2
            with closing(Topics(self._options, self._given_up)) as fresh:
                found |= self._look(value, missing, fresh, look_s)
        self._ends |= found

    def offset_after(self, value: bytes, topic: str, admin: Topics) -> int | None:
        """Return the offset after a record that this session has just written to ``topic``.

        Return None if the broker does not have the record. The record need not be committed yet.
        """
        return self._look(value, [topic], admin, LOOK_S).get(topic)

    def _look(self, value: bytes, topics: Iterable[str], admin: Topics, look_s: float) -> dict[str, int]:
        """Return the offset after the record with ``value``, for each topic whose broker shows this record."""
        bounds = {topic: admin.bounds(topic, 0) for topic in topics}
        starts = [
            TopicPartition(topic, 0, max(low, high - WINDOW, self.end(topic))) for topic, (low, high) in bounds.items()
        ]
        consumer = self._options.make(Consumer, _properties(self._options))
        try:
            consumer.assign(starts)
            return self._read(consumer, value, len(bounds), look_s)
        finally:
            consumer.close()

    def _read(self, consumer: Consumer, value: bytes, count: int, look_s: float) -> dict[str, int]:
        found: dict[str, int] = {}
        end = time.monotonic() + look_s
        while len(found) < count and time.monotonic() < end and not self._given_up.is_set():
            message = consumer.poll(_POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                if message.value() == value:
                    found[message.topic()] = message.offset() + 1
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # harmless, because we use no group
                raise failure(error, f"Looking for the probe in {message.topic() or 'Kafka'}")
        return found


def outdated(topic: str) -> SinkUnavailable:
    """Return the error for a broker whose view of ``topic`` is outdated."""
    return SinkUnavailable(
        f"The broker that answers for topic {topic} has an outdated view of it: it lacks a record that was just "
        "written. It may have lost touch with its cluster. If pgsluice relied on this answer, it could deliver changes "
        "twice. So the session ends, and a new session asks again. Look at that broker's log and its network."
    )


def _properties(options: ClientOptions) -> dict[str, object]:
    return {
        "group.id": options.client_id,  # the constructor requires a group, but no offset is ever committed
        "isolation.level": "read_uncommitted",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 10,  # every read reaches the end of the topic, where brokers wait this long
        "auto.offset.reset": "earliest",  # retention may have moved the beginning of the topic meanwhile
        "allow.auto.create.topics": False,
    }
