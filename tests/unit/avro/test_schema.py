"""Unit tests of pgsluice.avro.schema. fastavro checks every schema."""

import itertools
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

from pgsluice.avro import schema
from pgsluice.avro.key_history import KeyHistory
from pgsluice.avro.schema import Field, FieldHistory, TableFields
from pgsluice.avro.types import ColumnType, Opcode, TypeOptions
from pgsluice.avro.wire import Schema
from pgsluice.errors import ConfigError
from pgsluice.pgbinary.conversions import Element
from pgsluice.relation import CATALOG, Column, PgType, Relation

CONTRACT = Path(__file__).parents[3] / "contract"
OPTIONS = TypeOptions()


def numeric(precision: int, scale: int) -> tuple[str, int]:
    return "numeric", (precision << 16 | scale) + 4


def column(name: str, kind: str | tuple[str, int] = "int4", *, is_key: bool = False) -> Column:
    type_name, typmod = (kind, -1) if isinstance(kind, str) else kind
    return Column(name, PgType(0, CATALOG, type_name), typmod, is_key)


def relation(*columns: Column) -> Relation:
    return Relation(16385, "public", "orders", "d", columns)


def one_column(name: str, kind: str | tuple[str, int]) -> Relation:
    return relation(column(name, kind))


def envelope(fields: tuple[Field, ...]) -> dict[str, Any]:
    return schema.envelope_schema(schema.namespace("shop", "public", "orders"), fields)


# --- names


@pytest.mark.parametrize(
    ("name", "avro"),
    [
        ("orders", "orders"),
        ("Order_Lines2", "Order_Lines2"),
        ("_", "_"),
        ("__x", "__x"),
        ("order lines", "order_x0020_lines"),
        ("a.b-c", "a_x002E_b_x002D_c"),
        ("größe", "gr_x00F6__x00DF_e"),
        ("1st", "_x0031_st"),
        ("a1", "a1"),
        ("😀", "_x1F600_"),
        ("_x0041_", "_x005F_x0041_"),  # looks like an escape
        ("_x0041_x0042_", "_x005F_x0041_x005F_x0042_"),
        ("_x0041", "_x005F_x0041"),  # if another escape followed, its "_" would complete "_x0041_"
        ("_x0041é", "_x005F_x0041_x00E9_"),
        ("_x00g1_", "_x00g1_"),
        ("_xabcd_", "_xabcd_"),  # escapes have uppercase digits
        ('a"b\n', "a_x0022_b_x000A_"),
        ("a\u0660", "a_x0660_"),  # a digit, but not one of Avro's
    ],
)
def test_escaped_names_can_be_read_back(name: str, avro: str) -> None:
    assert schema.avro_name(name) == avro
    assert schema.pg_name(avro) == name


def test_every_part_of_a_namespace_is_escaped() -> None:
    assert schema.namespace("my.shop", "public", "order lines") == "my_x002E_shop.public.order_x0020_lines"


# --- fields


def names(history: TableFields, *columns: Column) -> list[str]:
    return [field.name for field in history.assign(relation(*columns))]


def test_fields_have_the_order_of_the_columns() -> None:
    fields = TableFields(OPTIONS).assign(relation(column("id"), column("order lines", "text")))
    assert [(field.name, field.type.schema) for field in fields] == [("id", "int"), ("order_x0020_lines", "string")]
    assert [field.column.name for field in fields] == ["id", "order lines"]


