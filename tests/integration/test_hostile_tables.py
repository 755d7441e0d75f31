"""A user who may only create tables must not be able to block other tables, or to get rows into wrong topics."""

import json
import subprocess
import sys
from typing import Any

from confluent_kafka.admin import ConfigResource
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from sandbox.daemon import Daemon
from tests.support.kafka import admin, configure, create_topic, read_committed
from tests.support.weather import SETTINGS, Pipeline, Start, fails

IMPOSSIBLE = {"rules": [{"match": "public.orders", "types": {"amount": "uuid"}}]}


def execute(pipeline: Pipeline, *statements: str) -> None:
    with pipeline.database.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())


def values(pipeline: Pipeline, topic: str) -> list[dict[str, Any]]:
    """Wait until everything written so far is delivered. Return the values in a topic."""
    pipeline.wait_until_confirmed()
    context = SerializationContext(topic, MessageField.VALUE)
    with SchemaRegistryClient({"url": pipeline.daemon.url}) as registry:
        read = AvroDeserializer(registry)
        return [read(message.value(), context) for message in read_committed(pipeline.kafka, topic)]


def goes_on(pipeline: Pipeline) -> bool:
    """Check that new rows of ``numbers`` are still delivered. Return whether the daemon runs."""
    pipeline.write(3)
    pipeline.assert_complete()
    return pipeline.daemon.alive


def test_a_table_with_an_impossible_type_goes_into_quarantine(start: Start) -> None:
    pipeline = start({"tables": IMPOSSIBLE})
    execute(
        pipeline,
        "CREATE TABLE orders (id int PRIMARY KEY, amount int)",
        "INSERT INTO orders VALUES (1, 1), (2, 2)",
        "DELETE FROM orders WHERE id = 1",
    )
    letters = values(pipeline, f"{pipeline.daemon.name}.dead_letters")
    assert [(one["table"], one["op"], one["seq"], one["reason"]) for one in letters] == [
        ("orders", "c", 0, "table_refused"),
        ("orders", "c", 1, "table_refused"),
        ("orders", "d", 0, "table_refused"),
    ]
    (entry,) = pipeline.daemon.status()["quarantined"]
    assert entry["table"] == "public.orders"
    assert "column amount of type int4 cannot be uuid" in entry["reason"]
    assert pipeline.daemon.metric("pgsluice_quarantined_tables") == 1
    assert '"event": "table in quarantine"' in pipeline.daemon.log_text()
    cuts = values(pipeline, f"{pipeline.daemon.name}.transactions")
    counts = [topic["counts"] for cut in cuts for topic in cut["topics"] if topic["topic"].endswith(".dead_letters")]
    assert sum(one.get("dead_letter", 0) for one in counts) == 3
    assert goes_on(pipeline)


def test_a_table_is_published_again_when_its_rule_fits(start: Start) -> None:
    pipeline = start({"tables": IMPOSSIBLE})
    execute(pipeline, "CREATE TABLE orders (id int PRIMARY KEY, amount int)", "INSERT INTO orders VALUES (1, 1)")
    pipeline.wait_until_confirmed()
    pipeline.daemon.stop_well()
    pipeline.daemon.settings["tables"] = {}
    pipeline.daemon.start()
    execute(pipeline, "INSERT INTO orders VALUES (2, 2)")
    assert [one["after"]["id"] for one in values(pipeline, f"{pipeline.daemon.name}.public.orders")] == [2]
    assert pipeline.daemon.status()["quarantined"] == []


def test_an_impossible_type_stops_the_pipeline_if_the_settings_say_so(start: Start) -> None:
    pipeline = start({"tables": {**IMPOSSIBLE, "refused": "stop"}})
    execute(pipeline, "CREATE TABLE orders (id int PRIMARY KEY, amount int)", "INSERT INTO orders VALUES (1, 1)")
    assert pipeline.daemon.wait() == 78
    code, log = fails(pipeline)
    assert (code, "column amount of type int4 cannot be uuid" in log) == (78, True)


