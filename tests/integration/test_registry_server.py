"""Tests schemas in a registry server, with a real broker, a daemon, and consumers that query the server."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from pgsluice.app import cli
from pgsluice.errors import (
    ConfigError,
    HistoryError,
    IncompatibleSchema,
    PermissionDenied,
    RegistryUnavailable,
    UnavailableError,
)
from pgsluice.registry import confluent
from pgsluice.registry.builtin import BuiltinRegistry
from pgsluice.registry.client import RegistryOptions
from pgsluice.registry.confluent import ConfluentOptions, ConfluentRegistry
from pgsluice.registry.export import export
from pgsluice.registry.rest import RestOptions
from pgsluice.registry.schema_record import Registered
from pgsluice.registry.store import SchemaStore
from sandbox.apicurio import Apicurio
from sandbox.kafka import Kafka
from tests.support.kafka import client_options, read_committed
from tests.support.log import restored_logging  # noqa: F401 - a fixture
from tests.support.registry_server import Fault, RegistryServer
from tests.support.weather import Pipeline, Start, wait_until

VALUE, KEY = "shop.public.orders-value", "shop.public.orders-key"


@pytest.fixture(scope="module")
def apicurio() -> Iterator[Apicurio]:
    with Apicurio() as server:
        yield server


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"shop-{uuid4().hex[:8]}.schemas"


def record(name: str, *columns: str) -> dict[str, Any]:
    fields = [{"name": column, "type": "int"} for column in columns]
    return {"type": "record", "name": name, "namespace": "shop.public.orders", "fields": fields}


def described(*columns: str) -> dict[str, Any]:
    listed = [{"name": column, "type": "int4", "type_oid": 23, "typmod": -1} for column in columns]
    return {"schema": "public", "table": "orders", "key": list(columns), "columns": listed}


@asynccontextmanager
async def registry(kafka: Kafka, topic: str, url: str, **other: Any) -> AsyncIterator[ConfluentRegistry]:  # noqa: ANN401 - passed to the options
    options = ConfluentOptions(lambda: RestOptions(url, timeout_s=5), **other)
    found = ConfluentRegistry(options, BuiltinRegistry(RegistryOptions(client_options(kafka)), topic))
    try:
        await found.start()
        yield found
    finally:
        await found.close()


class TestIds:
    async def test_the_server_assigns_ids_and_the_topic_has_them(
        self, kafka: Kafka, topic: str, apicurio: Apicurio
    ) -> None:
        subject = f"{topic}-key"
        async with registry(kafka, topic, apicurio.url) as one:
            identifier = await one.register(subject, record("Key", "id"), described("id"))
            assert [entry.id for entry in one.store.versions(subject)] == [identifier]
            assert await one.register(subject, record("Key", "id"), described("id")) == identifier
        async with registry(kafka, topic, apicurio.url) as again:
            assert again.subjects() == [subject]
            assert [json.loads(entry.schema) for entry in again.store.versions(subject)] == [record("Key", "id")]
            assert (again.record_name(subject), await again.fields(subject, "") is not None) == ("Key", True)
            assert again.store.versions(subject)[0].postgres == described("id")
            assert await again.register(subject, record("Key", "id")) == identifier

    async def test_the_server_is_queried_again_only_after_a_while(
        self, kafka: Kafka, topic: str, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with registry(kafka, topic, server.url) as one:
            for _ in range(3):
                await one.register(KEY, record("Key", "id"))
                await one.start()
            assert server.requests == [f"POST /subjects/{KEY}", f"POST /subjects/{KEY}/versions"]
            monkeypatch.setattr(confluent, "RECHECK_S", 0.0)
            await one.start()
            await one.register(KEY, record("Key", "id"))
            assert server.requests[2:] == [f"POST /subjects/{KEY}"]

    async def test_the_oldest_answer_is_dropped_from_the_cache(
        self, kafka: Kafka, topic: str, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(confluent, "IDS_MAX", 2)
        async with registry(kafka, topic, server.url) as one:
            subjects = [f"shop.public.{table}-key" for table in "abc"]
            ids = [await one.register(subject, record("Key", "id")) for subject in subjects]
            asked = len(server.requests)
            for number in (2, 1, 0):
                assert await one.register(subjects[number], record("Key", "id")) == ids[number]
            assert server.requests[asked:] == [f"POST /subjects/{subjects[0]}"]

    async def test_a_read_only_server_is_sufficient_if_it_has_the_schemas(
        self, kafka: Kafka, topic: str, server: RegistryServer
    ) -> None:
        async with registry(kafka, topic, server.url) as one:
            identifier = await one.register(KEY, record("Key", "id"))
        server.mode = "READONLY"
        async with registry(kafka, topic, server.url) as one:
            assert await one.register(KEY, record("Key", "id")) == identifier
            with pytest.raises(ConfigError, match="Set the mode to READWRITE"):
                await one.register(KEY, record("Key", "id", "other"))

    @pytest.mark.parametrize(
        ("strategy", "subjects"),
        [
            ("record", {"shop.public.orders.Key", "shop.transactions-key"}),
            ("topic-record", {"shop.public.orders-shop.public.orders.Key", "shop.transactions-key"}),
        ],
    )
    async def test_other_strategies_change_subjects_only_on_the_server(
        self, kafka: Kafka, topic: str, server: RegistryServer, strategy: str, subjects: set[str]
    ) -> None:
        async with registry(kafka, topic, server.url, strategy=strategy) as one:
            await one.register(KEY, record("Key", "id"))
            await one.register("shop.transactions-key", "string")
            assert set(server.subjects) == subjects
            assert one.subjects() == [KEY, "shop.transactions-key"]

    async def test_a_server_that_was_emptied_is_noticed(self, kafka: Kafka, topic: str, server: RegistryServer) -> None:
        """Messages contain ids of the server. If an id stood for another schema, consumers would read wrong values."""
        async with registry(kafka, topic, server.url) as one:
            assert await one.register(KEY, record("Key", "id")) == 1
        server.reset()
        async with registry(kafka, topic, server.url) as one:
            with pytest.raises(HistoryError, match=f"gives id 1 to a schema of subject {VALUE}, but"):
                await one.register(VALUE, record("Value", "id"))

    async def test_ids_stay_the_same_on_a_server_that_ignores_properties(
        self, kafka: Kafka, topic: str, server: RegistryServer
    ) -> None:
        server.ignores_properties = True
        async with registry(kafka, topic, server.url) as one:
            for kind in ("varchar", "text"):
                schema = record("Key", "id")
                schema["fields"][0]["pg.type"] = kind
                assert await one.register(KEY, schema, {"typmod": kind}) == 1
            (entry,) = one.store.versions(KEY)
            assert entry.postgres == {"typmod": "text"}

    async def test_a_pipeline_can_switch_to_a_server_and_back(
        self, kafka: Kafka, topic: str, server: RegistryServer
    ) -> None:
        builtin = BuiltinRegistry(RegistryOptions(client_options(kafka)), topic)
        await builtin.start()
        hashed = await builtin.register(KEY, record("Key", "id"))
        async with registry(kafka, topic, server.url) as one:
            assert await one.register(KEY, record("Key", "id")) == 1
            assert [entry.id for entry in one.store.versions(KEY)] == [hashed, 1]
        await builtin.start()
        assert await builtin.register(KEY, record("Key", "id")) == 1
        await builtin.close()

    async def test_an_unavailable_server_is_retried(self, kafka: Kafka, topic: str, server: RegistryServer) -> None:
        server.faults = [Fault(status=503, times=1)]
        async with registry(kafka, topic, server.url) as one:
            with pytest.raises(RegistryUnavailable, match="HTTP 503"):
                await one.register(KEY, record("Key", "id"))
            assert await one.register(KEY, record("Key", "id")) == 1

    async def test_new_credentials_are_read(self, kafka: Kafka, topic: str, server: RegistryServer) -> None:
        server.authorization = "Bearer new"
        tokens = ["new", "old"]
        options = ConfluentOptions(lambda: RestOptions(server.url, token=tokens.pop()))
        one = ConfluentRegistry(options, BuiltinRegistry(RegistryOptions(client_options(kafka)), topic))
        await one.start()
        with pytest.raises(PermissionDenied):
            await one.register(KEY, record("Key", "id"))
        assert await one.register(KEY, record("Key", "id")) == 1
        await one.close()

    async def test_an_expired_token_is_read_again_within_the_session(
        self, kafka: Kafka, topic: str, server: RegistryServer
    ) -> None:
        server.authorization = "Bearer old"
        tokens = ["new", "old"]
        options = ConfluentOptions(lambda: RestOptions(server.url, token=tokens.pop()))
        one = ConfluentRegistry(options, BuiltinRegistry(RegistryOptions(client_options(kafka)), topic))
        await one.start()
        await one.register(KEY, record("Key", "id"))
        server.authorization = "Bearer new"
        assert await one.register(VALUE, record("Value", "id")) == 2
        await one.close()


async def test_export_to_a_server_that_assigns_its_own_ids_fails(topic: str, apicurio: Apicurio) -> None:
    store = SchemaStore()
    store.add(Registered(f"{topic}-key", 1, 2_000_000_000, '"string"'))
    with pytest.raises(UnavailableError, match="it does not import schemas with their ids"):
        await export(store, RestOptions(apicurio.url), "topic")


class TestIncompatible:
    async def grow(self, one: ConfluentRegistry, subject: str = KEY) -> int:
        """Register the schema of a key, and then a schema in which the key has an additional column."""
        await one.register(subject, record("Key", "id"), described("id"))
        return await one.register(subject, record("Key", "id", "tenant"), described("id", "tenant"))

    async def test_stop_reports_the_alter_and_the_remedy(self, kafka: Kafka, topic: str, apicurio: Apicurio) -> None:
        subject = f"{topic}-key"
        async with registry(kafka, topic, apicurio.url) as one:
            with pytest.raises(IncompatibleSchema) as caught:
                await self.grow(one, subject)
            sentence = str(caught.value)
            for part in (
                f"new schema of table public.orders: subject {subject} has compatibility BACKWARD",
                "column tenant (int4) was added, the key changed from (id) to (id, tenant)",
                f"PUT /config/{subject}",
                'on_incompatible = "force"',
                "Nothing is lost",
            ):
                assert part in sentence
            assert len(one.store.versions(subject)) == 1

    async def test_force_registers_an_incompatible_schema_on_a_real_server(
        self, kafka: Kafka, topic: str, apicurio: Apicurio
    ) -> None:
        subject = f"{topic}-key"
        async with registry(kafka, topic, apicurio.url, on_incompatible="force") as one:
            await self.grow(one, subject)
            one._options = ConfluentOptions(one._options.rest)
            with pytest.raises(IncompatibleSchema):
                await one.register(subject, record("Key", "other"), described("other"))

    @pytest.mark.parametrize("level", [None, "FULL"])
    async def test_force_restores_the_level(
        self, kafka: Kafka, topic: str, server: RegistryServer, level: str | None
    ) -> None:
        async with registry(kafka, topic, server.url, on_incompatible="force") as one:
            await one.register(KEY, record("Key", "id"), described("id"))
            server.subjects[KEY].level = level
            assert await self.grow(one) == 2
            assert server.subjects[KEY].level == level

    async def test_a_refusal_that_the_level_does_not_explain_is_retried(
        self, kafka: Kafka, topic: str, server: RegistryServer
    ) -> None:
        """One of several servers may refuse a schema because it does not know the new level yet."""
        async with registry(kafka, topic, server.url, on_incompatible="force") as one:
            refusal = {"error_code": 409, "message": "in its words"}
            server.faults = [Fault("POST /subjects/.*/versions", status=409, body=refusal, times=2)]
            with pytest.raises(RegistryUnavailable, match="in its words"):
                await one.register(KEY, record("Key", "id"), described("id"))
            assert server.subjects[KEY].level is None
            assert await one.register(KEY, record("Key", "id"), described("id")) == 1

    async def test_a_level_that_could_not_be_restored_is_restored_later(
        self, kafka: Kafka, topic: str, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(confluent, "RECHECK_S", 0.0)
        async with registry(kafka, topic, server.url, on_incompatible="force") as one:
            server.faults = [Fault("DELETE /config", status=503, times=2)]
            with pytest.raises(RegistryUnavailable):
                await self.grow(one)
            assert server.subjects[KEY].level == "NONE"
            with pytest.raises(RegistryUnavailable):
                await one.start()
            await one.start()
            assert server.subjects[KEY].level is None
            assert await self.grow(one) == 2


class TestDaemon:
    def test_poison_and_incompatible_schemas_on_a_real_server_lose_nothing(
        self, start: Start, apicurio: Apicurio
    ) -> None:
        """A record that Kafka refuses becomes a dead letter. Later, a key that gains a column stops the daemon.

        After the setting allows incompatible schemas, the daemon starts, and must read the earlier cuts.
        """
        small = {"topics": {"partitions": 1, "config": {"max.message.bytes": "20000"}}, "client": {"batch.size": 20000}}
        pipeline = start({**at(apicurio.url), "delivery": {"poison": "dead_letter"}, "kafka": small})
        pipeline.write()
        with pipeline.database.connect() as connection:
            noise = "SELECT string_agg(random()::text, '') FROM generate_series(1, 3000)"
            connection.execute(f"INSERT INTO numbers VALUES (0, ({noise}))")
        pipeline.wait_until_confirmed()
        with pipeline.database.connect() as connection:
            connection.execute("ALTER TABLE numbers ADD tenant int NOT NULL DEFAULT 7, DROP CONSTRAINT numbers_pkey")
            connection.execute("ALTER TABLE numbers ADD PRIMARY KEY (n, tenant)")
        pipeline.write()
        assert pipeline.daemon.wait() == IncompatibleSchema.exit_code
        log = pipeline.daemon.log_text()
        assert "The schema registry refuses the new schema of table public.numbers" in log
        assert "column tenant (int4) was added, the key changed from (n) to (n, tenant)" in log
        assert f"PUT /config/{pipeline.daemon.name}.public.numbers-key" in log
        pipeline.daemon.settings["schema_registry"]["on_incompatible"] = "force"
        pipeline.daemon.start()
        assert pipeline.read(20) == pipeline.committed()[1:]
        assert "an incompatible schema is registered" in pipeline.daemon.log_text()
        topic = f"{pipeline.daemon.name}.dead_letters"
        with SchemaRegistryClient({"url": apicurio.url, "timeout": 10}) as client:
            (letter,) = read_committed(pipeline.kafka, topic)
            found = AvroDeserializer(client)(letter.value(), SerializationContext(topic, MessageField.VALUE))
        assert (found["table"], found["reason"]) == ("numbers", "record_too_large")

    def test_tenants_in_one_topic_can_have_separate_subjects(self, start: Start, apicurio: Apicurio) -> None:
        """Neither the columns of a tenant's table nor an ALTER TABLE of this table may affect other tenants."""
        rules = [{"match": "tenant_*.*", "topic": "{prefix}.{table}"}]
        settings = at(apicurio.url)
        settings["schema_registry"]["subject_name_strategy"] = "topic-record"
        pipeline = start({**settings, "tables": {"rules": rules}})
        with pipeline.database.connect() as connection:
            for number, columns in enumerate(
                ("id int PRIMARY KEY, amount int", "id text, part int, amount text, PRIMARY KEY (id, part)")
            ):
                connection.execute(f"CREATE SCHEMA tenant_{number}")
                connection.execute(f"CREATE TABLE tenant_{number}.orders ({columns})")
            for row in ("0.orders VALUES (1, 1)", "1.orders VALUES ('one', 1, 'much')"):
                connection.execute(f"INSERT INTO tenant_{row}".encode())
            connection.execute("ALTER TABLE tenant_0.orders DROP amount")
            connection.execute("INSERT INTO tenant_0.orders VALUES (2)")
        pipeline.wait_until_confirmed()
        topic = f"{pipeline.daemon.name}.orders"
        with SchemaRegistryClient({"url": apicurio.url, "timeout": 10}) as client:
            read, context = AvroDeserializer(client), SerializationContext(topic, MessageField.VALUE)
            events = [read(message.value(), context) for message in read_committed(pipeline.kafka, topic)]
            subjects = [name for name in client.get_subjects() if name.startswith(f"{topic}-")]
        found = sorted((event["schema"], str(event["after"]["id"])) for event in events)
        assert found == [("tenant_0", "1"), ("tenant_0", "2"), ("tenant_1", "one")]
        assert len(subjects) == 4

    @pytest.mark.usefixtures("restored_logging")
    def test_a_server_can_take_over_from_the_builtin_registry(
        self, start: Start, server: RegistryServer, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The ids must stay the same, so that readers with the server's schemas can also read earlier records."""
        pipeline = start()
        pipeline.write()
        pipeline.wait_until_confirmed()
        assert pipeline.daemon.stop() == 0
        command = ["registry", "export", "-c", str(pipeline.daemon.config_file), "--url", server.url]
        name = pipeline.daemon.name
        assert cli.main([*command, "--prefix", name, "--prefix", f"{name}s"]) == 78
        said = capsys.readouterr().err
        assert f"There is no topic {name}s.schemas on these brokers" in said
        assert f"prefixes that have schemas are {name}" in said
        assert "Correct --prefix, or kafka.topic_prefix; nothing was exported" in said
        assert not server.ids
        assert cli.main(command) == 0
        assert f"{name}.public.numbers-value: 1 schemas exported, the server already had 0" in capsys.readouterr().out
        ids = set(server.ids)
        pipeline.daemon.settings.update(at(server.url))
        pipeline.daemon.start()
        pipeline.write()
        pipeline.assert_complete()
        assert set(server.ids) == ids
        assert cli.main(["check", "-c", str(pipeline.daemon.config_file)]) == 0
        assert "it knows our schemas" in capsys.readouterr().out

    def test_nothing_is_lost_while_the_server_is_unavailable_or_slow(
        self, start: Start, server: RegistryServer, tmp_path: Path
    ) -> None:
        """The registry server is unavailable twice. Later, its answer takes longer than wal_sender_timeout.

        Finally, the daemon is killed while it waits for the registry server.
        """
        secret = tmp_path / "password"
        secret.write_text("hunter2\n")
        server.authorization = "Basic dXM6aHVudGVyMg=="
        server.faults = [Fault(status=503, body={"error_code": 50003, "message": "no leader yet"})]
        impatient = {"wal_sender_timeout": "1500ms", "status_interval": "300ms"}
        settings = {**at(server.url, username="us", password_file=str(secret)), "postgres": impatient}
        pipeline = start(settings, wait=False)
        pipeline.wait_for(state="waiting")
        assert "no leader yet" in pipeline.daemon.status()["last_error"]
        server.faults = []
        pipeline.daemon.wait_until_ready()
        pipeline.write()
        pipeline.wait_until_confirmed()
        server.faults = [Fault(status=502, body=b"<html>")]
        grow(pipeline, "a")
        pipeline.write()
        pipeline.wait_for(state="waiting")
        server.faults = []
        pipeline.daemon.wait_until_ready()
        pipeline.wait_until_confirmed()
        before = sessions(pipeline)
        server.faults = [Fault("versions", delay_s=5.0)]
        grow(pipeline, "b")
        pipeline.write()
        pipeline.wait_until_confirmed()
        assert sessions(pipeline) == before
        server.faults, server.requests = [Fault("versions", delay_s=1.0)], []
        grow(pipeline, "c")
        pipeline.write()
        wait_until(lambda: any("versions" in request for request in server.requests), "a registration in progress")
        pipeline.daemon.kill()
        pipeline.daemon.start()
        server.authorization = None  # because the reader sends no credentials
        pipeline.assert_complete()
        assert "hunter2" not in pipeline.daemon.log_text()
        assert "HTTP Request" not in pipeline.daemon.log_text()


def at(url: str, **other: str) -> dict[str, dict[str, Any]]:
    return {"schema_registry": {"type": "confluent", "url": url, **other}}


def grow(pipeline: Pipeline, column: str) -> None:
    with pipeline.database.connect() as connection:
        connection.execute(f"ALTER TABLE numbers ADD {column} int")


def sessions(pipeline: Pipeline) -> float | None:
    return pipeline.daemon.metric("pgsluice_sessions_total")
