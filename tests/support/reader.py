"""A consumer that implements the wire contract without any code of pgsluice. It uses Confluent's client.

The consumer reads committed records only. For each cut record in ``<prefix>.transactions``, it reads every partition
that the cut record lists, up to the listed offset ``next``. It decodes records with Confluent's deserializer and the
registry that the daemon serves.
"""

import json
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from io import BytesIO
from operator import itemgetter
from typing import Any

import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

POLL_S = 0.1
"""How long a call of the consumer waits for messages, unless a whole batch is available earlier."""
BATCH = 2000
TIMEOUT_S = 180
METADATA_TIMEOUT_S = 15

SERVICE_TOPICS = ("transactions", "checkpoint", "schemas", "snapshots", "commands")

CONSUMER = {
    "group.id": "reader",  # required but not used, because partitions are assigned, and offsets are never committed
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "enable.partition.eof": True,  # the only way to learn the position after a transaction's marker
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 50,
    "fetch.message.max.bytes": 128 * 1024 * 1024,
    "receive.message.max.bytes": 512 * 1024 * 1024,
}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Place = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True)
class Event:
    """One record of a table's topic, or of the topic of messages. If ``value`` is None, the record is a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key_bytes: bytes | None
    key: dict[str, Any] | None
    key_schema: dict[str, Any] | None
    value: dict[str, Any] | None
    schema: dict[str, Any] | None
    """The schema of the value in the registry."""
    schema_id: int | None
    value_bytes: bytes | None

    @cached_property
    def position(self) -> tuple[int, int, int]:
        """The position of the event. Positions order and identify events."""
        value = self.value or {}
        return value["epoch"], value["lsn"], value["seq"]

    @property
    def op(self) -> str:
        """The operation under which a cut record counts the event. It is "m" for messages, which have no ``op``."""
        assert self.value is not None, "a tombstone is not counted"
        return str(self.value.get("op", "m"))

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - whatever the schema defines
        assert self.value is not None, "a tombstone has no fields"
        return self.value[name]

    def __repr__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset} {self.value and {'key': self.key, **self.value}}"


@dataclass
class Cut:
    """One cut record, which may consist of several parts, with the records that it lists."""

    record: dict[str, Any]
    events: list[Event] = field(default_factory=list)

    @property
    def offsets(self) -> dict[Place, tuple[int, int]]:
        """The first offset and the end offset of every listed partition."""
        return {
            (topic["topic"], entry["partition"]): (entry["first"], entry["next"])
            for topic in self.record["topics"]
            for entry in topic["offsets"]
        }


class Reader:
    """Reads one pipeline from the beginning. Every call continues where the last one ended."""

    def __init__(
        self, bootstrap_servers: str, registry_url: str, prefix: str, on_silence: Callable[[], None] = lambda: None
    ) -> None:
        """Read the topics under ``prefix``. ``on_silence`` is called after each poll, and may raise an error."""
        self.prefix = prefix
        self._on_silence = on_silence
        self.registry = SchemaRegistryClient({"url": registry_url})
        strategy = {"subject.name.strategy": topic_subject_name_strategy}
        self._deserialize = AvroDeserializer(self.registry, conf=strategy)
        self._schemas: dict[int, Any] = {}
        config = {**CONSUMER, "bootstrap.servers": bootstrap_servers}
        self._transactions = Consumer(config)
        self._transactions.assign([TopicPartition(f"{prefix}.transactions", 0, OFFSET_BEGINNING)])
        self._rows = Consumer(config)
        self._next: dict[Place, int] = {}
        """The offset up to which each partition was read."""
        self._partitions: dict[str, int] = {}
        """A cache of the numbers of partitions, by topic. ``read_until`` and ``read_rest`` clear it."""

    def close(self) -> None:
        """Close the connections."""
        self._transactions.close()
        self._rows.close()
        self.registry.close()

    def read_until(self, lsn: int) -> list[Cut]:
        """Return all cuts up to the first one that ends at or after ``lsn``, with their records."""
        cuts = self._cuts(lsn)
        self._fill(cuts)
        self._partitions.clear()
        return cuts

    def topics(self) -> set[str]:
        """Return the existing topics except for the service topics. They are cached as in :meth:`partitions`."""
        services = {f"{self.prefix}.{name}" for name in SERVICE_TOPICS}
        return {topic for topic in self._counts() if topic.startswith(f"{self.prefix}.")} - services

    def schemas(self) -> list[dict[str, Any]]:
        """Return the records of ``<prefix>.schemas``, in order."""
        place = TopicPartition(f"{self.prefix}.schemas", 0, 0)
        end = self._rows.get_watermark_offsets(place, timeout=METADATA_TIMEOUT_S)[1]
        self._rows.assign([place])
        values: list[dict[str, Any]] = []
        next_offset = 0
        while next_offset < end:
            for message in self._messages(self._rows, BATCH, f"{place} has not been read to {end}"):
                next_offset = message.offset() + (message.error() is None)
                if message.error() is None:
                    values.append(json.loads(message.value()))
        return values

    def partitions(self, topic: str) -> int:
        """Return the number of a topic's partitions.

        The numbers for all topics are fetched in one request. ``read_until`` and ``read_rest`` clear this cache.
        """
        return self._counts()[topic]

    def _counts(self) -> dict[str, int]:
        if not self._partitions:
            found = self._rows.list_topics(timeout=METADATA_TIMEOUT_S).topics
            self._partitions = {name: len(one.partitions) for name, one in found.items()}
        return self._partitions

    def read_rest(self) -> list[Event]:
        """Return the records that no cut has listed so far. If the source is idle, there should be no such records."""
        self._partitions.clear()
        places = [(topic, partition) for topic in self.topics() for partition in range(self.partitions(topic))]
        ends = dict.fromkeys(places, 0)
        self._rows.assign([TopicPartition(*place, self._next.get(place, 0)) for place in places])
        rest = []
        while ends:
            for message in self._rows.consume(BATCH, POLL_S):
                if message.error() is None:
                    rest.append(self._event(message))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    ends.pop((message.topic(), message.partition()), None)
        return rest

    def _cuts(self, lsn: int) -> list[Cut]:
        cuts: list[Cut] = []
        parts: list[dict[str, Any]] = []
        while not cuts or cuts[-1].record["end_lsn"] < lsn:
            for message in self._messages(self._transactions, 1, f"no cut reached {lsn:X}"):
                if message.error() is None:
                    parts.append(self._decode(message.topic(), MessageField.VALUE, message.value()))
                    if len(parts) == parts[-1]["parts"]:
                        cuts.append(Cut(_joined(parts)))
                        parts = []
        return cuts

    def _fill(self, cuts: list[Cut]) -> None:
        """Read all listed partitions up to their last ``next``, and assign each record to its cut."""
        wanted: dict[Place, int] = {}
        owners: dict[Place, list[tuple[int, Cut]]] = defaultdict(list)
        for cut in cuts:
            for place, (_, following) in cut.offsets.items():
                wanted[place] = following
                owners[place].append((following, cut))
        for event in self._read(wanted):
            place = event.topic, event.partition
            _, cut = owners[place][bisect_right(owners[place], event.offset, key=itemgetter(0))]
            cut.events.append(event)
        self._next |= wanted

    def _read(self, wanted: dict[Place, int]) -> Iterator[Event]:
        """Yield the unread records of each partition in ``wanted``, up to the partition's offset in ``wanted``."""
        open_places = {place: end for place, end in wanted.items() if end > self._next.get(place, 0)}
        self._rows.assign([TopicPartition(*place, self._next.get(place, 0)) for place in open_places])
        while open_places:
            for message in self._messages(self._rows, BATCH, f"unread: {open_places}"):
                place = message.topic(), message.partition()
                if place not in open_places:
                    continue
                at_end = message.error() is not None
                if not at_end and message.offset() < open_places[place]:
                    yield self._event(message)
                if message.offset() + (not at_end) >= open_places[place]:
                    del open_places[place]

    def _messages(self, consumer: Consumer, count: int, complaint: str) -> list[Message]:
        """Return the next messages, including ends of partitions. Raise TimeoutError if none arrives."""
        deadline = time.monotonic() + TIMEOUT_S
        messages: list[Message] = []
        while not messages:
            messages = consumer.consume(count, POLL_S)
            self._on_silence()
            if time.monotonic() > deadline:
                raise TimeoutError(complaint)
        errors = [message.error() for message in messages if message.error() is not None]
        assert all(error.code() == KafkaError._PARTITION_EOF for error in errors), errors
        return messages

    def _event(self, message: Message) -> Event:
        topic, key, value = message.topic(), message.key(), message.value()
        return Event(
            topic,
            message.partition(),
            message.offset(),
            message.timestamp()[1],
            key,
            self._key(topic, key),
            self._schema(key),
            self._decode(topic, MessageField.VALUE, value),
            self._schema(value),
            _schema_id(value),
            value,
        )

    def _key(self, topic: str, data: bytes | None) -> Any:  # noqa: ANN401 - any key
        """Return the decoded key.

        Dates and timestamps that Python cannot represent (infinity) are returned as numbers.
        """
        try:
            return self._deserialize(data, SerializationContext(topic, MessageField.KEY))
        except (OverflowError, ValueError):
            types = {entry["name"]: entry["type"] for entry in self._schema(data)["fields"]}
            return {name: _temporal(types[name], value) for name, value in self._numbers(data).items()}

    def _decode(self, topic: str, part: MessageField, data: bytes | None) -> Any:  # noqa: ANN401 - any record
        """Return the decoded record.

        If the record has a date or timestamp that Python cannot represent, all its dates and times are numbers.
        """
        try:
            return self._deserialize(data, SerializationContext(topic, part))
        except (OverflowError, ValueError):
            return self._numbers(data)

    def _numbers(self, data: bytes | None) -> Any:  # noqa: ANN401 - any record
        """Return the decoded record, with dates and times as numbers."""
        assert data is not None, "only a record with content can have a date that is out of range"
        return fastavro.schemaless_reader(BytesIO(data[5:]), _plain(self._schema(data)))

    def _schema(self, data: bytes | None) -> Any:  # noqa: ANN401 - JSON
        identifier = _schema_id(data)
        if identifier is not None and identifier not in self._schemas:
            self._schemas[identifier] = json.loads(self.registry.get_schema(identifier).schema_str or "")
        return None if identifier is None else self._schemas[identifier]


