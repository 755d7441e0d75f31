"""Which Avro type a PostgreSQL type becomes, and how its text is converted.

Decided once per column of a version of a relation, for ``schema`` (what to declare) and ``encoder`` (what to
run). The table of types is part of the wire contract.

https://avro.apache.org/docs/1.12.0/specification/#logical-types
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Literal

from pgsluice.avro import temporal, text
from pgsluice.avro.binary import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN, encode_bytes
from pgsluice.avro.text import Misfit as Misfit  # noqa: PLC0414 - part of this module's interface
from pgsluice.avro.text import Writer
from pgsluice.avro.wire import Schema
from pgsluice.relation import CATALOG, Column

MAX_PRECISION: Final = 38
"""Digits that Spark, Flink and DuckDB can hold in a decimal; wider ones become strings."""


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """The choices a user has: see ``tables.numeric`` and ``tables.time_range``.

    ``binary``: values may come in binary format, which changes nothing but how they are read.
    """

    numeric: Literal["string"] | tuple[int, int] = "string"
    time_range: Literal["common", "full"] = "common"
    binary: bool = False


class Opcode(StrEnum):
    """The kinds of conversion: with its parameters, one says all about how a value is written."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT4 = "float4"
    FLOAT4_AS_DOUBLE = "float4_as_double"
    FLOAT8 = "float8"
    DECIMAL = "decimal"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    KEY_DATE = "key_date"
    KEY_TIMESTAMP = "key_timestamp"
    KEY_TIMESTAMPTZ = "key_timestamptz"
    STRING = "string"
    UUID = "uuid"
    BYTEA = "bytea"
    HSTORE = "hstore"
    VECTOR = "vector"
    ARRAY = "array"


def _key_date(lowest: int, highest: int) -> Writer:
    return temporal.or_infinity(temporal.date(lowest, highest), INT_MIN, INT_MAX)


def _key_timestamp(lowest: int, highest: int) -> Writer:
    return temporal.or_infinity(temporal.timestamp(lowest, highest), LONG_MIN, LONG_MAX)


def _key_timestamptz(lowest: int, highest: int) -> Writer:
    return temporal.or_infinity(temporal.timestamptz(lowest, highest), LONG_MIN, LONG_MAX)


# How the parameters of each opcode become a writer.
_WRITERS: Final[dict[Opcode, Callable[..., Writer]]] = {
    Opcode.BOOLEAN: lambda: text.boolean,
    Opcode.INTEGER: text.integer,  # lowest, highest
    Opcode.FLOAT4: lambda: text.float4,
    Opcode.FLOAT4_AS_DOUBLE: lambda: text.float4_as_double,
    Opcode.FLOAT8: lambda: text.float8,
    Opcode.DECIMAL: text.decimal,  # precision, scale
    Opcode.DATE: temporal.date,  # exclusive bounds, here and below
    Opcode.TIME: temporal.time,
    Opcode.TIMESTAMP: temporal.timestamp,
    Opcode.TIMESTAMPTZ: temporal.timestamptz,
    Opcode.KEY_DATE: _key_date,
    Opcode.KEY_TIMESTAMP: _key_timestamp,
    Opcode.KEY_TIMESTAMPTZ: _key_timestamptz,
    Opcode.STRING: lambda: encode_bytes,
    Opcode.UUID: lambda: text.uuid,
    Opcode.BYTEA: lambda: text.bytea,
    Opcode.HSTORE: lambda: text.hstore,
    Opcode.VECTOR: lambda: text.vector,
}


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The Avro type of a column, without null, and the writer of its values.

    ``element``: of an ARRAY, the type of its items; its parameter is the delimiter's code point.
    """

    schema: Schema
    opcode: Opcode
    parameters: tuple[int, ...] = ()
    element: "ColumnType | None" = None
    write: Writer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.element is None:
            write = _WRITERS[self.opcode](*self.parameters)
        else:
            write = text.array(self.element.write, bytes(self.parameters))
        object.__setattr__(self, "write", write)


def _logical(base: str, logical_type: str) -> Schema:
    return {"type": base, "logicalType": logical_type}


def decimal_schema(precision: int, scale: int) -> Schema:
    """Return the Avro type of a decimal."""
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


STRING: Final = ColumnType("string", Opcode.STRING)
"""PostgreSQL's own text: what is a string by nature, and what is not known."""

_INT: Final = ColumnType("int", Opcode.INTEGER, (INT_MIN, INT_MAX))
_LONG: Final = ColumnType("long", Opcode.INTEGER, (LONG_MIN, LONG_MAX))

# The types of pg_catalog whose Avro type depends on nothing but their name.
_FIXED: Final = {
    "bool": ColumnType("boolean", Opcode.BOOLEAN),
    "int2": _INT,
    "int4": _INT,
    "int8": _LONG,
    "oid": _LONG,
    "xid": _LONG,
    "float4": ColumnType("float", Opcode.FLOAT4),
    "float8": ColumnType("double", Opcode.FLOAT8),
    "uuid": ColumnType(_logical("string", "uuid"), Opcode.UUID),
    "bytea": ColumnType("bytes", Opcode.BYTEA),
}

