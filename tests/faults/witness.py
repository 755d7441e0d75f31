"""The content of each table at every position, read from a second slot without any code of pgsluice.

The slot is read with a function of PostgreSQL's SQL interface, which decodes the WAL. The fault tests compare this
content with the rows that loads delivered, and with copies of tables.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple, TypeAlias

import psycopg

SLOT = "witness"
PUBLICATION = "witnessed"

KEY = "id"
"""The key column of all tables that have a key."""

CREATE = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
PEEK = "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, %s, '1', %s, %s)"

_SHORT, _INT, _LONG = Struct("!H"), Struct("!I"), Struct("!Q")

UNCHANGED = "<unchanged>"

Row: TypeAlias = dict[str, str | None]
"""The values of a row by column, in PostgreSQL's text format."""

Key: TypeAlias = str | None
"""The key of a row. None stands for all rows of a table."""


class Change(NamedTuple):
    """A change of one row. ``old`` is the known part of the old row. A truncate has neither ``old`` nor ``new``."""

    table: str
    old: Row | None
    new: Row | None


class Committed(NamedTuple):
    """A transaction with changes, and the LSN of its commit."""

    lsn: int
    changes: Sequence[Change]


@dataclass
class TableContents:
    """The rows of one table, by key. If the table has no key, ``keyless`` says how often each row occurs."""

    rows: dict[str, Row] = field(default_factory=dict)
    keyless: Counter[frozenset[tuple[str, str | None]]] = field(default_factory=Counter)

    def apply(self, change: Change) -> Key:
        """Apply a change, and return the key of the row. Return None for a truncate, or if the table has no key."""
        if change.old is None and change.new is None:
            self.rows.clear()
            self.keyless.clear()
            return None
        row = change.new or change.old
        assert row is not None, "a change that is not a truncate has an old or a new row"
        if KEY not in row:
            self.keyless.update([frozenset(change.new.items())] if change.new else [])
            self.keyless.subtract([frozenset(change.old.items())] if change.old else [])
            return None
        return self._apply(change, str(row[KEY]))

    def _apply(self, change: Change, key: str) -> str:
        former = self.rows.pop(key if change.old is None else str(change.old[KEY]), {})
        if change.new is not None:
            self.rows[key] = {
                name: former.get(name, UNCHANGED) if value == UNCHANGED else value for name, value in change.new.items()
            }
        return key


class Truth:
    """The content of the tables at a position that only advances.

    A restored server reuses LSNs. For each epoch except the last, ``lost_from`` has the LSN at which the lost part of
    the WAL begins. The slot does not return lost transactions. So if it returns a transaction at or after this LSN, the
    transaction belongs to a later epoch.
    """

    def __init__(self, committed: Iterable[Committed], lost_from: Sequence[int] = ()) -> None:
        self.tables: dict[str, TableContents] = {}
        self._left = deque(committed)
        self._lost_from = lost_from

    def advance(self, epoch: int, lsn: int) -> set[tuple[str, Key]]:
        """Apply everything that was committed before ``lsn``. Return the changed tables and keys."""
        end = min([lsn, *self._lost_from[epoch - 1 : epoch]])
        touched: set[tuple[str, Key]] = set()
        while self._left and self._left[0].lsn < end:
            for change in self._left.popleft().changes:
                contents = self.table(change.table)
                if change.old is not None and KEY in change.old:
                    touched.add((change.table, change.old[KEY]))
                touched.add((change.table, contents.apply(change)))
        return touched

    def table(self, name: str) -> TableContents:
        """Return the content of a table."""
        return self.tables.setdefault(name, TableContents())


def committed(connection: psycopg.Connection) -> list[Committed]:
    """Return all transactions that were committed since the slot was created."""
    arguments = SLOT, "proto_version", "publication_names", PUBLICATION
    with connection.transaction(), connection.cursor(binary=True) as cursor:
        connection.execute("SET LOCAL logical_decoding_work_mem = '64MB'")
        return list(_transactions(bytes(data) for (data,) in cursor.execute(PEEK, arguments)))


def _transactions(messages: Iterable[bytes]) -> Iterator[Committed]:
    relations: dict[int, tuple[str, list[str]]] = {}
    lsn, changes = 0, list[Change]()
    for data in messages:
        kind = chr(data[0])
        if kind == "B":
            (lsn,), changes = _LONG.unpack_from(data, 1), []
        elif kind == "R":
            oid, table, names = _relation(data)
            relations[oid] = table, names
        elif kind in "IUD":
            changes.append(_change(data, relations))
        elif kind == "T":
            oids = [oid for (oid,) in _INT.iter_unpack(data[6:])]
            changes += [Change(relations[oid][0], None, None) for oid in oids]
        elif kind == "C" and changes:
            yield Committed(lsn, changes)


def _relation(data: bytes) -> tuple[int, str, list[str]]:
    """Return the OID, the name and the columns in a Relation message."""
    (oid,) = _INT.unpack_from(data, 1)
    _, table, rest = data[5:].split(b"\0", 2)
    (count,) = _SHORT.unpack_from(rest, 1)
    names, rest = [], rest[3:]
    for _ in range(count):
        name, _, rest = rest[1:].partition(b"\0")
        names.append(name.decode())
        rest = rest[8:]
    return oid, table.decode(), names


def _change(data: bytes, relations: dict[int, tuple[str, list[str]]]) -> Change:
    (oid,) = _INT.unpack_from(data, 1)
    table, names = relations[oid]
    images: dict[str, Row] = {}
    at = 5
    while at < len(data):
        kind = chr(data[at])
        images[kind], at = _row(data, at + 1, names)
    return Change(table, images.get("K") or images.get("O"), images.get("N"))


def _row(data: bytes, at: int, names: Sequence[str]) -> tuple[Row, int]:
    """Return the row that begins at offset ``at``, and the offset at which it ends."""
    row: Row = {}
    at += _SHORT.size
    for name in names:
        kind = chr(data[at])
        at += 1
        row[name] = UNCHANGED if kind == "u" else None
        if kind == "t":
            (length,) = _INT.unpack_from(data, at)
            at += _INT.size
            row[name] = data[at : at + length].decode()
            at += length
    return row, at
