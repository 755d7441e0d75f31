"""Compares the rows of PostgreSQL and of a topic by a count and a checksum for each table. No I/O.

PostgreSQL computes the count and the checksum in SQL. For a topic, this module computes them from the events, whose
values it formats as PostgreSQL does.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from bench.loads import Load

EPOCH = date(1970, 1, 1)
SEPARATOR = "|"
BYTES = 8
"""The first ``BYTES`` bytes of a row's MD5 are read as a signed number. The checksum of a table is the sum of these
numbers, so the order of the rows does not matter."""


@dataclass(slots=True)
class Digest:
    """The count and the checksum of a table's rows."""

    rows: int = 0
    checksum: int = 0

    def add(self, text: str) -> None:
        """Add a row, given as text."""
        self.rows += 1
        digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
        self.checksum += int.from_bytes(digest[:BYTES], "big", signed=True)


def select(load: Load, table: str) -> str:
    """Return the query for the count and the checksum of a table's rows."""
    values = ", ".join(["id::text", *(_sql(name, kind) for name, kind, _ in load.columns)])
    text = f"concat_ws('{SEPARATOR}', {values})"
    number = f"('x' || left(md5({text}), {2 * BYTES}))::bit({8 * BYTES})::bigint"
    return f"SELECT count(*), coalesce(sum({number}::numeric), 0) FROM {table}"


def _sql(name: str, kind: str) -> str:
    if kind == "timestamptz":
        return f"to_char({name} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')"
    return f"{name}::text"


def row_text(columns: Sequence[tuple[str, str, str]], row: Mapping[str, object]) -> str:
    """Return the text that the query of :func:`select` makes from a row. No column may be missing or null."""
    values = [str(row["id"]), *(_text(kind, row[name]) for name, kind, _ in columns)]
    return SEPARATOR.join(values)


def _text(kind: str, value: object) -> str:
    match kind, value:
        case "timestamptz", datetime():
            return _moment(value)
        case "timestamptz", str():  # io.debezium.time.ZonedTimestamp
            return _moment(datetime.fromisoformat(value))
        case "date", int():  # io.debezium.time.Date: days since 1970-01-01
            return str(EPOCH + timedelta(days=value))
        case "boolean", _:
            return "true" if value else "false"
        case _:
            return str(value)


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
