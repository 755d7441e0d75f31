"""Unit tests of pgsluice.avro.type_table, which makes the tables of types in the documentation."""

import re

from pgsluice.avro.choices import Choice
from pgsluice.avro.type_table import markdown
from pgsluice.avro.types import Opcode, TypeOptions, column_type
from pgsluice.relation import BUILTIN_TYPES, Column

TYPES, CHOICES = (
    [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines() if line.startswith("| ")][1:]
    for part in markdown().split("### What can be chosen")
)


def test_every_built_in_type_is_in_the_table_once() -> None:
    listed = [name.strip('"') for row in TYPES for name in row[0].split(", ")]
    names = {found.name for found in BUILTIN_TYPES.values() if not found.name.startswith("_")}
    assert {name: listed.count(name) for name in names} == dict.fromkeys(names, 1)


def test_the_table_describes_each_type_in_a_line() -> None:
    lines = {row[0]: row[1:] for row in TYPES}
    assert lines["int2, int4"] == ["int", "", "", "`long`, `string`"]
    assert lines["uuid"] == ["string, uuid", "", "", "`string`"]
    assert lines["hstore (extension)"][0] == "map of nullable string"
    assert lines["vector (extension)"][0] == "array of float"
    assert lines["numeric(p,s) of up to 38 digits"][0] == "bytes, decimal(p,s)"
    extremes = "infinities become the lowest or highest integer; any other value that would be in `raw` is poison"
    assert lines["date"][2] == extremes
    assert lines["time"][2] == "a value that would be in `raw` is poison"


def test_every_type_that_can_be_chosen_is_in_the_second_table() -> None:
    offered = {choice for row in TYPES for choice in re.findall("`([^`]+)`", row[4])}
    assert {row[0].strip("`") for row in CHOICES} == offered
    assert all(Choice.parse(choice.replace("(p,s)", "(38,9)")) for choice in offered)


def test_values_that_are_marked_are_described() -> None:
    marked = {name for row in TYPES if row[2] for name in row[0].split(", ")}
    for pg_type in BUILTIN_TYPES.values():
        opcode = column_type(Column("c", pg_type, -1, is_key=False), TypeOptions()).opcode
        if opcode in (Opcode.DATE, Opcode.TIME, Opcode.TIMESTAMP, Opcode.TIMESTAMPTZ):
            assert pg_type.name in marked
