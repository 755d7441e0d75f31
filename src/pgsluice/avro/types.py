"""The Avro type of each PostgreSQL type, and the conversion of its text.

Both are decided once for each column of a version of a relation. ``schema`` declares the type, and ``encoder`` runs the
conversion. The table in docs/types.md, which lists these types, is part of the wire contract.

https://avro.apache.org/docs/1.12.0/specification/#logical-types
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Literal

from pgsluice.avro import temporal_text, text
from pgsluice.avro.binary import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN, encode_bytes
from pgsluice.avro.choices import DECIMAL, MAX_PRECISION, Choice, ColumnChoice
from pgsluice.avro.text import Misfit as Misfit  # noqa: PLC0414 - part of this module's interface
from pgsluice.avro.text import Writer
from pgsluice.avro.wire import Schema
from pgsluice.errors import TableRefused
from pgsluice.pgbinary.conversions import Element
from pgsluice.printable import quoted
from pgsluice.relation import CATALOG, Column, PgType, Relation


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """The options for types: the user's choices, and facts about the source.

    ``numeric`` is the setting ``tables.numeric``, ``time_range`` is ``tables.time_range``, and ``choices`` are
    ``types`` in ``tables.rules``. ``binary`` says whether values may arrive in binary format, which changes only how
    they are read. ``elements`` has the elements of array types that are not built in, by OID. An element is None if the
    catalog does not have the array type any more.
    """

    numeric: Literal["string"] | tuple[int, int] = "string"
    time_range: Literal["common", "full"] = "common"
    binary: bool = False
    choices: tuple[ColumnChoice, ...] = ()
    elements: Mapping[int, Element | None] = field(default_factory=dict)


class Opcode(StrEnum):
    """The kinds of conversion. A kind and its parameters determine completely how a value is written."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT4 = "float4"
    FLOAT4_AS_DOUBLE = "float4_as_double"
    FLOAT8 = "float8"
    DECIMAL = "decimal"
    NUMERIC_AS_DOUBLE = "numeric_as_double"
    INTERVAL_MICROS = "interval_micros"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    KEY_DATE = "key_date"
    KEY_TIMESTAMP = "key_timestamp"
    KEY_TIMESTAMPTZ = "key_timestamptz"
    STRING = "string"
    CHECKED_STRING = "checked_string"
    UUID = "uuid"
    BYTEA = "bytea"
    HSTORE = "hstore"
    VECTOR = "vector"
    ARRAY = "array"
    MARKED = "marked"


def _key_date(lowest: int, highest: int) -> Writer:
    return temporal_text.or_infinity(temporal_text.date(lowest, highest), INT_MIN, INT_MAX)


def _key_timestamp(lowest: int, highest: int, unit_us: int = 1) -> Writer:
    return temporal_text.or_infinity(temporal_text.timestamp(lowest, highest, unit_us), LONG_MIN, LONG_MAX)


def _key_timestamptz(lowest: int, highest: int, unit_us: int = 1) -> Writer:
    return temporal_text.or_infinity(temporal_text.timestamptz(lowest, highest, unit_us), LONG_MIN, LONG_MAX)