# Extensions can be installed into any schema, so these go by their name alone.
_EXTENSIONS: Final = {
    "hstore": ColumnType({"type": "map", "values": ["null", "string"]}, Opcode.HSTORE),
    "vector": ColumnType({"type": "array", "items": "float"}, Opcode.VECTOR),
}

_TEMPORAL_SCHEMAS: Final = {
    "date": _logical("int", "date"),
    "time": _logical("long", "time-micros"),
    "timestamp": _logical("long", "local-timestamp-micros"),
    "timestamptz": _logical("long", "timestamp-micros"),
}
_TEMPORAL_OPCODES: Final = {
    "date": Opcode.DATE,
    "time": Opcode.TIME,
    "timestamp": Opcode.TIMESTAMP,
    "timestamptz": Opcode.TIMESTAMPTZ,
}
_KEY_OPCODES: Final = {
    Opcode.DATE: Opcode.KEY_DATE,
    Opcode.TIMESTAMP: Opcode.KEY_TIMESTAMP,
    Opcode.TIMESTAMPTZ: Opcode.KEY_TIMESTAMPTZ,
}
_TEMPORAL_BOUNDS: Final = {
    "common": {
        "date": temporal.COMMON_DAYS,
        "time": (temporal.DAY_US,),
        "timestamp": temporal.COMMON_US,
        "timestamptz": temporal.COMMON_US,
    },
    "full": {
        "date": temporal.FULL_DAYS,
        "time": (temporal.DAY_US + 1,),
        "timestamp": temporal.FULL_US,
        "timestamptz": temporal.FULL_US,
    },
}


def column_type(column: Column, options: TypeOptions) -> ColumnType:
    """Return how the values of ``column`` stand in a row."""
    name = column.type.name
    if column.type.namespace != CATALOG:
        return _EXTENSIONS.get(name, STRING)
    if name.startswith("_"):
        return _array(_catalog_type(name[1:], column.typmod, options), ";" if name == "_box" else ",")
    return _catalog_type(name, column.typmod, options)


def key_type(column: Column, options: TypeOptions) -> ColumnType:
    """Return how the values of ``column`` stand in a key, where nothing can be marked as not fitting.

    Infinite dates and timestamps are the extremes of the integer; numeric without precision is a string.
    """
    kind = column_type(column, replace(options, numeric="string"))
    opcode = _KEY_OPCODES.get(kind.opcode)
    return kind if opcode is None else replace(kind, opcode=opcode)


def _array(element: ColumnType, delimiter: str) -> ColumnType:
    schema: Schema = {"type": "array", "items": ["null", element.schema]}
    return ColumnType(schema, Opcode.ARRAY, (ord(delimiter),), element)


def _catalog_type(name: str, typmod: int, options: TypeOptions) -> ColumnType:
    if name == "numeric":
        return _numeric(typmod, options)
    schema = _TEMPORAL_SCHEMAS.get(name)
    if schema is None:
        return _FIXED.get(name, STRING)
    return ColumnType(schema, _TEMPORAL_OPCODES[name], _TEMPORAL_BOUNDS[options.time_range][name])


def _numeric(typmod: int, options: TypeOptions) -> ColumnType:
    if typmod < 0:
        return STRING if options.numeric == "string" else _decimal(*options.numeric)
    # typmod - 4: the precision above 16 bits of scale, of which 11 are used, signed since PostgreSQL 15.
    precision, scale = (typmod - 4) >> 16 & 0xFFFF, (typmod - 4) & 0x7FF
    scale = (scale ^ 0x400) - 0x400
    if scale < 0:
        return _decimal(precision - scale, 0)
    return _decimal(max(precision, scale), scale)


def _decimal(precision: int, scale: int) -> ColumnType:
    if not 0 < precision <= MAX_PRECISION:
        return STRING
    return ColumnType(decimal_schema(precision, scale), Opcode.DECIMAL, (precision, scale))


# --- changes of type in place

_WIDENINGS: Final = {("int", "long"), ("int", "double"), ("float", "double")}


def wider(one: Schema, other: Schema) -> Schema | None:
    """Return the one of two types that holds the other's values for every reader; None if neither does."""
    if one == other or _widens(other, one):
        return one
    return other if _widens(one, other) else None


def _widens(narrow: Schema, wide: Schema) -> bool:
    if isinstance(narrow, str) and isinstance(wide, str):
        return (narrow, wide) in _WIDENINGS
    old, new = _precision(narrow), _precision(wide)
    return old is not None and new is not None and old[0] < new[0] and old[1] == new[1]


def _precision(schema: Schema) -> tuple[int, int] | None:
    """Return precision and scale of a decimal, None for other types."""
    if isinstance(schema, dict) and schema.get("logicalType") == "decimal":
        return schema["precision"], schema.get("scale", 0)
    return None


def widened(kind: ColumnType, schema: Schema) -> ColumnType:
    """Return how values of ``kind`` are written into a field of a type that :func:`wider` chose."""
    if kind.schema == schema:
        return kind
    if kind.opcode is Opcode.FLOAT4:
        return replace(kind, schema=schema, opcode=Opcode.FLOAT4_AS_DOUBLE)
    if schema == "double":
        return replace(kind, schema=schema, opcode=Opcode.FLOAT8, parameters=())
    return replace(kind, schema=schema, parameters=_precision(schema) or kind.parameters)
