"""Measures when records become visible to a ``read_committed`` consumer, for any producer.

While a contender works, only the last stable offsets are sampled, and no record is fetched. When the contender has
finished, the records are read once. The offset of a record shows in which sample it was visible for the first time.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from bench.servers import TIMEOUT_S

Place = tuple[str, int]
Ends = Mapping[Place, int]
"""The last stable offset of each partition. Records before it are visible."""

EVERY_S = 0.05
STILL_S = 1.0
"""When no offset has moved for ``STILL_S`` seconds, the records are counted."""
READ_TIMEOUT_S = 30.0
METADATA_TIMEOUT_S = 60.0
FETCHED_MAX = 10_000

NOT_YET = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)
"""The errors with which the broker answers while a topic is being created."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The last stable offsets at one moment, and the CPU seconds by role until then."""

    at: float
    ends: Ends
    cpu: Mapping[str, float]

    def count(self, offsets: Mapping[Place, Sequence[int]]) -> int:
        """Return how many of the records at the sorted ``offsets`` were visible."""
        return sum(bisect_left(found, self.ends.get(place, 0)) for place, found in offsets.items())


class Topics:
    """The topics of the tables. Perhaps some of these topics do not exist yet."""

    def __init__(self, bootstrap_servers: str, names: Sequence[str]) -> None:
        self._servers = bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        self._names = names
        self._places: list[Place] = []

    def ends(self) -> Ends:
        """Return the last stable offset of every known partition, or nothing while a topic is being created."""
        if {topic for topic, _ in self._places} < set(self._names):
            known = self._admin.list_topics(timeout=METADATA_TIMEOUT_S).topics
            self._places = [
                (name, number) for name in self._names if name in known for number in known[name].partitions
            ]
        if not self._places:
            return {}
        asked = {TopicPartition(topic, number): OffsetSpec.latest() for topic, number in self._places}
        answers = self._admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED)
        try:
            return {(place.topic, place.partition): answer.result().offset for place, answer in answers.items()}
        except KafkaException as error:
            if error.args[0].code() not in NOT_YET:
                raise
            return {}

    def read(self, ends: Ends) -> Iterator[Message]:
        """Yield the records that a ``read_committed`` consumer sees before the offsets ``ends``."""
        left = {place for place, end in ends.items() if end}
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "bench",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([TopicPartition(topic, number, 0) for topic, number in left])
        while left:
            messages = consumer.consume(FETCHED_MAX, READ_TIMEOUT_S)
            if not messages:
                raise TimeoutError("the records cannot be read")
            for message in messages:
                if message.error() is None:
                    yield message
                elif message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library has no other name for it
                    left.discard((message.topic(), message.partition()))
                else:
                    raise KafkaException(message.error())
        consumer.close()


def watch(topics: Topics, records: int, cpu: Callable[[], Mapping[str, float]]) -> Iterator[list[Sample]]:
    """Sample the topics. Yield the samples so far whenever the topics may have all records.

    The topics may have all records when the offsets are high enough and have stopped moving. Some offsets have no
    record, so the caller has to count the records after each yield. If records are missing, the caller resumes the
    iterator, and the sampling continues.
    """
    samples: list[Sample] = []
    deadline = time.monotonic() + TIMEOUT_S
    moved = time.monotonic()
    while time.monotonic() < deadline:
        sample = Sample(time.monotonic(), topics.ends(), cpu())
        if not samples or sample.ends != samples[-1].ends:
            moved = sample.at
        samples.append(sample)
        if sum(sample.ends.values()) >= records and sample.at - moved > STILL_S:
            yield samples
            moved = sample.at
        time.sleep(max(0.0, EVERY_S - (time.monotonic() - sample.at)))
    raise TimeoutError(f"the topics do not have {records} records: {samples[-1].ends}")


def first(samples: Sequence[Sample], offsets: Mapping[Place, Sequence[int]], records: int) -> Sample:
    """Return the first sample in which at least ``records`` records were visible. Such a sample must exist."""
    return next(sample for sample in samples if sample.count(offsets) >= records)
