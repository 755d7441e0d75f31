"""Describes in words what an ALTER TABLE did, by comparing two descriptions of a table.

:mod:`.confluent` uses it to say why a registry server refuses a schema. The descriptions come from
``<prefix>.schemas``.

https://www.postgresql.org/docs/current/sql-altertable.html
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pgsluice.avro.types import numeric_modifier
from pgsluice.avro.wire import Schema


def table_of(postgres: Mapping[str, Any] | None, schema: Schema) -> str:
    """Return a name for the table of ``schema``, or for the schema itself if it has no table."""
    if postgres is not None:
        return f"table {postgres['schema']}.{postgres['table']}"
    return f"record {schema['name']}" if isinstance(schema, dict) else "a plain string"


def difference(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> str:
    """Return how the description ``new`` of a table differs from ``old``.

    None means that a description is not known.
    """
    if old is None or new is None or not _is_description(old):
        return "what has changed is not known, because a description of the table is missing or invalid"
    return ", ".join(_differences(old, new)) or (
        "the table's columns are as before: settings have changed (tables.numeric, types in a rule), or somebody else "
        "has registered a schema for this subject"
    )


def _is_description(found: Mapping[str, Any]) -> bool:
    """Return whether pgsluice has written this description. Other programs can write to the topic as well."""
    key, columns = found.get("key"), found.get("columns")
    return _all(key, str) and _all(columns, dict) and all(_is_column(column) for column in columns or ())


def _all(found: object, kind: type) -> bool:
    return isinstance(found, list) and all(isinstance(one, kind) for one in found)


def _is_column(found: Mapping[str, Any]) -> bool:
    kinds = {"name": str, "type": str, "typmod": int}
    return all(isinstance(found.get(name), kind) for name, kind in kinds.items())


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, after = _columns(old), _columns(new)
    for name, kind in after.items():
        if name not in before:
            yield f"column {name} ({kind}) was added"
        elif before[name] != kind:
            yield f"column {name} changed from {before[name]} to {kind}"
    for name in before:
        if name not in after:
            yield f"column {name} was dropped or renamed"
    if old["key"] != new["key"]:
        yield f"the key changed from ({', '.join(old['key'])}) to ({', '.join(new['key'])})"


def _columns(description: Mapping[str, Any]) -> dict[str, str]:
    return {column["name"]: _type(column["type"], column["typmod"]) for column in description["columns"]}


def _type(name: str, typmod: int) -> str:
    """Return a type, with its modifier if the modifier changes the schema."""
    if name != "numeric" or typmod < 0:
        return name
    precision, scale = numeric_modifier(typmod)
    return f"numeric({precision},{scale})"
