"""A read_committed consumer with default settings, which reports when it saw each row.

The consumer runs in a separate process. It identifies a row by the key of the record, which consists of Confluent's
header (five bytes) and the id as an Avro long.
"""

import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.processes import child_main, say

KEY_HEADER = 5
POLL_S = 0.5
APPEAR_S = 0.01
PATIENCE_S = 15.0
"""If no record arrives for ``PATIENCE_S`` seconds, the reader stops, and the missing rows are considered lost."""


def decode_long(data: bytes, at: int) -> int:
    """Return the zigzag-encoded number at offset ``at``."""
    found = shift = 0
    while True:
        found |= (data[at] & 0x7F) << shift
        if not data[at] & 0x80:
            return (found >> 1) ^ -(found & 1)
        at, shift = at + 1, shift + 7


def main(arguments: dict[str, Any]) -> None:
    """Read ``count`` rows with ids from ``first`` on. Report their ids and times in the order of arrival.

    If ``topic`` does not exist yet, wait for it and read it from its beginning. Otherwise read it from its end.
    """
    servers, topic = arguments["bootstrap_servers"], arguments["topic"]
    known = _partitions(servers, topic)
    consumer = _consumer(servers, topic, known) if known else None
    say(ready=True)
    if consumer is None:
        consumer = _consumer(servers, topic, _wait_for_topic(servers, topic), from_begin=True)
    ids, times = _read(consumer, arguments["first"], arguments["count"], arguments["patience_s"])
    consumer.close()
    say(ids=ids, times=times)


def _consumer(servers: str, topic: str, partitions: list[int], *, from_begin: bool = False) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    places = [TopicPartition(topic, partition, 0) for partition in partitions]
    consumer.assign(places if from_begin else [_end(consumer, place) for place in places])
    return consumer


def _read(consumer: Consumer, first: int, count: int, patience_s: float) -> tuple[list[int], list[float]]:
    ids, times = list[int](), list[float]()
    poll, monotonic, last = consumer.poll, time.monotonic, time.monotonic()
    while len(ids) < count and monotonic() - last < patience_s:
        message = poll(POLL_S)
        if message is None:
            continue
        last = monotonic()
        if message.error() is not None:
            raise KafkaException(message.error())
        number = decode_long(message.key(), KEY_HEADER)
        if number >= first:
            ids.append(number)
            times.append(last)
    return ids, times


def _partitions(servers: str, topic: str) -> list[int]:
    found = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=10).topics.get(topic)
    return [] if found is None else list(found.partitions)


def _wait_for_topic(servers: str, topic: str) -> list[int]:
    admin, deadline = AdminClient({"bootstrap.servers": servers}), time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = admin.list_topics(timeout=10).topics.get(topic)
        if found is not None and found.partitions:
            return list(found.partitions)
        time.sleep(APPEAR_S)
    raise TimeoutError(f"topic {topic} does not appear")


def _end(consumer: Consumer, place: TopicPartition) -> TopicPartition:
    _, high = consumer.get_watermark_offsets(place, timeout=10)
    return TopicPartition(place.topic, place.partition, high)


if __name__ == "__main__":
    child_main(main)
