"""Tests the built-in registry with a real broker, and the registry's HTTP server with Confluent's own client."""

import asyncio
import io
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar
from uuid import uuid4

import fastavro
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AclOperation, ConfigResource
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from pgsluice.app.http.health import Health
from pgsluice.app.http.server import HttpServer
from pgsluice.avro.wire import header, normalise, schema_id
from pgsluice.errors import ConfigError, HistoryError, PermissionDenied, PoisonError, SinkUnavailable
from pgsluice.kafka.client import ClientErrors, ClientOptions
from pgsluice.registry import rate
from pgsluice.registry import topic as topic_module
from pgsluice.registry.builtin import BuiltinRegistry
from pgsluice.registry.client import RegistryOptions
from pgsluice.registry.follower import SchemaFollower
from pgsluice.registry.schema_record import Registered, parse
from pgsluice.registry.store import SchemaStore
from pgsluice.registry.topic import TopicAdmin
from sandbox.kafka import Kafka
from tests.support.kafka import SecuredKafka, admin, client_options, create_topic, grant, paused, read_committed

T = TypeVar("T")
SUBJECT = "shop.public.orders-value"
PATIENCE_S = 180


def record_schema(number: int, name: str = "Value") -> dict[str, Any]:
    fields = [{"name": f"column_{number}", "type": ["null", "string"], "default": None}]
    return {"type": "record", "name": name, "namespace": "shop.public.orders", "fields": fields}


@pytest.fixture
def topic() -> str:
    return f"shop-{uuid4().hex[:8]}.schemas"


def options(kafka: Kafka, **other: Any) -> RegistryOptions:  # noqa: ANN401 - options have various types
    return RegistryOptions(client_options(kafka), **other)


@asynccontextmanager
async def open_registry(
    options: RegistryOptions, topic: str, *, patiently: bool = False
) -> AsyncIterator[BuiltinRegistry]:
    registry = BuiltinRegistry(options, topic)
    try:
        await (persist(registry.start) if patiently else registry.start())
        yield registry
    finally:
        await registry.close()


@asynccontextmanager
async def open_follower(options: RegistryOptions, *topics: str) -> AsyncIterator[SchemaFollower]:
    follower = SchemaFollower(options, topics, SchemaStore())
    try:
        await follower.start()
        yield follower
    finally:
        await follower.close()


