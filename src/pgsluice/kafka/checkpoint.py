"""The last committed checkpoint, read back from the compacted ``<prefix>.checkpoint`` topic.

It is the one thing that decides where a session goes on, so the read has to be complete: up to the high
watermark, which an ordinary read_committed reader does not see while somebody's transaction is open.
"""

import threading
import time

from confluent_kafka import Consumer, TopicPartition

from pgsluice.errors import SinkUnavailable, UnavailableError
from pgsluice.kafka.topics import Topics
from pgsluice.librdkafka import PARTITION_EOF, ClientOptions, failure
from pgsluice.progress import Checkpoint

FIRST_WINDOW = 64
"""Records read from the end at first: a checkpoint and its commit marker take two offsets."""

_POLL_S = 0.2


def read_checkpoint(
    options: ClientOptions, topics: Topics, topic: str, *, patience_s: float, given_up: threading.Event
) -> Checkpoint | None:
    """Return the last committed checkpoint in ``topic``, None when there is none. Blocks.

    SinkUnavailable when Kafka does not answer; UnavailableError when a transaction of another producer stays
    open on the topic for longer than ``patience_s``.
    """
    low, high = topics.bounds(topic, 0)
    consumer = Consumer(
        options.config(
            {
                "group.id": options.client_id,  # required by the constructor; nothing is ever committed under it
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "allow.auto.create.topics": False,
            }
        )
    )
    try:
        window = FIRST_WINDOW
        while True:
            start = max(low, high - window)
            found = _last_record(consumer, topic, start, high, _Limit(patience_s, given_up))
            if found is not None or start == low:
                return Checkpoint.from_json(found) if found is not None else None
            window *= 16
    finally:
        consumer.close()


class _Limit:
    """How long one read may take; raises when it is over."""

    def __init__(self, patience_s: float, given_up: threading.Event) -> None:
        self._deadline = time.monotonic() + patience_s
        self._given_up = given_up

    def check(self, topic: str, position: int, high: int) -> None:
        if self._given_up.is_set():
            raise SinkUnavailable(f"Reading {topic} was given up because the session ends.")
        if time.monotonic() > self._deadline:
            raise UnavailableError(
                f"{topic} cannot be read beyond offset {position} (its end is {high}): another producer "
                "keeps a "
                "transaction open on it, or its leader does not answer. Find it with kafka-transactions.sh "
                "find-hanging and end it; only pgsluice may write to this topic."
            )


def _last_record(consumer: Consumer, topic: str, start: int, high: int, limit: _Limit) -> bytes | None:
    """Return the value of the last committed record from ``start`` to ``high``."""
    last: bytes | None = None
    position = start
    consumer.assign([TopicPartition(topic, 0, start)])
    while position < high:
        message = consumer.poll(_POLL_S)
        if message is None:
            limit.check(topic, position, high)
            continue
        error = message.error()
        if error is None:
            last = message.value()
            position = message.offset() + 1
        elif error.code() == PARTITION_EOF:
            # Behind commit markers, but not behind an open transaction: there it stays below the high
            # watermark.
            position = max(position, message.offset())
            limit.check(topic, position, high)
        elif not error.retriable():
            raise failure(error, f"Reading {topic}")
    return last
