"""Unit tests of pgsluice.avro.types, which decides the Avro type of each column."""

import re

import pytest

from pgsluice.avro.binary import encode_long
from pgsluice.avro.choices import Choice, ColumnChoice
from pgsluice.avro.types import (
    ColumnType,
    Misfit,
    Opcode,
    TypeOptions,
    check_choices,
    choices_of,
    column_type,
    is_gone,
    key_type,
    widened,
    wider,
)
from pgsluice.avro.wire import Schema
from pgsluice.errors import ConfigError
from pgsluice.pgbinary.conversions import Element
from pgsluice.relation import Column, PgType, Relation

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
def test_each_type_of_pg_catalog_has_its_avro_type(name: str, schema: Schema, text: bytes, data: str) -> None:
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
def test_a_modifier_that_numeric_cannot_have_gives_a_string(typmod: int) -> None:
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
def test_the_range_of_times_does_not_change_the_schema(name: str, text: bytes) -> None:
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
def test_other_types_are_the_same_in_a_key_and_in_a_row(name: str) -> None:
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
def test_arrays_have_items_of_the_type_of_their_elements(name: str, item: Schema) -> None:
    assert in_row(name).schema == {"type": "array", "items": ["null", item]}


def test_only_boxes_are_separated_by_a_semicolon() -> None:
    assert in_row("_box").write(b"{(1,1),(0,0);(2,2),(1,1)}")[0] == 4
    assert in_row("_point").write(b'{"(1,1)","(0,0)"}')[0] == 4


def test_no_built_in_type_is_an_array_of_arrays() -> None:
    assert in_row("__int4").schema == in_row("_" * 5_000 + "int4").schema == "string"


def test_types_of_users_are_text() -> None:
    for name in ("mood", "int4", "_int4", "numeric", "timestamptz", "_mood", "citext", "ltree", "halfvec"):
        assert in_row(name, namespace="public") == ColumnType("string", Opcode.CHECKED_STRING)


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
        ("int", "float", None),  # a float holds only 24 bits exactly
        ("long", "float", None),
        ("long", "double", None),  # a double holds only 53 bits exactly
        ("int", "string", None),
        ("int", decimal(10, 0), None),
        (decimal(10, 2), decimal(12, 4), None),  # Avro would read the value with the wrong scale
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
        ("float4", -1, "double", b"0.1", "000000a09999b93f"),  # the result of PostgreSQL's cast
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


# --- arrays of user-defined types

MOOD, PRICES = PgType(16_400, "public", "mood"), PgType(16_410, "public", "_price")
TEXT = PgType(25, "pg_catalog", "text")


def array_of(element: PgType, delimiter: str = ",", more: dict[int, Element] | None = None) -> ColumnType:
    options = TypeOptions(elements={0: Element(element, delimiter), **(more or {})})
    return in_row("_mood", options=options, namespace="public")


@pytest.mark.parametrize(
    ("element", "item"),
    [
        (MOOD, "string"),
        (TEXT, "string"),
        (PgType(23, "pg_catalog", "int4"), "int"),
        (PgType(1700, "pg_catalog", "numeric"), "string"),
        (PgType(16_401, "public", "hstore"), {"type": "map", "values": ["null", "string"]}),
        (PgType(1007, "pg_catalog", "_int4"), {"type": "array", "items": ["null", "int"]}),
        (PgType(16_402, "public", "_mood"), {"type": "array", "items": ["null", "string"]}),
    ],
)
def test_arrays_of_other_types_have_the_elements_in_the_catalog(element: PgType, item: Schema) -> None:
    kind = array_of(element, more={16_402: Element(MOOD)})
    assert kind.schema == {"type": "array", "items": ["null", item]}


def test_an_array_of_arrays_is_an_array_of_a_domain() -> None:
    kind = array_of(PgType(1007, "pg_catalog", "_int4"))
    assert kind.write(b'{"{1,2}",NULL}').hex() == "04020402020204000000"


def test_arrays_have_the_delimiter_of_their_elements() -> None:
    assert array_of(PgType(603, "pg_catalog", "box"), ";").write(b"{(1,1),(0,0);(2,2),(1,1)}")[0] == 4