@pytest.mark.parametrize(
    ("kinds", "fields"),
    [
        (["int4", "int8", "int4"], [("a", "int"), ("a", "long"), ("a", "long")]),
        (["int2", "int4"], [("a", "int"), ("a", "int")]),
        (["int4", "float8", "int4"], [("a", "int"), ("a", "double"), ("a", "double")]),
        (["int4", "float8", "int8"], [("a", "int"), ("a", "double"), ("a__2", "long")]),
        (["float4", "float8", "float4"], [("a", "float"), ("a", "double"), ("a", "double")]),
        (["text", "varchar", "jsonb"], [("a", "string")] * 3),
        (["text", "int4", "text", "int8"], [("a", "string"), ("a__2", "int"), ("a", "string"), ("a__2", "long")]),
        (["int4", "text", "bool", "text"], [("a", "int"), ("a__2", "string"), ("a__3", "boolean"), ("a__2", "string")]),
        (["int8", "float8"], [("a", "long"), ("a__2", "double")]),
        # A field with exactly the column's type takes precedence over a field with a wider type.
        (
            ["text", "int4", "float4", "float8", "float4", "int4"],
            [
                ("a", "string"),
                ("a__2", "int"),
                ("a__3", "float"),
                ("a__2", "double"),
                ("a__3", "float"),
                ("a__2", "double"),
            ],
        ),
    ],
)
def test_a_field_changes_its_type_only_if_readers_stay_correct(kinds: list[str], fields: list[tuple[str, str]]) -> None:
    history = TableFields(OPTIONS)
    assigned = [history.assign(one_column("a", kind))[0] for kind in kinds]
    assert [(field.name, field.type.schema) for field in assigned] == fields
    assert [field.column.type.name for field in assigned] == kinds


MOODS = Column("moods", PgType(16_401, "public", "_mood"), -1, is_key=True)
GONE = TypeOptions(elements={16_401: None})
ARRAY = {"type": "array", "items": ["null", "string"]}


def test_arrays_that_cannot_be_split_keep_their_field_and_are_marked() -> None:
    known = TypeOptions(elements={16_401: Element(PgType(16_400, "public", "mood"))})
    before = TableFields(known).assign(relation(MOODS))
    history = TableFields(GONE, FieldHistory([envelope(before)]))
    (field,) = history.assign(relation(MOODS))
    assert (field.name, field.type) == ("moods", ColumnType(ARRAY, Opcode.MARKED))
    assert envelope((field,)) == envelope(before)
    (of_key,) = schema.key_fields(relation(MOODS), (field,), ["moods"], GONE)
    assert (of_key.name, of_key.type.schema) == ("moods", "string")
    assert TableFields(known, FieldHistory([envelope((field,))])).assign(relation(MOODS)) == before


def test_arrays_that_were_never_split_are_texts() -> None:
    (field,) = TableFields(GONE).assign(relation(MOODS))
    assert (field.name, field.type.schema) == ("moods", "string")


def test_a_decimal_grows_in_precision_only() -> None:
    history = TableFields(OPTIONS)
    sizes = [(10, 2), (12, 2), (10, 2), (12, 4), None, (14, 2), (12, 4)]
    steps = ["numeric" if size is None else numeric(*size) for size in sizes]
    assigned = [history.assign(one_column("amount", step))[0] for step in steps]
    assert [field.name for field in assigned] == [
        "amount",
        "amount",
        "amount",
        "amount__2",
        "amount__3",
        "amount",
        "amount__2",
    ]
    assert [field.type.parameters for field in assigned] == [(10, 2), (12, 2), (12, 2), (12, 4), (), (14, 2), (12, 4)]


def test_a_column_that_is_added_again_gets_its_former_field() -> None:
    history = TableFields(OPTIONS)
    assert names(history, column("a"), column("b")) == ["a", "b"]
    assert names(history, column("b")) == ["b"]
    assert names(history, column("b"), column("a")) == ["b", "a"]
    assert names(history, column("b"), column("a", "text")) == ["b", "a__2"]


def test_a_column_with_the_name_of_a_renamed_one_gets_its_own_field() -> None:
    history = TableFields(OPTIONS)
    assert names(history, column("a")) == ["a"]
    assert names(history, column("b"), column("a", "text")) == ["b", "a__2"]
    assert names(history, column("b"), column("a", "int8")) == ["b", "a"]


def test_a_column_may_be_named_like_a_later_field_of_another() -> None:
    history = TableFields(OPTIONS)
    assert names(history, column("amount"), column("amount__2")) == ["amount", "amount__2"]
    assert names(history, column("amount", "text"), column("amount__2")) == ["amount__3", "amount__2"]
    history = TableFields(OPTIONS)
    assert names(history, column("amount")) == ["amount"]
    assert names(history, column("amount", "text")) == ["amount__2"]
    assert names(history, column("amount", "text"), column("amount__2")) == ["amount__2", "amount__2__2"]


