"""The last committed checkpoint, read back from the compacted ``<prefix>.checkpoint`` topic.

It is the one thing that decides where a session goes on, so the read has to be complete: up to the high
watermark, which an ordinary read_committed reader does not see while somebody's transaction is open.
"""

import threading
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, TopicPartition

from pgsluice.errors import SinkUnavailable, UnavailableError
from pgsluice.kafka.topics import Topics
from pgsluice.librdkafka import PARTITION_EOF, ClientOptions, failure
from pgsluice.progress import Checkpoint

FETCH_WAIT_MS = 10
"""How long a broker may wait for more at the end of the topic, where this read always ends: 500 by default."""

FIRST_WINDOW = 64
"""Records read from the end at first: a checkpoint and its commit marker take two offsets."""

WINDOW_FACTOR = 16
"""How much further back the next attempt begins, while there were only aborted records and markers."""

_POLL_S = 0.2


def read_checkpoint(
    options: ClientOptions, topics: Topics, topic: str, *, patience_s: float, given_up: threading.Event
) -> Checkpoint | None:
    """Return the committed checkpoint in ``topic`` that is furthest on, None when there is none. Blocks.

    SinkUnavailable when Kafka does not answer; UnavailableError when a transaction of another producer stays
    open on the topic for longer than ``patience_s``.
    """
    low, high = topics.bounds(topic, 0)
    reader = _Reader(options, topic, high, _Limit(topic, patience_s, given_up))
    try:
        window = FIRST_WINDOW
        while True:
            start = max(low, high - window)
            found = reader.read_from(start)
            if found or start == low:
                return _furthest([Checkpoint.from_json(value) for value in found])
            window *= WINDOW_FACTOR
    finally:
        reader.close()


def _furthest(found: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the last one, unless it came late, from a former owner that nothing fenced (at least once)."""
    ours = [one for one in found if one.pipeline == found[-1].pipeline]
    return max(reversed(ours), key=lambda one: (one.epoch, one.end_lsn), default=None)


class _Limit:
    """How long reading may take; raises when it is over."""

    def __init__(self, topic: str, patience_s: float, given_up: threading.Event) -> None:
        self._topic = topic
        self._deadline = time.monotonic() + patience_s
        self._given_up = given_up

    def check(self, position: int, high: int, *, hidden: bool) -> None:
        """``hidden``: the rest is there, but not to be read."""
        if self._given_up.is_set():
            raise SinkUnavailable(f"Reading {self._topic} was given up because the session ends.")
        if time.monotonic() <= self._deadline:
            return
        if not hidden:
            raise SinkUnavailable(f"Reading {self._topic}: nothing came beyond offset {position} of {high} in time.")
        raise UnavailableError(
            f"{self._topic} cannot be read beyond offset {position} (its end is {high}): another producer keeps a "
            "transaction open on it. Find it with kafka-transactions.sh find-hanging and end it; only pgsluice may "
            "write to this topic."
        )


class _Reader:
    """Reads the topic up to ``high``, committed records only."""

    def __init__(self, options: ClientOptions, topic: str, high: int, limit: _Limit) -> None:
        self._topic = topic
        self._high = high
        self._limit = limit
        self._consumer = options.make(
            Consumer,
            {
                "group.id": options.client_id,  # required by the constructor; nothing is ever committed under it
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
            },
        )

    def close(self) -> None:
        self._consumer.close()

    def read_from(self, start: int) -> list[bytes]:
        """Return the values of the committed records from ``start``."""
        values: list[bytes] = []
        position, hidden = start, False
        self._consumer.assign([TopicPartition(self._topic, 0, start)])
        while position < self._high:
            message = self._consumer.poll(_POLL_S)
            error = message.error() if message is not None else None
            if message is not None and error is None:
                values.append(message.value() or b"")
                position = message.offset() + 1
                continue
            if error is not None and error.code() == PARTITION_EOF:
                # Behind commit markers, but not behind an open transaction: there it stays below the end.
                position, hidden = max(position, message.offset()), True
            elif error is not None and error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # we use no group
                raise failure(error, f"Reading {self._topic}")
            self._limit.check(position, self._high, hidden=hidden)
        return values
