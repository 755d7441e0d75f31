"""Compares PostgreSQL with the mirror, row by row. No I/O. ``story`` uses this module."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sandbox.demo.events import count, text
from sandbox.demo.screen import fitted

ROWS_SHOWN = 3
"""The maximum number of rows of each table that are shown. Rows that differ come first."""

NAME_WIDTH, EQUAL_WIDTH = 22, 5
GAP = " | "

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """A row as each side has it, or None where it is missing. ``name`` has the columns of the key and their values."""

    name: str
    postgres: Row | None
    mirror: Row | None

    @property
    def equal(self) -> bool:
        """Whether both sides have the row, with the same columns and values."""
        return self.postgres == self.mirror


@dataclass(frozen=True, slots=True)
class Comparison:
    """One table on both sides."""

    table: str
    key: Sequence[str]
    postgres_rows: int
    mirror_rows: int
    pairs: Sequence[Pair]

    @property
    def equal(self) -> bool:
        """Whether both sides have the same rows, and each row once."""
        return self.postgres_rows == self.mirror_rows == len(self.pairs) and all(pair.equal for pair in self.pairs)


def compare(table: str, key: Sequence[str], postgres: Sequence[Row], mirror: Sequence[Row]) -> Comparison:
    """Compare a table, row by row."""
    ours, theirs = _by_key(map(_in_utc, postgres), key), _by_key(map(_in_utc, mirror), key)
    pairs = [Pair(name, ours.get(name), theirs.get(name)) for name in dict.fromkeys([*ours, *theirs])]
    return Comparison(table, key, len(postgres), len(mirror), pairs)


def lines(comparisons: Sequence[Comparison], width: int) -> Iterator[tuple[str, bool]]:
    """Yield the lines of the comparison as text. A flag with each line says whether the two sides are equal."""
    yield _line("", "PostgreSQL", "mirror", "equal", width), True
    for one in comparisons:
        sides = count(one.postgres_rows, "row"), count(one.mirror_rows, "row")
        yield _line(one.table, *sides, _yes(one.equal), width), one.equal
        pairs = sorted(one.pairs, key=lambda pair: pair.equal)
        for pair in pairs[:ROWS_SHOWN]:
            cells = _cells(pair.postgres, one.key), _cells(pair.mirror, one.key)
            yield _line(f"  {pair.name}", *cells, _yes(pair.equal), width), pair.equal
        if rest := pairs[ROWS_SHOWN:]:
            equal = all(pair.equal for pair in rest)
            yield _line(f"  {len(rest):,} more", "...", "...", _yes(equal), width), equal


def _by_key(rows: Iterable[Row], key: Sequence[str]) -> dict[str, Row]:
    return {" ".join(f"{name}={row[name]}" for name in key): row for row in rows}


def _in_utc(row: Row) -> Row:
    return {name: value.astimezone(UTC) if _has_zone(value) else value for name, value in row.items()}


def _has_zone(value: object) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _line(name: str, postgres: str, mirror: str, equal: str, width: int) -> str:
    side = (width - NAME_WIDTH - EQUAL_WIDTH - 3 * len(GAP)) // 2
    return GAP.join([fitted(name, NAME_WIDTH), fitted(postgres, side), fitted(mirror, side), equal])


def _cells(row: Row | None, key: Sequence[str]) -> str:
    return "" if row is None else ", ".join(text(value) for name, value in row.items() if name not in key)


def _yes(equal: bool) -> str:  # noqa: FBT001 - the value to show
    return "yes" if equal else "NO"
