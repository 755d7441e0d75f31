"""Unit tests of pgsluice_spark.schema. fastavro is the oracle of schema resolution."""

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from pgsluice_spark.schema import (
    Reading,
    SchemaError,
    SchemaVersion,
    ambiguous_names,
    columns_of,
    record_reading,
    table_of,
    value_reading,
)
from tests.spark.events import (
    CONTRACT,
    change,
    column,
    decimal,
    encode,
    envelope_schema,
    key_schema,
    logical,
    versions,
)

SUBJECT = "shop.public.orders-value"


def reading(*schemas: dict[str, Any]) -> Reading:
    return value_reading(versions(SUBJECT, dict(enumerate(schemas, start=101))))


def row_types(read: Reading) -> dict[str, Any]:
    envelope = json.loads(read.reader)
    before = next(field for field in envelope["fields"] if field["name"] == "before")
    return {field["name"]: field["type"][1] for field in before["type"][1]["fields"]}


def decode(read: Reading, identifier: int, body: bytes) -> Any:  # noqa: ANN401 - any record
    writers, reader = (fastavro.parse_schema(json.loads(text)) for text in (read.writers, read.reader))
    branch = bytes([2 * read.branches[identifier]]) if read.is_union else b""
    return fastavro.schemaless_reader(io.BytesIO(branch + body), writers, reader)


def test_records_of_all_versions_are_read_as_one_type() -> None:
    old = envelope_schema([column("id", "int"), column("gone", "string"), column("price", decimal(10, 2))])
    new = envelope_schema([column("id", "long"), column("price", decimal(12, 2)), column("added", "string")])
    read = reading(old, new)

    assert list(row_types(read)) == ["id", "price", "added", "gone"]
    row = {"id": 7, "gone": "g", "price": Decimal("1.50")}
    decoded = decode(read, 101, encode(old, change("c", 1, after=row)))
    assert decoded["after"] == {"id": 7, "price": Decimal("1.50"), "added": None, "gone": "g"}
    assert decoded["before"] is None
    row = {"id": 2**40, "price": Decimal("12345678.90"), "added": "a"}
    decoded = decode(read, 102, encode(new, change("d", 1, before=row)))
    assert decoded["before"] == row | {"gone": None}
    assert read.fields == {101: ("id", "gone", "price"), 102: ("id", "price", "added")}


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [("int", "long"), ("int", "double"), ("float", "double"), (decimal(10, 2), decimal(38, 2))],
)
def test_the_widest_type_is_used_in_any_order(narrow: Any, wide: Any) -> None:  # noqa: ANN401 - schemas
    schemas = [envelope_schema([column("x", kind)]) for kind in (narrow, wide)]
    assert row_types(reading(*schemas)) == {"x": wide}
    assert row_types(reading(*reversed(schemas))) == {"x": wide}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("int", "string"),
        ("int", "float"),
        ("long", "double"),
        ("string", logical("string", "uuid")),
        (decimal(10, 2), decimal(12, 4)),
        (decimal(10, 2), "bytes"),
        ({"type": "array", "items": ["null", "int"]}, {"type": "array", "items": ["null", "long"]}),
        ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}),
    ],
)
def test_a_field_with_two_meanings_is_refused(one: Any, other: Any) -> None:  # noqa: ANN401 - schemas
    with pytest.raises(SchemaError, match=r"^subject shop.public.orders-value: field x has the types .*"):
        reading(envelope_schema([column("x", one)]), envelope_schema([column("x", other)]))


def test_schemas_that_write_the_same_bytes_share_a_branch() -> None:
    texts = envelope_schema([column("x", "string", **{"pg.type": "text"})])
    varchar = envelope_schema([column("x", "string", **{"pg.type": "varchar"})])
    other = envelope_schema([column("y", "string")])
    read = reading(texts, other, varchar)
    assert read.branches == {101: 0, 102: 1, 103: 0}
    assert len(json.loads(read.writers)) == 2
    assert read.is_union


def test_one_schema_is_read_without_a_union() -> None:
    texts = envelope_schema([column("x", "string", **{"pg.type": "text"})])
    varchar = envelope_schema([column("x", "string", **{"pg.type": "varchar"})])
    read = reading(texts, varchar)
    assert not read.is_union
    for identifier, schema in ((101, texts), (102, varchar)):
        assert decode(read, identifier, encode(schema, change("c", 1, after={"x": "one"})))["after"] == {"x": "one"}


def test_schemas_are_read_as_other_registries_write_them() -> None:
    contract = envelope_schema([column("x", decimal(5, 0)), column("h", {"type": "map", "values": "string"})])
    text = json.dumps(contract).replace('["null", "Value"]', '["null", "shop.public.orders.Value"]')
    text = text.replace('"type": "string"', '"type": {"type": "string", "avro.java.string": "String"}')
    text = text.replace(', "scale": 0', "")
    read = value_reading([*versions(SUBJECT, {1: contract}), SchemaVersion(SUBJECT, 2, 2, text)])
    assert read.branches == {1: 0, 2: 0}