# The function that makes the writer of each opcode from its parameters.
_WRITERS: Final[dict[Opcode, Callable[..., Writer]]] = {
    Opcode.BOOLEAN: lambda: text.boolean,
    Opcode.INTEGER: text.integer,  # lowest, highest
    Opcode.FLOAT4: lambda: text.float4,
    Opcode.FLOAT4_AS_DOUBLE: lambda: text.float4_as_double,
    Opcode.FLOAT8: lambda: text.float8,
    Opcode.DECIMAL: text.decimal,  # precision, scale
    Opcode.NUMERIC_AS_DOUBLE: lambda: text.numeric_as_double,
    Opcode.INTERVAL_MICROS: lambda: temporal_text.interval_micros,
    # The parameters of dates and times are exclusive bounds and, except for dates, the unit if it is not 1 µs.
    Opcode.DATE: temporal_text.date,
    Opcode.TIME: temporal_text.time,
    Opcode.TIMESTAMP: temporal_text.timestamp,
    Opcode.TIMESTAMPTZ: temporal_text.timestamptz,
    Opcode.KEY_DATE: _key_date,
    Opcode.KEY_TIMESTAMP: _key_timestamp,
    Opcode.KEY_TIMESTAMPTZ: _key_timestamptz,
    Opcode.STRING: lambda: encode_bytes,
    Opcode.CHECKED_STRING: lambda: text.checked_string,
    Opcode.UUID: lambda: text.uuid,
    Opcode.BYTEA: lambda: text.bytea,
    Opcode.HSTORE: lambda: text.hstore,
    Opcode.VECTOR: lambda: text.vector,
    Opcode.MARKED: lambda: text.marked,
}


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The Avro type of a column, without null, and the writer of its values.

    ``element`` is the type of the items of an ARRAY. The parameter of an ARRAY is the delimiter's code point.
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
"""PostgreSQL's own text, for strings and for types that are not known."""

CHECKED_STRING: Final = ColumnType("string", Opcode.CHECKED_STRING)
"""Like STRING, for a type that may contain a ``"char"``, which servers before PostgreSQL 16 do not write as UTF-8."""

_INT: Final = ColumnType("int", Opcode.INTEGER, (INT_MIN, INT_MAX))
_LONG: Final = ColumnType("long", Opcode.INTEGER, (LONG_MIN, LONG_MAX))

# The types of pg_catalog whose Avro type depends only on their name.
_FIXED: Final = {
    "bool": ColumnType("boolean", Opcode.BOOLEAN),
    "int2": _INT,
    "int4": _INT,
    "int8": _LONG,
    "oid": _LONG,
    "xid": _LONG,
    "float4": ColumnType("float", Opcode.FLOAT4),
    "float8": ColumnType("double", Opcode.FLOAT8),
    "char": CHECKED_STRING,
    "uuid": ColumnType(_logical("string", "uuid"), Opcode.UUID),
    "bytea": ColumnType("bytes", Opcode.BYTEA),
}

# Extensions can be installed into any schema, so these types are recognised by their name alone.
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
        "date": temporal_text.COMMON_DAYS,
        "time": (temporal_text.DAY_US,),
        "timestamp": temporal_text.COMMON_US,
        "timestamptz": temporal_text.COMMON_US,
    },
    "full": {
        "date": temporal_text.FULL_DAYS,
        "time": (temporal_text.DAY_US + 1,),
        "timestamp": temporal_text.FULL_US,
        "timestamptz": temporal_text.FULL_US,
    },
}


def column_type(column: Column, options: TypeOptions) -> ColumnType:
    """Return the type of ``column`` in a row."""
    for choice in options.choices:
        if choice.matches(column.name):
            kind = _chosen(column.type, column.typmod, choice.choice, options)
            if kind is not None:
                return kind
    return _type(column.type, column.typmod, options)


def key_type(column: Column, options: TypeOptions) -> ColumnType:
    """Return the type of ``column`` in a key, which has no ``raw`` for values that do not fit.

    Infinite dates and timestamps are the lowest and highest integer. numeric without precision is a string, unless a
    choice for the column says otherwise.
    """
    kind = column_type(column, replace(options, numeric="string"))
    opcode = _KEY_OPCODES.get(kind.opcode)
    return kind if opcode is None else replace(kind, opcode=opcode)


def _type(pg_type: PgType, typmod: int, options: TypeOptions) -> ColumnType:
    element = _element(pg_type, options)
    if element is not None:
        return _array(_type(element.type, typmod, options), element.delimiter)
    if pg_type.namespace != CATALOG:
        return _EXTENSIONS.get(pg_type.name, CHECKED_STRING)
    return _catalog_type(pg_type.name, typmod, options)


