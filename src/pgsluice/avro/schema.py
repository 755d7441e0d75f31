"""Schemas of the wire contract: names, and the records Envelope, Value, Key, Cut and DeadLetter.

The schemas of a table are built once per version of its relation, from :class:`Field` objects that :class:`TableFields`
assigns. A column keeps its field as long as its Avro type changes only in ways that every reader can handle. To find
a column's field, :class:`TableFields` uses the names and types of former versions, which :class:`FieldHistory` keeps.

https://avro.apache.org/docs/1.12.0/specification/#names
"""

import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
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
from pgsluice.errors import TableRefused
from pgsluice.printable import quoted
from pgsluice.relation import Column, Relation

# --- names

# The characters to escape: those that Avro does not allow in a name, and underscores that look like part of an escape.
_ESCAPE: Final = re.compile(r"\A[0-9]|[^A-Za-z0-9_]|_(?=x[0-9A-F]{4})")
_ESCAPED: Final = re.compile(r"_x([0-9A-F]{4,6})_")


def avro_name(name: str) -> str:
    """Return PostgreSQL's ``name`` with ``_xHHHH_`` for each character that Avro does not allow.

    Different names never give the same result.
    """
    return _ESCAPE.sub(lambda match: f"_x{ord(match[0]):04X}_", name)


def pg_name(name: str) -> str:
    """Return the PostgreSQL name from which :func:`avro_name` made ``name``."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)) if _is_character(match[1]) else match[0], name)


def _is_character(digits: str) -> bool:
    """Return whether the digits are the number of a character. A schema of another program may have other digits."""
    return int(digits, 16) <= sys.maxunicode and not 0xD800 <= int(digits, 16) <= 0xDFFF  # noqa: PLR2004 - surrogates


def namespace(prefix: str, schema: str, table: str) -> str:
    """Return the namespace of a table's records."""
    return f"{avro_name(prefix)}.{avro_name(schema)}.{avro_name(table)}"


# --- fields


@dataclass(frozen=True, slots=True)
class Field:
    """A column with the name and type that it has in the row or the key."""

    name: str
    column: Column
    type: ColumnType


_AMBIGUOUS: Final[Schema] = []
"""The type of a field to which other programs gave incompatible types: an empty union, which accepts no value."""


class FieldHistory:
    """The names that registered schemas of one table gave to columns, and the widest type of each name.

    Schemas are learned in the order of their versions. Learning a schema again changes nothing. The time to learn a
    schema depends on its size, and not on the number of schemas before it.
    """

    def __init__(self, registered: Iterable[Schema] = ()) -> None:
        self._types: dict[str, dict[str, Schema]] = {}  # column -> field -> its widest type
        # Names are compared without case, because Spark, Delta and DuckDB cannot distinguish names by case.
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}
        """For each name in lower case, the lowest number that may be free (see :func:`_numbered`). No number is tried
        twice, because names stay taken."""
        for envelope in registered:
            self.learn(envelope)

    def __len__(self) -> int:
        """Return how many names are taken."""
        return len(self._taken)

    def learn(self, envelope: Schema) -> None:
        """Learn the next schema of the table. A schema that is not an envelope is ignored."""
        for field in _row_fields(envelope):
            match field:
                case {"name": str(name), "type": kind}:
                    self._taken.add(name.lower())
                    match kind:
                        case ["null", schema]:
                            self._learn_type(column_name(field), name, schema)

    def _learn_type(self, column: str, name: str, schema: Schema) -> None:
        known = self._types.setdefault(column, {})
        widest = wider(known.get(name, schema), schema)
        known[name] = _AMBIGUOUS if widest is None else widest

    def fields_of(self, column: str) -> Mapping[str, Schema]:
        """Return the fields that ``column`` has had, oldest first, with their widest types."""
        return self._types.get(column, {})

    def free_number(self, name: str) -> int:
        """Return the lowest number with which ``name`` is free (see :func:`_numbered`)."""
        base = name.lower()
        number = first = self._numbers.get(base, 1)
        while _numbered(base, number) in self._taken:
            number += 1
        if number > first:
            self._numbers[base] = number
        return number

    def is_taken(self, name: str) -> bool:
        """Return whether a field has this name. Upper case and lower case are not distinguished."""
        return name.lower() in self._taken


def _numbered(name: str, number: int) -> str:
    """Return ``name`` for number 1, and ``name__2``, ``name__3``, ... for further fields that should have this name."""
    return name if number == 1 else f"{name}__{number}"


