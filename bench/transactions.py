"""Measures the minimum cost of an exactly-once cut, with a loop of Kafka transactions through confluent-kafka alone.

Like the daemon's transaction for a small cut, each transaction has one data record, one cut record and one checkpoint.
"""

import time
from collections.abc import Callable

from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench.figures import percentile
from sandbox.kafka import Kafka

TOPICS = ("bare.data", "bare.cuts", "bare.checkpoint")
SIZES = (200, 200, 300)
TIMEOUT_S = 30
WARM_UP = 50


def measure(kafka: Kafka, count: int) -> dict[str, float]:
    """Return the median milliseconds of each step and of a whole transaction, over ``count`` transactions."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for made in admin.create_topics([NewTopic(topic, 1) for topic in TOPICS], operation_timeout=TIMEOUT_S).values():
        made.result()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "bare", "linger.ms": 0})
    producer.init_transactions(TIMEOUT_S)
    steps = _steps(producer, admin)
    taken: dict[str, list[float]] = {name: [] for name in [*steps, "all"]}
    for _ in range(WARM_UP + count):
        begin = now = time.monotonic()
        for name, step in steps.items():
            step()
            before, now = now, time.monotonic()
            taken[name].append((now - before) * 1000)
        taken["all"].append((now - begin) * 1000)
    for deleted in admin.delete_topics(list(TOPICS), operation_timeout=TIMEOUT_S).values():
        deleted.result()
    return {name: percentile(values[WARM_UP:], 50) for name, values in taken.items()}


def _steps(producer: Producer, admin: AdminClient) -> dict[str, Callable[[], object]]:
    place = TopicPartition(TOPICS[0], 0)

    def produce() -> None:
        for topic, size in zip(TOPICS, SIZES, strict=True):
            producer.produce(topic, bytes(size), b"key", 0)

    def list_offsets() -> None:
        asked = {place: OffsetSpec.latest()}
        for answer in admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED).values():
            answer.result()

    return {
        "begin": producer.begin_transaction,
        "produce": produce,
        "flush": lambda: producer.flush(TIMEOUT_S),
        "list offsets": list_offsets,
        "commit": lambda: producer.commit_transaction(TIMEOUT_S),
    }