def _element(pg_type: PgType, options: TypeOptions) -> Element | None:
    if pg_type.namespace != CATALOG:
        return options.elements.get(pg_type.oid)
    # A name with two leading underscores does not count as an array, so that no name means an array of arrays.
    if not pg_type.name.startswith("_") or pg_type.name.startswith("__"):
        return None
    name = pg_type.name[1:]
    return Element(PgType(0, CATALOG, name), ";" if name == "box" else ",")


def is_gone(column: Column, options: TypeOptions) -> bool:
    """Return whether ``column`` may have arrays that cannot be parsed, because the catalog no longer has their type."""
    chosen = next((choice.choice.name for choice in options.choices if choice.matches(column.name)), None)
    return chosen != CHECKED_STRING.schema and options.elements.get(column.type.oid, column) is None


def is_array(schema: Schema) -> bool:
    """Return whether this is the schema of an array."""
    return isinstance(schema, dict) and schema.get("type") == "array"


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
    precision, scale = numeric_modifier(typmod)
    if scale < 0:
        return _decimal(precision - scale, 0)
    return _decimal(max(precision, scale), scale)


def numeric_modifier(typmod: int) -> tuple[int, int]:
    """Return precision and scale of a numeric that has them."""
    # In typmod - 4, the upper 16 bits are the precision, and the lower 16 bits are for the scale. The scale uses 11 of
    # them, and is signed since PostgreSQL 15.
    precision, scale = (typmod - 4) >> 16 & 0xFFFF, (typmod - 4) & 0x7FF
    return precision, (scale ^ 0x400) - 0x400


def _decimal(precision: int, scale: int) -> ColumnType:
    if not 0 < precision <= MAX_PRECISION:
        return STRING
    return ColumnType(decimal_schema(precision, scale), Opcode.DECIMAL, (precision, scale))


# --- types that a user can choose instead

_MILLISECOND_US: Final = 1000
_ALTERNATIVES: Final = {
    "int2": {"long": _LONG},
    "int4": {"long": _LONG},
    "xid8": {"long": _LONG},
    "float4": {"double": ColumnType("double", Opcode.FLOAT4_AS_DOUBLE)},
    "numeric": {"long": _LONG, "double": ColumnType("double", Opcode.NUMERIC_AS_DOUBLE)},
    "interval": {"interval-micros": ColumnType(_logical("long", "interval-micros"), Opcode.INTERVAL_MICROS)},
}
# The base type and the unit of each choice. PostgreSQL's timestamp has no time zone. If timestamp-millis or
# timestamp-micros is chosen for it, its time is taken to be in UTC.
_TEMPORAL_ALTERNATIVES: Final = {
    "time": {"time-millis": ("int", _MILLISECOND_US)},
    "timestamp": {
        "local-timestamp-millis": ("long", _MILLISECOND_US),
        "timestamp-millis": ("long", _MILLISECOND_US),
        "timestamp-micros": ("long", 1),
    },
    "timestamptz": {"timestamp-millis": ("long", _MILLISECOND_US)},
}


def check_choices(relation: Relation, options: TypeOptions) -> None:
    """Raise TableRefused if a choice names a column of the table that cannot have the chosen type."""
    for column in relation.columns:
        for choice in options.choices:
            if choice.names(column.name) and _chosen(column.type, column.typmod, choice.choice, options) is None:
                raise TableRefused(
                    f"table {relation}: column {quoted(column.name)} of type "
                    f"{quoted(column.type.name)} "
                    f"cannot be {choice.choice}, which `types` in [[tables.rules]] chooses: write one of "
                    f"{', '.join(choices_of(column, options))}, or leave it out"
                )


def choices_of(column: Column, options: TypeOptions) -> list[str]:
    """Return the names of the types that can be chosen for a column. The default type comes first."""
    own, innermost = _type(column.type, column.typmod, options), column.type
    while own.element is not None:
        element = _element(innermost, options)
        assert element is not None, "a type with an element is an array"
        own, innermost = own.element, element.type
    name = choice_name(own.schema)
    decimal = ["decimal(p,s)"] if _is_catalog(innermost, "numeric") else []
    others = [*_alternatives(innermost), *decimal, "string"]
    return list(dict.fromkeys(([] if name is None else [name]) + others))