class TableFields:
    """Assigns fields to the columns of one table, based on the table's history and on later relations.

    The history itself does not change, because a field that is assigned here may never be registered.
    """

    def __init__(self, options: TypeOptions, history: FieldHistory | None = None) -> None:
        self._options = options
        self._history = history or FieldHistory()
        self._types: dict[str, dict[str, Schema]] = {}  # column -> field -> its widest type
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}

    def assign(self, relation: Relation) -> tuple[Field, ...]:
        """Return the fields of ``relation``, in the order of its columns, and remember new names.

        Call this only when a row of ``relation`` is emitted. Before that, the relation may come from an ALTER TABLE
        that will be rolled back, so its columns must not take names.
        """
        return tuple(self._field(column) for column in relation.columns)

    def _field(self, column: Column) -> Field:
        return self._field_of_gone(column) or self._field_of_known(column)

    def _known(self, column: Column) -> dict[str, Schema]:
        if column.name not in self._types:
            self._types[column.name] = dict(self._history.fields_of(column.name))
        return self._types[column.name]

    def _field_of_gone(self, column: Column) -> Field | None:
        """Return the last array field of a column whose arrays cannot be parsed any more, or None for other columns.

        All values of this column go to ``raw``.
        """
        known = self._known(column) if is_gone(column, self._options) else {}
        arrays = [
            Field(name, column, ColumnType(schema, Opcode.MARKED)) for name, schema in known.items() if is_array(schema)
        ]
        return arrays[-1] if arrays else None

    def _field_of_known(self, column: Column) -> Field:
        own = column_type(column, self._options)
        known = self._known(column)
        # Prefer a field of exactly this type. Otherwise take the oldest field whose type is wider or narrower.
        for name, schema in sorted(known.items(), key=lambda item: item[1] != own.schema):
            widest = wider(schema, own.schema)
            if widest is not None:
                known[name] = widest
                return Field(name, column, widened(own, widest))
        name = self._free_name(avro_name(column.name))
        known[name] = own.schema
        return Field(name, column, own)

    def _free_name(self, name: str) -> str:
        base = name.lower()
        number = max(self._history.free_number(name), self._numbers.get(base, 1))
        while (candidate := _numbered(base, number)) in self._taken or self._history.is_taken(candidate):
            number += 1
        self._taken.add(candidate)
        self._numbers[base] = number + 1
        return _numbered(name, number)


def column_name(field: Mapping[str, Any]) -> str:
    """Return the name of the column of a registered field."""
    name = field.get("pg.name")
    return name if isinstance(name, str) else pg_name(field["name"])


def key_columns(schema: Mapping[str, Any]) -> list[str] | None:
    """Return the columns of a registered key, or None if another program registered something else."""
    fields = named_fields(schema)
    return None if fields is None else [column_name(field) for field in fields]


def named_fields(schema: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the fields of a registered record, or None if another program registered something else."""
    match schema:
        case {"fields": [*fields]} if all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in fields):
            return fields
    return None


def _row_fields(envelope: Schema) -> list[Any]:
    """Return the fields of the row in an envelope, or no fields if another program registered something else."""
    fields = envelope.get("fields") if isinstance(envelope, dict) else None
    for field in fields if isinstance(fields, list) else []:
        match field:
            case {"name": "before", "type": ["null", {"fields": [*row_fields]}]}:
                return row_fields
    return []


def key_fields(
    relation: Relation, fields: Sequence[Field], key: Collection[str], options: TypeOptions
) -> tuple[Field, ...]:
    """Return the fields of the key with the columns ``key``, in the relation's order.

    Raise TableRefused if a column is missing. The key's fields have the same names as the row's fields. If a field of
    the row is wider than its column, the key's field has the wider type as well.
    """
    missing = sorted(set(key) - {column.name for column in relation.columns})
    if missing:
        raise TableRefused(
            f"table {relation}: key column {', '.join(map(quoted, missing))} is not among the"
            " published columns; publish it, or name other columns with `keys` in [[tables.rules]]"
        )
    return tuple(_key_field(field, options) for field in fields if field.column.name in key)


def _key_field(field: Field, options: TypeOptions) -> Field:
    own = key_type(field.column, options)
    widest = wider(own.schema, field.type.schema)
    return Field(field.name, field.column, own if widest is None else widened(own, widest))


# --- records

_TIMESTAMP: Final = {"type": "long", "logicalType": "timestamp-micros"}


def value_schema(record_namespace: str, fields: Sequence[Field]) -> dict[str, Any]:
    """Return the record Value, which is a row. Every field is nullable, with null as its default."""
    return _record("Value", [_row_field(field) for field in fields], record_namespace)


def _row_field(field: Field) -> dict[str, Any]:
    row_field = {"name": field.name, "type": ["null", field.type.schema], "default": None}
    row_field["pg.type"] = field.column.type.name
    if field.name != field.column.name:
        row_field["pg.name"] = field.column.name
    return row_field


def key_schema(record_namespace: str, fields: Sequence[Field]) -> dict[str, Any]:
    """Return the record Key, with names and types only.

    A change of any other attribute would change the schema's id, and with it the bytes of all keys.
    """
    return _record("Key", [{"name": field.name, "type": field.type.schema} for field in fields], record_namespace)


def envelope_schema(record_namespace: str, fields: Sequence[Field]) -> dict[str, Any]:
    """Return the record Envelope around the row. The order of its fields is that of the encoded bytes."""
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
            _field("snapshots", {"type": "array", "items": _cut_snapshot()}, []),
        ],
        avro_name(prefix),
    )


def dead_letter_schema(prefix: str) -> dict[str, Any]:
    """Return the record DeadLetter of ``<prefix>.dead_letters``. Its fields have the order of the encoded bytes."""
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


def _cut_snapshot() -> dict[str, Any]:
    return _record(
        "Snapshot",
        [
            _field("topic", "string"),
            _field("schema", "string", ""),
            _field("table", "string", ""),
            _field("id", "string"),
            _field("state", "string"),
            _field("epoch", "int"),
            _field("lsn", "long"),
            _field("seq", "long"),
            _field("rows", "long"),
            _field("replaces", "boolean"),
        ],
    )


class _Required:
    """The type of the marker for a field without default. The marker cannot be None, which is a valid default."""


_REQUIRED: Final = _Required()


def _field(name: str, schema: Schema, default: object = _REQUIRED) -> dict[str, Any]:
    field: dict[str, Any] = {"name": name, "type": schema}
    if default is not _REQUIRED:
        field["default"] = default
    return field


def _record(name: str, fields: list[dict[str, Any]], record_namespace: str | None = None) -> dict[str, Any]:
    place = {} if record_namespace is None else {"namespace": record_namespace}
    return {"type": "record", "name": name, **place, "fields": fields}
