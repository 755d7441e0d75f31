"""Unit tests of pgsluice.avro.types: the table of types of the wire contract."""

import pytest

from pgsluice.avro.types import ColumnType, Misfit, Opcode, TypeOptions, column_type, key_type, widened, wider
from pgsluice.avro.wire import Schema
from pgsluice.relation import Column, PgType

DATE = {"type": "int", "logicalType": "date"}
TIME = {"type": "long", "logicalType": "time-micros"}
TIMESTAMP = {"type": "long", "logicalType": "local-timestamp-micros"}
TIMESTAMPTZ = {"type": "long", "logicalType": "timestamp-micros"}
UUID = {"type": "string", "logicalType": "uuid"}
DEFAULT = TypeOptions()
FULL = TypeOptions(time_range="full")


def decimal(precision: int, scale: int) -> Schema:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def numeric_typmod(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def column(name: str, typmod: int = -1, namespace: str = "pg_catalog") -> Column:
    return Column("c", PgType(0, namespace, name), typmod, is_key=False)


def in_row(name: str, typmod: int = -1, options: TypeOptions = DEFAULT, namespace: str = "pg_catalog") -> ColumnType:
    return column_type(column(name, typmod, namespace), options)


def in_key(name: str, typmod: int = -1, options: TypeOptions = DEFAULT) -> ColumnType:
    return key_type(column(name, typmod), options)


@pytest.mark.parametrize(
    ("name", "schema", "text", "data"),
    [
        ("bool", "boolean", b"t", "01"),
        ("int2", "int", b"-32768", "ffff03"),
        ("int4", "int", b"2147483647", "feffffff0f"),
        ("int8", "long", b"9223372036854775807", "feffffffffffffffff01"),
        ("oid", "long", b"4294967295", "feffffff1f"),
        ("xid", "long", b"4294967295", "feffffff1f"),
        ("float4", "float", b"1.5", "0000c03f"),
        ("float8", "double", b"1.5", "000000000000f83f"),
        ("numeric", "string", b"NaN", "064e614e"),
        ("date", DATE, b"1970-01-02", "02"),
        ("time", TIME, b"00:00:00.000001", "02"),
        ("timestamp", TIMESTAMP, b"1970-01-01 00:00:00.000001", "02"),
        ("timestamptz", TIMESTAMPTZ, b"1970-01-01 00:00:00.000001+00", "02"),
        ("uuid", UUID, b"00000000-0000-0000-0000-000000000000", "48" + b"00000000-0000-0000-0000-000000000000".hex()),
        ("bytea", "bytes", b"\\x00ff", "0400ff"),
        ("text", "string", b"a", "0261"),
        ("jsonb", "string", b"{}", "047b7d"),
        ("interval", "string", b"P1D", "06503144"),
        ("timetz", "string", b"12:00:00+00", "16" + b"12:00:00+00".hex()),
        ("money", "string", b"$1.00", "0a24312e3030"),
        ("pg_lsn", "string", b"0/0", "06302f30"),
        ("int4range", "string", b"[1,2)", "0a5b312c3229"),
        ("char", "string", b"", "00"),
        ("9999", "string", b"?", "023f"),
    ],
)
def test_types_of_pg_catalog(name: str, schema: Schema, text: bytes, data: str) -> None:
    kind = in_row(name)
    assert kind.schema == schema
    assert kind.write(text).hex() == data


@pytest.mark.parametrize(
    ("precision", "scale", "schema"),
    [
        (10, 2, decimal(10, 2)),
        (38, 0, decimal(38, 0)),
        (39, 0, "string"),
        (1000, 500, "string"),
        (2, 5, decimal(5, 5)),
        (2, 39, "string"),
        (3, -2, decimal(5, 0)),
        (3, -35, decimal(38, 0)),
        (3, -36, "string"),
        (1, -1000, "string"),
        (1000, 1000, "string"),
    ],
)
def test_numeric_is_a_decimal_of_up_to_38_digits(precision: int, scale: int, schema: Schema) -> None:
    typmod = numeric_typmod(precision, scale)
    assert in_row("numeric", typmod).schema == schema
    assert in_row("numeric", typmod, TypeOptions(numeric=(20, 4))).schema == schema
    assert in_key("numeric", typmod).schema == schema


@pytest.mark.parametrize("typmod", range(5))
def test_a_modifier_that_no_numeric_has_gives_a_string(typmod: int) -> None:
    assert in_row("numeric", typmod).schema == "string"


def test_the_writer_of_a_decimal_has_its_precision_and_scale() -> None:
    kind = in_row("numeric", numeric_typmod(3, 1))
    assert kind.write(b"-12.3") == b"\x02\x85"
    with pytest.raises(Misfit):
        kind.write(b"123.4")


def test_numeric_without_precision_can_be_a_chosen_decimal() -> None:
    options = TypeOptions(numeric=(38, 9))
    assert in_row("numeric", options=options).schema == decimal(38, 9)
    assert in_row("numeric", options=options).write(b"1.5") == b"\x08" + (1_500_000_000).to_bytes(4, "big")
    assert in_row("_numeric", options=options).schema == {"type": "array", "items": ["null", decimal(38, 9)]}


def test_numeric_without_precision_is_a_string_in_a_key() -> None:
    assert in_key("numeric", options=TypeOptions(numeric=(38, 9))).schema == "string"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("date", b"0044-03-15 BC"),
        ("date", b"10000-01-01"),
        ("time", b"24:00:00"),
        ("timestamp", b"10000-01-01 00:00:00"),
        ("timestamptz", b"10000-01-01 00:00:00+00"),
    ],
)
def test_the_range_of_times_is_a_choice_that_leaves_the_schema(name: str, text: bytes) -> None:
    common, full = in_row(name), in_row(name, options=FULL)
    assert common.schema == full.schema
    assert full.write(text)
    assert in_key(name, options=FULL).write(text) == full.write(text)
    with pytest.raises(Misfit):
        common.write(text)
    with pytest.raises(Misfit):
        in_key(name).write(text)


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [
        ("date", "ffffffff0f", "feffffff0f"),
        ("timestamp", "ffffffffffffffffff01", "feffffffffffffffff01"),
        ("timestamptz", "ffffffffffffffffff01", "feffffffffffffffff01"),
    ],
)
def test_infinities_are_the_extremes_in_a_key(name: str, lowest: str, highest: str) -> None:
    kind = in_key(name)
    assert kind.schema == in_row(name).schema
    assert kind.write(b"-infinity").hex() == lowest
    assert kind.write(b"infinity").hex() == highest
    for options in (TypeOptions(), FULL):
        with pytest.raises(Misfit):
            in_row(name, options=options).write(b"infinity")


