"""The result of an audit, as text and as JSON, and the text of LSNs.

Used by :mod:`.audit`, :mod:`.control`, :mod:`.commands` and :mod:`.command_line`. This module does no I/O.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

_LSN: Final = re.compile("([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")

EQUAL: Final = "equal"
DIFFERENT: Final = "different"
REFUSED: Final = "refused"
"""The status of a table that cannot be compared. ``reason`` says why."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A row or a value that differs between the two sides.

    ``kind`` is ``value`` if a value differs, ``missing`` if the mirror lacks the row, and ``extra`` if only the mirror
    has the row. ``key`` has the values of the key's columns, or the whole row if the table has no key. Values are
    texts, or None for null.
    """

    kind: str
    key: Mapping[str, str | None]
    column: str | None = None
    postgres: str | None = None
    mirror: str | None = None

    def __str__(self) -> str:
        row = ", ".join(f"{name}={_shown(value)}" for name, value in self.key.items())
        if self.kind == "missing":
            return f"{row}: the mirror lacks the row"
        if self.kind == "extra":
            return f"{row}: only the mirror has the row"
        return f"{row}: {self.column} is {_shown(self.postgres)} in PostgreSQL, {_shown(self.mirror)} in the mirror"


@dataclass(frozen=True, slots=True)
class TableReport:
    """The result for one table.

    ``status`` is ``equal``, ``different`` or ``refused``. For a table that is not compared because it is not
    ``loaded``, ``status`` is the table's own status, such as ``stale``. ``rows`` is the number of rows in PostgreSQL.
    ``mirror_rows`` is the number of rows in the mirror after the audit has applied the changes that came after the
    mirror's last cut and that PostgreSQL's snapshot sees. ``differences`` has some of the rows that differ.
    ``exceptions`` has the columns that were not compared, each with the reason.
    """

    table: str
    status: str
    reason: str = ""
    rows: int = 0
    mirror_rows: int = 0
    changed: int = 0
    missing: int = 0
    extra: int = 0
    seconds: float = 0.0
    differences: Sequence[Difference] = ()
    exceptions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit.

    ``cut`` is the last cut of the mirror. ``snapshot`` is the snapshot of PostgreSQL that was compared, and ``wal_lsn``
    is a position in the WAL after all transactions that this snapshot sees.
    """

    cut: int
    epoch: int
    end_lsn: int
    snapshot: str
    wal_lsn: int
    seconds: float
    tables: Sequence[TableReport]

    @property
    def equal(self) -> bool:
        """Whether every table is equal. An unfinished or refused table does not count as equal."""
        return bool(self.tables) and all(table.status == EQUAL for table in self.tables)

    @property
    def different(self) -> list[str]:
        """The tables that differ."""
        return [table.table for table in self.tables if table.status == DIFFERENT]

    def to_json(self) -> str:
        """Return the report as one JSON object."""
        return json.dumps({"equal": self.equal, **asdict(self)}, ensure_ascii=False)

    def __str__(self) -> str:
        mirror = f"mirror at cut {self.cut} (epoch {self.epoch}, {lsn_text(self.end_lsn)})"
        lines = [f"{mirror}, PostgreSQL at snapshot {self.snapshot} (before {lsn_text(self.wal_lsn)})"]
        for table in self.tables:
            lines += _lines(table)
        equal = sum(table.status == EQUAL for table in self.tables)
        return "\n".join([*lines, f"{equal} of {len(self.tables)} tables equal, {self.seconds:.1f} s"])


def _lines(table: TableReport) -> list[str]:
    lines = [f"{table.table}: {table.status}{f', {table.reason}' if table.reason else ''}"]
    if table.status in (EQUAL, DIFFERENT):
        lines[0] += f", {table.rows} rows, {table.seconds:.1f} s"
    if table.status == DIFFERENT:
        lines[0] += (
            f"; {table.changed} rows with other values, {table.missing} missing, {table.extra} extra "
            f"({table.mirror_rows} in the mirror)"
        )
    lines += [f"  {difference}" for difference in table.differences]
    return lines + [f"  not compared: {name}: {reason}" for name, reason in table.exceptions.items()]


def _shown(value: str | None) -> str:
    return "null" if value is None else repr(value)


def lsn_text(lsn: int) -> str:
    """Return an LSN as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """Return an LSN as a number. Raise ValueError if the text is not an LSN."""
    found = _LSN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not an LSN such as 0/16B3748")
    return (int(found[1], 16) << 32) + int(found[2], 16)
