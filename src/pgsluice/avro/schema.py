"""Schemas of the wire contract: names, and the records Envelope, Value, Key, Cut and DeadLetter.

Built once per version of a relation from :class:`Field` objects, which :class:`TableFields` hands out: a
column keeps its name as long as its Avro type changes only in ways that leave every reader right.

https://avro.apache.org/docs/1.12.0/specification/#names
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pgsluice.avro.types import (
    ColumnType,
    Opcode,
    TypeOptions,
    column_type,
    is_array,
    is_gone,
    key_type,
    widened,
    wider,
)
from pgsluice.avro.wire import Schema
from pgsluice.errors import ConfigError
from pgsluice.relation import Column, Relation

# --- names

# What Avro does not allow in a name, and every underscore that would read as the start of an escape.
_ESCAPE: Final = re.compile(r"\A[0-9]|[^A-Za-z0-9_]|_(?=x[0-9A-F]{4})")
_ESCAPED: Final = re.compile(r"_x([0-9A-F]{4,6})_")


def avro_name(name: str) -> str:
    """Return PostgreSQL's ``name`` with ``_xHHHH_`` for what Avro does not allow in one; injective."""
    return _ESCAPE.sub(lambda match: f"_x{ord(match[0]):04X}_", name)


def pg_name(name: str) -> str:
    """Return the name that :func:`avro_name` made into ``name``."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name)


def namespace(prefix: str, schema: str, table: str) -> str:
    """Return the namespace of a table's records."""
    return f"{avro_name(prefix)}.{avro_name(schema)}.{avro_name(table)}"


# --- fields


@dataclass(frozen=True, slots=True)
class Field:
    """A column under the name and type it has in the row or the key."""

    name: str
    column: Column
    type: ColumnType


_AMBIGUOUS: Final[Schema] = []
"""In place of a field's type when other programs gave it several: a union of nothing, which no type widens."""


class TableFields:
    """The history of one table's field names: which name stood for which column with which type.

    It is a function of the schemas registered for the table, oldest first, and of the relations since.
    """

    def __init__(self, options: TypeOptions, registered: Iterable[Schema] = ()) -> None:
        self._options = options
        self._types: dict[str, dict[str, Schema]] = {}  # column -> field -> its widest type
        # Also those that differ only in case: Spark, Delta and DuckDB could not tell them apart.
        self._taken: set[str] = set()
        for envelope in registered:
            self._learn(envelope)

    def assign(self, relation: Relation) -> tuple[Field, ...]:
        """Return the fields of ``relation``, in its order; remembers the names given for the first time.

        To be called only for rows that are emitted: what a rolled-back ALTER TABLE described must leave no
        trace.
        """
        return tuple(self._field(column) for column in relation.columns)

    def _field(self, column: Column) -> Field:
        return self._field_of_gone(column) or self._field_of_known(column)

    def _field_of_gone(self, column: Column) -> Field | None:
        """Return the field of a column whose arrays cannot be taken apart any more: as before, all marked."""
        known = self._types.get(column.name, {}) if is_gone(column, self._options) else {}
        arrays = [
            Field(name, column, ColumnType(schema, Opcode.MARKED)) for name, schema in known.items() if is_array(schema)
        ]
        return arrays[-1] if arrays else None

    def _field_of_known(self, column: Column) -> Field:
        own = column_type(column, self._options)
        known = self._types.setdefault(column.name, {})
        # The field of exactly this type first, then the oldest that can hold it.
        for name, schema in sorted(known.items(), key=lambda item: item[1] != own.schema):
            widest = wider(schema, own.schema)
            if widest is not None:
                known[name] = widest
                return Field(name, column, widened(own, widest))
        name = self._free_name(avro_name(column.name))
        known[name] = own.schema
        return Field(name, column, own)

    def _free_name(self, name: str) -> str:
        candidate, number = name, 1
        while candidate.lower() in self._taken:
            number += 1
            candidate = f"{name}__{number}"
        self._taken.add(candidate.lower())
        return candidate

    def _learn(self, envelope: Schema) -> None:
        for field in _row_fields(envelope):
            name = field["name"]
            self._taken.add(name.lower())
            match field["type"]:
                case ["null", schema]:
                    self._learn_type(field.get("pg.name", pg_name(name)), name, schema)

    def _learn_type(self, column: str, name: str, schema: Schema) -> None:
        known = self._types.setdefault(column, {})
        widest = wider(known.get(name, schema), schema)
        known[name] = _AMBIGUOUS if widest is None else widest


def _row_fields(envelope: Schema) -> list[dict[str, Any]]:
    """Return the fields of the row in an envelope; none if another program registered something else."""
    fields = envelope.get("fields", []) if isinstance(envelope, dict) else []
    for field in fields:
        match field:
            case {"name": "before", "type": ["null", {"fields": [*row_fields]}]}:
                return row_fields
    return []


def key_fields(
    relation: Relation, fields: Sequence[Field], key: Collection[str], options: TypeOptions
) -> tuple[Field, ...]:
    """Return the fields of the key over the columns named ``key``, in the relation's order.

    They have the names of the row's fields and, where a field became wider than its column, its type.
    """
    missing = sorted(set(key) - {column.name for column in relation.columns})
    if missing:
        raise ConfigError(
            f"table {relation.namespace}.{relation.name}: key column {', '.join(missing)} is not among the"
            " published columns; publish it, or name other columns with keys in tables.rules"
        )
    return tuple(_key_field(field, options) for field in fields if field.column.name in key)