def _schema_id(data: bytes | None) -> int | None:
    return None if data is None else int.from_bytes(data[1:5], "big")


def _plain(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a schema without the logical types of integers."""
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    if schema["type"] in ("int", "long"):
        return schema["type"]
    fields = {"fields": [{**entry, "type": _plain(entry["type"])} for entry in schema.get("fields", ())]}
    return {
        **schema,
        **(fields if "fields" in schema else {}),
        **{part: _plain(schema[part]) for part in ("items", "values") if part in schema},
    }


def _temporal(schema: Any, value: Any) -> Any:  # noqa: ANN401 - any schema and value
    kind = schema.get("logicalType") if isinstance(schema, dict) else None
    with suppress(OverflowError):
        if kind == "date":
            return _EPOCH.date() + timedelta(days=value)
        if kind == "time-micros":
            return (_EPOCH + timedelta(microseconds=value)).time()
        if kind in ("timestamp-micros", "local-timestamp-micros"):
            moment = _EPOCH + timedelta(microseconds=value)
            return moment if kind == "timestamp-micros" else moment.replace(tzinfo=None)
    return value


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    assert [part["part"] for part in parts] == list(range(parts[0]["parts"])), "parts of a cut record are in order"
    return {**parts[0], "topics": [topic for part in parts for topic in part["topics"]]}
