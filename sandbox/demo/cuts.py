"""A consumer that knows only pgsluice's wire contract. It uses Confluent's client, Avro and the registry's API.

The consumer reads cut by cut. The cut record has the end offset of the cut in each partition. So every cut that the
consumer yields consists of whole PostgreSQL transactions, across all topics, in commit order. ``watch`` uses this
module.

https://docs.confluent.io/platform/current/clients/confluent-kafka-python/html/index.html
"""

import time
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.serialization import MessageField, SerializationContext

from sandbox.demo.events import Cut, Event, Json
from sandbox.errors import SandboxError

with warnings.catch_warnings(record=True):  # a library of the client warns about another library at each start
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer

BATCH = 500
POLL_S = 0.5

Place = tuple[str, int]
"""A topic and a partition."""


class CutReader:
    """Reads all cuts, beginning with the first.

    ``check`` is called while no records arrive. If it finds out why no records arrive, it raises an error.
    """

    def __init__(self, bootstrap_servers: str, registry_url: str, prefix: str, check: Callable[[], None]) -> None:
        self._check = check
        self._cuts_topic = f"{prefix}.transactions"
        self._deserialize = AvroDeserializer(SchemaRegistryClient({"url": registry_url}))
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": f"{prefix}-demo",  # the client requires a group, although no offsets are committed
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
            }
        )
        self._consumer.assign([TopicPartition(self._cuts_topic, 0, OFFSET_BEGINNING)])
        self._positions: dict[Place, int] = {}
        self._waiting: deque[Json] = deque()
        self._events: defaultdict[Place, deque[tuple[int, Event]]] = defaultdict(deque)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self, limit_s: float) -> Iterator[Cut]:
        """Yield cuts as they become complete. Raise SandboxError if the caller still wants cuts after ``limit_s``."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            messages = self._consumer.consume(BATCH, POLL_S)
            for message in messages:
                self._take(message)
            while self._waiting and self._is_complete(self._waiting[0]):
                yield self._collect(self._waiting.popleft())
            if not messages:
                self._check()
        raise SandboxError(f"the expected records did not come from Kafka within {limit_s:g} s")

    def _take(self, message: Message) -> None:
        topic, offset = message.topic(), message.offset()
        assert topic is not None, "only errors of the client itself have no topic"
        assert offset is not None, "only errors of the client itself have no offset"
        place = (topic, message.partition() or 0)
        if (error := message.error()) is not None:
            if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client has no other name for it
                raise KafkaException(error)
            self._positions[place] = offset  # also counts transaction markers, which the client does not return
            return
        value = self._decode(topic, message.value(), MessageField.VALUE)
        if topic == self._cuts_topic:
            self._follow(value)
        else:
            key = self._decode(topic, message.key(), MessageField.KEY)
            self._events[place].append((offset, Event(topic, key, value)))
        self._positions[place] = offset + 1

    def _decode(self, topic: str, data: bytes | None, part: str) -> Any:  # noqa: ANN401 - any Avro value
        try:
            return self._deserialize(data, SerializationContext(topic, part))
        except Exception:
            self._check()  # the registry may be missing because pgsluice, which serves it, has ended
            raise

    def _follow(self, cut: Json) -> None:
        """Remember a cut, and start reading the partitions that no earlier cut has named."""
        self._waiting.append(cut)
        for (topic, partition), offsets in _offsets(cut):
            if (topic, partition) not in self._positions:
                self._positions[topic, partition] = offsets["first"]
                self._consumer.incremental_assign([TopicPartition(topic, partition, offsets["first"])])

    def _is_complete(self, cut: Json) -> bool:
        return all(self._positions[place] >= offsets["next"] for place, offsets in _offsets(cut))

    def _collect(self, cut: Json) -> Cut:
        # A truncate has a copy in every partition of its topic. Keep one copy.
        events: dict[tuple[str, tuple[int, int, int]], Event] = {}
        for place, offsets in _offsets(cut):
            queue = self._events[place]
            while queue and queue[0][0] < offsets["next"]:
                _, event = queue.popleft()
                events[event.topic, event.position] = event
        return Cut(cut, sorted(events.values(), key=lambda event: event.position))


def _offsets(cut: Json) -> Iterator[tuple[Place, Json]]:
    for entry in cut["topics"]:
        for offsets in entry["offsets"]:
            yield (entry["topic"], offsets["partition"]), offsets
