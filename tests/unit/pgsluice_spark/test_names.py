"""Unit tests of pgsluice_spark.names: the names of tables, written as in the namespaces of their schemas."""

import shlex

import pytest

from pgsluice.tables import TablePattern
from pgsluice_spark.names import is_chosen, load_command, postgres_name, table_name


@pytest.mark.parametrize(
    ("schema", "table", "name"),
    [
        ("public", "orders", "public.orders"),
        ("public", "order lines", "public.order_x0020_lines"),
        ("public", "a.b", "public.a_x002E_b"),
        ("2024", "_x0041_", "_x0032_024._x005F_x0041_"),
        ("żółć", "Orders", "_x017C__x00F3__x0142__x0107_.Orders"),
    ],
)
def test_names(schema: str, table: str, name: str) -> None:
    assert table_name(schema, table) == name
    assert postgres_name(name) == (schema, table)


def test_the_command_that_loads_tables() -> None:
    names = ["orders", "order lines", 'a.*"b', "it's"]
    words = shlex.split(load_command([table_name("public", name) for name in names]))
    patterns = [TablePattern.parse(word) for word in words[3:]]
    assert words[:4] == ["pgsluice", "snapshot", "start", "public.orders"]
    assert [[pattern.matches("public", name) for pattern in patterns] for name in names] == [
        [row == column for column in range(4)] for row in range(4)
    ]
    assert not patterns[2].matches("public", 'a.c"b')
    assert load_command(["public.orders", "public.order_x0020_lines"]) == (
        "pgsluice snapshot start public.orders 'public.\"order lines\"'"
    )


def test_patterns_choose_tables() -> None:
    assert is_chosen("public.orders", ["sales.*", "public.ord*"])
    assert not is_chosen("public.orders", ["sales.*", "public.Orders", "orders"])
    assert not is_chosen("public.orders", [])