def test_names_that_differ_only_in_case_get_numbers() -> None:
    history = TableFields(OPTIONS)
    assert names(history, column("Id"), column("id"), column("ID", "text")) == ["Id", "id__2", "ID__3"]
    assert names(history, column("ID", "text"), column("id"), column("Id")) == ["ID__3", "id__2", "Id"]


def test_the_history_is_rebuilt_from_the_registered_schemas() -> None:
    history = TableFields(OPTIONS)
    versions = [
        relation(column("a"), column("order lines", "text"), column("A", "text")),
        relation(column("a", "text"), column("amount", numeric(10, 2))),
        relation(column("a", "int8"), column("amount", numeric(12, 2)), column("a__2")),
        relation(column("a"), column("amount", numeric(12, 4)), column("order lines", "int4")),
    ]
    registered = [envelope(history.assign(version)) for version in versions]
    for version in [*versions, relation(column("a", "bool"), column("A", "bool"), column("amount", "text"))]:
        rebuilt = TableFields(OPTIONS, FieldHistory([json.loads(json.dumps(one)) for one in registered]))
        assert rebuilt.assign(version) == history.assign(version)


def test_another_choice_in_the_settings_is_another_type() -> None:
    table = one_column("amount", "numeric")
    registered = [envelope(TableFields(OPTIONS).assign(table))]
    history = TableFields(TypeOptions(numeric=(38, 9)), FieldHistory(registered))
    assert [(field.name, field.type.parameters) for field in history.assign(table)] == [("amount__2", (38, 9))]
    back = TableFields(OPTIONS, FieldHistory([*registered, envelope(history.assign(table))]))
    assert [field.name for field in back.assign(table)] == ["amount"]


def test_schemas_registered_out_of_order_leave_the_widest_type() -> None:
    wide = envelope(TableFields(OPTIONS).assign(one_column("a", "int8")))
    narrow = envelope(TableFields(OPTIONS).assign(one_column("a", "int4")))
    for registered in ([wide, narrow], [narrow, wide]):
        assert TableFields(OPTIONS, FieldHistory(registered)).assign(one_column("a", "int4"))[0].type.schema == "long"


def test_a_name_registered_with_two_meanings_is_not_used_again() -> None:
    registered = [envelope(TableFields(OPTIONS).assign(one_column("a", kind))) for kind in ("int4", "text", "int4")]
    history = TableFields(OPTIONS, FieldHistory(registered[:2]))
    assert names(history, column("a", "text")) == ["a__2"]
    assert names(history, column("a", "int4")) == ["a__3"]
    assert names(TableFields(OPTIONS, FieldHistory(registered)), column("a", "int4")) == ["a__2"]


@pytest.mark.parametrize(
    "foreign",
    [
        "string",
        {"type": "enum", "name": "E", "symbols": ["a"]},
        {"type": "record", "name": "Envelope", "fields": [{"name": "before", "type": "string"}]},
        {"type": "record", "name": "Envelope", "fields": [{"name": "before", "type": ["null", "Value"]}]},
        {"type": "record", "name": "Envelope", "fields": []},
    ],
)
def test_schemas_of_other_programs_are_ignored(foreign: Schema) -> None:
    assert names(TableFields(OPTIONS, FieldHistory([foreign])), column("a")) == ["a"]


def test_a_name_that_another_program_gave_another_form_is_not_used() -> None:
    row = {"type": "record", "name": "Value", "fields": [{"name": "a", "type": "int"}]}
    foreign = {"type": "record", "name": "Envelope", "fields": [{"name": "before", "type": ["null", row]}]}
    assert names(TableFields(OPTIONS, FieldHistory([foreign])), column("a")) == ["a__2"]


def test_a_history_learns_only_what_was_registered() -> None:
    """Ignore names that were assigned but not registered, because a standby does not know them."""
    history = FieldHistory([envelope(TableFields(OPTIONS).assign(one_column("a", "int4")))])
    assert names(TableFields(OPTIONS, history), column("a", "text"), column("A")) == ["a__2", "A__3"]
    assert names(TableFields(OPTIONS, history), column("A"), column("a", "int8")) == ["A__2", "a"]
    assert names(TableFields(OPTIONS, history), column("a", "int4"), column("A")) == ["a", "A__2"]
    assert len(history) == 1