@pytest.mark.parametrize("name", ["int4", "text", "uuid", "bytea", "_int4", "float8", "time"])
def test_other_types_are_in_a_key_what_they_are_in_a_row(name: str) -> None:
    assert in_key(name) == in_row(name)


def test_arrays_have_nullable_items() -> None:
    kind = in_row("_int4")
    assert kind.schema == {"type": "array", "items": ["null", "int"]}
    assert kind.write(b"{1,NULL}").hex() == "0402020000"


def test_the_modifier_of_an_array_is_that_of_its_items() -> None:
    kind = in_row("_numeric", numeric_typmod(10, 2))
    assert kind.schema == {"type": "array", "items": ["null", decimal(10, 2)]}
    assert kind.write(b"{1.00}").hex() == "0202026400"


@pytest.mark.parametrize(
    ("name", "item"), [("_date", DATE), ("_uuid", UUID), ("_varchar", "string"), ("_jsonb", "string")]
)
def test_arrays_of_other_types(name: str, item: Schema) -> None:
    assert in_row(name).schema == {"type": "array", "items": ["null", item]}


def test_only_boxes_are_separated_by_a_semicolon() -> None:
    assert in_row("_box").write(b"{(1,1),(0,0);(2,2),(1,1)}")[0] == 4
    assert in_row("_point").write(b'{"(1,1)","(0,0)"}')[0] == 4


def test_types_of_users_are_text() -> None:
    for name in ("mood", "int4", "_int4", "numeric", "timestamptz", "_mood", "citext", "ltree", "halfvec"):
        assert in_row(name, namespace="public") == ColumnType("string", Opcode.STRING)


def test_extensions_go_by_name_in_any_schema() -> None:
    for namespace in ("public", "extensions"):
        assert in_row("hstore", namespace=namespace).schema == {"type": "map", "values": ["null", "string"]}
        assert in_row("vector", namespace=namespace).schema == {"type": "array", "items": "float"}
    assert in_row("hstore", namespace="public").write(b'"a"=>NULL').hex() == "0202610000"
    assert in_row("vector", namespace="public").write(b"[1.5]").hex() == "020000c03f00"


@pytest.mark.parametrize(
    ("one", "other", "widest"),
    [
        ("int", "int", "int"),
        ("int", "long", "long"),
        ("int", "double", "double"),
        ("float", "double", "double"),
        (decimal(10, 2), decimal(12, 2), decimal(12, 2)),
        (
            decimal(5, 0),
            {"type": "bytes", "logicalType": "decimal", "precision": 7},
            {"type": "bytes", "logicalType": "decimal", "precision": 7},
        ),
        (TIMESTAMP, TIMESTAMP, TIMESTAMP),
        ("int", "float", None),  # 24 bits
        ("long", "float", None),
        ("long", "double", None),  # 53 bits
        ("int", "string", None),
        ("int", decimal(10, 0), None),
        (decimal(10, 2), decimal(12, 4), None),  # Avro would read it, at the wrong scale
        (decimal(10, 2), "bytes", None),
        (decimal(10, 2), "string", None),
        ("string", UUID, None),
        ("string", "bytes", None),
        ("int", DATE, None),
        (TIMESTAMP, TIMESTAMPTZ, None),
        ({"type": "array", "items": ["null", "int"]}, {"type": "array", "items": ["null", "long"]}, None),
    ],
)
def test_types_that_widen_in_place(one: Schema, other: Schema, widest: Schema | None) -> None:
    assert wider(one, other) == wider(other, one) == widest


@pytest.mark.parametrize(
    ("name", "typmod", "schema", "text", "data"),
    [
        ("int4", -1, "int", b"7", "0e"),
        ("int4", -1, "long", b"7", "0e"),
        ("int4", -1, "double", b"7", "0000000000001c40"),
        ("float4", -1, "double", b"0.1", "000000a09999b93f"),  # what PostgreSQL's cast makes of it
        ("float8", -1, "double", b"0.1", "9a9999999999b93f"),
        ("numeric", numeric_typmod(3, 1), decimal(5, 1), b"-12.3", "0285"),
    ],
)
def test_a_narrower_column_is_written_as_the_wider_type(
    name: str, typmod: int, schema: Schema, text: bytes, data: str
) -> None:
    kind = widened(in_row(name, typmod), schema)
    assert kind.schema == schema
    assert kind.write(text).hex() == data


def test_a_widened_decimal_takes_the_digits_of_the_wider_one() -> None:
    kind = widened(in_row("numeric", numeric_typmod(3, 1)), decimal(5, 1))
    assert kind == in_row("numeric", numeric_typmod(5, 1))
