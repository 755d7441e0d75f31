"""Avro types that a user chooses for columns with ``types`` in ``[[tables.rules]]``.

``config`` reads the choices, ``tables`` selects those for a table, and ``types`` knows which column can have which
type.

https://avro.apache.org/docs/1.12.0/specification/#logical-types
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Final, Self

MAX_PRECISION: Final = 38
"""The maximum precision of a decimal in Spark, Flink and DuckDB."""

DECIMAL: Final = "decimal"

NAMES: Final = (
    *("string", "boolean", "int", "long", "float", "double", "bytes", "uuid", "date"),
    *("time-millis", "time-micros", "timestamp-millis", "timestamp-micros"),
    *("local-timestamp-millis", "local-timestamp-micros", "interval-micros"),
)
"""The types that can be chosen by name alone: Avro's primitive and logical types, and one of our own."""

_DECIMAL: Final = re.compile(r"decimal\( *([0-9]{1,2}) *, *([0-9]{1,2}) *\)", re.ASCII)
_WILDCARD: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Choice:
    """An Avro type by its name. ``parameters`` are the precision and scale of a ``decimal``."""

    name: str
    parameters: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the choice that ``text`` names. Raise ValueError with the remedy if there is no such type."""
        if text in NAMES:
            return cls(text)
        decimal = parse_decimal(text)
        if decimal is not None:
            return cls(DECIMAL, decimal)
        near = get_close_matches(text, [*NAMES, "decimal(38,9)"], n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(NAMES)} and decimal(38,9)"
        raise ValueError(f"{text!r} is not a type that can be chosen: {hint}")

    def __str__(self) -> str:
        return f"{self.name}({','.join(map(str, self.parameters))})" if self.parameters else self.name


def parse_decimal(text: str) -> tuple[int, int] | None:
    """Return precision and scale of ``decimal(p,s)``, or None for other texts. Raise ValueError for invalid numbers."""
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return None
    precision, scale = int(match[1]), int(match[2])
    if not 1 <= precision <= MAX_PRECISION or scale > precision:
        raise ValueError(f"{text!r} is not possible: precision goes from 1 to 38, scale from 0 to the precision")
    return precision, scale


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """A choice for the columns whose name matches the glob ``pattern``.

    A pattern with wildcards skips columns that cannot have the type. A pattern without wildcards names one column, and
    it is an error if this column cannot have the type.
    """

    pattern: str
    choice: Choice

    def matches(self, column: str) -> bool:
        """Return whether the pattern matches a column of this name."""
        return self.pattern == column or fnmatchcase(column, self.pattern)

    def names(self, column: str) -> bool:
        """Return whether the pattern names exactly this column."""
        return self.pattern == column and _WILDCARD.search(column) is None
