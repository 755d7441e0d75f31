"""The changes in the topics of a pipeline, as consumers see them. They are decoded with the schemas in Kafka.

fastavro trusts the schemas that it gets, so anybody who can write to the topic of schemas can crash ``pgsluice tail``.
A pipeline does not use this module.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import closing
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from io import BytesIO
from threading import Event
from typing import Any, Final
from uuid import UUID

import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from pgsluice.app.tail.shown import Row, Shown
from pgsluice.app.wiring import client_options, registry_options
from pgsluice.avro.wire import unframe
from pgsluice.config import Settings
from pgsluice.errors import ConfigError, HistoryError, PgsluiceError, RetryableError
from pgsluice.kafka.account import TopicState
from pgsluice.kafka.client import ClientErrors, ClientOptions, failure
from pgsluice.kafka.topics import Topics
from pgsluice.registry.follower import SCHEMAS, SchemaFollower
from pgsluice.registry.store import SchemaStore

_VALUE: Final = "-value"
"""A topic's name with this suffix is the subject under which the schemas of the topic's values are registered."""
_RECORDS: Final = ("Envelope", "Message")
"""The names of the Avro records in the topics that this command reads."""
_BATCH: Final = 500
_LOOK_S: Final = 5.0
"""The interval at which this command asks Kafka for new partitions of the topics."""
_POLL_S: Final = 0.25
"""The longest time that one poll for records takes. Ctrl-C and new topics may have to wait for the poll."""


async def changes(settings: Settings, ready: Callable[[], None]) -> AsyncIterator[list[Shown]]:
    """Yield the changes that are committed from now on, in lists. Call ``ready`` when reading has begun.

    Changes of one partition are in order. Raise ConfigError if there is no topic of schemas, and HistoryError if a
    record cannot be read.
    """
    prefix, errors = settings.kafka.topic_prefix, ClientErrors()
    follower = SchemaFollower(registry_options(settings, errors), [prefix + SCHEMAS], SchemaStore())
    client = client_options(settings, "tail", errors)
    consumer = _Consumer(client)
    try:
        await follower.start()
        if missing := await follower.missing():
            raise ConfigError(f"{missing} Correct kafka.topic_prefix, or start the pipeline once.")
        reader = _Reader(follower)
        await asyncio.to_thread(consumer.begin, reader.topics())
        ready()
        while True:
            messages = await asyncio.to_thread(consumer.read)
            yield [shown for one in messages if (shown := await reader.shown(one)) is not None]
            await asyncio.to_thread(consumer.look, reader.topics())
    finally:
        await asyncio.to_thread(consumer.close)
        await follower.close()


class _Consumer:
    """Reads all partitions of topics, without a group. Every method blocks."""

    def __init__(self, client: ClientOptions) -> None:
        self._client = client
        self._known: dict[str, TopicState] = {}
        self._missing: set[str] = set()
        self._looked_at = 0.0
        self._consumer = client.make(
            Consumer,
            {
                "group.id": client.client_id,  # the client requires a group, but no offset is ever committed
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "allow.auto.create.topics": False,
            },
        )

    def begin(self, topics: Collection[str]) -> None:
        """Read what is committed from now on in these topics. Ignore topics that do not exist."""
        with closing(Topics(self._client, Event())) as admin:
            self._known = dict(admin.describe(topics))
            partitions = [(name, number) for name, state in self._known.items() for number in range(state.partitions)]
            ends = admin.stable_offsets(partitions)
        self._looked_at = time.monotonic()
        self._consumer.incremental_assign([TopicPartition(*partition, offset) for partition, offset in ends.items()])

    def look(self, topics: Collection[str]) -> None:
        """Read new topics and new partitions as well, from their beginning.

        Look for them if ``topics`` has a new topic, and every ``_LOOK_S`` seconds. Stop reading topics that were
        deleted.
        """
        is_due = time.monotonic() - self._looked_at >= _LOOK_S
        if not is_due and self._known.keys() | self._missing >= set(topics):
            return
        self._looked_at = time.monotonic()
        try:
            with closing(Topics(self._client, Event())) as admin:
                states = dict(admin.describe(topics))
        except RetryableError:
            return  # the consumer waits for Kafka, too
        self._missing = set(topics) - states.keys()
        for name, known in list(self._known.items()):
            if name not in states or states[name].id != known.id:
                self._consumer.incremental_unassign([TopicPartition(name, one) for one in range(known.partitions)])
                del self._known[name]
        self._consumer.incremental_assign(
            [
                TopicPartition(name, number, OFFSET_BEGINNING)
                for name, state in states.items()
                for number in range(self._known[name].partitions if name in self._known else 0, state.partitions)
            ]
        )
        self._known |= states

    def read(self) -> list[Message]:
        """Return the next records. Wait for them for at most ``_POLL_S``."""
        return [one for one in self._consumer.consume(_BATCH, _POLL_S) if _is_record(one)]

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()


def _is_record(message: Message) -> bool:
    """Return whether this is a record with a value. Ignore errors from which the client recovers."""
    error = message.error()
    if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise failure(error, f"Reading topic {message.topic()}")
    return error is None and message.value() is not None


class _Reader:
    """Decodes records with the schemas that ``follower`` knows."""

    def __init__(self, follower: SchemaFollower) -> None:
        self._follower = follower
        self._schemas: dict[int, dict[str, Any]] = {}
        self._seen = 0
        self._topics: list[str] = []

    def topics(self) -> list[str]:
        """Return the topics of tables and messages."""
        subjects = self._follower.store.subjects()
        if len(subjects) != self._seen:
            self._seen = len(subjects)
            self._topics = [one.removesuffix(_VALUE) for one in subjects if self._is_data(one)]
        return self._topics

    def _is_data(self, subject: str) -> bool:
        last = self._follower.store.last(subject)
        schema = json.loads(last.schema) if last is not None and subject.endswith(_VALUE) else None
        return isinstance(schema, dict) and schema.get("name") in _RECORDS

    async def shown(self, message: Message) -> Shown | None:
        """Return the change of a record. Raise HistoryError if the record cannot be decoded."""
        value, place = message.value(), f"Record {message.offset()} of topic {message.topic()} [{message.partition()}]"
        try:
            identifier, body = unframe(value)
            schema = await self._schema(identifier)
            record = _decoded(schema, body)
            return _message(record) if schema["name"] == "Message" else _change(record)
        except PgsluiceError:
            raise
        except Exception as error:
            raise HistoryError(
                f"{place} cannot be read ({type(error).__name__}). It is not from this pipeline, or its schema is "
                "not in the topic of schemas. Compare kafka.topic_prefix with that of the pipeline."
            ) from error

    async def _schema(self, identifier: int) -> dict[str, Any]:
        """Return a schema. If it is not known, first read the schemas that were registered since the last read."""
        if identifier not in self._schemas:
            if not self._follower.store.uses(identifier):
                await self._follower.start()
            self._schemas[identifier] = json.loads(self._follower.store.uses(identifier)[0].schema)
        return self._schemas[identifier]


def _decoded(schema: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Return the fields of a record. If Python cannot represent a time, return all times as Avro's numbers."""
    try:
        found = fastavro.schemaless_reader(BytesIO(body), schema, None)
    except OverflowError:
        found = fastavro.schemaless_reader(BytesIO(body), _without_times(schema), None)
    assert isinstance(found, dict), "the schema is that of a record"
    return found