def test_a_schema_that_is_learned_again_changes_nothing() -> None:
    versions = [envelope(TableFields(OPTIONS).assign(one_column("a", kind))) for kind in ("int4", "int8", "int4")]
    history = FieldHistory(versions)
    assert (len(history), history.fields_of("a"), history.fields_of("b")) == (1, {"a": "long"}, {})


def test_the_next_number_of_a_name_is_found_directly() -> None:
    """Find a free number without trying the lower ones. Thousands of names of columns may differ only in case."""
    history = FieldHistory()
    columns = [column("".join(letters)) for letters in itertools.product("aA", repeat=4)]
    for one in columns:
        history.learn(envelope(TableFields(OPTIONS, history).assign(relation(one))))
    assert names(TableFields(OPTIONS, history), *columns) == [
        "aaaa",
        *(f"{c.name}__{n}" for n, c in enumerate(columns[1:], 2)),
    ]
    assert history.free_number("AaAa") == history.free_number("aaaa") == 17
    history.learn(envelope(TableFields(OPTIONS).assign(relation(column("aaaa__17")))))
    assert names(TableFields(OPTIONS, history), column("aaaa", "text")) == ["aaaa__18"]


# --- keys


def of_columns(*names: str) -> dict[str, Any]:
    return {"fields": [{"name": name} for name in names]}


def test_the_last_key_whose_columns_are_published_is_found() -> None:
    history = KeyHistory([of_columns("a", "b"), of_columns("c"), "string", {"fields": 5}, of_columns("a", "b")])
    assert len(history) == 3
    assert history.last_among({"a", "b", "c"}) == ("a", "b")
    assert history.last_among({"b", "c"}) == ("c",)
    assert history.last_among({"b"}) is None
    assert history.last_among({"a", "b", "c"}, besides=("b", "a")) == ("c",)


def test_a_key_has_the_column_order_of_the_relation() -> None:
    table = relation(column("a"), column("b", "text"), column("c", "numeric"))
    fields = TableFields(TypeOptions(numeric=(38, 9))).assign(table)
    key = schema.key_fields(table, fields, ["c", "a"], TypeOptions(numeric=(38, 9)))
    assert [(field.name, field.type.schema) for field in key] == [("a", "int"), ("c", "string")]


def test_a_key_keeps_name_and_width_of_the_row() -> None:
    history = TableFields(OPTIONS)
    for kind in ("text", "int4", "int8"):
        history.assign(one_column("id", kind))
    table = one_column("id", "int4")
    (key,) = schema.key_fields(table, history.assign(table), ["id"], OPTIONS)
    assert (key.name, key.type.schema) == ("id__2", "long")


def test_a_date_in_a_key_can_hold_the_infinities() -> None:
    table = one_column("day", "date")
    (key,) = schema.key_fields(table, TableFields(OPTIONS).assign(table), ["day"], OPTIONS)
    assert key.type.opcode is Opcode.KEY_DATE


def test_a_key_column_that_is_not_published_is_a_configuration_error() -> None:
    table = one_column("a", "int4")
    with pytest.raises(ConfigError, match=r"table public\.orders: key column b, c is not among .*tables\.rules"):
        schema.key_fields(table, TableFields(OPTIONS).assign(table), ["c", "a", "b"], OPTIONS)


# --- records


def test_a_value_field_is_nullable_and_names_its_type() -> None:
    fields = TableFields(OPTIONS).assign(relation(column("id"), column("Größe", "float4")))
    assert schema.value_schema("shop.public.orders", fields) == {
        "type": "record",
        "name": "Value",
        "namespace": "shop.public.orders",
        "fields": [
            {"name": "id", "type": ["null", "int"], "default": None, "pg.type": "int4"},
            {
                "name": "Gr_x00F6__x00DF_e",
                "type": ["null", "float"],
                "default": None,
                "pg.type": "float4",
                "pg.name": "Größe",
            },
        ],
    }


def test_a_key_field_has_only_a_name_and_a_type() -> None:
    table = relation(column("Größe", "uuid"))
    fields = schema.key_fields(table, TableFields(OPTIONS).assign(table), ["Größe"], OPTIONS)
    assert schema.key_schema("shop.public.orders", fields) == {
        "type": "record",
        "name": "Key",
        "namespace": "shop.public.orders",
        "fields": [{"name": "Gr_x00F6__x00DF_e", "type": {"type": "string", "logicalType": "uuid"}}],
    }


