"""The table of types for ``docs/types.md``, made from the decisions of ``types``. ``pgsluice schema types`` prints it.

https://www.postgresql.org/docs/current/datatype.html
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pgsluice.avro.choices import Choice, ColumnChoice
from pgsluice.avro.types import ColumnType, Opcode, TypeOptions, choice_name, choices_of, column_type, key_type
from pgsluice.avro.wire import Schema
from pgsluice.pgbinary.conversions import Element
from pgsluice.relation import BUILTIN_TYPES, CATALOG, Column, PgType

_NUMERIC: Final = PgType(1700, CATALOG, "numeric")
_TEN_TWO: Final = (10 << 16 | 2) + 4
"""The modifier of numeric(10,2)."""

_MARKED: Final[Mapping[Opcode, str]] = {
    Opcode.DECIMAL: "NaN, infinities",
    Opcode.DATE: "infinities, years before 1 and after 9999",
    Opcode.TIME: "24:00:00",
    Opcode.TIMESTAMP: "infinities, years before 1 and after 9999",
    Opcode.TIMESTAMPTZ: "infinities, years before 1 and after 9999",
    Opcode.ARRAY: "more than one dimension, a lower bound other than 1, an element that does not fit",
}
"""The values that go to ``raw``, by default type. Default types that are not listed here never need ``raw``."""

_POISON: Final = "a value that would be in `raw` is poison"
_EXTREMES: Final = "infinities become the lowest or highest integer; any other value that would be in `raw` is poison"


class _Row(NamedTuple):
    """One line of the table. Types with equal cells share a line."""

    avro: str
    marked: str
    key: str
    choices: str


def markdown() -> str:
    """Return the tables, for ``docs/types.md``."""
    return "\n".join(["### What a type becomes\n", *_types(), "\n### What can be chosen instead\n", *_choices(), ""])


def _types() -> Iterable[str]:
    yield "| PostgreSQL | Avro | in `raw` | in a key | `types` can choose |"
    yield "|---|---|---|---|---|"
    grouped: dict[_Row, list[str]] = {}
    for name, row in _rows():
        grouped.setdefault(row, []).append(name)
    for row, names in grouped.items():
        yield f"| {', '.join(names)} | {' | '.join(row)} |"


def _rows() -> Iterable[tuple[str, _Row]]:
    for pg_type in BUILTIN_TYPES.values():
        if pg_type == _NUMERIC:
            yield "numeric(p,s) of up to 38 digits", _row(pg_type, typmod=_TEN_TWO)
            yield "numeric, numeric(p,s) of more digits", _row(pg_type)
        elif not pg_type.name.startswith("_"):
            yield f'"{pg_type.name}"' if pg_type.name == "char" else pg_type.name, _row(pg_type)
    for name in ("hstore", "vector"):
        yield f"{name} (extension)", _row(PgType(0, "public", name))
    yield "enums, composites, types of extensions and of users", _row(PgType(0, "public", "mood"))
    yield (
        "domains",
        _Row("that of their base type; a numeric counts as one without precision", "", "", "as for the base type"),
    )
    array = PgType(1, "public", "_mood")
    yield "arrays of any of these", _row(array, elements={array.oid: Element(PgType(0, "public", "T"))})


def _row(pg_type: PgType, typmod: int = -1, elements: Mapping[int, Element] | None = None) -> _Row:
    column, options = Column("c", pg_type, typmod, is_key=True), TypeOptions(elements=elements or {})
    kind = column_type(column, options)
    marked = _MARKED.get(kind.opcode, "")
    if kind.opcode is Opcode.ARRAY:
        choices = "`string`; the types for their elements"
        return _Row("array of nullable elements, each as its type", marked, _POISON, choices)
    own = choice_name(kind.schema)
    choices = ", ".join(f"`{choice}`" for choice in choices_of(column, options) if choice != own)
    return _Row(_avro(kind.schema), marked, _key(kind, key_type(column, options)), choices)


def _key(kind: ColumnType, of_key: ColumnType) -> str:
    if kind.opcode not in _MARKED:
        return ""
    return _POISON if kind.opcode is of_key.opcode else _EXTREMES


def _avro(schema: Schema) -> str:
    """Return a type on one line: ``long, timestamp-micros``."""
    if isinstance(schema, str):
        return schema
    assert isinstance(schema, dict), "no type of a column is a union"
    if schema["type"] == "map":
        return "map of nullable string"
    if schema["type"] == "array":
        return f"array of {schema['items']}"
    digits = "(p,s)" if "precision" in schema else ""
    return f"{schema['type']}, {schema['logicalType']}{digits}"


_CHOSEN: Final = (
    (
        "decimal(38,9)",
        "numeric",
        "`decimal(p,s)`",
        "NaN, infinities, numbers with more digits before or after the point than the decimal has",
    ),
    ("double", "numeric", "`double`", "numbers that change when they are converted to a double and back to decimal"),
    ("long", "numeric", "`long`", "numbers with a decimal point, or beyond 64 bits"),
    ("long", "int4", "`long`", ""),
    ("long", "xid8", "`long`", "values beyond 63 bits"),
    ("double", "float4", "`double`", ""),
    ("time-millis", "time", "`time-millis`", "as `time-micros`, and values with a fraction of a millisecond"),
    (
        "timestamp-millis",
        "timestamptz",
        "`timestamp-millis`",
        "as `timestamp-micros`, and values with a fraction of a millisecond",
    ),
    (
        "local-timestamp-millis",
        "timestamp",
        "`local-timestamp-millis`",
        "as `local-timestamp-micros`, and values with a fraction of a millisecond",
    ),
    ("timestamp-millis", "timestamp", "`timestamp-millis`", "as `local-timestamp-millis`; the time is taken to be UTC"),
    ("timestamp-micros", "timestamp", "`timestamp-micros`", "as `local-timestamp-micros`; the time is taken to be UTC"),
    ("interval-micros", "interval", "`interval-micros`", "months and years, infinities; a day is 24 hours"),
    ("string", "text", "`string`", ""),
)
_NAMES: Final = {"int4": "smallint, integer", "text": "every type; for an array, the text of the whole array"}


def _choices() -> Iterable[str]:
    yield "| choice | of | Avro | in `raw` |"
    yield "|---|---|---|---|"
    oids = {pg_type.name: pg_type for pg_type in BUILTIN_TYPES.values()}
    for text, name, shown, marked in _CHOSEN:
        options = TypeOptions(choices=(ColumnChoice("c", Choice.parse(text)),))
        kind = column_type(Column("c", oids[name], -1, is_key=False), options)
        yield f"| {shown} | {_NAMES.get(name, name)} | {_avro(kind.schema)} | {marked} |"
