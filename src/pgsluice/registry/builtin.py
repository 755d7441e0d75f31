"""The registry that needs no server: schemas live in a compacted topic, ``<prefix>.schemas``.

Used by the pipeline (ids) and the daemon (its store answers REST requests). Ids are hashes, so several
writers agree without a lock, and the order of the topic settles the numbering of versions.

https://kafka.apache.org/documentation/#compaction
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pgsluice.avro.wire import Schema
from pgsluice.librdkafka import MAX_RECORD_BYTES, connect, failure
from pgsluice.registry.client import CONNECT_S, RETRY_FIRST_S, RegistryOptions
from pgsluice.registry.follower import SchemaFollower
from pgsluice.registry.record import Registered
from pgsluice.registry.store import SchemaStore

_SERVE_S: Final = 0.01
"""How often the producer is asked whether a record was delivered."""


class BuiltinRegistry:
    """Registers schemas in ``topic`` and knows those that others register there."""

    def __init__(self, options: RegistryOptions, topic: str) -> None:
        self.store = SchemaStore()
        self._options = options
        self._topic = topic
        self._follower = SchemaFollower(options, [topic], self.store)
        self._patience = self._follower.patience
        self._registering = asyncio.Lock()
        self._producer = self._new_producer()
        self._follower.serve(self._serve_producer)

    async def start(self) -> None:
        """Know every schema registered so far; the topic is made if it is missing. Can be called again.

        ConfigError when the topic cannot keep schemas; SinkUnavailable when Kafka is not there in time.
        """
        async with self._patience.time_limit(self._options.timeout_s, f"Preparing topic {self._topic}"):
            await self._patience.persist(self._prepare_topic)
        await asyncio.gather(self._follower.start(), self._connect())

    async def follow(self) -> None:
        """Never return; raise what ended the reading of the topic, if something does."""
        await self._follower.follow()

    def subjects(self) -> list[str]:
        """Return every subject."""
        return self.store.subjects()

    def versions(self, subject: str) -> list[dict[str, Any]]:
        """Return the parsed schemas of ``subject``, oldest first."""
        return [json.loads(entry.schema) for entry in self.store.versions(subject)]

    async def register(self, subject: str, schema: Schema, postgres: Mapping[str, Any] | None = None) -> int:
        """Return the id of ``schema``: when this returns, it is durable in Kafka and served to consumers.

        ``postgres`` is kept beside the schema, and replaces what was kept there before. SinkUnavailable when
        Kafka does not take it in time; registering again is always safe.
        """
        return (await self.record(subject, schema, postgres)).id

    async def record(
        self, subject: str, schema: Schema, postgres: Mapping[str, Any] | None, identifier: int | None = None
    ) -> Registered:
        """As :meth:`register`, for a schema to which a registry server gave the id ``identifier``."""
        doing = f"Registering a schema of subject {subject} in topic {self._topic}"
        async with self._patience.time_limit(self._options.timeout_s, doing), self._registering:
            record, new = self.store.propose(subject, schema, postgres, identifier)
            while new:
                position = await self._publish(record, doing) + 1
                await self._follower.reach(self._topic, position)
                # another writer may have taken the version just before: then the store has given us a new one
                record, new = self.store.propose(subject, schema, None, identifier)
            return record

    async def close(self) -> None:
        """Let go of Kafka."""
        await self._follower.close()

    def _serve_producer(self) -> None:
        """Let the producer report while nothing is registered."""
        # A fatal error of it comes out as an exception; the next registration finds the producer unusable.
        with suppress(KafkaException, SystemError):
            self._producer.poll(0)

    async def _prepare_topic(self) -> None:
        admin = self._follower.admin
        if await admin.find(self._topic) is None:
            await admin.create(self._topic, self._options.replication_factor, self._options.topic_config)
            # A producer that asks before a broker knows it asks again only a second later.
            while await admin.find(self._topic) is None:  # noqa: ASYNC110 - brokers call nobody back
                await asyncio.sleep(RETRY_FIRST_S)
        await admin.check_policy(self._topic)

    async def _connect(self) -> None:
        """Have the producer connected before there is anything to register."""
        await asyncio.get_running_loop().run_in_executor(None, connect, self._producer, self._topic, CONNECT_S)

    async def _publish(self, record: Registered, doing: str) -> int:
        """Return the offset of ``record``, which every in-sync replica has."""
        loop, errors = asyncio.get_running_loop(), self._options.client.errors
        delivered: asyncio.Future[Message] = loop.create_future()

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            loop.call_soon_threadsafe(_settle, delivered, error, message)

        try:
            self._producer.produce(self._topic, record.value(), record.key(), partition=0, on_delivery=on_delivery)
            while not delivered.done():
                self._producer.poll(0)
                await asyncio.wait({delivered}, timeout=_SERVE_S)
            offset = int((await delivered).offset())
        except KafkaException as error:
            if error.args[0].fatal():
                self._producer = self._new_producer()
            raise failure(error, doing, errors) from error
        finally:
            delivered.cancel()
        errors.recovered()
        return offset

    def _new_producer(self) -> Producer:
        return self._options.client.make(
            Producer,
            {
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 0,
                "message.timeout.ms": int(self._options.timeout_s * 1000),
                "message.max.bytes": MAX_RECORD_BYTES,
            },
        )


def _settle(delivered: "asyncio.Future[Message]", error: KafkaError | None, message: Message) -> None:
    if delivered.done():
        return  # nobody waits any more
    if error is None:
        delivered.set_result(message)
    else:
        delivered.set_exception(KafkaException(error))
