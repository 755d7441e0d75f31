"""Tests tables of several tenants that share a topic. Their rows, keys, truncates and schemas must stay separate."""

from collections import defaultdict
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.support.kafka import read_committed
from tests.support.weather import Pipeline, Start

RULES: dict[str, dict[str, Any]] = {
    "tables": {
        "tombstones": True,
        "rules": [
            {"match": "tenant_*.orders", "topic": "{prefix}.orders"},
            {"match": "tenant_*.*", "topic": "{prefix}.{table}"},
        ],
    }
}
TENANTS = 100


def execute(pipeline: Pipeline, *statements: str) -> None:
    with pipeline.database.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())


class Topic:
    """The content of a topic, as a reader without special knowledge of pgsluice sees it."""

    def __init__(self, pipeline: Pipeline, table: str) -> None:
        pipeline.wait_until_confirmed()
        topic = f"{pipeline.daemon.name}.{table}"
        context = SerializationContext(topic, MessageField.VALUE)
        self.keys: dict[bytes, set[str]] = defaultdict(set)
        """The PostgreSQL schemas that have records with each key."""
        self.tombstones: list[bytes] = []
        self.events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        """The events of each PostgreSQL schema, ordered by position."""
        with SchemaRegistryClient({"url": pipeline.daemon.url}) as registry:
            read = AvroDeserializer(registry)
            for message in read_committed(pipeline.kafka, topic):
                key = message.key()
                if message.value() is None:
                    self.tombstones.append(key)
                    continue
                event = read(message.value(), context)
                self.events[event["schema"]].append(event)
                if key is not None:
                    self.keys[key].add(event["schema"])
        for events in self.events.values():
            events.sort(key=lambda event: (event["lsn"], event["seq"]))

    def rows(self, tenant: str) -> dict[int, Any]:
        """Return a tenant's rows, computed only from its own events."""
        found: dict[int, Any] = {}
        for event in self.events[tenant]:
            if event["op"] == "t":
                found.clear()
            elif event["op"] == "d":
                del found[event["before"]["id"]]
            else:
                found[event["after"]["id"]] = event["after"]
        return found


def tenant(name: str) -> list[str]:
    """Return statements that create a tenant. Each tenant inserts the same rows and deletes one of them."""
    return [
        f"CREATE SCHEMA {name}",
        f"CREATE TABLE {name}.orders (id int PRIMARY KEY, amount int)",
        f"INSERT INTO {name}.orders SELECT n, n FROM generate_series(1, 3) n",
        f"DELETE FROM {name}.orders WHERE id = 3",
    ]


def test_a_hundred_tenants_are_created_while_the_daemon_runs(start: Start) -> None:
    pipeline = start(RULES)
    execute(pipeline, *(line for number in range(TENANTS) for line in tenant(f"tenant_{number}")))
    execute(pipeline, "TRUNCATE tenant_7.orders", "INSERT INTO tenant_7.orders VALUES (2, 20)")
    topic = Topic(pipeline, "orders")
    assert len(topic.events) == TENANTS
    expected = {1: {"id": 1, "amount": 1}, 2: {"id": 2, "amount": 2}}
    for number in range(TENANTS):
        assert topic.rows(f"tenant_{number}") == (expected if number != 7 else {2: {"id": 2, "amount": 20}})
    assert pipeline.daemon.status()["quarantined"] == []
    # Compaction keeps only the last record of each key, so two tables must not share a key.
    assert len(topic.keys) == 3 * TENANTS
    assert [tenants for tenants in topic.keys.values() if len(tenants) > 1] == []
    assert sorted(topic.tombstones) == sorted({key for key in topic.tombstones if key in topic.keys})
    assert len(topic.tombstones) == TENANTS


def test_tenants_whose_columns_have_different_types(start: Start) -> None:
    """Check that the fields of each table depend only on its own history, before and after a restart."""
    pipeline = start(RULES)
    execute(
        pipeline,
        *tenant("tenant_a"),
        *tenant("tenant_b"),
        "ALTER TABLE tenant_a.orders ALTER amount TYPE text",
        "INSERT INTO tenant_a.orders VALUES (4, 'much')",
        "INSERT INTO tenant_b.orders VALUES (4, 4)",
    )
    pipeline.wait_until_confirmed()
    pipeline.daemon.restart()
    execute(
        pipeline,
        "INSERT INTO tenant_a.orders VALUES (5, 'more')",
        "INSERT INTO tenant_b.orders VALUES (5, 5)",
        "CREATE TABLE tenant_a.users (id int PRIMARY KEY)",
        "CREATE TABLE tenant_b.users (id int PRIMARY KEY)",
        "INSERT INTO tenant_a.users VALUES (1)",
        "INSERT INTO tenant_b.users VALUES (1)",
    )
    topic = Topic(pipeline, "orders")
    assert [set(topic.rows("tenant_a")[number].values()) - {None} for number in (4, 5)] == [{4, "much"}, {5, "more"}]
    assert [topic.rows("tenant_b")[number] for number in (4, 5)] == [{"id": n, "amount": n} for n in (4, 5)]
    assert len(Topic(pipeline, "users").keys) == 2
    assert pipeline.daemon.status()["quarantined"] == []
