"""Makes the values of both sides of an audit comparable, by converting PostgreSQL's text to the mirror's type.

Used by :mod:`.compare`. PostgreSQL writes each value with its type's output function, as it does for the daemon. (A
cast to text gives another result for some types. For example, it removes the trailing blanks of ``char(n)``.) Spark
converts this text to the mirror's type, so that values are compared, and not texts. docs/types.md describes the
conversion of each type.

``tests/spark/test_audit.py`` covers this module.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation
from pyspark.sql.types import ArrayType, DataType, DecimalType, IntegralType, MapType

from pgsluice_spark.lives import comparable
from pgsluice_spark.rows import SYSTEM
from pgsluice_spark.targets import quoted

_DATE: Final = r"^\d{4,}-\d\d-\d\d( BC)?$"
_TIMESTAMP: Final = r"^\d{4,}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?(\+00)?( BC)?$"
_INFINITIES: Final = ("infinity", "-infinity")

_TIMES: Final = frozenset(("date", "timestamp", "timestamp_ntz"))
"""The mirror's types for PostgreSQL's dates and timestamps, which can be infinite in PostgreSQL."""

_REFERENCES: Final = frozenset(
    f"reg{name}"
    for name in (
        *("proc", "procedure", "oper", "operator", "class", "type"),
        *("config", "dictionary", "namespace", "role", "collation"),
    )
)
_REFERENCE: Final = "if postgres.binary is on, the mirror has a number in place of the name (docs/types.md)"
_CHAR: Final = 'PostgreSQL before 16 sends a "char" that is not ASCII as a bare byte (docs/types.md)'
_FIRST_OCTAL: Final = 16
_LAST_UNSIGNED: Final = 9999

_MICROS: Final = "round(extract(epoch FROM {0})::numeric * 1000000)::bigint"
_IS_TIME: Final = "{0} < '24:00'"
_IS_MILLIS: Final = f"{_MICROS} % 1000 = 0"
_HAS_NO_MONTHS: Final = "isfinite({0}) AND extract(year FROM {0}) = 0 AND extract(month FROM {0}) = 0"
_CODES: Final = {
    ("time", "bigint"): f"CASE WHEN {_IS_TIME} THEN {_MICROS}::text END",
    ("time", "int"): f"CASE WHEN {_IS_TIME} AND {_IS_MILLIS} THEN ({_MICROS} / 1000)::text END",
    ("interval", "bigint"): f"CASE WHEN {_HAS_NO_MONTHS} THEN {_MICROS}::text END",
    ("float4", "double"): "{0}::float8::text",  # a double that is read from the text of a float4 would be another one
}
"""The SQL for values whose text is not the text of the mirror's value, by PostgreSQL's type and the mirror's type.

It is null for values that the mirror's type cannot hold (docs/types.md).
"""
_NOT_HELD: Final = "'not held'"
"""Stands for an element of an array that the mirror's type cannot hold. No type can read it."""

_INTEGER: Final = r"^-?\d+$"
_PLAIN_ARRAY: Final = r"^\{[^{}]*\}$"