def _without_times(schema: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(schema, list):
        return [_without_times(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    is_time = str(schema.get("logicalType")).partition("-")[0] in {"date", "time", "timestamp", "local"}
    return {name: _without_times(one) for name, one in schema.items() if not (is_time and name == "logicalType")}


def _change(record: Mapping[str, Any]) -> Shown:
    raw, unchanged, is_key = record["raw"], tuple(record["unchanged"]), record["before_image"] == "key"
    return Shown(
        record["op"],
        record["lsn"],
        record["xid"],
        _json(record["ts"]),
        record["schema"],
        record["table"],
        # If only the key was sent, the record has null for all other columns. A key column is never null, so every null
        # stands for a value that was not sent.
        before=_row(record["before"], lambda _, value: value is not None or not is_key, raw, "before."),
        before_image=record["before_image"],
        after=_row(record["after"], lambda name, _: name not in unchanged, raw, ""),
        unchanged=unchanged,
        origin=record["origin"],
        flags=tuple(record["flags"]),
    )


def _message(record: Mapping[str, Any]) -> Shown:
    after = {"prefix": record["prefix"], "content": record["content"].decode("utf-8", "surrogateescape")}
    return Shown("m", record["lsn"], record["xid"], _json(record["ts"]), after=after, origin=record["origin"])


def _row(
    row: Mapping[str, Any] | None, is_known: Callable[[str, object], bool], raw: Mapping[str, str], at: str
) -> Row | None:
    """Return the known values. ``raw`` has the text of values that Avro cannot hold, under ``at`` + field name."""
    if row is None:
        return None
    values = {name: raw.get(at + name, value) for name, value in row.items()}
    return {name: _json(value) for name, value in values.items() if is_known(name, value)}


def _json(value: object) -> Any:  # noqa: ANN401 - any JSON
    """Return an Avro value as JSON, without losing any part of it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime | date | time_of_day):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return rf"\x{value.hex()}"
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, list):
        return [_json(one) for one in value]
    return {name: _json(one) for name, one in value.items()} if isinstance(value, dict) else value
