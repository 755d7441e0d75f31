"""Tests of pgsluice_spark.decode, from framed bytes to native types, without Kafka."""

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark.decode import Part, decoded, fields
from pgsluice_spark.schema import Reading, record_reading, value_reading
from tests.spark.events import (
    Json,
    change,
    column,
    decimal,
    envelope_schema,
    frame,
    key_schema,
    logical,
    versions,
)

MANY = 70  # so many that the number of a union's branch takes more than one byte

BEFORE_GREGORIUS = datetime(1582, 10, 4, 1, 2, 3, 4, tzinfo=UTC)


def records(spark: SparkSession, part: Part, *data: bytes | None) -> DataFrame:
    rows = [("shop.public.orders", 2, 40 + number, datum) for number, datum in enumerate(data)]
    return spark.createDataFrame(rows, f"topic string, partition int, offset long, {part} binary")


def reading(schemas: dict[int, Json]) -> Reading:
    return value_reading(versions("shop.public.orders-value", schemas))


SCHEMA = envelope_schema([column("id", "long")])
EVENT = change("c", 1, after={"id": 1})

_TEMPORAL = {"date", "timestamp", "timestamp_ntz"}

TYPES: list[tuple[str, Any, Any, str, Any]] = [
    # Name, Avro type, value for fastavro, Spark type, value that Spark returns. Dates and times are returned as text.
    # ``...`` stands for the value for fastavro.
    ("flag", "boolean", True, "boolean", True),
    ("i", "int", -(2**31), "int", -(2**31)),
    ("l", "long", 2**63 - 1, "bigint", 2**63 - 1),
    ("f", "float", 0.5, "float", 0.5),
    ("d", "double", float("-inf"), "double", float("-inf")),
    ("n", decimal(38, 9), Decimal("-12345678901234567890123456789.123456789"), "decimal(38,9)", ...),
    ("early", logical("int", "date"), -719_162, "date", "0001-01-01"),
    ("late", logical("int", "date"), 2_932_896, "date", "9999-12-31"),
    ("t", logical("long", "time-micros"), 86_399_999_999, "bigint", 86_399_999_999),
    ("tz", logical("long", "timestamp-micros"), BEFORE_GREGORIUS, "timestamp", "1582-10-04 01:02:03.000004"),
    (
        "ntz",
        logical("long", "local-timestamp-micros"),
        BEFORE_GREGORIUS.replace(tzinfo=None),
        "timestamp_ntz",
        "1582-10-04 01:02:03.000004",
    ),
    ("u", logical("string", "uuid"), "6f1e2c1c-7b1f-4e0e-9f0a-0d6e2a3b4c5d", "string", ...),
    ("s", "string", "żółć 🙂\x00", "string", ...),
    ("b", "bytes", b"\x00\xff", "binary", ...),
    ("a", {"type": "array", "items": ["null", "int"]}, [1, None], "array<int>", ...),
    ("ad", {"type": "array", "items": ["null", decimal(4, 1)]}, [Decimal("1.5")], "array<decimal(4,1)>", ...),
    ("v", {"type": "array", "items": "float"}, [0.5], "array<float>", ...),
    ("h", {"type": "map", "values": ["null", "string"]}, {"k": None}, "map<string,string>", ...),
]


def test_every_type_is_native(spark: SparkSession) -> None:
    schema = envelope_schema([column(name, kind) for name, kind, *_ in TYPES])
    row = {name: written for name, _, written, *_ in TYPES}
    event = change("u", 5, seq=2, before={}, before_image="key", after=row, raw={"x": "NaN"}, flags=["f"])
    framed = records(spark, "value", frame(7, schema, event), None)
    changes = framed.select(decoded("value", reading({7: schema})).alias("change"))

    after = changes.select("change.after.*")
    assert {field.name: field.dataType.simpleString() for field in after.schema} == {
        name: kind for name, _, _, kind, _ in TYPES
    }
    # Compare dates and times as text, because Python's values would depend on its time zone.
    as_text = {name: F.col(name).cast("string") for name, *_, kind, _ in TYPES if kind in _TEMPORAL}
    values = after.withColumns(as_text).collect()[0].asDict()
    assert values == {name: written if read is ... else read for name, _, written, _, read in TYPES}

    envelope, missing = (record["change"] for record in changes.collect())
    assert missing is None
    found = {name: value for name, value in envelope.asDict().items() if name not in ("before", "after", "ts")}
    assert found == {name: event[name] for name in found}
    assert set(event) == set(envelope.asDict())
    assert set(envelope["before"]) == {None}
    assert envelope["ts"].astimezone(UTC) == event["ts"]