@dataclass(frozen=True, slots=True)
class Pair:
    """A column in PostgreSQL and its field in the mirror. ``kind`` is the field's type.

    ``type`` is PostgreSQL's type, or the type of the elements if ``arrays`` is not 0. In the rows that are read from
    PostgreSQL, ``t<number>`` is the column's text. If the value cannot be computed from this text, it is computed from
    another column, ``c<number>``.
    """

    number: int
    column: str
    field: str
    type: str
    arrays: int
    kind: DataType

    def selected(self) -> list[str]:
        """Return the expressions that the query in PostgreSQL selects for the column."""
        name = '"' + self.column.replace('"', '""') + '"'
        text = _output(name)
        return [
            f"{text} AS t{self.number}",
            *([] if (code := self._code(name)) is None else [f"{code} AS c{self.number}"]),
        ]

    def _code(self, name: str) -> str | None:
        return _code(self.type, self.arrays, self.kind, name)

    def value(self) -> Column:
        """Return PostgreSQL's value as the mirror's type, or null if the type cannot hold it."""
        is_coded = self._code("") is not None
        return _read(F.col(f"c{self.number}") if is_coded else self.text(), self.kind)

    def key(self) -> Column:
        """Return PostgreSQL's value in the form by which rows are joined.

        Spark's dates and timestamps cannot be infinite, so this form contains the text of an infinite value.
        """
        if self.kind.simpleString() not in _TIMES:
            return comparable(self.value(), self.kind)
        text = self.text()
        return F.struct(self.value().alias("value"), F.when(text.isin(*_INFINITIES), text).alias("raw"))

    def mirrored_key(self) -> Column:
        """Return the mirror's value in the form of :meth:`key`.

        A finite value is always in the mirror's column itself, even if the map ``_pgsluice.raw`` also has a text for
        it.
        """
        here = F.col(quoted(self.field))
        if self.kind.simpleString() not in _TIMES:
            return comparable(here, self.kind)
        text = self._kept_text(SYSTEM)
        raw = F.when(text.isin(*_INFINITIES), text)
        return F.struct(F.when(raw.isNull(), here).alias("value"), raw.alias("raw"))

    def cell(self) -> Column:
        """Return PostgreSQL's value in the form by which rows without a key are grouped."""
        return self._cell(self.value(), self.text())

    def mirrored_cell(self, mirror: str) -> Column:
        """Return the mirror's value in the form of :meth:`cell`.

        Spark's types can hold some values that the types of Avro cannot hold, so these values are read from ``raw``.
        """
        raw = self._kept_text(f"{mirror}.{SYSTEM}")
        here = F.coalesce(F.col(f"{mirror}.{quoted(self.field)}"), self._of_raw(raw))
        return self._cell(here, self.shown(mirror))

    def _kept_text(self, system: str) -> Column:
        """Return PostgreSQL's text that the mirror has kept, or null. ``system`` names the column ``_pgsluice``."""
        return F.try_element_at(F.col(f"{system}.raw"), F.lit(self.field))

    def _of_raw(self, raw: Column) -> Column:
        """Return the value of a text in ``raw``, or null if it cannot be read."""
        if self.arrays == 1 and isinstance(self.kind, ArrayType):
            items = F.split(F.regexp_replace(raw, r'[{}"]', ""), ",")
            items = F.transform(items, lambda item: F.when(item != "NULL", item))
            return F.when(raw.rlike(_PLAIN_ARRAY), _elements(items, self.kind.elementType))
        return F.lit(None).cast(self.kind) if self._code("") is not None else _read(raw, self.kind)

    def _cell(self, value: Column, text: Column) -> Column:
        return F.struct(comparable(value, self.kind).alias("value"), F.when(value.isNull(), text).alias("raw"))

    def text(self) -> Column:
        """Return PostgreSQL's text."""
        return F.col(f"t{self.number}")

    def differs(self, mirror: str) -> Column:
        """Return whether PostgreSQL's value differs from the mirror's value.

        ``mirror`` names the column that has the mirror's row as a struct.
        """
        kept, text = f"{mirror}.{SYSTEM}", self.text()
        raw = self._kept_text(kept)
        here = F.col(f"{mirror}.{quoted(self.field)}")
        is_same = comparable(here, self.kind) == comparable(self.value(), self.kind)
        same = (
            F.when(raw.isNotNull(), raw.eqNullSafe(text))
            .when(text.isNull(), here.isNull())
            .otherwise(F.coalesce(is_same, F.lit(False)))  # noqa: FBT003 - a literal
        )
        return F.array_contains(f"{kept}.unchanged", self.field) | ~same

    def shown(self, mirror: str) -> Column:
        """Return the mirror's value as text, for a report."""
        raw = self._kept_text(f"{mirror}.{SYSTEM}")
        unknown = F.array_contains(f"{mirror}.{SYSTEM}.unchanged", self.field)
        here = F.col(f"{mirror}.{quoted(self.field)}")
        text = (
            F.concat(F.lit("\\x"), F.lower(F.hex(here)))
            if self.kind.simpleString() == "binary"
            else here.cast("string")
        )
        return F.when(unknown, F.lit("(not known: it was never sent)")).otherwise(F.coalesce(raw, text))

    def exception(self, version: int) -> str:
        """Return why the column cannot be compared on this version of PostgreSQL, or "" if it can be compared."""
        if self.type in _REFERENCES:
            return _REFERENCE
        return _CHAR if self.type == "char" and version < _FIRST_OCTAL else ""


