"""The golden messages of contract/ on a real broker: what read_changes gives is exactly their JSON."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from pyspark.sql import DataFrame, SparkSession

from pgsluice_spark import read_changes
from sandbox.kafka import Kafka
from tests.spark.events import CONTRACT, Json
from tests.spark.topics import Registered, create

TOPIC = "shop.public.golden"

GOLDEN: dict[str, list[Json]] = json.loads((CONTRACT / "golden.json").read_text())
CASES = {case: messages for case, messages in GOLDEN.items() if not case.startswith(("cut", "message"))}
"""Those that are changes, as topics of tables have them."""
MESSAGES = [(case, message) for case, messages in CASES.items() for message in messages]
ENVELOPE, KEY = (json.loads((CONTRACT / f"{name}.avsc").read_text()) for name in ("envelope", "key"))

Read = dict[str, list[Json]]
"""What read_changes gave of each case, as JSON."""


def data(part: Json) -> bytes | None:
    return None if part["hex"] is None else bytes.fromhex(part["hex"])


def schema_id(part: str) -> int:
    framed = [data(message[part]) for _, message in MESSAGES]
    (identifier,) = {int.from_bytes(one[1:5], "big") for one in framed if one is not None}
    return identifier


def plain(value: object) -> str:
    """Return dates and timestamps in ISO 8601, decimals as strings."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    assert isinstance(value, date | Decimal)
    return value.isoformat() if isinstance(value, date) else str(value)


def batch(spark: SparkSession, kafka: Kafka, **options: Any) -> DataFrame:  # noqa: ANN401 - as read_changes takes them
    registry = Registered({f"{TOPIC}-value": {schema_id("value"): ENVELOPE}, f"{TOPIC}-key": {schema_id("key"): KEY}})
    servers = kafka.bootstrap_servers
    return read_changes(spark, TOPIC, bootstrap_servers=servers, registry=registry, streaming=False, **options)


@pytest.fixture(scope="module")
def topic(kafka: Kafka) -> None:
    """Write the golden messages as they are, one after the other."""
    create(kafka, NewTopic(TOPIC, 1))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    for _, message in MESSAGES:
        producer.produce(TOPIC, key=data(message["key"]), value=data(message["value"]))
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def found(spark: SparkSession, kafka: Kafka, topic: None) -> Read:  # noqa: ARG001 - it has to be there
    """Read them all at once."""
    rows = batch(spark, kafka, tombstones=True).orderBy("offset").collect()
    read: Read = {case: [] for case in CASES}
    for (case, _), row in zip(MESSAGES, rows, strict=True):
        read[case].append(json.loads(json.dumps(row.asDict(recursive=True), default=plain)))
    return read


@pytest.mark.parametrize("case", CASES)
def test_read_changes_gives_the_golden_json(found: Read, case: str) -> None:
    names = [field["name"] for field in ENVELOPE["fields"]]
    expected = [(message["key"]["json"], message["value"]["json"]) for message in CASES[case]]
    events = [{name: row[name] for name in names} for row in found[case]]
    assert [row["key"] for row in found[case]] == [key for key, _ in expected]
    assert events == [dict.fromkeys(names) if value is None else value for _, value in expected]


def test_the_columns_beside_the_event(found: Read) -> None:
    rows = [row for rows in found.values() for row in rows]
    names = [field["name"] for field in ENVELOPE["fields"]]
    assert list(rows[0]) == [*names, "key", "fields", "topic", "partition", "offset", "timestamp"]
    assert [(row["topic"], row["partition"], row["offset"]) for row in rows] == [
        (TOPIC, 0, n) for n in range(len(rows))
    ]
    columns = list(CASES["insert"][0]["value"]["json"]["after"])
    assert all(row["fields"] == (columns if row["op"] else None) for row in rows)


@pytest.mark.usefixtures("topic")
def test_tombstones_are_left_out_unless_asked_for(spark: SparkSession, kafka: Kafka) -> None:
    offsets = [row["offset"] for row in batch(spark, kafka).select("offset").orderBy("offset").collect()]
    tombstones = {n for n, (_, message) in enumerate(MESSAGES) if message["value"]["hex"] is None}
    assert len(tombstones) == 3
    assert offsets == [n for n in range(len(MESSAGES)) if n not in tombstones]
