import copy
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.avro.wire import Schema
from pgsluice.registry.canonical import NAME_MAX, NAMES_MAX, canonical, shape

ROW = {
    "type": "record",
    "name": "Value",
    "namespace": "shop.public.orders",
    "fields": [
        {"name": "id", "type": ["null", "int"], "default": None},
        {
            "name": "price",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}],
            "default": None,
        },
    ],
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.public.orders",
    "fields": [
        {"name": "op", "type": "string"},
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "shop.public.orders.Value"], "default": None},
        {"name": "unchanged", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "raw", "type": {"type": "map", "values": "string"}, "default": {}},
    ],
}
# the same schema, as Java's Avro library prints it
JAVA = json.loads(
    """{"type":"record","name":"Envelope","namespace":"shop.public.orders","fields":[
        {"name":"op","type":{"type":"string"}},
        {"name":"before","type":["null",{"type":"record","name":"Value","fields":[
            {"name":"id","type":["null","int"],"default":null},
            {"name":"price","type":["null",
                {"type":"bytes","scale":2,"precision":10,"logicalType":"decimal"}],"default":null}]}],
         "default":null},
        {"name":"after","type":["null","Value"],"default":null},
        {"name":"unchanged","type":{"type":"array","items":"string"},"default":[]},
        {"name":"raw","type":{"type":"map","values":"string"},"default":{}}]}"""
)


def test_ways_of_writing_names_do_not_matter() -> None:
    assert canonical(JAVA) == canonical(ENVELOPE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("string", {"type": "string"}),
        ("string", {"type": {"type": "string"}}),
        ({"type": ["null", "int"]}, ["null", "int"]),
        (
            {"type": "enum", "name": "a.b.Mood", "symbols": ["ok"]},
            {"type": "enum", "name": "Mood", "namespace": "a.b", "symbols": ["ok"]},
        ),
        (
            {"type": "fixed", "name": "a.Uuid", "namespace": "ignored", "size": 16},
            {"type": "fixed", "name": "Uuid", "namespace": "a", "size": 16},
        ),
        (
            {"type": "error", "name": "E", "fields": []},
            {"type": "error", "name": "E", "namespace": "", "fields": []},
        ),
    ],
)
def test_equal_schemas_have_the_same_canonical_form(one: Schema, other: Schema) -> None:
    assert canonical(one) == canonical(other)


def test_a_recursive_schema_refers_to_itself() -> None:
    tree = {"type": "record", "name": "Tree", "namespace": "n", "fields": [{"name": "left", "type": "Tree"}]}
    assert '"type":"n.Tree"' in canonical(tree)


def change(path: list[Any], value: Any) -> Schema:  # noqa: ANN401 - any part of a schema
    schema = copy.deepcopy(ENVELOPE)
    part: Any = schema
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return schema


@pytest.mark.parametrize(
    "other",
    [
        change(["doc"], "documented"),
        change(["namespace"], "shop.public.items"),
        change(["fields", 0, "type"], "bytes"),
        change(["fields", 0, "type"], {"type": "string", "pg.type": "json"}),
        change(["fields", 1, "type", 1, "fields", 1, "type", 1, "precision"], 12),
        change(["fields", 3, "default"], ["id"]),
        change(["fields", 4, "type", "values"], "long"),
    ],
)
def test_attributes_with_a_meaning_are_kept(other: Schema) -> None:
    assert canonical(other) != canonical(
        {**ENVELOPE, "fields": copy.deepcopy(ENVELOPE["fields"])}  # a deep copy, so that no parts are shared
    )


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (7, "7 is not a schema"),
        (None, "None is not a schema"),
        ({}, "None is not a schema"),
        ("text", "unknown type 'text'"),
        ({"type": "text"}, "unknown type 'text'"),
        (["null", "Value"], "unknown type 'Value'"),
        ({"type": "array"}, "None is not a schema"),
        ({"type": "map", "values": 1}, "1 is not a schema"),
        ({"type": "record", "fields": []}, "None is not a name"),
        ({"type": "record", "name": "a b", "fields": []}, "'a b' is not a name"),
        ({"type": "record", "name": "R", "namespace": 5, "fields": []}, "'R' is not a name"),
        ({"type": "record", "name": "R"}, "a record without fields"),
        ({"type": "record", "name": "R", "fields": ["x"]}, "'x' is not a field"),
        ({"type": "record", "name": "R", "fields": [{"name": "a-b", "type": "int"}]}, "'a-b' is not a name"),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, "None is not a schema"),
    ],
)
def test_the_reason_why_a_value_is_not_a_schema_is_named(schema: Any, complaint: str) -> None:  # noqa: ANN401 - anything
    with pytest.raises(ValueError, match=complaint):
        canonical(schema)


def test_the_depth_of_a_schema_has_a_limit() -> None:
    schema: Schema = "string"
    for _ in range(5_000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ValueError, match="nested too deeply"):
        canonical(schema)


def named(name: str, namespace: str, references: int) -> Schema:
    field = {"name": "f", "type": {"type": "array", "items": [name] * references}}
    return {"type": "record", "name": name, "namespace": namespace, "fields": [field]}


def test_the_length_of_a_name_has_a_limit() -> None:
    assert canonical(named("n", "a" * (NAME_MAX - 2), 1))
    with pytest.raises(ValueError, match=r"^'aaa.*\.\.\. is longer than 4096 characters"):
        canonical(named("n", "a" * (NAME_MAX - 1), 1))


def test_all_names_together_have_a_limit() -> None:
    """A namespace is written once in the schema, but each reference repeats it in the canonical form."""
    references = NAMES_MAX // NAME_MAX
    assert canonical(named("n", "a" * (NAME_MAX - 2), references - 2))
    with pytest.raises(ValueError, match="its names take more than"):
        canonical(named("n", "a" * (NAME_MAX - 2), references + 1))


def test_a_mistake_is_not_repeated_at_length() -> None:
    for schema in ("x" * 10_000, [["x" * 10_000]], {"type": "record", "name": "-" * 4000}, {"type": 10**4000}):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - only the length is tested
            canonical(schema)
        assert len(str(caught.value)) < 200


NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)
PLAIN = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])


@given(st.lists(st.tuples(NAMES, PLAIN), unique_by=lambda field: field[0]), NAMES, NAMES)
def test_avro_reads_the_result_as_the_same_schema(fields: list[tuple[str, str]], name: str, namespace: str) -> None:
    schema = {
        "type": "record",
        "name": name,
        "namespace": namespace,
        "fields": [{"name": field, "type": {"type": kind}} for field, kind in fields],
    }
    parsing_form = fastavro.schema.to_parsing_canonical_form
    assert parsing_form(json.loads(canonical(schema))) == parsing_form(schema)


class TestShape:
    def test_attributes_that_do_not_affect_the_bytes_are_ignored(self) -> None:
        decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
        plain = {"type": "record", "name": "a.R", "fields": [{"name": "x", "type": ["null", decimal]}]}
        field = {"name": "x", "type": ["null", {**decimal, "pg.type": "numeric"}], "default": None, "doc": "an x"}
        assert shape({"type": "record", "name": "R", "namespace": "a", "doc": "", "fields": [field]}) == shape(plain)

    @pytest.mark.parametrize("change", [{"scale": 1}, {"logicalType": "x"}, {"type": "string"}])
    def test_attributes_that_affect_the_bytes_are_compared(self, change: dict[str, object]) -> None:
        decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
        assert shape({"type": "array", "items": decimal}) != shape({"type": "array", "items": {**decimal, **change}})