def _chosen(pg_type: PgType, typmod: int, choice: Choice, options: TypeOptions) -> ColumnType | None:
    """Return the chosen type, or None if ``pg_type`` cannot have it. A choice for an array applies to its elements."""
    own = _type(pg_type, typmod, options)
    if choice.name == choice_name(own.schema):
        return own
    if choice.name == CHECKED_STRING.schema:
        return CHECKED_STRING
    element = _element(pg_type, options)
    if element is not None:
        chosen = _chosen(element.type, typmod, choice, options)
        return None if chosen is None else _array(chosen, element.delimiter)
    if choice.name == DECIMAL:
        return _decimal(*choice.parameters) if _is_catalog(pg_type, "numeric") else None
    return _alternative(pg_type, choice.name, options)


def _alternative(pg_type: PgType, choice: str, options: TypeOptions) -> ColumnType | None:
    if not _is_catalog(pg_type):
        return None
    name = pg_type.name
    if name not in _TEMPORAL_ALTERNATIVES:
        return _ALTERNATIVES.get(name, {}).get(choice)
    found = _TEMPORAL_ALTERNATIVES[name].get(choice)
    if found is None:
        return None
    base, unit_us = found
    bounds = _TEMPORAL_BOUNDS[options.time_range][name]
    return ColumnType(_logical(base, choice), _TEMPORAL_OPCODES[name], bounds if unit_us == 1 else (*bounds, unit_us))


def _alternatives(pg_type: PgType) -> list[str]:
    if not _is_catalog(pg_type):
        return []
    return [*_ALTERNATIVES.get(pg_type.name, ()), *_TEMPORAL_ALTERNATIVES.get(pg_type.name, ())]


def _is_catalog(pg_type: PgType, name: str | None = None) -> bool:
    return pg_type.namespace == CATALOG and name in (None, pg_type.name)


def choice_name(schema: Schema) -> str | None:
    """Return the name by which a type can be chosen, or None if it has none."""
    if isinstance(schema, str):
        return schema
    logical_type = schema.get("logicalType") if isinstance(schema, dict) else None
    return None if logical_type == DECIMAL else logical_type


# --- types that become wider

_WIDENINGS: Final = {("int", "long"), ("int", "double"), ("float", "double")}


def wider(one: Schema, other: Schema) -> Schema | None:
    """Return the wider of two types, or None if neither is wider. Readers of the wider type can read both."""
    if one == other or _widens(other, one):
        return one
    return other if _widens(one, other) else None


def _widens(narrow: Schema, wide: Schema) -> bool:
    if isinstance(narrow, str) and isinstance(wide, str):
        return (narrow, wide) in _WIDENINGS
    old, new = _precision(narrow), _precision(wide)
    return old is not None and new is not None and old[0] < new[0] and old[1] == new[1]


def _precision(schema: Schema) -> tuple[int, int] | None:
    """Return precision and scale of a decimal, or None for other types, and for decimals that we never write."""
    if not isinstance(schema, dict) or schema.get("logicalType") != "decimal":
        return None
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    # Another program may have registered a precision of billions, whose power of ten could not be computed.
    if not isinstance(precision, int) or not isinstance(scale, int):
        return None
    return (precision, scale) if 0 <= scale <= precision <= MAX_PRECISION else None


def widened(kind: ColumnType, schema: Schema) -> ColumnType:
    """Return ``kind`` with a writer for ``schema``, the type of the field, which :func:`wider` chose."""
    if kind.schema == schema:
        return kind
    if kind.opcode is Opcode.FLOAT4:
        return replace(kind, schema=schema, opcode=Opcode.FLOAT4_AS_DOUBLE)
    if schema == "double":
        return replace(kind, schema=schema, opcode=Opcode.FLOAT8, parameters=())
    return replace(kind, schema=schema, parameters=_precision(schema) or kind.parameters)
