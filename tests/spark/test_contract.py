"""Tests that Spark reads the golden messages of contract/: with from_avro, and with read_changes from a broker."""

import base64
import json
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation
from pyspark.sql.avro.functions import from_avro

from pgsluice_spark import read_changes
from sandbox.kafka import Kafka
from tests.contract.values import Json, decimal_text, json_of, physical, primitive, walk
from tests.spark.events import CONTRACT
from tests.spark.topics import Registered, create

GOLDEN: dict[str, list[Json]] = json.loads((CONTRACT / "golden.json").read_text())
SCHEMAS = {path.stem: json.loads(path.read_text()) for path in sorted(CONTRACT.glob("*.avsc"))}
TABLES = {"envelope": "key", "types": None, "keys": "keys_key"}
"""By the value schema of a table: its key schema, or None for a table without a key."""

JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "dateFormat": "yyyy-MM-dd",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSxxx",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

INFINITE = -(2**31), 2**31 - 1


def cases(schema: str) -> dict[str, list[Json]]:
    """Return the cases of the table with this value schema, including their tombstones."""
    return {case: messages for case, messages in GOLDEN.items() if messages[0]["value"]["schema"] == schema}


def data(part: Json) -> bytes | None:
    return None if part["hex"] is None else bytes.fromhex(part["hex"])


def is_infinite(part: Json) -> bool:
    """Return whether a key has an infinite date, which neither Python nor Spark's JSON can represent."""
    return part["schema"] == "keys_key" and part["json"]["date"] in INFINITE


# --- Spark's JSON


def spark_json(value: str | Column) -> Column:
    return F.to_json(F.struct(F.col(value) if isinstance(value, str) else value), JSON_OPTIONS)


def from_spark(schema: Json, text: str, *, beyond: bool = False) -> Json:
    """Parse JSON that was written by Spark. Return it in the form of the golden JSON."""
    (value,) = json.loads(text, parse_float=str).values()
    if value is None:
        return None
    return json_of(schema, walk(physical(schema), value, leaf)) if beyond else walk(schema, value, leaf)


def leaf(kind: str, schema: dict[str, Any], value: Any) -> Json:  # noqa: ANN401 - any JSON value
    match schema.get("logicalType"):
        case "decimal":
            return decimal_text(Decimal(value))
        case "time-micros" | "time-millis":  # Spark returns the number, and not a time
            return json_of(schema, value)
        case "timestamp-micros" | "local-timestamp-micros" | "timestamp-millis" | "local-timestamp-millis":
            return datetime.fromisoformat(value).isoformat()
        case _:
            return base64.b64decode(value).decode("latin-1") if kind == "bytes" else primitive(kind, value)


# --- from_avro


@pytest.mark.parametrize("name", SCHEMAS)
def test_from_avro_reads_the_golden_json(spark: SparkSession, name: str) -> None:
    parts = [part for messages in GOLDEN.values() for message in messages for part in message.values()]
    for beyond in (False, True):
        wanted = [part for part in parts if part["schema"] == name and is_infinite(part) is beyond]
        if not wanted:
            continue
        schema = physical(SCHEMAS[name]) if beyond else SCHEMAS[name]
        rows = spark.createDataFrame([(part["hex"],) for part in wanted], "data string")
        body = F.substring(F.unhex("data"), 6, 2**31 - 1)
        found = rows.select(spark_json(from_avro(body, json.dumps(schema), {"mode": "FAILFAST"}))).collect()
        assert [from_spark(SCHEMAS[name], text, beyond=beyond) for (text,) in found] == [
            part["json"] for part in wanted
        ]


# --- read_changes


def topic_of(name: str) -> str:
    return f"shop.public.golden_{name}"


def ids(name: str) -> dict[int, Json]:
    parts = (part for messages in GOLDEN.values() for message in messages for part in message.values())
    (identifier,) = {int(part["hex"][2:10], 16) for part in parts if part["schema"] == name}
    return {identifier: SCHEMAS[name]}


def batch(spark: SparkSession, kafka: Kafka, name: str, **options: Any) -> DataFrame:  # noqa: ANN401 - for read_changes
    key = TABLES[name]
    subjects = {f"{topic_of(name)}-value": ids(name), f"{topic_of(name)}-key": ids(key) if key else {}}
    servers = kafka.bootstrap_servers
    registry = Registered(subjects)
    return read_changes(spark, topic_of(name), bootstrap_servers=servers, registry=registry, streaming=False, **options)


@pytest.fixture(scope="module")
def topics(kafka: Kafka) -> None:
    """Write the golden messages to the topics of their tables, without any change and one after the other."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    for name in TABLES:
        create(kafka, NewTopic(topic_of(name), 1))
        for message in (message for messages in cases(name).values() for message in messages):
            producer.produce(topic_of(name), key=data(message["key"]), value=data(message["value"]))
    assert producer.flush(30) == 0


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize("name", TABLES)
def test_read_changes_gives_the_golden_json(spark: SparkSession, kafka: Kafka, name: str) -> None:
    messages = [message for messages in cases(name).values() for message in messages]
    event = F.struct(*(field["name"] for field in SCHEMAS[name]["fields"]))
    changes = batch(spark, kafka, name, tombstones=True).orderBy("offset")
    key = TABLES[name]
    keys = spark_json("key") if key else F.lit('{"key": null}')
    found = changes.select(keys, F.when(F.col("op").isNotNull(), spark_json(event))).collect()
    for message, (key_text, text) in zip(messages, found, strict=True):
        assert (None if text is None else from_spark(SCHEMAS[name], text)) == message["value"]["json"]
        if not is_infinite(message["key"]):
            assert from_spark(SCHEMAS[key or name], key_text) == message["key"]["json"]


@pytest.mark.usefixtures("topics")
def test_the_columns_beside_the_event(spark: SparkSession, kafka: Kafka) -> None:
    changes = batch(spark, kafka, "envelope", tombstones=True).orderBy("offset")
    names = [field["name"] for field in SCHEMAS["envelope"]["fields"]]
    assert changes.columns == [*names, "key", "fields", "topic", "partition", "offset", "timestamp"]
    rows = changes.select("op", "fields", "topic", "partition", "offset").collect()
    columns = list(GOLDEN["insert"][0]["value"]["json"]["after"])
    assert [row["offset"] for row in rows] == list(range(len(rows)))
    assert {(row["topic"], row["partition"]) for row in rows} == {(topic_of("envelope"), 0)}
    assert all(row["fields"] == (columns if row["op"] else None) for row in rows)


@pytest.mark.usefixtures("topics")
def test_tombstones_are_left_out_by_default(spark: SparkSession, kafka: Kafka) -> None:
    messages = [message for messages in cases("envelope").values() for message in messages]
    offsets = [row["offset"] for row in batch(spark, kafka, "envelope").select("offset").orderBy("offset").collect()]
    tombstones = {n for n, message in enumerate(messages) if message["value"]["hex"] is None}
    assert len(tombstones) == 6
    assert offsets == [n for n in range(len(messages)) if n not in tombstones]
