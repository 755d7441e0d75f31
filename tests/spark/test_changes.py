"""Tests of pgsluice_spark.read_changes on a real broker: cuts, schemas that appear and disappear, restarts."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from pgsluice_spark import SchemaError, SchemaVersion, TopicRegistry, latest, read_changes
from sandbox.kafka import Kafka
from tests.spark.events import (
    Json,
    change,
    column,
    decimal,
    envelope_schema,
    frame,
    key_schema,
)
from tests.spark.topics import Registered, create

numbers = count(1)


@dataclass
class Topic:
    """The topic of a table and its schemas. Records are written as the daemon writes them."""

    kafka: Kafka
    name: str
    values: dict[int, Json]
    keys: dict[int, Json]
    producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        self.producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "transactional.id": self.name})
        self.producer.init_transactions()

    @contextmanager
    def cut(self, *, commit: bool = True) -> Iterator[None]:
        self.producer.begin_transaction()
        yield
        assert self.producer.flush(30) == 0
        if commit:
            self.producer.commit_transaction()
        else:
            self.producer.abort_transaction()

    def put(self, value_id: int, event: Json | None, key_id: int | None, key: Json | None, partition: int = 0) -> None:
        self.producer.produce(
            self.name,
            key=None if key is None or key_id is None else frame(key_id, self.keys[key_id], key),
            value=None if event is None else frame(value_id, self.values[value_id], event),
            partition=partition,
        )

    def read(self, spark: SparkSession, **options: Any) -> DataFrame:  # noqa: ANN401 - options of read_changes
        registry = Registered({f"{self.name}-value": self.values, f"{self.name}-key": self.keys})
        servers = self.kafka.bootstrap_servers
        return read_changes(spark, self.name, bootstrap_servers=servers, registry=registry, **options)


@pytest.fixture
def new_topic(kafka: Kafka) -> Callable[[dict[int, Json], dict[int, Json]], Topic]:
    """Provide a function that creates a topic with two partitions for a table with given schemas."""

    def new(values: dict[int, Json], keys: dict[int, Json]) -> Topic:
        name = f"shop.public.orders_{next(numbers)}"
        create(kafka, NewTopic(name, 2))
        return Topic(kafka, name, values, keys)

    return new


def run(changes: DataFrame, checkpoint: Path) -> list[Row]:
    """Run a stream up to the current end of the topic. Return its rows, ordered by partition and offset."""
    rows: list[Row] = []
    query = (
        changes.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


OLD = envelope_schema([column("id", "int"), column("price", decimal(6, 2)), column("note", "string")])
NEW = envelope_schema([column("id", "long"), column("price", decimal(8, 2)), column("note__2", "double")])
NEWEST = envelope_schema([column("id", "long"), column("state", "string")])
OLD_KEY, NEW_KEY = key_schema({"id": "int"}), key_schema({"id": "long"})


def test_a_table_through_its_schemas(
    spark: SparkSession, tmp_path: Path, new_topic: Callable[[dict[int, Json], dict[int, Json]], Topic]
) -> None:
    topic = new_topic({1: OLD, 2: NEW}, {11: OLD_KEY, 12: NEW_KEY})
    with topic.cut():
        topic.put(1, change("r", 1, after={"id": 1, "note": "old"}, raw={"price": "NaN"}), 11, {"id": 1})
        topic.put(1, change("c", 2, after={"id": 2}), 11, {"id": 2}, partition=1)
    with topic.cut(commit=False):
        topic.put(1, change("d", 3, before={"id": 1}, before_image="key"), 11, {"id": 1})
    with topic.cut():
        topic.put(2, change("u", 4, after={"id": 1, "note__2": 0.5}, unchanged=["price"]), 12, {"id": 1})
        topic.put(2, change("d", 4, 1, before={"id": 2}, before_image="key"), 12, {"id": 2}, partition=1)
        topic.put(2, None, 12, {"id": 2}, partition=1)
    planned = topic.read(spark)
    assert "key struct<id:bigint>" in ", ".join(f"{name} {kind}" for name, kind in planned.dtypes)

    first = run(planned, tmp_path)
    assert [(row["op"], row["lsn"], row["partition"], row["offset"]) for row in first] == [
        ("r", 1, 0, 0),
        ("u", 4, 0, 4),
        ("c", 2, 1, 0),
        ("d", 4, 1, 2),
    ]
    snapshot, update = first[0], first[1]
    others = {"price": None, "note__2": None, "note": None}
    assert snapshot["after"].asDict() == others | {"id": 1, "note": "old"}
    assert (snapshot["raw"], snapshot["fields"]) == ({"price": "NaN"}, ["id", "price", "note"])
    assert update["after"].asDict() == others | {"id": 1, "note__2": 0.5}
    assert (update["unchanged"], update["fields"], update["topic"]) == (
        ["price"],
        ["id", "price", "note__2"],
        topic.name,
    )
    assert [row["key"]["id"] for row in first] == [1, 1, 2, 2]

    # A query ends when it reads a schema that it does not know. A new query continues from the checkpoint.
    topic.values[3] = NEWEST
    with topic.cut():
        topic.put(2, change("c", 5, after={"id": 3}), 12, {"id": 3})
        topic.put(3, change("c", 6, after={"id": 4, "state": "new"}), 12, {"id": 4})
    expected = f"topic {topic.name}, partition 0, offset 7: the value has schema id 3, which .* Restart the query"
    with pytest.raises(StreamingQueryException, match=expected):
        run(planned, tmp_path)
    second = run(topic.read(spark), tmp_path)
    assert [(row["lsn"], row["after"]["id"], row["after"]["state"]) for row in second] == [(5, 3, None), (6, 4, "new")]
    assert run(topic.read(spark), tmp_path) == []

    everything = topic.read(spark, streaming=False, tombstones=True)
    assert everything.where("op IS NULL").select("partition", "offset", "key.id", "fields").collect() == [
        (1, 3, 2, None)
    ]
    rows = {row["key"]["id"]: row for row in latest(everything.where("op IS NOT NULL")).collect()}
    assert set(rows) == {1, 3, 4}
    assert (rows[1]["raw"], rows[1]["unchanged"], rows[1]["ts"]) == ({"price": "NaN"}, [], first[0]["ts"])


def test_a_table_that_gets_a_key(
    spark: SparkSession, new_topic: Callable[[dict[int, Json], dict[int, Json]], Topic]
) -> None:
    topic = new_topic({1: OLD}, {})
    with topic.cut():
        topic.put(1, change("c", 1, after={"id": 1}), None, None)
    planned = topic.read(spark, streaming=False)
    assert "key" not in planned.columns
    assert [row["after"]["id"] for row in planned.collect()] == [1]
    topic.keys[11] = OLD_KEY
    with topic.cut():
        topic.put(1, change("c", 2, after={"id": 2}), 11, {"id": 2})
    with pytest.raises(Exception, match="offset 2: the key has schema id 11, which was not known"):
        planned.collect()
    rows = topic.read(spark, streaming=False).orderBy("lsn").collect()
    assert [row["key"] and row["key"]["id"] for row in rows] == [None, 2]


def test_names_that_differ_only_in_case(
    spark: SparkSession, new_topic: Callable[[dict[int, Json], dict[int, Json]], Topic]
) -> None:
    topic = new_topic({1: envelope_schema([column("id", "int"), column("ID", "string")])}, {})
    with topic.cut():
        topic.put(1, change("c", 1, after={"id": 1, "ID": "one"}), None, None)
    with pytest.raises(SchemaError, match=r"differ only in case \(ID, id\).*set it in the session"):
        topic.read(spark)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        (row,) = topic.read(spark, streaming=False).select("after.ID", "after.id").collect()
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert tuple(row) == ("one", 1)


def of_table(schema: Json, table: str) -> Json:
    found: Json = json.loads(json.dumps(schema).replace("shop.public.orders", f"shop.public.{table}"))
    return found


def test_one_table_of_a_topic_that_several_share(
    spark: SparkSession, new_topic: Callable[[dict[int, Json], dict[int, Json]], Topic]
) -> None:
    other = of_table(envelope_schema([column("id", "string")]), "others")
    topic = new_topic({1: OLD, 2: other}, {11: OLD_KEY, 12: of_table(key_schema({"id": "string"}), "others")})
    with topic.cut():
        topic.put(1, change("c", 1, after={"id": 1}), 11, {"id": 1})
        topic.put(2, change("c", 1, 1, after={"id": "1"}, table="others"), 12, {"id": "1"})
        topic.put(2, change("t", 1, 2, table="others"), None, None)
        topic.put(2, None, 12, {"id": "1"})
    with pytest.raises(SchemaError, match=r"\(public\.orders, public\.others\): read one table at a time"):
        topic.read(spark, streaming=False)
    (row,) = topic.read(spark, table="public.orders", streaming=False, tombstones=True).collect()
    assert (row["key"]["id"], row["after"]["id"], row["table"]) == (1, 1, "orders")
    rows = topic.read(spark, table="public.others", streaming=False, tombstones=True).orderBy("offset").collect()
    assert [(row["op"], row["key"] and row["key"]["id"]) for row in rows] == [("c", "1"), ("t", None), (None, "1")]
    with pytest.raises(SchemaError, match=r"has no table public\.none, only public\.orders, public\.others$"):
        topic.read(spark, table="public.none")


def test_arguments_that_are_refused(
    spark: SparkSession, new_topic: Callable[[dict[int, Json], dict[int, Json]], Topic]
) -> None:
    topic = new_topic({}, {})
    with pytest.raises(SchemaError, match=f"has no subject {topic.name}-value"):
        topic.read(spark)
    topic.values[1] = OLD
    with pytest.raises(ValueError, match=r"pgsluice_spark sets kafka\.Isolation\.level itself"):
        topic.read(spark, kafka_options={"kafka.Isolation.level": "read_uncommitted"})


def test_schemas_from_their_topic(spark: SparkSession, kafka: Kafka) -> None:
    topic = "only.schemas"
    create(kafka, NewTopic(topic, 1, config={"cleanup.policy": "compact"}))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    recorded = [("t-value", 1, 5), ("other-value", 1, 6), ("t-key", 1, 7), ("t-value", 2, 8), ("t-value", 1, 5)]
    for subject, version, identifier in recorded:
        entry = {"subject": subject, "version": version, "id": identifier, "schemaType": "AVRO", "schema": '"ö"'}
        key = json.dumps({"subject": subject, "id": identifier})
        producer.produce(topic, key=key, value=json.dumps(entry | {"postgres": None}, ensure_ascii=False))
    producer.produce(topic, key="deleted", value=None)
    producer.flush()
    registry = TopicRegistry(spark, kafka.bootstrap_servers, topic)
    assert sorted(registry.versions(["t-value", "t-key", "none"]), key=lambda version: version.id) == [
        SchemaVersion("t-value", 1, 5, '"ö"'),
        SchemaVersion("t-key", 1, 7, '"ö"'),
        SchemaVersion("t-value", 2, 8, '"ö"'),
    ]