def test_an_array_of_an_unknown_type_is_its_whole_text() -> None:
    options = TypeOptions(elements={0: None})
    assert in_row("_mood", options=options, namespace="public") == ColumnType("string", Opcode.CHECKED_STRING)
    with pytest.raises(Misfit):
        ColumnType({"type": "array", "items": ["null", "string"]}, Opcode.MARKED).write(b"{a:b}")


@pytest.mark.parametrize(
    ("choices", "gone"), [((), True), (("double", "string"), True), (("string",), False), (("string", "double"), False)]
)
def test_an_array_that_is_chosen_as_string_needs_no_elements(choices: tuple[str, ...], gone: bool) -> None:  # noqa: FBT001
    column = Column("c", PgType(0, "public", "_mood"), -1, is_key=False)
    chosen = tuple(ColumnChoice("*", Choice.parse(choice)) for choice in choices)
    assert is_gone(column, TypeOptions(choices=chosen, elements={0: None})) is gone
    assert not is_gone(column, TypeOptions(choices=chosen, elements={0: Element(MOOD)}))
    assert not is_gone(column, TypeOptions(choices=chosen))


# --- choices


def chosen(name: str, choice: str, typmod: int = -1, namespace: str = "pg_catalog", **options: object) -> ColumnType:
    wanted = TypeOptions(choices=(ColumnChoice("c", Choice.parse(choice)),), **options)  # type: ignore[arg-type] # by name
    return in_row(name, typmod, wanted, namespace)


@pytest.mark.parametrize(
    ("name", "choice", "schema", "text", "data"),
    [
        ("numeric", "decimal(38,9)", decimal(38, 9), b"1.5", "0859682f00"),
        ("numeric", "double", "double", b"0.1", "9a9999999999b93f"),
        ("numeric", "long", "long", b"7", "0e"),
        ("numeric", "string", "string", b"7", "0237"),
        ("int4", "long", "long", b"7", "0e"),
        ("int4", "int", "int", b"7", "0e"),
        ("xid8", "long", "long", b"7", "0e"),
        ("float4", "double", "double", b"0.1", "000000a09999b93f"),
        ("interval", "interval-micros", {"type": "long", "logicalType": "interval-micros"}, b"PT0.000001S", "02"),
        ("time", "time-millis", {"type": "int", "logicalType": "time-millis"}, b"00:00:00.001", "02"),
        ("timestamp", "timestamp-micros", TIMESTAMPTZ, b"1970-01-01 00:00:00.000001", "02"),
        (
            *("timestamp", "local-timestamp-millis"),
            *({"type": "long", "logicalType": "local-timestamp-millis"}, b"1970-01-01 00:00:00.001", "02"),
        ),
        (
            *("timestamptz", "timestamp-millis"),
            *({"type": "long", "logicalType": "timestamp-millis"}, b"1970-01-01 00:00:00.001+00", "02"),
        ),
        ("uuid", "string", "string", b"x", "0278"),
        ("_int4", "string", "string", b"{{1}}", "0a7b7b317d7d"),
        ("_int4", "long", {"type": "array", "items": ["null", "long"]}, b"{7}", "02020e00"),
        ("_numeric", "decimal(5,1)", {"type": "array", "items": ["null", decimal(5, 1)]}, b"{0.1}", "0202020100"),
    ],
)
def test_a_column_has_the_type_chosen_for_it(name: str, choice: str, schema: Schema, text: bytes, data: str) -> None:
    kind = chosen(name, choice)
    assert kind.schema == schema
    assert kind.write(text).hex() == data


def test_values_that_a_chosen_type_cannot_hold_do_not_fit() -> None:
    for name, choice, text in (
        ("numeric", "decimal(5,1)", b"0.12"),
        ("numeric", "long", b"1.0"),
        ("numeric", "double", b"0.10000000000000001"),
        ("xid8", "long", b"18446744073709551615"),
        ("interval", "interval-micros", b"P1M"),
        ("timestamptz", "timestamp-millis", b"1970-01-01 00:00:00.000001+00"),
        ("timestamptz", "timestamp-millis", b"10000-01-01 00:00:00+00"),
        ("timestamptz", "timestamp-millis", b"infinity"),
    ):
        with pytest.raises(Misfit):
            chosen(name, choice).write(text)