def test_the_envelope_has_its_documented_fields() -> None:
    record = envelope(())
    assert [field["name"] for field in record["fields"]] == [
        "op",
        "schema",
        "table",
        "before",
        "before_image",
        "after",
        "unchanged",
        "raw",
        "epoch",
        "lsn",
        "seq",
        "xid",
        "ts",
        "origin",
        "flags",
    ]
    assert [field["name"] for field in record["fields"] if "default" not in field] == ["op", "epoch", "lsn", "seq"]


def test_a_schema_contains_the_order_of_columns_but_no_modifier() -> None:
    one = envelope(TableFields(OPTIONS).assign(relation(column("a", ("varchar", 14)), column("b"))))
    other = envelope(TableFields(OPTIONS).assign(relation(column("a", ("varchar", 24)), column("b", is_key=True))))
    swapped = envelope(TableFields(OPTIONS).assign(relation(column("b"), column("a", "varchar"))))
    assert one == other != swapped


# --- the sample in contract/

SAMPLE = Relation(
    16385,
    "public",
    "orders",
    "d",
    (
        column("id", "int8", is_key=True),
        column("customer", "text"),
        column("amount", numeric(10, 2)),
        column("paid", "bool"),
        column("created", "timestamptz"),
        column("delivery", "date"),
        column("order lines", "jsonb"),
        column("tags", "_text"),
    ),
)


def sample(name: str) -> dict[str, Any]:
    where = schema.namespace("shop", "public", "orders")
    fields = TableFields(OPTIONS).assign(SAMPLE)
    return {
        "envelope.avsc": schema.envelope_schema(where, fields),
        "key.avsc": schema.key_schema(where, schema.key_fields(SAMPLE, fields, ["id"], OPTIONS)),
        "cut.avsc": schema.cut_schema("shop"),
        "message.avsc": schema.message_schema("shop"),
        "dead_letter.avsc": schema.dead_letter_schema("shop"),
    }[name]


@pytest.mark.parametrize("name", ["envelope.avsc", "key.avsc", "cut.avsc", "message.avsc", "dead_letter.avsc"])
def test_the_contract_shows_what_is_built(name: str) -> None:
    assert json.loads((CONTRACT / name).read_text()) == sample(name)
    fastavro.parse_schema(sample(name))


ROW_OF_OTHERS = [
    5,
    {"type": "int"},
    {"name": 5, "type": "int"},
    {"name": "id"},
    {"name": "Total", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 2**31}]},
    {"name": "tags", "type": ["null", {"items": "int"}], "pg.name": []},
    {"name": "_xFFFFFF_", "type": ["null", 5]},
]


@pytest.mark.parametrize(
    "registered",
    [
        5,
        {"fields": 5},
        {"fields": [5, {"name": "before", "type": "null"}]},
        {"fields": [{"name": "before", "type": ["null", {"fields": 5}]}]},
        {"fields": [{"name": "before", "type": ["null", {"fields": ROW_OF_OTHERS}]}]},
    ],
)
def test_foreign_schemas_do_no_harm(registered: Any) -> None:  # noqa: ANN401 - any JSON
    described = relation(column("id"), column("total", numeric(10, 2)), column("tags", "_int4"))
    fields = TableFields(TypeOptions(elements={0: None}), FieldHistory([registered])).assign(described)
    fastavro.parse_schema(envelope(fields))


def test_the_columns_of_a_registered_key_are_found() -> None:
    fields = [{"name": "a_x0020_b", "type": "int"}, {"name": "c", "pg.name": "d"}, {"name": "_xD800_", "pg.name": 5}]
    assert schema.key_columns({"fields": fields}) == ["a b", "d", "_xD800_"]


@pytest.mark.parametrize("registered", [{}, {"fields": 5}, {"fields": [5]}, {"fields": [{"name": 5}]}])
def test_a_schema_that_is_not_a_key_has_no_columns(registered: dict[str, Any]) -> None:
    assert schema.key_columns(registered) is None