def test_fields_that_a_later_envelope_adds_or_drops_are_read() -> None:
    old, new = envelope_schema([column("x", "int")]), envelope_schema([column("x", "int")])
    old["fields"].append({"name": "old", "type": "int"})
    new["fields"].append({"name": "new", "type": "string", "default": "as before"})
    event = change("c", 1, after={"x": 1})
    decoded = decode(reading(old, new), 101, encode(old, event | {"old": 5}))
    assert (decoded["old"], decoded["new"]) == (5, "as before")
    decoded = decode(reading(old, new), 102, encode(new, event | {"new": "n"}))
    assert (decoded["old"], decoded["new"]) == (None, "n")


def test_records_inside_arrays_are_defined_once() -> None:
    item = {"type": "record", "name": "Item", "fields": [{"name": "n", "type": "int"}]}
    schema = envelope_schema([column("x", {"type": "array", "items": item}), column("y", "Item")])
    row = {"x": [{"n": 1}], "y": {"n": 2}}
    assert decode(reading(schema), 101, encode(schema, change("c", 1, after=row)))["after"] == row


def test_keys_of_all_versions_are_read_as_one_type() -> None:
    schemas = {1: key_schema({"id": "int", "tenant": "string"}), 2: key_schema({"id": "long"})}
    read = record_reading(versions("shop.public.orders-key", schemas))
    assert decode(read, 1, encode(schemas[1], {"id": 1, "tenant": "t"})) == {"id": 1, "tenant": "t"}
    assert decode(read, 2, encode(schemas[2], {"id": 2})) == {"id": 2, "tenant": None}
    assert read.fields == {1: (), 2: ()}


def test_cut_records_of_all_versions_are_read_as_one_type() -> None:
    new = json.loads((CONTRACT / "cut.avsc").read_text())
    old = json.loads((CONTRACT / "cut.avsc").read_text())
    marks = next(field for field in old["fields"] if field["name"] == "snapshots")["type"]["items"]
    marks["fields"] = [field for field in marks["fields"] if field["name"] not in ("schema", "table")]
    first = {**new, "fields": [field for field in new["fields"] if field["name"] != "snapshots"]}
    read = record_reading(versions("shop.transactions-value", {1: first, 2: old, 3: new}))
    cut = {"pipeline": "shop", "cut": 1, "epoch": 1, "end_lsn": 5}
    mark = {"topic": "t", "id": "x", "state": "end", "epoch": 1, "lsn": 5, "seq": 0, "rows": 3, "replaces": True}
    named = mark | {"schema": "public", "table": "orders"}
    assert decode(read, 1, encode(first, cut))["snapshots"] == []
    assert decode(read, 2, encode(old, cut | {"snapshots": [mark]}))["snapshots"] == [
        mark | {"schema": "", "table": ""}
    ]
    assert decode(read, 3, encode(new, cut | {"snapshots": [named]}))["snapshots"] == [named]


def test_the_table_of_a_schema_is_found() -> None:
    (version,) = versions(SUBJECT, {1: key_schema({"id": "int"})})
    assert table_of(version) == "public.orders"
    full_name = {"type": "record", "name": "my.shop.public.order_x0020_lines.Key", "fields": []}
    (version,) = versions(SUBJECT, {1: full_name})
    assert table_of(version) == "public.order_x0020_lines"
    with pytest.raises(SchemaError, match="is not a record"):
        table_of(SchemaVersion(SUBJECT, 1, 1, '"string"'))


def test_schemas_of_several_tables_that_do_not_fit_together_are_refused() -> None:
    one, other = envelope_schema([column("x", "int")]), envelope_schema([column("x", "string")])
    other["namespace"] = "shop.public.invoices"
    with pytest.raises(
        SchemaError, match=r"to several tables \(public\.invoices, public\.orders\): read one table at a time$"
    ):
        reading(one, other)


def test_names_that_differ_only_in_case() -> None:
    assert ambiguous_names(reading(envelope_schema([column("a", "int"), column("b", "int")]))) == []
    schemas = envelope_schema([column("total", "int")]), envelope_schema([column("Total", "string")])
    assert ambiguous_names(reading(*schemas)) == ["Total", "total"]
    keys = versions("shop.public.orders-key", {1: key_schema({"ID": "int", "id": "int"})})
    assert ambiguous_names(record_reading(keys)) == ["ID", "id"]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("{", "is not an Avro schema that pgsluice writes"),
        ('{"name": "Envelope"}', "is not an Avro schema that pgsluice writes"),
        ('{"type": "array", "items": "Unknown"}', "is not an Avro schema that pgsluice writes"),
        ('"string"', "is not a record"),
        ('["null", "string"]', "is not a record"),
        (json.dumps(key_schema({"op": "string", "lsn": "long"})), "lacks after, before, epoch, seq, unchanged"),
        (json.dumps(envelope_schema([column("x", {**key_schema({}), "name": "Value"})])), "two records named Value"),
    ],
)
def test_schemas_of_other_programs_are_refused(schema: str, problem: str) -> None:
    with pytest.raises(SchemaError, match=f"^version 3 of subject {SUBJECT} .*{problem}"):
        value_reading([SchemaVersion(SUBJECT, 3, 1, schema)])


def test_the_columns_of_a_row_are_found() -> None:
    (version,) = versions(
        SUBJECT, {1: envelope_schema([column("id", "int"), column("a__2", "int", **{"pg.name": "a"})])}
    )
    assert columns_of(version) == {"id": "id", "a__2": "a"}