def test_the_range_of_times_applies_to_chosen_types() -> None:
    kind = chosen("timestamptz", "timestamp-millis", time_range="full")
    assert kind.write(b"10000-01-01 00:00:00+00") == encode_long(253_402_300_800_000)


def test_a_choice_applies_to_the_key() -> None:
    def in_chosen_key(name: str, choice: str) -> ColumnType:
        return in_key(name, options=TypeOptions(choices=(ColumnChoice("*", Choice.parse(choice)),), numeric=(9, 1)))

    assert in_chosen_key("numeric", "decimal(20,2)").schema == decimal(20, 2)
    assert in_chosen_key("numeric", "timestamp-millis").schema == "string"
    for name, choice in (("timestamptz", "timestamp-millis"), ("timestamp", "local-timestamp-millis")):
        kind = in_chosen_key(name, choice)
        assert kind.write(b"infinity").hex() == "feffffffffffffffff01"
        with pytest.raises(Misfit):
            kind.write(b"1970-01-01 00:00:00.000001" + b"+00" * (name == "timestamptz"))


def test_the_first_choice_that_a_column_can_have_wins() -> None:
    choices = tuple(
        ColumnChoice(pattern, Choice.parse(choice))
        for pattern, choice in (("x*", "string"), ("*", "timestamp-millis"), ("*", "double"), ("*", "string"))
    )
    options = TypeOptions(choices=choices)
    assert in_row("float4", options=options).schema == "double"
    assert in_row("timestamptz", options=options).schema == {"type": "long", "logicalType": "timestamp-millis"}
    assert in_row("int4", options=options).schema == "string"
    assert in_row("mood", options=options, namespace="public").schema == "string"


@pytest.mark.parametrize(
    ("name", "namespace", "expected"),
    [
        ("numeric", "pg_catalog", ["string", "long", "double", "decimal(p,s)"]),
        ("timestamp", "pg_catalog", ["local-timestamp-micros", "local-timestamp-millis", "timestamp-millis"]),
        ("_interval", "pg_catalog", ["string", "interval-micros"]),
        ("hstore", "public", ["string"]),
        ("mood", "public", ["string"]),
        ("bool", "pg_catalog", ["boolean", "string"]),
    ],
)
def test_types_that_can_be_chosen(name: str, namespace: str, expected: list[str]) -> None:
    found = choices_of(column(name, namespace=namespace), DEFAULT)
    assert found[: len(expected)] == expected


def test_a_choice_that_names_a_column_has_to_be_possible() -> None:
    def table(*columns: Column) -> Relation:
        return Relation(7, "public", "orders", "d", columns)

    relation = table(column("text"), column("mood", namespace="public"))

    def refusal(pattern: str, choice: str) -> None:
        check_choices(relation, TypeOptions(choices=(ColumnChoice(pattern, Choice.parse(choice)),)))

    for pattern, choice in (("*", "double"), ("other", "double"), ("c", "string")):
        refusal(pattern, choice)
    with pytest.raises(
        ConfigError, match=r"^table public\.orders: column c of type text cannot be double, .*: write one of string, or"
    ):
        refusal("c", "double")
    for choice in ("decimal(9,1)", "timestamp-millis", "long"):
        with pytest.raises(ConfigError, match=f"cannot be {re.escape(choice)}"):
            refusal("c", choice)
    relation = table(column("timestamptz"))
    with pytest.raises(ConfigError, match="write one of timestamp-micros, timestamp-millis, string, or leave it out"):
        refusal("c", "local-timestamp-millis")


@pytest.mark.parametrize("precision", [None, "38", 39, 2**31 - 1])
def test_a_foreign_decimal_of_huge_precision_is_ignored(precision: object) -> None:
    """Ignore a decimal with a huge precision, because computing 10 to the power of the precision takes too long."""
    theirs: Schema = {"type": "bytes", "logicalType": "decimal", "precision": precision}
    assert wider(decimal(5, 0), theirs) is None
    assert wider(theirs, decimal(5, 0)) is None
