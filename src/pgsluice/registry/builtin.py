"""The registry that needs no server: it keeps schemas in a compacted topic, ``<prefix>.schemas``.

The pipeline gets ids from it, and the daemon answers REST requests from its store. Ids are hashes, so several writers
agree without a lock. The order of the records in the topic decides the version numbers.

``tests/integration/test_registry.py`` covers this module.

https://kafka.apache.org/documentation/#compaction
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pgsluice.avro.key_history import KeyHistory
from pgsluice.avro.schema import FieldHistory
from pgsluice.avro.wire import Schema
from pgsluice.kafka.client import FATAL, MAX_RECORD_BYTES, PURGED, connect, failure
from pgsluice.registry.client import CONNECT_S, RETRY_FIRST_S, RegistryOptions
from pgsluice.registry.follower import SchemaFollower
from pgsluice.registry.histories import Histories
from pgsluice.registry.rate import VERSIONS_MAX, VersionRate
from pgsluice.registry.schema_record import Registered
from pgsluice.registry.store import SchemaStore

log = structlog.get_logger(__name__)

_SERVE_S: Final = 0.01
"""The interval at which we check whether the producer has delivered a record."""


class BuiltinRegistry:
    """Registers schemas in ``topic``, and reads those that other processes register there."""

    def __init__(self, options: RegistryOptions, topic: str) -> None:
        self.store = SchemaStore()
        self._fields = Histories(self.store, FieldHistory)
        self._keys = Histories(self.store, KeyHistory)
        self._rate = VersionRate()
        self._options = options
        self._topic = topic
        self._follower = SchemaFollower(options, [topic], self.store)
        self._retry = self._follower.retry
        self._registering = asyncio.Lock()
        self._producer: Producer | None = None
        if not self._follower.is_outdated:
            self._producer = options.client.make_if_possible(Producer, self._properties())
        self._broken_by: KafkaException | None = None
        """The fatal error of the producer. librdkafka reports it once, and later calls do not repeat the reason."""
        self._follower.serve(self._serve_producer)

    async def start(self) -> None:
        """Read all schemas registered so far, after creating the topic if it is missing. May be called again.

        If certificates have changed, or a broker has refused credentials that may have changed since then, create new
        clients, which use the present certificates and credentials. Do the same if clients are lacking because a
        password or a token could not be obtained. Raise ConfigError if the topic cannot keep schemas,
        and SinkUnavailable if Kafka does not answer in time.
        """
        if self._follower.is_outdated or self._producer is None:
            await self._renew()
        async with self._retry.time_limit(self._options.timeout_s, f"Preparing topic {self._topic}"):
            await self._retry.persist(self._prepare_topic)
        await asyncio.gather(self._follower.start(), self._connect())

    async def _renew(self) -> None:
        await self._follower.renew()
        await self._replace_producer()
        self._options.client.errors.forget()

    async def follow(self) -> None:
        """Raise the error that ends the reading of the topic. Otherwise never return."""
        await self._follower.follow()

    def subjects(self) -> list[str]:
        """Return every subject."""
        return self.store.subjects()

    def record_name(self, subject: str) -> str | None:
        """Return the name of the schema that was registered last for ``subject``, or None if it is not a record."""
        return self._of_last(subject, "name")

    def record_namespace(self, subject: str) -> str | None:
        """Return the namespace of the schema that was registered last for ``subject``, or None if it has none."""
        return self._of_last(subject, "namespace")

    def _of_last(self, subject: str, attribute: str) -> str | None:
        last = self.store.last(subject)
        schema = None if last is None else json.loads(last.schema)
        return schema.get(attribute) if isinstance(schema, dict) else None

    async def fields(self, subject: str, namespace: str) -> FieldHistory:
        """Return the fields that the schemas of ``subject`` with this namespace have had.

        Use the result before anything else is registered, because registrations change it.
        """
        return await self._fields.of(subject, namespace)

    async def keys(self, subject: str, namespace: str) -> KeyHistory:
        """Return the keys that were registered for ``subject`` with this namespace.

        Use the result before anything else is registered, because registrations change it.
        """
        return await self._keys.of(subject, namespace)

    async def register(self, subject: str, schema: Schema, postgres: Mapping[str, Any] | None = None) -> int:
        """Return the id of ``schema``. The schema is durable in Kafka and served to consumers when this returns.

        ``postgres`` describes the table. It is stored with the schema, and replaces the former description. Raise
        SinkUnavailable if Kafka does not accept the schema in time. Registering a schema again is always safe.
        """
        return (await self.record(subject, schema, postgres)).id

    async def record(
        self, subject: str, schema: Schema, postgres: Mapping[str, Any] | None, identifier: int | None = None
    ) -> Registered:
        """Do the same as :meth:`register`, but return the whole record.

        If a registry server has assigned the id, ``identifier`` is this id.
        """
        doing = f"Registering a schema of subject {subject} in topic {self._topic}"
        async with self._retry.time_limit(self._options.timeout_s, doing), self._registering:
            record, new = self.store.propose(subject, schema, postgres, identifier)
            is_version = new and self.store.version(subject, record.version) is None
            while new:
                position = await self._publish(record, doing) + 1
                await self._follower.reach(self._topic, position)
                # Another writer may have taken the version just before us. The store then proposes another version.
                record, new = self.store.propose(subject, schema, None, identifier)
            if is_version:
                self._count(subject)
            return record

    def _count(self, subject: str) -> None:
        """Count a new version, and warn if there are suspiciously many."""
        self._options.count_version()
        if self._rate.is_exceeded(subject):
            log.warning(
                "a schema has got suspiciously many versions within an hour: somebody keeps altering the table. Each "
                "version stays in the topic of schemas and in memory. Stop the changes, or leave the table out",
                subject=subject,
                versions=VERSIONS_MAX + 1,
            )

    async def close(self) -> None:
        """Close the connections to Kafka."""
        await self._follower.close()
        await asyncio.get_running_loop().run_in_executor(None, _end, self._producer)

    def _serve_producer(self) -> None:
        """Let the producer report errors while nothing is registered."""
        try:
            self._open_producer.poll(0)
        except KafkaException as error:
            self._broken_by = error
        except SystemError as error:
            # Python raises SystemError if a delivery report is handled while a fatal error is about to be raised.
            if isinstance(error.__cause__, KafkaException):
                self._broken_by = error.__cause__

    async def _prepare_topic(self) -> None:
        admin = self._follower.admin
        if await admin.find(self._topic) is None:
            await admin.create(self._topic, self._options.replication_factor, self._options.topic_config)
            # If a producer asks for a topic before the broker knows it, the producer asks again only after a second. So
            # wait here until the brokers know the topic.
            while await admin.find(self._topic) is None:  # noqa: ASYNC110 - brokers send no notification
                await asyncio.sleep(RETRY_FIRST_S)
        await admin.check_policy(self._topic)

    async def _connect(self) -> None:
        """Connect the producer before there is anything to register."""
        await asyncio.get_running_loop().run_in_executor(None, connect, self._open_producer, self._topic, CONNECT_S)

    async def _publish(self, record: Registered, doing: str) -> int:
        """Write ``record`` to the topic. Return its offset when all in-sync replicas have it."""
        loop, errors = asyncio.get_running_loop(), self._options.client.errors
        delivered: asyncio.Future[Message] = loop.create_future()

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            loop.call_soon_threadsafe(_settle, delivered, error, message)

        try:
            self._open_producer.produce(self._topic, record.value(), record.key(), partition=0, on_delivery=on_delivery)
            while not delivered.done():
                self._open_producer.poll(0)
                self._follower.files.check()
                await asyncio.wait({delivered}, timeout=_SERVE_S)
            offset = int((await delivered).offset())
        except KafkaException as error:
            raise failure(await self._cause(error), doing, errors) from error
        finally:
            delivered.cancel()
        errors.recovered()
        return offset

    async def _cause(self, error: KafkaException) -> KafkaException:
        """Return why the producer failed. Replace the producer after a fatal error."""
        if error.args[0].code() == FATAL or error.args[0].code() in PURGED:
            self._serve_producer()  # the reason may not have been reported yet
            error = self._broken_by or error
        elif not error.args[0].fatal():
            return error
        await self._replace_producer()
        return error

    async def _replace_producer(self) -> None:
        loop = asyncio.get_running_loop()
        new = await loop.run_in_executor(None, self._options.client.make, Producer, self._properties())
        former, self._producer, self._broken_by = self._producer, new, None
        await loop.run_in_executor(None, _end, former)

    @property
    def _open_producer(self) -> Producer:
        assert self._producer is not None, "start() has made it"
        return self._producer

    def _properties(self) -> dict[str, object]:
        return {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 0,
            "message.timeout.ms": int(self._options.timeout_s * 1000),
            "message.max.bytes": MAX_RECORD_BYTES,
        }


def _end(producer: Producer | None) -> None:
    """End the threads of a producer. First drop queued records, because closing would wait for them without limit."""
    if producer is None:
        return
    with suppress(KafkaException, SystemError):
        producer.purge(in_queue=True, in_flight=True, blocking=False)
        producer.close()


def _settle(delivered: "asyncio.Future[Message]", error: KafkaError | None, message: Message) -> None:
    if delivered.done():
        return  # nobody waits any more
    if error is None:
        delivered.set_result(message)
    else:
        delivered.set_exception(KafkaException(error))