def test_a_name_of_control_characters_has_a_topic_that_ends_in_a_hash(start: Start) -> None:
    pipeline = start()
    table = '"' + "\x07" * 63 + '"'
    execute(pipeline, f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    pipeline.wait_until_confirmed()
    topics = admin(pipeline.kafka).list_topics(timeout=10).topics
    (topic,) = [name for name in topics if name.startswith(f"{pipeline.daemon.name}.public._x0007_")]
    assert len(topic) == 249
    assert [one["after"]["id"] for one in values(pipeline, topic)] == [1]
    assert goes_on(pipeline)


def test_a_schema_that_is_too_large_for_kafka(start: Start) -> None:
    pipeline = start()
    schemas = ConfigResource(ConfigResource.Type.TOPIC, f"{pipeline.daemon.name}.schemas")
    configure(pipeline.kafka, schemas, "max.message.bytes", "4000")
    columns = ", ".join(f"column_{number}_{abs(hash(str(number))):x} int" for number in range(1000))
    execute(pipeline, f"CREATE TABLE wide (id int PRIMARY KEY, {columns})", "INSERT INTO wide VALUES (1)")
    letters = values(pipeline, f"{pipeline.daemon.name}.dead_letters")
    assert [(one["table"], one["reason"]) for one in letters] == [("wide", "table_refused")]
    (entry,) = pipeline.daemon.status()["quarantined"]
    assert "max.message.bytes" in entry["reason"]
    assert goes_on(pipeline)


def test_a_topic_that_kafka_cannot_distinguish_from_another(start: Start) -> None:
    pipeline = start()
    execute(
        pipeline,
        "CREATE SCHEMA a_b",
        "CREATE SCHEMA a",
        "CREATE TABLE a_b.c (id int PRIMARY KEY)",
        "CREATE TABLE a.b_c (id int PRIMARY KEY)",
        "INSERT INTO a_b.c VALUES (1)",
        "INSERT INTO a.b_c VALUES (1)",
    )
    assert len(values(pipeline, f"{pipeline.daemon.name}.a_b.c")) == 1
    (entry,) = pipeline.daemon.status()["quarantined"]
    assert (entry["table"], "collides with another topic" in entry["reason"]) == ("a.b_c", True)
    assert goes_on(pipeline)


def test_deleting_topics_makes_room_for_others(start: Start) -> None:
    """The test follows the steps in docs/scaling.md."""
    pipeline = start({"kafka": {"topics": {"partitions": 1, "max": 1}}})
    daemon = pipeline.daemon
    execute(
        pipeline,
        *(f"CREATE TABLE {table} (id int PRIMARY KEY)" for table in "ab"),
        *(f"INSERT INTO {table} VALUES (1)" for table in "ab"),
    )
    pipeline.wait_until_confirmed()
    assert [one["table"] for one in daemon.status()["quarantined"]] == ["public.b"]
    execute(pipeline, "DROP TABLE a")
    daemon.stop_well()
    client, topic = admin(pipeline.kafka), f"{daemon.name}.public.a"
    client.delete_topics([topic])[topic].result(10)
    topics: dict[str, Any] = daemon.settings["kafka"]["topics"]
    topics["changed"] = "accept"
    daemon.start()
    execute(pipeline, "INSERT INTO b VALUES (2)")
    pipeline.wait_until_confirmed()
    del topics["changed"]
    daemon.restart()
    assert [one["after"]["id"] for one in values(pipeline, f"{daemon.name}.public.b")] == [2]
    assert daemon.status()["quarantined"] == []


def test_check_names_the_tables_that_cannot_be_published(start: Start) -> None:
    pipeline = start({"tables": IMPOSSIBLE, "kafka": {"topics": {"max": 4}}})
    name = pipeline.daemon.name
    assert checked(pipeline) == (0, [])
    create_topic(pipeline.kafka, f"{name}.public.compacted", cleanup_policy="compact")
    create_topic(pipeline.kafka, f"{name}.eu.checkpoint")
    execute(
        pipeline,
        "CREATE TABLE orders (id int PRIMARY KEY, amount int)",
        "CREATE TABLE compacted (id int)",
        "ALTER TABLE compacted REPLICA IDENTITY FULL",
        *(f"CREATE SCHEMA {schema}" for schema in ("a_b", "a", "eu")),
        "CREATE TABLE a_b.c (id int PRIMARY KEY)",
        "CREATE TABLE a.b_c (id int PRIMARY KEY)",
        "CREATE TABLE eu.transactions (id int PRIMARY KEY)",
    )
    code, found = checked(pipeline)
    assert code == 0
    words = [
        "table public.orders: column amount of type int4 cannot be uuid",
        "Kafka cannot distinguish from",
        "The published tables need 6 topics, but only 4 are allowed",
        f"Topic {name}.public.compacted has cleanup.policy=compact, but truncates or rows without a key",
        f"Topic {name}.eu.transactions belongs to another pipeline",
    ]
    assert [sum(word in one for one in found) for word in words] == [1, 1, 1, 1, 1]
    assert len(found) == len(words)
    pipeline.daemon.stop_well()
    pipeline.daemon.settings["tables"] = {**IMPOSSIBLE, "refused": "stop"}
    pipeline.daemon.start(wait=False)
    assert checked(pipeline)[0] == 78


def checked(pipeline: Pipeline) -> tuple[int, list[str]]:
    """Return the exit code of ``pgsluice check``, and its findings about tables that cannot be published."""
    command = (sys.executable, "-m", "pgsluice", "check", "--json", "-c", str(pipeline.daemon.config_file))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    findings = json.loads(done.stdout)
    refused = [one for one in findings if one["name"] == "tables" and one["verdict"] != "OK"]
    return done.returncode, [one["detail"] for one in refused]


def test_a_dot_in_a_name_does_not_lead_to_another_tables_topic(start: Start) -> None:
    pipeline = start({"tables": {"rules": [{"match": "*.orders", "topic": "{prefix}.{schema}.orders"}]}})
    execute(
        pipeline,
        "CREATE TABLE orders (id int PRIMARY KEY)",
        'CREATE TABLE "x.orders" (id int PRIMARY KEY)',
        "INSERT INTO orders VALUES (1)",
        'INSERT INTO "x.orders" VALUES (2)',
    )
    assert [one["table"] for one in values(pipeline, f"{pipeline.daemon.name}.public.orders")] == ["orders"]
    assert [one["after"]["id"] for one in values(pipeline, f"{pipeline.daemon.name}.public.x_x002E_orders")] == [2]


def test_the_service_topics_of_another_pipeline_are_not_written_to(start: Start) -> None:
    pipeline = start()
    settings = {**SETTINGS, "kafka": {**SETTINGS["kafka"], "topic_prefix": f"{pipeline.daemon.name}.eu"}}
    ends = pipeline.database.conninfo(), pipeline.kafka.bootstrap_servers
    with Daemon(f"{pipeline.daemon.name}eu", *ends, settings, wait_for="active") as other:
        execute(
            pipeline,
            "CREATE SCHEMA eu",
            *(f"CREATE TABLE eu.{table} (id int PRIMARY KEY)" for table in ("transactions", "checkpoint", "orders")),
            *(f"INSERT INTO eu.{table} VALUES (1)" for table in ("transactions", "checkpoint", "orders")),
        )
        pipeline.wait_until_confirmed()
        refused = {entry["table"]: entry["reason"] for entry in pipeline.daemon.status()["quarantined"]}
        assert refused.keys() == {"eu.transactions", "eu.checkpoint"}
        assert all("belongs to another pipeline" in reason for reason in refused.values())
        assert len(values(pipeline, f"{pipeline.daemon.name}.eu.orders")) == 1
        other.restart()
    assert goes_on(pipeline)
