"""Reads the last committed records of a topic with one partition, up to its high watermark.

A session uses this module to read checkpoints and cut records, in order to find out where to continue. An ordinary
read_committed reader would not be enough, because the open transaction of another producer hides all later records.

``tests/integration/test_kafka_checkpoint.py`` covers this module.
"""

import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import structlog
from confluent_kafka import Consumer, KafkaError, TopicPartition

from pgsluice.errors import PgsluiceError, SinkUnavailable, UnavailableError
from pgsluice.kafka.client import PARTITION_EOF, ClientOptions, failure
from pgsluice.kafka.probe import is_probe, outdated
from pgsluice.kafka.topics import Topics

log = structlog.get_logger(__name__)

FETCH_WAIT_MS = 10
"""How long a broker may wait for more records before it answers. A read always ends at the end of the topic, where the
default of 500 ms would delay it."""

FIRST_WINDOW = 64
"""The first attempt reads this many offsets before the end of the topic. A record and its commit marker take two
offsets."""

WINDOW_FACTOR = 16
"""For each further attempt, the number of offsets is multiplied by this factor."""

SAY_S = 5.0
"""If a read takes longer than this, the log says why it waits. Usually a read takes milliseconds."""

RENEW_S = 5.0
"""A consumer of this age is replaced as soon as a poll returns no record. The broker that it reads from may have lost
touch with the cluster, and may therefore lack the latest records."""

_POLL_S = 0.2


class Tail:
    """One read of the last records of a topic. It takes at most ``patience_s``. Every method blocks.

    A ``complete`` read waits for an open transaction to end. Any other read ends before the first record of the open
    transaction. The topic is known to have records up to ``reach``, so a broker without them is outdated.
    """

    def __init__(  # noqa: PLR0913 - the arguments are the clients of a session, and the options of this read
        self,
        options: ClientOptions,
        topics: Topics,
        topic: str,
        *,
        patience_s: float,
        given_up: threading.Event,
        complete: bool = True,
        reach: int = 0,
    ) -> None:
        self.topic = topic
        self.offset = -1
        self.key: bytes | None = None
        """The key of the record that was yielded last. ``offset`` is the offset of this record."""
        self._complete = complete
        self.low, self.high = topics.bounds(topic, 0)
        self.high = max(self.high, reach)
        self._topics = topics
        self._given_up = given_up
        self._say_at = time.monotonic() + SAY_S
        self._deadline = time.monotonic() + patience_s
        self._said = False
        self._options = options
        self._renew_at = time.monotonic() + RENEW_S
        self._consumer = self._make_consumer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._consumer.close()

    def _make_consumer(self) -> Consumer:
        return self._options.make(
            Consumer,
            {
                "group.id": self._options.client_id,  # the constructor requires a group, but no offset is committed
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
            },
        )

    def windows(self) -> Iterator[Iterator[bytes]]:
        """Yield iterators over the values of the last records of the topic.

        Each iterator begins further back than the one before it, and ends at the end of the topic. The last iterator
        has all records. Raise SinkUnavailable if Kafka does not answer, and UnavailableError if a transaction of
        another producer stays open.
        """
        window = FIRST_WINDOW
        while True:
            start = max(self.low, self.high - window)
            yield self._values_from(start)
            if start == self.low:
                return
            window *= WINDOW_FACTOR

    def _values_from(self, start: int) -> Iterator[bytes]:
        position, hidden = start, False
        self._consumer.assign([TopicPartition(self.topic, 0, start)])
        while position < self.high:
            message = self._consumer.poll(_POLL_S)
            error = message.error() if message is not None else None
            if message is not None and error is None:
                position, hidden = message.offset() + 1, False
                value = message.value() or b""
                if not is_probe(value):
                    self.offset, self.key = message.offset(), message.key()
                    yield value
                continue
            if error is not None and error.code() == PARTITION_EOF:
                # A read_committed reader gets this event either at the end of the partition (behind all commit
                # markers), or at the beginning of the first open transaction.
                position, hidden = max(position, message.offset()), True
                if not self._complete:
                    return
            # A missing right to the group is harmless, because we use no group.
            elif error is not None and error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise failure(error, f"Reading {self.topic}")
            self._check_patience(position, hidden=hidden)
            if time.monotonic() > self._renew_at:
                self._renew(position)

    def _renew(self, position: int) -> None:
        """Continue with a new consumer, which asks again for the leader, because the former broker may be outdated."""
        self._consumer.close()
        self._consumer = self._make_consumer()
        self._consumer.assign([TopicPartition(self.topic, 0, position)])
        self._renew_at = time.monotonic() + RENEW_S

    def _check_patience(self, position: int, *, hidden: bool) -> None:
        """Raise an error if the read has taken too long.

        ``hidden`` means that the broker shows no records beyond ``position``, although the topic has some.
        """
        if self._given_up.is_set():
            raise SinkUnavailable(f"Reading {self.topic} was abandoned because the session ends.")
        now = time.monotonic()
        if now > self._say_at and not self._said:
            self._said = True
            reason = "another producer's transaction is open on it" if hidden else "Kafka does not answer"
            log.warning("reading waits", topic=self.topic, position=position, end=self.high, reason=reason)
        if now <= self._deadline:
            return
        if not hidden:
            raise SinkUnavailable(
                f"Reading {self.topic}: nothing came beyond offset {position} of {self.high} in time."
            )
        raise self._why_hidden(position)

    def _why_hidden(self, position: int) -> PgsluiceError:
        """Return why nothing can be read beyond ``position``. Raise an error if Kafka does not answer."""
        fresh, partition = Topics(self._options, self._given_up), (self.topic, 0)
        try:
            _, end = fresh.bounds(*partition)
            stable = fresh.stable_offsets([partition])[partition]
        finally:
            fresh.close()
        if end < self.high or stable >= self.high:
            return outdated(self.topic)
        return UnavailableError(
            f"{self.topic} cannot be read beyond offset {position} (its end is {self.high}): another producer keeps a "
            "transaction open on it. Find it with kafka-transactions.sh find-hanging and end it. Only pgsluice may "
            "write to this topic."
        )
