from typing import Any

import pytest

from pgsluice.registry.difference import difference, table_of


def table(key: tuple[str, ...] = ("id",), **columns: str) -> dict[str, Any]:
    listed = [{"name": name, "type": kind, "type_oid": 0, "typmod": -1} for name, kind in columns.items()]
    return {"schema": "public", "table": "orders", "key": list(key), "columns": listed}


OLD = table(id="int4", total="numeric", note="text")

UNKNOWN = "what has changed is not known, because a description of the table is missing or invalid"


def test_the_effect_of_an_alter_is_described() -> None:
    new = table(("id", "tenant"), id="int4", total="float8", tenant="uuid")
    assert difference(OLD, new) == (
        "column total changed from numeric to float8, column tenant (uuid) was added, "
        "column note was dropped or renamed, the key changed from (id) to (id, tenant)"
    )


def test_a_change_of_numeric_digits_is_described() -> None:
    new = table(id="int4", total="numeric", note="text")
    new["columns"][1]["typmod"] = (10 << 16 | 2) + 4
    assert difference(OLD, new) == "column total changed from numeric to numeric(10,2)"
    assert difference(new, OLD) == "column total changed from numeric(10,2) to numeric"
    new["columns"][1]["typmod"] = (5 << 16 | (-2 & 0x7FF)) + 4
    assert difference(OLD, new) == "column total changed from numeric to numeric(5,-2)"


def test_differences_that_do_not_change_the_schema_are_not_named() -> None:
    new = table(id="int4", total="numeric", note="text")
    new["columns"][2]["typmod"] = 14
    assert difference(OLD, new) == difference(OLD, OLD)


def test_differences_that_postgresql_does_not_explain_are_described() -> None:
    assert difference(OLD, OLD) == (
        "the table's columns are as before: settings have changed (tables.numeric, types in a rule), or somebody else "
        "has registered a schema for this subject"
    )


def test_without_a_previous_version_nothing_is_compared() -> None:
    assert difference(None, OLD) == difference(OLD, None) == UNKNOWN


@pytest.mark.parametrize(
    "old",
    [
        {},
        {**OLD, "key": "id"},
        {**OLD, "key": [1]},
        {**OLD, "columns": None},
        {**OLD, "columns": ["id"]},
        {**OLD, "columns": [{"name": "id", "type": "int4"}]},
        {**OLD, "columns": [{"name": [], "type": "int4", "typmod": -1}]},
    ],
)
def test_schemas_of_other_programs_are_not_compared(old: dict[str, Any]) -> None:
    assert difference(old, OLD) == UNKNOWN


def test_the_table_of_a_schema_is_found() -> None:
    assert table_of(OLD, "string") == "table public.orders"
    assert table_of(None, {"type": "record", "name": "Cut", "fields": []}) == "record Cut"
    assert table_of(None, "string") == "a plain string"