def write(kafka: Kafka, topic: str, *records: tuple[bytes | None, bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(60) == 0


def read(kafka: Kafka, topic: str) -> list[tuple[dict[str, Any], Registered]]:
    """Read ``topic`` with the test's own client, and return its current content."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "test"})
    end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1]
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(end, timeout=10) if end else []
    consumer.close()
    assert len(messages) == end
    return [(json.loads(message.key()), parse(message.value())) for message in messages]


def kept(kafka: Kafka, topic: str) -> list[int]:
    """Return the offsets that compaction has left in ``topic``."""
    return [message.offset() or 0 for message in read_committed(kafka, topic)]


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(0.01)


async def persist(operation: Callable[[], Awaitable[T]]) -> T:
    """Retry after errors, as callers do."""
    while True:
        try:
            return await operation()
        except SinkUnavailable:
            continue


async def test_clients_are_replaced_only_if_their_credentials_were_refused(kafka: Kafka, topic: str) -> None:
    """A standby calls ``start`` about once a second. The clients must not log in to Kafka again each time."""
    errors, made = ClientErrors(credentials_change=True), Counter[str]()

    def credentials() -> dict[str, str]:
        made["clients"] += 1
        return {}

    client = replace(client_options(kafka), errors=errors, credentials=credentials)
    async with open_registry(RegistryOptions(client), topic) as registry:
        clients = made["clients"]
        for _ in range(3):
            await registry.start()
        assert made["clients"] == clients
        errors(KafkaError(KafkaError._AUTHENTICATION, "refused"))
        await registry.start()
        assert made["clients"] > clients
        await registry.start()
        assert made["clients"] == 2 * clients


async def test_clients_can_be_replaced_before_the_first_record_is_read(kafka: Kafka, topic: str) -> None:
    async with open_registry(options(kafka), topic) as registry:
        await registry.register(SUBJECT, record_schema(0))
    follower = SchemaFollower(options(kafka), [topic], SchemaStore())
    starting = asyncio.create_task(follower.start())
    try:
        for _ in range(20):
            await follower.renew()
        await starting
        assert follower.store.subjects() == [SUBJECT]
    finally:
        await follower.close()


class TestBuiltin:
    async def test_a_restart_finds_the_same_ids(self, kafka: Kafka, topic: str) -> None:
        schemas = [record_schema(n) for n in range(3)]
        async with open_registry(options(kafka), topic) as registry:
            ids = [await registry.register(SUBJECT, schema, {"typmod": n}) for n, schema in enumerate(schemas)]
            key = await registry.register("shop.public.orders-key", "long")
        assert ids == [schema_id(normalise(record_schema(n))) for n in range(3)]
        async with open_registry(options(kafka), topic) as registry:
            assert registry.subjects() == ["shop.public.orders-key", SUBJECT]
            assert [json.loads(entry.schema) for entry in registry.store.versions(SUBJECT)] == schemas
            assert [await registry.register(SUBJECT, record_schema(n), None) for n in range(3)] == ids
            assert await registry.register("shop.public.orders-key", "long") == key
        assert len(read(kafka, topic)) == 4

    async def test_earlier_versions_have_names_and_keys(self, kafka: Kafka, topic: str) -> None:
        row = {"type": "record", "name": "Value", "fields": [{"name": "n", "type": ["null", "long"], "default": None}]}
        value = {**record_schema(0, "Envelope"), "fields": [{"name": "before", "type": ["null", row], "default": None}]}
        key = {**record_schema(0, "Key"), "fields": [{"name": "n", "type": "long"}]}
        async with open_registry(options(kafka), topic) as registry:
            await registry.register(SUBJECT, value)
            await registry.register("shop.public.orders-key", key)
            assert (await registry.fields(SUBJECT, "shop.public.orders")).fields_of("n") == {"n": "long"}
            assert (await registry.keys("shop.public.orders-key", "shop.public.orders")).last_among({"n"}) == ("n",)
            names = [registry.record_name(subject) for subject in (SUBJECT, "shop.public.orders-key", "unheard-of")]
        assert names == ["Envelope", "Key", None]

    async def test_new_versions_are_counted_and_many_are_reported(
        self, kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rate, "VERSIONS_MAX", 2)
        counted: list[int] = []
        with capture_logs() as logs:
            async with open_registry(options(kafka, count_version=lambda: counted.append(1)), topic) as registry:
                for n in (0, 1, 1, 2, 3, 0):
                    await registry.register(SUBJECT, record_schema(n), {"typmod": n})
                await registry.register(SUBJECT, record_schema(0), {"typmod": 9})  # adds a record, but no version
        assert len(counted) == 4
        assert [entry["subject"] for entry in logs if entry["log_level"] == "warning"] == [SUBJECT]

    async def test_a_schema_is_durable_when_register_returns(self, kafka: Kafka, topic: str) -> None:
        async with open_registry(options(kafka), topic) as registry:
            for n in range(5):
                identifier = await registry.register(SUBJECT, record_schema(n), {"typmod": n})
                expected = Registered(SUBJECT, n + 1, identifier, normalise(record_schema(n)), {"typmod": n})
                assert (await asyncio.to_thread(read, kafka, topic))[-1] == (
                    {"subject": SUBJECT, "id": identifier},
                    expected,
                )
                assert registry.store.version(SUBJECT, n + 1) == expected

    async def test_properties_of_a_schema_are_written_again_when_they_change(self, kafka: Kafka, topic: str) -> None:
        async with open_registry(options(kafka), topic) as registry:
            for postgres in ({"typmod": 24}, None, {"typmod": 24}, {"typmod": 54}):
                await registry.register(SUBJECT, record_schema(0), postgres)
        records = [record for _, record in read(kafka, topic)]
        assert [(record.version, record.postgres) for record in records] == [(1, {"typmod": 24}), (1, {"typmod": 54})]

    async def test_concurrent_registrations_agree(self, kafka: Kafka, topic: str) -> None:
        schemas = [record_schema(n % 20) for n in range(60)]
        async with open_registry(options(kafka), topic) as registry:
            ids = await asyncio.gather(*(registry.register(SUBJECT, schema) for schema in schemas))
        assert ids == [schema_id(normalise(schema)) for schema in schemas]
        records = [record for _, record in read(kafka, topic)]
        assert sorted(record.version for record in records) == list(range(1, 21))

    async def test_several_writers_lose_nothing_and_agree(self, kafka: Kafka, topic: str) -> None:
        """Writers do not wait for each other, so they must notice if another writer has used a version number."""
        writers = 4
        async with AsyncExitStack() as stack:
            registries = [await stack.enter_async_context(open_registry(options(kafka), topic)) for _ in range(writers)]
            work = (
                registry.register(SUBJECT, record_schema(n, f"By{index}"))
                for n in range(10)
                for index, registry in enumerate(registries)
            )
            ids = await asyncio.gather(*work)
            for registry in registries:
                await registry.start()
            known = [registry.store.versions(SUBJECT) for registry in registries]
        assert len(set(ids)) == 10 * writers
        assert sorted(ids) == sorted(entry.id for entry in known[0])
        assert all(versions == known[0] for versions in known)
        compacted = SchemaStore()
        for record in {record.key(): record for _, record in read(kafka, topic)}.values():
            compacted.add(record)
        assert compacted.versions(SUBJECT) == known[0]

    async def test_writers_that_start_together_share_one_topic(self, kafka: Kafka, topic: str) -> None:
        """None of the writers finds the topic, so all of them try to create it."""
        registries = [BuiltinRegistry(options(kafka), topic) for _ in range(3)]
        await asyncio.gather(*(registry.start() for registry in registries))
        same = await asyncio.gather(*(registry.register(SUBJECT, record_schema(0)) for registry in registries))
        assert set(same) == {schema_id(normalise(record_schema(0)))}
        for registry in registries:
            await registry.close()

    async def test_schemas_that_share_a_hash_get_different_ids(self, kafka: Kafka, topic: str) -> None:
        one, other = (dict(record_schema(0, name), fields=[]) for name in ("Value9066", "Value44534"))
        number = schema_id(normalise(one))
        assert schema_id(normalise(other)) == number
        async with open_registry(options(kafka), topic) as registry:
            assert await registry.register(SUBJECT, other) == number
            assert await registry.register("another-value", one) == number + 1
        async with open_registry(options(kafka), topic) as registry:
            assert await registry.register(SUBJECT, one) == number + 1
            assert await registry.register(SUBJECT, other) == number

    async def test_a_compacted_topic_is_read_completely(self, own_kafka: Kafka, topic: str) -> None:
        """After compaction, schemas that were registered first may be at the end of the topic."""
        config = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.001"}
        wanted = options(own_kafka, topic_config=config)
        async with open_registry(wanted, topic) as registry:
            for n in range(3):
                await registry.register(SUBJECT, record_schema(n), {"typmod": n})
            for n in range(20):
                await registry.register(SUBJECT, record_schema(0), {"typmod": 100 + n})
            before = registry.store.versions(SUBJECT)
            while len(await asyncio.to_thread(kept, own_kafka, topic)) > 10:
                await registry.register(SUBJECT, record_schema(0), {"typmod": time.time_ns()})
                await asyncio.sleep(0.1)
        async with open_registry(wanted, topic) as registry:
            after = registry.store.versions(SUBJECT)
            assert [(one.version, one.id) for one in after] == [(one.version, one.id) for one in before]
            await registry.register(SUBJECT, record_schema(3))
            assert registry.store.versions(SUBJECT)[-1].version == 4

    async def test_start_catches_up_with_other_writers(self, kafka: Kafka, topic: str) -> None:
        async with open_registry(options(kafka), topic) as one, open_registry(options(kafka), topic) as other:
            identifier = await one.register(SUBJECT, record_schema(0))
            await other.start()
            assert [entry.id for entry in other.store.versions(SUBJECT)] == [identifier]

    async def test_the_topic_is_created_with_the_required_settings(self, kafka: Kafka, topic: str) -> None:
        wanted = options(kafka, topic_config={"min.compaction.lag.ms": "1000", "cleanup.policy": "delete"})
        async with open_registry(wanted, topic), open_registry(wanted, topic):
            pass
        client, resource = admin(kafka), ConfigResource(ConfigResource.Type.TOPIC, topic)
        config = client.describe_configs([resource])[resource].result()
        assert config["cleanup.policy"].value == "compact"
        assert config["min.compaction.lag.ms"].value == "1000"
        assert len(client.list_topics(topic).topics[topic].partitions) == 1

    @pytest.mark.parametrize("policy", ["delete", "compact,delete"])
    async def test_a_topic_that_would_forget_schemas_is_refused(self, kafka: Kafka, topic: str, policy: str) -> None:
        create_topic(kafka, topic, cleanup_policy=policy)
        with pytest.raises(ConfigError, match=rf"Topic {topic} has cleanup.policy={policy}, .* Set it to compact"):
            async with open_registry(options(kafka), topic):
                pass

    async def test_a_topic_of_several_partitions_is_refused(self, kafka: Kafka, topic: str) -> None:
        create_topic(kafka, topic, 2, cleanup_policy="compact")
        with pytest.raises(ConfigError, match=f"Topic {topic} has 2 partitions"):
            async with open_registry(options(kafka), topic):
                pass

    async def test_creating_the_topic_is_retried_until_the_timeout(self, kafka: Kafka, topic: str) -> None:
        wanted = options(kafka, replication_factor=3, timeout_s=1.5)
        with pytest.raises(SinkUnavailable, match=f"Preparing topic {topic}: .*INVALID_REPLICATION_FACTOR"):
            async with open_registry(wanted, topic):
                pass

    async def test_a_schema_too_large_for_the_topic_is_refused(self, kafka: Kafka, topic: str) -> None:
        wanted = options(kafka, topic_config={"max.message.bytes": "2000"})
        async with open_registry(wanted, topic) as registry:
            with pytest.raises(PoisonError, match=f"subject {SUBJECT} in topic {topic}: .* max.message.bytes"):
                await registry.register(SUBJECT, {**record_schema(0), "doc": "x" * 2000})
            assert await registry.register(SUBJECT, record_schema(0)) > 0
        assert len(read(kafka, topic)) == 1

    async def test_follow_ends_when_the_topic_is_deleted(self, kafka: Kafka, topic: str) -> None:
        async with open_registry(options(kafka), topic) as registry:
            await registry.register(SUBJECT, record_schema(0))
            following = asyncio.create_task(registry.follow())
            client = admin(kafka)
            client.delete_topics([topic])[topic].result()
            with pytest.raises(HistoryError, match=f"Topic {topic} was deleted, or created again"):
                await following

    async def test_start_detects_that_the_topic_was_replaced(self, kafka: Kafka, topic: str) -> None:
        """The new topic lacks the schemas that are in memory, so the registry must not continue."""
        async with open_registry(options(kafka), topic) as registry:
            await registry.register(SUBJECT, record_schema(0))
            client = admin(kafka)
            client.delete_topics([topic])[topic].result()
            with pytest.raises(HistoryError, match=f"Topic {topic} was deleted, or created again"):
                await registry.start()

    async def test_a_cancelled_registration_does_not_affect_later_ones(self, kafka: Kafka, topic: str) -> None:
        async with open_registry(options(kafka), topic) as registry:
            for n in range(10):
                registering = asyncio.create_task(registry.register(SUBJECT, record_schema(n)))
                await asyncio.sleep(n / 1000)
                registering.cancel()
            ids = [await registry.register(SUBJECT, record_schema(n)) for n in range(10)]
        assert ids == [schema_id(normalise(record_schema(n))) for n in range(10)]

    async def test_thousands_of_versions_are_read(
        self, kafka: Kafka, topic: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        create_topic(kafka, topic, cleanup_policy="compact")
        store = SchemaStore()
        for n in range(5_000):
            fields = [{"name": f"c{i}_{n}", "type": ["null", "string"], "default": None} for i in range(50)]
            store.add(store.propose(f"subject-{n % 250}", {**record_schema(n), "fields": fields}, {"typmod": n})[0])
        records = [record for subject in store.subjects() for record in store.versions(subject)]
        await asyncio.to_thread(write, kafka, topic, *((record.key(), record.value()) for record in records))
        begun = time.perf_counter()
        async with open_registry(options(kafka), topic) as registry:
            took = time.perf_counter() - begun
            assert all(registry.store.versions(subject) == store.versions(subject) for subject in store.subjects())
        megabytes = sum(len(record.value()) for record in records) / 1e6
        with capsys.disabled():
            print(f"\n5,000 versions ({megabytes:.1f} MB) read in {took:.2f} s")  # noqa: T201 - a result for people


class TestFollower:
    async def test_a_follower_sees_registered_schemas(self, kafka: Kafka, topic: str) -> None:
        async with (
            open_registry(options(kafka), topic) as registry,
            open_follower(options(kafka), topic) as follower,
        ):
            for n in range(3):
                identifier = await registry.register(SUBJECT, record_schema(n))
                await until(lambda identifier=identifier: bool(follower.store.uses(identifier)))  # type: ignore[misc]

    async def test_a_follower_waits_for_topics_that_do_not_exist_yet(self, kafka: Kafka, topic: str) -> None:
        first, second = f"a-{topic}", f"b-{topic}"
        async with AsyncExitStack() as stack:
            writer = await stack.enter_async_context(open_registry(options(kafka), first))
            one = await writer.register("a", record_schema(0))
            follower = await stack.enter_async_context(open_follower(options(kafka), first, second))
            assert [entry.id for entry in follower.store.versions("a")] == [one]
            assert f"There is no topic {second} on these brokers" in str(await follower.missing())
            writer = await stack.enter_async_context(open_registry(options(kafka), second))
            two = await writer.register("b", record_schema(1))
            await until(lambda: bool(follower.store.uses(two)))
            await follower.start()
            assert await follower.missing() is None
            assert follower.store.subjects() == ["a", "b"]
        assert second in admin(kafka).list_topics().topics

    async def test_an_id_for_two_schemas_of_one_topic_is_refused(self, kafka: Kafka, topic: str) -> None:
        """An id may stand for two schemas in two topics, but not in the same topic."""
        first, second = f"a-{topic}", f"b-{topic}"
        for name in (first, second):
            create_topic(kafka, name, cleanup_policy="compact")
        one, other = Registered("a", 1, 5, '"int"'), Registered("b", 1, 5, '"long"')
        write(kafka, first, (one.key(), one.value()))
        write(kafka, second, (other.key(), other.value()))
        async with open_follower(options(kafka), first, second) as follower:
            assert follower.store.ambiguous() == [5]
        write(kafka, first, (other.key(), other.value()))
        with pytest.raises(HistoryError, match=f"Record 1 of topic {first} is not a schema: id 5, here of subject 'b'"):
            async with open_follower(options(kafka), first):
                pass

    async def test_a_search_for_a_topic_does_not_create_it(self, kafka: Kafka, topic: str) -> None:
        async with open_follower(options(kafka), topic) as follower:
            assert follower.store.subjects() == []
        assert topic not in admin(kafka).list_topics().topics

    async def test_a_follower_reads_what_compaction_left(self, kafka: Kafka, topic: str) -> None:
        """Even the last offsets may be missing. The follower must still reach the end."""
        create_topic(kafka, topic, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.001")
        known = Registered(SUBJECT, 1, 5, '"long"')
        for _ in range(3):
            write(kafka, topic, *[(known.key(), known.value())] * 3)
            await asyncio.sleep(0.2)
        async with open_follower(options(kafka), topic) as follower:
            assert follower.store.versions(SUBJECT) == [known]

    @pytest.mark.parametrize(
        ("value", "complaint"),
        [
            (b"\x00\x00\x00\x00\x05", "Expecting value"),
            (b"{}", "'subject' is not a string"),
            (None, "it deletes a schema"),
            (Registered(SUBJECT, 2, 5, '"int"').value(), "id 5, here of subject '.*', stands for two schemas"),
        ],
    )
    async def test_a_broken_record_is_named(
        self, kafka: Kafka, topic: str, value: bytes | None, complaint: str
    ) -> None:
        create_topic(kafka, topic, cleanup_policy="compact")
        good = Registered(SUBJECT, 1, 5, '"long"')
        write(kafka, topic, (good.key(), good.value()), (b"key", value))
        with pytest.raises(HistoryError, match=f"Record 1 of topic {topic} is not a schema: {complaint}"):
            async with open_follower(options(kafka), topic):
                pass

    async def test_a_registry_that_never_started_can_be_closed(self, kafka: Kafka, topic: str) -> None:
        await SchemaFollower(options(kafka), [topic], SchemaStore()).close()


class TestOutages:
    async def test_a_broker_that_does_not_answer_is_reported(self, topic: str) -> None:
        nobody = RegistryOptions(ClientOptions({"bootstrap.servers": "127.0.0.1:9"}, "pgsluice-test"), timeout_s=1.5)
        registry, follower = BuiltinRegistry(nobody, topic), SchemaFollower(nobody, [topic], SchemaStore())
        with pytest.raises(SinkUnavailable, match=f"Preparing topic {topic}: .*Connection refused"):
            await registry.start()
        with pytest.raises(SinkUnavailable, match=f"Reading the schemas in {topic}: .*Connection refused"):
            await follower.start()
        await registry.close()
        await follower.close()

    async def test_the_registry_waits_for_a_broker_that_starts_late(self, own_kafka: Kafka, topic: str) -> None:
        own_kafka.stop()
        registry = BuiltinRegistry(options(own_kafka, timeout_s=1.0), topic)
        with pytest.raises(SinkUnavailable):
            await registry.start()
        starting = asyncio.create_task(asyncio.to_thread(own_kafka.start))
        await persist(registry.start)
        assert await persist(lambda: registry.register(SUBJECT, record_schema(0))) > 0
        await starting
        await registry.close()

    async def test_a_registration_during_an_outage_is_retried(self, own_kafka: Kafka, topic: str) -> None:
        async with open_registry(options(own_kafka, timeout_s=2.0), topic, patiently=True) as registry:
            first = await persist(lambda: registry.register(SUBJECT, record_schema(0)))
            with paused(own_kafka):
                with pytest.raises(SinkUnavailable, match=f"Registering a schema of subject {SUBJECT}"):
                    await registry.register(SUBJECT, record_schema(1))
                assert await registry.register(SUBJECT, record_schema(0)) == first
            second = await persist(lambda: registry.register(SUBJECT, record_schema(1)))
        versions = {record.id: record.version for _, record in read(own_kafka, topic)}
        assert versions == {first: 1, second: 2}

    async def test_an_unknown_end_offset_is_an_error(
        self, own_kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the end is unknown, the registry must not assume that it has read everything."""
        create_topic(own_kafka, topic)
        admin = TopicAdmin(client_options(own_kafka))
        assert await admin.end(topic) == 0
        monkeypatch.setattr(topic_module, "_REQUEST_S", 1.0)
        with paused(own_kafka), pytest.raises(SinkUnavailable, match=f"Asking for the end of topic {topic}"):
            await admin.end(topic)

    async def test_a_killed_broker_loses_no_schema(self, own_kafka: Kafka, topic: str) -> None:
        async with (
            open_registry(options(own_kafka, timeout_s=2.0), topic, patiently=True) as registry,
            open_follower(options(own_kafka), topic) as follower,
        ):
            first = await persist(lambda: registry.register(SUBJECT, record_schema(0)))
            own_kafka.kill()
            await asyncio.to_thread(own_kafka.start)
            second = await persist(lambda: registry.register(SUBJECT, record_schema(1)))
            await until(lambda: bool(follower.store.uses(second)))
        async with open_registry(options(own_kafka), topic) as registry:
            assert [entry.id for entry in registry.store.versions(SUBJECT)] == [first, second]


def logged_in(kafka: SecuredKafka, user: str, password: str = "right") -> RegistryOptions:  # noqa: S107 - a password for tests
    return RegistryOptions(ClientOptions(kafka.properties(user, password), "pgsluice-test"), timeout_s=3600)


class TestRights:
    async def test_the_right_password_is_accepted(self, secured_kafka: SecuredKafka, topic: str) -> None:
        async with open_registry(options(secured_kafka), topic) as registry:
            assert await registry.register(SUBJECT, record_schema(0)) > 0

    async def test_a_wrong_password_is_not_retried(self, secured_kafka: SecuredKafka, topic: str) -> None:
        wrong = logged_in(secured_kafka, "admin", "wrong")
        with pytest.raises(PermissionDenied, match=r"Authentication failed.* Check the credentials"):
            async with open_registry(wrong, topic):
                pass
        with pytest.raises(PermissionDenied, match=r"Authentication failed.* Check the credentials"):
            async with open_follower(wrong, topic):
                pass

    async def test_missing_rights_are_reported(self, secured_kafka: SecuredKafka, topic: str) -> None:
        reader = logged_in(secured_kafka, "reader")
        with pytest.raises(PermissionDenied, match=topic):
            async with open_registry(reader, topic):
                pass

    async def test_a_user_who_may_only_describe_topics_is_refused(
        self, secured_kafka: SecuredKafka, topic: str
    ) -> None:
        async with open_registry(options(secured_kafka), topic) as registry:
            await registry.register(SUBJECT, record_schema(0))
            grant(secured_kafka, topic, AclOperation.DESCRIBE)
            reader = logged_in(secured_kafka, "reader")
            with pytest.raises(PermissionDenied, match=f"Reading topic {topic}"):
                async with open_follower(reader, topic):
                    pass
            with pytest.raises(PermissionDenied, match=f"Reading the configuration of topic {topic}"):
                async with open_registry(reader, topic):
                    pass

    async def test_a_user_who_may_not_write_is_refused(self, secured_kafka: SecuredKafka, topic: str) -> None:
        """The producer fails before anything is registered.

        After the user has been granted the right, another producer must replace the failed one.
        """
        create_topic(secured_kafka, topic, cleanup_policy="compact")
        for operation in (AclOperation.READ, AclOperation.DESCRIBE_CONFIGS):
            grant(secured_kafka, topic, operation)
        async with open_registry(logged_in(secured_kafka, "reader"), topic) as registry:
            for pause_s in (1.0, 0.0):
                await asyncio.sleep(pause_s)
                with pytest.raises(PermissionDenied, match=f"Registering a schema of subject {SUBJECT} in"):
                    await registry.register(SUBJECT, record_schema(0))
            grant(secured_kafka, topic, AclOperation.WRITE)
            async with asyncio.timeout(PATIENCE_S):
                while not registry.subjects():
                    with suppress(PermissionDenied):  # the next producer may have started before the right was granted
                        await registry.register(SUBJECT, record_schema(0))

    async def test_reading_needs_only_the_right_to_read_one_topic(
        self, secured_kafka: SecuredKafka, topic: str
    ) -> None:
        """The follower needs no right to a consumer group or to another topic, and no right to write."""
        async with open_registry(options(secured_kafka), topic) as registry:
            await registry.register(SUBJECT, record_schema(0))
        grant(secured_kafka, topic, AclOperation.READ)
        reader = logged_in(secured_kafka, "reader")
        async with open_follower(reader, topic) as follower:
            assert follower.store.subjects() == [SUBJECT]


VALUE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.public.orders",
    "fields": [
        {"name": "op", "type": "string"},
        {"name": "after", "type": ["null", record_schema(0)], "default": None},
        {"name": "before", "type": ["null", "shop.public.orders.Value"], "default": None},
    ],
}
ODD = "Straße 50 %/a+b"
CHANGE = {"op": "c", "after": {"column_0": "some"}, "before": None}


def message(schema: dict[str, Any], value: object) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    return header(schema_id(normalise(schema))) + body.getvalue()


@asynccontextmanager
async def serving(store: SchemaStore) -> AsyncIterator[str]:
    health = Health(dict, lambda: None, lambda _: None)
    server = HttpServer("127.0.0.1:0", health, CollectorRegistry(), store)
    await server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop()


@pytest.fixture
async def client(kafka: Kafka, topic: str) -> AsyncIterator[SchemaRegistryClient]:
    """Provide Confluent's unmodified client for a registry that contains schemas."""
    async with open_registry(options(kafka), topic) as registry:
        await registry.register(SUBJECT, {"type": "string"})
        await registry.register(SUBJECT, VALUE, {"typmods": {}})
        await registry.register(f"{ODD}-value", VALUE)
        async with serving(registry.store) as url:
            client = SchemaRegistryClient({"url": url})
            yield client
            client.close()


class TestConfluentClient:
    @pytest.mark.parametrize("table", ["shop.public.orders", ODD])
    @pytest.mark.parametrize("reader", [None, json.dumps(VALUE)])
    async def test_the_deserializer_reads_messages(
        self, client: SchemaRegistryClient, table: str, reader: str | None
    ) -> None:
        deserializer = AvroDeserializer(client, reader)
        context = SerializationContext(table, MessageField.VALUE)
        value = await asyncio.to_thread(deserializer, message(VALUE, CHANGE), context)
        assert value == CHANGE

    async def test_the_deserializer_can_read_with_the_latest_schema(self, client: SchemaRegistryClient) -> None:
        deserializer = AvroDeserializer(client, conf={"use.latest.version": True})
        context = SerializationContext("shop.public.orders", MessageField.VALUE)
        assert await asyncio.to_thread(deserializer, message(VALUE, CHANGE), context) == CHANGE

    async def test_the_serializer_can_use_registered_schemas(self, client: SchemaRegistryClient) -> None:
        context = SerializationContext("shop.public.orders", MessageField.VALUE)
        for automatic in (False, True):
            serializer = AvroSerializer(client, json.dumps(VALUE), conf={"auto.register.schemas": automatic})
            assert await asyncio.to_thread(serializer, CHANGE, context) == message(VALUE, CHANGE)

    async def test_every_kind_of_look_up_is_answered(self, client: SchemaRegistryClient) -> None:
        def ask() -> None:
            identifier = schema_id(normalise(VALUE))
            assert client.get_subjects() == [f"{ODD}-value", SUBJECT]
            assert client.get_versions(SUBJECT) == [1, 2]
            latest = client.get_latest_version(SUBJECT)
            assert (latest.version, latest.schema_id, latest.schema.schema_str) == (2, identifier, normalise(VALUE))
            assert client.get_version(f"{ODD}-value", 1).schema_id == identifier
            assert client.lookup_schema(SUBJECT, Schema(json.dumps(VALUE), "AVRO")).version == 2
            assert client.register_schema(SUBJECT, Schema(json.dumps(VALUE), "AVRO")) == identifier
            assert [use.subject for use in client.get_schema_versions(identifier)] == [f"{ODD}-value", SUBJECT]
            assert client.get_subjects_by_schema_id(identifier, SUBJECT) == [SUBJECT]
            assert client.get_schema_types() == ["AVRO"]
            assert client.get_compatibility() == "NONE"
            assert client.get_global_mode() == "READONLY"

        await asyncio.to_thread(ask)

    @pytest.mark.parametrize(
        ("request_to", "status", "code"),
        [
            (lambda client: client.get_schema(1), 404, 40403),
            (lambda client: client.get_schema_by_guid(str(uuid4())), 404, 40403),
            (lambda client: client.get_versions("unheard-of"), 404, 40401),
            (lambda client: client.get_version(SUBJECT, 9), 404, 40402),
            (lambda client: client.lookup_schema(SUBJECT, Schema('"long"', "AVRO")), 404, 40403),
            (lambda client: client.register_schema(SUBJECT, Schema('"long"', "AVRO")), 422, 42205),
            (lambda client: client.register_schema(SUBJECT, Schema('"x"', "AVRO")), 422, 42201),
            (lambda client: client.get_compatibility(SUBJECT), 404, 40408),
            (lambda client: client.get_mode(SUBJECT), 404, 40409),
            (lambda client: client.set_compatibility(level="FULL"), 422, 42205),
            (lambda client: client.delete_subject(SUBJECT), 422, 42205),
            (lambda client: client.delete_version(SUBJECT, 1, permanent=True), 422, 42205),
            (lambda client: client.get_contexts(), 404, 404),
        ],
    )
    async def test_errors_are_answered_as_clients_expect(
        self, client: SchemaRegistryClient, request_to: Callable[[Any], object], status: int, code: int
    ) -> None:
        with pytest.raises(SchemaRegistryError) as caught:
            await asyncio.to_thread(request_to, client)
        assert (caught.value.http_status_code, caught.value.error_code) == (status, code)
