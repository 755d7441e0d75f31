"""Tests of pgsluice_spark.read_marks on a real broker, with golden cut records and a record of an earlier schema."""

import json
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from pyspark.sql import SparkSession

from pgsluice_spark import SchemaError, read_marks
from sandbox.kafka import Kafka
from tests.spark.events import CONTRACT, Json, frame
from tests.spark.topics import Registered, create

GOLDEN: dict[str, list[Json]] = json.loads((CONTRACT / "golden.json").read_text())
SCHEMA: Json = json.loads((CONTRACT / "cut.avsc").read_text())


def test_marks_of_cut_records(spark: SparkSession, kafka: Kafka) -> None:
    topic = f"{uuid4().hex}.transactions"
    create(kafka, NewTopic(topic, 1))
    values = [one["value"] for found in GOLDEN.values() for one in found if one["value"]["schema"] == "cut"]
    (identifier,) = {int(value["hex"][2:10], 16) for value in values}
    before = {**SCHEMA, "fields": [field for field in SCHEMA["fields"] if field["name"] != "snapshots"]}
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, frame(1, before, {"pipeline": "shop", "cut": 1, "epoch": 1, "end_lsn": 5}))
    for value in values:
        producer.produce(topic, bytes.fromhex(value["hex"]))
    assert producer.flush(30) == 0

    registry = Registered({f"{topic}-value": {1: before, identifier: SCHEMA}})
    servers = kafka.bootstrap_servers
    marks = read_marks(spark, topic, bootstrap_servers=servers, registry=registry, streaming=False)
    assert marks.columns == ["topic", "schema", "table", "id", "state", "epoch", "lsn", "seq", "rows", "replaces"]
    expected = [mark for value in values for mark in value["json"]["snapshots"]]
    assert [row.asDict() for row in marks.orderBy("seq").collect()] == expected
    assert [mark["state"] for mark in expected] == ["begin", "rows", "end", "stale"]
    assert read_marks(spark, topic, bootstrap_servers=servers, registry=registry).isStreaming


def test_without_cut_records(spark: SparkSession) -> None:
    with pytest.raises(SchemaError, match=r"has no subject shop\.transactions-value"):
        read_marks(spark, "shop.transactions", bootstrap_servers="localhost:1", registry=Registered({}))