def _code(type_: str, arrays: int, kind: DataType, name: str) -> str | None:
    """Return SQL for a text from which :func:`_read` can read the value, or None if PostgreSQL's own text is enough."""
    if arrays and isinstance(kind, ArrayType):
        code = _code(type_, arrays - 1, kind.elementType, "e")
        element = _output("e") if code is None else f"CASE WHEN e IS NOT NULL THEN coalesce({code}, {_NOT_HELD}) END"
        items = f"(SELECT json_agg({element})::text FROM (SELECT unnest({name}) AS e) AS u)"  # noqa: S608 - quoted
        is_plain = f"coalesce(array_ndims({name}), 1) = 1 AND coalesce(array_lower({name}, 1), 1) = 1"
        return f"CASE WHEN {name} IS NOT NULL AND {is_plain} THEN coalesce({items}, '[]') END"
    if isinstance(kind, MapType):
        return f"{name}::json::text"
    code = _CODES.get((type_, kind.simpleString()))
    return None if code is None else code.format(name)


def _output(name: str) -> str:
    """Return SQL for the text that the type's output function returns for a value.

    The text of null is null. A composite whose fields are all null is not null itself, so it has a text.
    """
    return f"CASE WHEN num_nonnulls({name}) = 1 THEN format('%s', {name}) END"


def _read(text: Column, kind: DataType) -> Column:
    """Convert a text of PostgreSQL to a value of this type, or to null if the type cannot hold the value.

    The texts of arrays and maps are JSON.
    """
    if isinstance(kind, MapType):
        return F.from_json(text, kind)
    if isinstance(kind, ArrayType):
        return _elements(F.from_json(text, "array<string>"), kind.elementType)
    if isinstance(kind, DecimalType):
        fraction = F.regexp_extract(text, r"\.(\d*?)0*$", 1)
        return F.when(F.length(fraction) <= kind.scale, text).try_cast(kind)
    if isinstance(kind, IntegralType):
        return F.when(text.rlike(_INTEGER), text).try_cast(kind)
    reading = _READINGS.get(kind.simpleString())
    return text.try_cast(kind) if reading is None else reading(text)


def _elements(items: Column, kind: DataType) -> Column:
    """Return the values of an array, or null if the type cannot hold one of them."""
    is_lost = F.exists(items, lambda item: item.isNotNull() & _read(item, kind).isNull())
    return F.when(~is_lost, F.transform(items, lambda item: _read(item, kind)))


def _timestamp(text: Column, zone: str) -> Column:
    local = F.concat(_signed(F.regexp_replace(text, r"\+00( BC)?$", "$1")), F.lit(zone))
    return F.when(text.rlike(_TIMESTAMP), local)


_READINGS: Final[Mapping[str, Callable[[Column], Column]]] = {
    "boolean": lambda text: text == "t",
    "binary": lambda text: F.unhex(F.substring(text, 3, 2**31 - 1)),
    "date": lambda text: F.when(text.rlike(_DATE), _signed(text)).try_cast("date"),
    "timestamp": lambda text: _timestamp(text, "Z").try_cast("timestamp"),
    "timestamp_ntz": lambda text: _timestamp(text, "").try_cast("timestamp_ntz"),
}
"""The conversions for the types whose texts Spark cannot read in PostgreSQL's form."""


def _signed(text: Column) -> Column:
    """Return a text with the year in Spark's form.

    Spark expects a sign if the year has more than four digits, or if it is before year 1. Year 1 BC is year 0 of ISO
    8601, and year 2 BC is year -1.
    """
    year = F.regexp_extract(text, r"^(\d+)", 1).cast("int")
    rest = F.regexp_extract(text, r"^\d+(.*?)( BC)?$", 1)
    before = F.concat(F.format_string("-%04d", year - 1), rest)
    return F.when(text.endswith(" BC"), before).when(year > _LAST_UNSIGNED, F.concat(F.lit("+"), text)).otherwise(text)
