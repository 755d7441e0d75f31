"""What PostgreSQL has beside what Spark made of the topics, row by row. Pure but for ``spark_rows``; used by story."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from sandbox.demo.events import count, text
from sandbox.demo.screen import fitted

ROWS_SHOWN = 3
"""Of each table; those that differ come first."""

NAME_WIDTH, EQUAL_WIDTH = 22, 5
GAP = " | "

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """A row on both sides; None where it is missing. ``name`` are the values of its key."""

    name: str
    postgres: Row | None
    spark: Row | None

    @property
    def equal(self) -> bool:
        """Whether both sides have it, with the same columns and values."""
        return self.postgres == self.spark


@dataclass(frozen=True, slots=True)
class Comparison:
    """One table on both sides."""

    table: str
    key: Sequence[str]
    postgres_rows: int
    spark_rows: int
    pairs: Sequence[Pair]

    @property
    def equal(self) -> bool:
        """Whether both sides have the same rows, and each of them once."""
        return self.postgres_rows == self.spark_rows == len(self.pairs) and all(pair.equal for pair in self.pairs)


def compare(table: str, key: Sequence[str], postgres: Sequence[Row], spark: Sequence[Row]) -> Comparison:
    """Compare a table, row by row; ``postgres`` as psycopg gives them, ``spark`` as ``spark_rows`` does."""
    ours, theirs = _by_key(map(_as_json, postgres), key), _by_key(spark, key)
    pairs = [Pair(name, ours.get(name), theirs.get(name)) for name in dict.fromkeys([*ours, *theirs])]
    return Comparison(table, key, len(postgres), len(spark), pairs)


def spark_rows(directory: Path) -> list[Row]:
    """Return the rows in the JSON lines that Spark wrote."""
    texts = (file.read_text() for file in sorted(directory.glob("part-*.json")))
    return [json.loads(line, parse_float=Decimal) for written in texts for line in written.split("\n") if line]


def lines(comparisons: Sequence[Comparison], width: int) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a table with both sides, each with whether they are equal."""
    yield _line("", "PostgreSQL", "Spark", "equal", width), True
    for one in comparisons:
        sides = count(one.postgres_rows, "row"), count(one.spark_rows, "row")
        yield _line(one.table, *sides, _yes(one.equal), width), one.equal
        pairs = sorted(one.pairs, key=lambda pair: pair.equal)
        for pair in pairs[:ROWS_SHOWN]:
            cells = _cells(pair.postgres, one.key), _cells(pair.spark, one.key)
            yield _line(f"  {pair.name}", *cells, _yes(pair.equal), width), pair.equal
        if rest := pairs[ROWS_SHOWN:]:
            equal = all(pair.equal for pair in rest)
            yield _line(f"  {len(rest):,} more", "...", "...", _yes(equal), width), equal


def _by_key(rows: Iterable[Row], key: Sequence[str]) -> dict[str, Row]:
    return {" ".join(f"{name}={row[name]}" for name in key): row for row in rows}


def _as_json(row: Row) -> Row:
    """Return what the values of a row are once they have gone through JSON."""
    return {name: _json_value(value) for name, value in row.items()}


def _json_value(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, date):
        return value.isoformat()
    return value


def _line(name: str, postgres: str, spark: str, equal: str, width: int) -> str:
    side = (width - NAME_WIDTH - EQUAL_WIDTH - 3 * len(GAP)) // 2
    return GAP.join([fitted(name, NAME_WIDTH), fitted(postgres, side), fitted(spark, side), equal])


def _cells(row: Row | None, key: Sequence[str]) -> str:
    return "" if row is None else ", ".join(text(value) for name, value in row.items() if name not in key)


def _yes(equal: bool) -> str:  # noqa: FBT001 - what it is about
    return "yes" if equal else "NO"