def test_each_record_is_read_with_the_schema_that_wrote_it(spark: SparkSession) -> None:
    schemas = {7: envelope_schema([column("id", "int"), column("price", decimal(5, 2)), column("gone", "string")])}
    schemas[2**31 - 1] = envelope_schema(
        [column("id", "long"), column("price", decimal(9, 2)), column("id__2", "string")]
    )
    for number in range(MANY):  # each schema names a different field, but the encoding does not show which
        schemas[1000 + number] = envelope_schema([column("id", "int"), column(f"x{number}", "string")])
    rows = {7: {"id": 1, "price": Decimal("-1.25"), "gone": "g"}}
    rows[2**31 - 1] = {"id": 2**40, "price": Decimal("1234567.89"), "id__2": "two"}
    rows |= {1000 + number: {"id": number, f"x{number}": f"value {number}"} for number in range(MANY)}
    framed = records(spark, "value", *(frame(i, schemas[i], change("c", 1, after=rows[i])) for i in schemas), None)
    read = reading(schemas)

    found = framed.select(decoded("value", read)["after"].alias("after"), fields(read).alias("fields")).collect()
    names = set().union(*rows.values())
    for row, record in zip(rows.values(), found, strict=False):
        assert record["after"].asDict() == dict.fromkeys(names) | row
        assert record["fields"] == list(row)
    assert (found[-1]["after"], found[-1]["fields"]) == (None, None)


def test_keys_of_several_versions(spark: SparkSession) -> None:
    schemas = {1: key_schema({"id": "int"}), 2: key_schema({"id": "long", "tenant": logical("int", "date")})}
    framed = records(spark, "key", frame(1, schemas[1], {"id": 1}), frame(2, schemas[2], {"id": 2, "tenant": 0}), None)
    keys = framed.select(decoded("key", record_reading(versions("t-key", schemas))).alias("key")).select("key.*")
    assert keys.schema.simpleString() == "struct<id:bigint,tenant:date>"
    assert [tuple(row) for row in keys.collect()] == [(1, None), (2, date(1970, 1, 1)), (None, None)]


@pytest.mark.parametrize(
    ("datum", "problem"),
    [
        (b"", r"not in Confluent's wire format .* begins with 0x\."),
        (b"\x00\x00\x00\x07", r"begins with 0x00000007\."),
        (b'{"op": "c"}', r"begins with 0x7B226F7022\."),
        (b"\x01\x00\x00\x00\x07\x02", r"begins with 0x0100000007\."),
        (frame(8, SCHEMA, EVENT), r"schema id 8, which was not known .* Restart .* from its checkpoint"),
        (b"\x00\xff\xff\xff\xff\x02", "schema id 4294967295, which was not known"),
    ],
    ids=["empty", "short", "json", "magic", "unknown", "beyond"],
)
@pytest.mark.parametrize("others", [{}, {9: envelope_schema([column("id", "int")])}], ids=["one schema", "a union"])
def test_records_that_cannot_be_decoded_are_an_error(
    spark: SparkSession, datum: bytes, problem: str, others: dict[int, Json]
) -> None:
    framed = records(spark, "value", frame(7, SCHEMA, EVENT), datum)
    with pytest.raises(PySparkException) as raised:
        framed.select(decoded("value", reading({7: SCHEMA, **others}))).collect()
    sentence = next(line for line in str(raised.value).splitlines() if "offset" in line)
    assert re.search(f"topic shop.public.orders, partition 2, offset 41: the value .*{problem}", sentence)


def test_a_damaged_body_is_an_error(spark: SparkSession) -> None:
    framed = records(spark, "value", frame(7, SCHEMA, EVENT)[:-3])
    with pytest.raises(Exception, match="Malformed records are detected"):
        framed.select(decoded("value", reading({7: SCHEMA}))).collect()