def _key_field(field: Field, options: TypeOptions) -> Field:
    own = key_type(field.column, options)
    widest = wider(own.schema, field.type.schema)
    return Field(field.name, field.column, own if widest is None else widened(own, widest))


# --- records

_TIMESTAMP: Final = {"type": "long", "logicalType": "timestamp-micros"}


def value_schema(record_namespace: str, fields: Sequence[Field]) -> dict[str, Any]:
    """Return the record Value: a row, every field nullable with default null."""
    return _record("Value", [_row_field(field) for field in fields], record_namespace)


def _row_field(field: Field) -> dict[str, Any]:
    row_field = {"name": field.name, "type": ["null", field.type.schema], "default": None}
    row_field["pg.type"] = field.column.type.name
    if field.name != field.column.name:
        row_field["pg.name"] = field.column.name
    return row_field


def key_schema(record_namespace: str, fields: Sequence[Field]) -> dict[str, Any]:
    """Return the record Key: names and types only, since the schema's id is part of the key's bytes."""
    return _record("Key", [{"name": field.name, "type": field.type.schema} for field in fields], record_namespace)


def envelope_schema(record_namespace: str, fields: Sequence[Field]) -> dict[str, Any]:
    """Return the record Envelope around the row; the order of its fields is that of the encoded bytes."""
    return _record(
        "Envelope",
        [
            _field("op", "string"),
            _field("schema", "string", ""),
            _field("table", "string", ""),
            _field("before", ["null", value_schema(record_namespace, fields)], None),
            _field("before_image", "string", "none"),
            _field("after", ["null", "Value"], None),
            _field("unchanged", {"type": "array", "items": "string"}, []),
            _field("raw", {"type": "map", "values": "string"}, {}),
            _field("epoch", "int"),
            _field("lsn", "long"),
            _field("seq", "long"),
            _field("xid", "long", 0),
            _field("ts", _TIMESTAMP, 0),
            _field("origin", ["null", "string"], None),
            _field("flags", {"type": "array", "items": "string"}, []),
        ],
        record_namespace,
    )


def message_schema(prefix: str) -> dict[str, Any]:
    """Return the record Message of ``<prefix>.messages``."""
    return _record(
        "Message",
        [
            _field("prefix", "string"),
            _field("content", "bytes"),
            _field("transactional", "boolean"),
            _field("epoch", "int"),
            _field("lsn", "long"),
            _field("seq", "long"),
            _field("xid", ["null", "long"], None),
            _field("ts", ["null", _TIMESTAMP], None),
            _field("origin", ["null", "string"], None),
        ],
        avro_name(prefix),
    )


def cut_schema(prefix: str) -> dict[str, Any]:
    """Return the record Cut of ``<prefix>.transactions``."""
    return _record(
        "Cut",
        [
            _field("pipeline", "string"),
            _field("cut", "long"),
            _field("epoch", "int"),
            _field("first_lsn", ["null", "long"], None),
            _field("last_lsn", ["null", "long"], None),
            _field("end_lsn", "long"),
            _field("ts", ["null", _TIMESTAMP], None),
            _field("transactions", "int", 0),
            _field("events", "long", 0),
            _field("topics", {"type": "array", "items": _cut_topic()}, []),
            _field("full", "boolean", default=False),
            _field("part", "int", 0),
            _field("parts", "int", 1),
        ],
        avro_name(prefix),
    )


def dead_letter_schema(prefix: str) -> dict[str, Any]:
    """Return the record DeadLetter of ``<prefix>.dead_letters``; its fields in the order of the encoded bytes."""
    return _record(
        "DeadLetter",
        [
            _field("schema", "string"),
            _field("table", "string"),
            _field("op", "string"),
            _field("topic", "string"),
            _field("key", ["null", "bytes"], None),
            _field("size", ["null", "long"], None),
            _field("limit", ["null", "long"], None),
            _field("reason", "string"),
            _field("detail", "string", ""),
            _field("epoch", "int"),
            _field("lsn", "long"),
            _field("seq", "long"),
            _field("xid", "long", 0),
            _field("ts", _TIMESTAMP, 0),
        ],
        avro_name(prefix),
    )


def _cut_topic() -> dict[str, Any]:
    offsets = _record("Offsets", [_field("partition", "int"), _field("first", "long"), _field("next", "long")])
    return _record(
        "Topic",
        [
            _field("topic", "string"),
            _field("topic_id", "string", ""),
            _field("schema_ids", {"type": "array", "items": "int"}, []),
            _field("offsets", {"type": "array", "items": offsets}, []),
            _field("counts", {"type": "map", "values": "long"}, {}),
        ],
    )


class _Required:
    """Type of the marker of a field without default; None is a default like any other."""


_REQUIRED: Final = _Required()


def _field(name: str, schema: Schema, default: object = _REQUIRED) -> dict[str, Any]:
    field: dict[str, Any] = {"name": name, "type": schema}
    if default is not _REQUIRED:
        field["default"] = default
    return field


def _record(name: str, fields: list[dict[str, Any]], record_namespace: str | None = None) -> dict[str, Any]:
    place = {} if record_namespace is None else {"namespace": record_namespace}
    return {"type": "record", "name": name, **place, "fields": fields}
