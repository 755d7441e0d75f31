"""A pipeline whose topics a test writes itself, record by record and cut by cut."""

import json
from typing import Any
from uuid import uuid4

from confluent_kafka import Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from pgsluice_spark import Pipeline
from sandbox.kafka import Kafka
from tests.spark.events import COMMITTED, CONTRACT, Json, change, column, envelope_schema, frame, key_schema
from tests.spark.topics import Registered, create

CUT: Json = json.loads((CONTRACT / "cut.avsc").read_text())
LETTER: Json = json.loads((CONTRACT / "dead_letter.avsc").read_text())
CUT_ID, LETTER_ID = 1, 2

COLUMNS = [column("id", "int"), column("note", "string"), column("count", "int")]


def schema_of(table: str, schema: Json) -> Json:
    """Return a copy of ``schema``, in which the contract's namespace is replaced by that of ``table``."""
    found: Json = json.loads(json.dumps(schema).replace("shop.public.orders", f"shop.public.{table}"))
    return found


class Handmade:
    """The topics of a pipeline. At first, its tables have the columns ``COLUMNS`` and the key ``id``."""

    def __init__(self, spark: SparkSession, kafka: Kafka, *tables: str, topic: str = "", partitions: int = 1) -> None:
        """Create the topics of these tables. If ``topic`` is given, all tables share this topic."""
        self.kafka = kafka
        self.prefix = uuid4().hex
        self.transactions = f"{self.prefix}.transactions"
        self.registry = Registered({f"{self.transactions}-value": {CUT_ID: CUT}})
        self.topics = {table: f"{self.prefix}.{topic or f'public.{table}'}" for table in tables}
        self.number = 0
        # The clients log nothing, because they outlive the broker.
        client = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
        self._producer = Producer(client)
        self._admin = AdminClient(client)
        self._ids: dict[str, int] = {}
        create(kafka, NewTopic(self.transactions, 1))
        self.dead_letters = f"{self.prefix}.dead_letters"
        create(kafka, NewTopic(self.dead_letters, 1))
        self.registry.schemas[f"{self.dead_letters}-value"] = {LETTER_ID: LETTER}
        for name in dict.fromkeys(self.topics.values()):
            create(kafka, NewTopic(name, partitions))
        for table in tables:
            self.register(table, COLUMNS, {"id": "int"})
        self.pipeline = Pipeline(
            spark, prefix=self.prefix, bootstrap_servers=kafka.bootstrap_servers, registry=self.registry
        )

    def register(self, table: str, columns: list[Json], key: dict[str, str | Json] | None) -> None:
        """Register schemas with other columns for a table. Later events have these columns.

        If ``key`` is None, the table has never had a key.
        """
        topic = self.topics[table]
        schemas = {"value": envelope_schema(columns)}
        if key is None:
            self.registry.schemas.pop(f"{topic}-key", None)
            self._ids.pop(f"{table}-key", None)
        else:
            schemas["key"] = key_schema(key)
        for part, schema in schemas.items():
            known = self.registry.schemas.setdefault(f"{topic}-{part}", {})
            self._ids[f"{table}-{part}"] = identifier = 10 + sum(map(len, self.registry.schemas.values()))
            known[identifier] = schema_of(table, schema)

    def event(self, table: str, op: str, lsn: int, seq: int, key: Json, **fields: Any) -> tuple[str, Json, Json]:  # noqa: ANN401 - any field of an event
        after = fields.pop("after", {})
        row = {**key, **after} if op in ("c", "u", "r") else None
        return table, key, change(op, lsn, seq, table=table, after=row, **fields)

    def write(self, *events: tuple[str, Json, Json], partition: int = 0) -> list[tuple[str, int]]:
        """Write events. Return the topic and the offset of each."""
        places: list[tuple[str, int]] = []

        def delivered(_error: object, message: Message) -> None:
            places.append((str(message.topic()), message.offset()))

        for table, key, event in events:
            topic = self.topics[table]
            framed_key = None if event["op"] == "t" else self._framed(table, "key", key)
            value = self._framed(table, "value", event)
            self._producer.produce(topic, value, framed_key, partition, on_delivery=delivered)
            assert self._producer.flush(30) == 0  # so that events of several topics are written in order
        return places

    def _framed(self, table: str, part: str, datum: Json) -> bytes | None:
        """Return an encoded key or value, or None if the table has no key."""
        identifier = self._ids.get(f"{table}-{part}")
        if identifier is None:
            return None
        return frame(identifier, self.registry.schemas[f"{self.topics[table]}-{part}"][identifier], datum)

    def cut(self, *events: tuple[str, Json, Json], counts: dict[str, int] | None = None, **fields: Any) -> None:  # noqa: ANN401 - any field of a cut record
        """Write events, and the cut record that lists them. ``counts`` replaces the counts of the first topic."""
        entries = self.entries(self.write(*events), [event for _, _, event in events])
        if counts is not None:
            entries[0]["counts"] = counts
        end_lsn = max([0, *(event["lsn"] + 1 for _, _, event in events)])
        self.write_cut(entries, **{"end_lsn": end_lsn, **fields})

    def entries(self, places: list[tuple[str, int]], events: list[Json]) -> list[Json]:
        """Return the topics that a cut record has to list for these events."""
        ids = self.topic_ids()
        found: dict[str, Json] = {}
        for (topic, offset), event in zip(places, events, strict=True):
            entry = found.setdefault(
                topic, {"topic": topic, "topic_id": ids[topic], "offsets": [], "counts": {}, "schema_ids": []}
            )
            at = entry["offsets"] or [{"partition": 0, "first": offset, "next": offset}]
            entry["offsets"] = [{**at[0], "next": offset + 1}]
            entry["counts"][event["op"]] = entry["counts"].get(event["op"], 0) + 1
        return list(found.values())

    def write_cut(self, entries: list[Json], *, number: int | None = None, parts: int = 1, **fields: Any) -> None:  # noqa: ANN401 - any field of a cut record
        """Write a cut record. Its number is ``number``, or by default the next number."""
        self.number = self.number + 1 if number is None else number
        record = {"pipeline": "shop", "cut": self.number, "epoch": 1, "end_lsn": 0, "parts": parts, **fields}
        for part in range(parts):
            topics = entries[part::parts]
            datum = {**record, "part": part, "topics": topics}
            self._producer.produce(self.transactions, frame(CUT_ID, CUT, datum))
        assert self._producer.flush(30) == 0

    def letter(self, table: str, op: str, lsn: int = 1) -> Json:
        """Write a dead letter. Return the topic entry that the cut record has to contain for this dead letter."""
        fields = {"schema": "public", "table": table, "op": op, "topic": self.topics[table], "reason": "refused"}
        datum = {**fields, "epoch": 1, "lsn": lsn, "seq": 0, "xid": 1, "ts": COMMITTED, "detail": "", "key": None}
        self._producer.produce(self.dead_letters, frame(LETTER_ID, LETTER, datum))
        assert self._producer.flush(30) == 0
        return {
            "topic": self.dead_letters,
            "offsets": [{"partition": 0, "first": 0, "next": 1}],
            "counts": {"dead_letter": 1},
        }

    def topic_ids(self) -> dict[str, str]:
        found = self._admin.describe_topics(TopicCollection(list(dict.fromkeys(self.topics.values()))))
        return {name: str(one.result().topic_id) for name, one in found.items()}

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        for done in self._admin.delete_topics([topic]).values():
            done.result()

    def recreate(self, topic: str) -> None:
        """Delete a topic and create it again."""
        self.delete(topic)
        create(self.kafka, NewTopic(topic, 1))

    def delete_records(self, topic: str, offset: int) -> None:
        """Delete the records before ``offset``, as retention does."""
        for done in self._admin.delete_records([TopicPartition(topic, 0, offset)]).values():
            done.result()
