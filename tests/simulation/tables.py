"""A WAL of tables that have rows. Clients change these rows, and readers read them.

As in PostgreSQL, a transaction keeps its locks on rows and tables until other transactions can see it. It may become
visible some time after its commit record was sent (while it waits for a synchronous standby), or before the record is
on disk (with an asynchronous commit). So transactions may become visible in an order that differs from their commit
order.
"""

import random
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field

from pgsluice.snapshot import FLUSH_PREFIX
from tests.simulation import wal
from tests.simulation.wal import Altered, Change, Columns, Transaction, Truth, Values, Wal

IDS = 40
"""The number of keys. It is low, so that keys are reused."""

FULL_XIDS = (700, 2**32 - 40, 3 * 2**32 - 40, 2**31)
"""The possible first transaction ids, as 64-bit numbers. Two of them are just below the next 32-bit wraparound."""

FIRST_NORMAL_XID = 3

RECREATED = 2000
"""The number by which the OID of a recreated table exceeds the OID of the dropped one."""

FIRST_COLUMNS = ("id", "v", "w")
"""The columns that every table has from the beginning."""

State = dict[int, dict[bytes, Values]]
"""Rows by table (OID) and key."""


@dataclass(slots=True)
class Table(wal.Table):
    """A table with its rows, including changes that are not visible to others yet."""

    rows: dict[bytes, Values] = field(default_factory=dict)
    locks: dict[bytes, int] = field(default_factory=dict)
    """By key: the transaction that has changed the row and is not visible yet."""
    readers: set[object] = field(default_factory=set)
    shown: Columns = ()
    """The columns that all sessions see, without the effect of an uncommitted ALTER TABLE."""
    attnums: int = len(FIRST_COLUMNS)
    """The number of columns that all sessions have seen so far, including dropped columns."""
    filled: frozenset[str] = frozenset()
    """The columns that were added with a default."""
    was_hidden: bool = False
    """Whether the publication has ever left out the column "w"."""


@dataclass(frozen=True, slots=True)
class Visible:
    """A snapshot: the end of the WAL at that moment, and the 64-bit ids of the transactions that were running."""

    end: int
    truth: int
    xmax: int
    running: frozenset[int]
    hidden: frozenset[int]
    """The 32-bit ids of the transactions in ``running``, as the WAL contains them."""


def attnum(column: str) -> int:
    """Return the attnum of a column. Neither numbers nor names of dropped columns are reused."""
    if column in FIRST_COLUMNS:
        return FIRST_COLUMNS.index(column) + 1
    return len(FIRST_COLUMNS) + int(column.removeprefix("c"))


def apply(state: State, truths: Iterable[Truth]) -> None:
    """Apply the changes of these transactions to the rows in ``state``."""
    for truth in truths:
        for change in truth.changes:
            if change.table is not None:
                _apply(state.setdefault(change.table.oid, {}), change)
            if change.op == "drop" and change.table is not None:
                del state[change.table.oid]


def _apply(rows: dict[bytes, Values], change: Change) -> None:
    if change.op == "clear":
        rows.clear()
    if change.op == "fill" and change.new is not None:
        for key, row in rows.items():
            rows[key] = {**row, **change.new}
        return
    old = rows.pop(_id(change.old), {}) if change.old is not None else {}
    if change.new is not None:
        rows[_id(change.new)] = {**old, **change.new}


def _id(row: Values) -> bytes:
    found = row["id"]
    assert found is not None, "a key has a value"
    return found


class TableWal(Wal):
    """A WAL, and clients that know the content of their tables."""

    tables: list[Table]  # type: ignore[assignment]

    def __init__(self, dice: random.Random) -> None:
        super().__init__(dice)
        self.ending: list[Transaction] = []
        """The transactions that have committed and are not visible yet."""
        self._flushed = 0
        self._saved: list[Table] = []
        self._xid = dice.choice(FULL_XIDS)
        self._keeps_toast = dice.choice((0.0, 0.8))
        self._slow_standby = dice.choice((0.0, 0.3, 0.6))
        self._recreates = dice.choice((0.0, 0.0, 0.01))
        self.tables = [Table(one.oid, one.name, one.identity, one.columns, shown=one.columns) for one in self.tables]
        for table in self.tables:
            table.has_key = table.identity == "d" or dice.random() < 0.7
            self._fill(table, dice.choice((0, 3, 12, 30)))
        if dice.random() < 0.3:
            self.tables[-1].is_published = False

    def _fill(self, table: Table, count: int) -> None:
        transaction = self._begin()
        for number in self._dice.sample(range(IDS), count):
            self._insert(transaction, table, b"%d" % number)
        self._commit(transaction)
        self._show_all()

    @property
    def flushed(self) -> int:
        return self._flushed

    def flush(self) -> None:
        """Write the WAL to disk."""
        self._flushed = len(self.records)

    def move_stream(self) -> None:
        """Write the message with which the loader moves the stream, and flush the WAL."""
        transaction = self._begin()
        self._add(transaction, "message", None, prefix=FLUSH_PREFIX)
        self._commit(transaction)
        self._show(transaction)
        self.flush()

    def table(self, oid: int) -> Table | None:
        """Return the table as it is now, or None if it was dropped."""
        for table in self.tables:
            if table.oid == oid:
                return table
        return None

    def look(self) -> Visible:
        """Take a snapshot."""
        hidden = frozenset(one.xid for one in (*self.open, *self.prepared, *self.ending))
        running = frozenset(self._xid - (self._xid - xid) % 2**32 for xid in hidden)
        return Visible(self.end, len(self.truth), self._xid + 1, running, hidden)

    def rows_at(self, table: Table, visible: Visible) -> dict[bytes, Values]:
        """Return the rows that a query would read now with ``visible``, a snapshot that was taken earlier."""
        state: State = {}
        apply(state, [one for one in self.truth[: visible.truth] if one.xid not in visible.hidden])
        ending = {one.xid for one in self.ending}
        missed = [one for one in self.truth if one.xid in visible.hidden - ending] + self.truth[visible.truth :]
        if any(change.op == "clear" and change.table is table for one in missed for change in one.changes):
            return {}  # A truncated table is empty for every snapshot, because its file is empty.
        return state.get(table.oid, {})

    # Actions of clients

    def step(self) -> None:
        dice = self._dice
        if self.ending and dice.random() < 0.4:
            self.flush()
            self._show(dice.choice(self.ending))
        if dice.random() < 0.3:
            self.flush()
        drawn = dice.random()
        if drawn < self._recreates:
            self._recreate()
        elif drawn < 0.05 and not all(table.is_published for table in self.tables):
            self._publish_all()
        else:
            super().step()

    def finish(self) -> None:
        super().finish()
        self._show_all()

    def write_elsewhere(self) -> None:
        super().write_elsewhere()
        self.flush()

    def crash(self) -> None:
        self._show_all()
        super().crash()
        self.flush()

    def lose_tail(self, since: int) -> int:
        end = super().lose_tail(since)
        self._flushed = min(self._flushed, len(self.records))
        return end

    def snapshot(self) -> wal.Snapshot:
        found = super().snapshot()
        self._show_all()
        self.flush()
        self._saved = [self._copied(table) for table in self.tables]
        return found

    def restore(self, snapshot: wal.Snapshot) -> int:
        self._show_all()
        self.tables = [self._copied(table) for table in self._saved]
        full = {xid: self._xid - (self._xid - xid) % 2**32 for xid in self.outcomes}
        self.outcomes = {xid: outcome for xid, outcome in self.outcomes.items() if full[xid] <= snapshot.xid}
        outcomes = self.outcomes
        end = super().restore(snapshot)
        self.outcomes = outcomes
        self.flush()
        return end

    def _copied(self, table: Table) -> Table:
        found = copy(table)
        found.rows = dict(table.rows)
        found.locks, found.readers, found.users = {}, set(), set()
        return found

    def _new_xid(self) -> int:
        self._xid += 1
        if self._xid % 2**32 < FIRST_NORMAL_XID:
            self._xid += FIRST_NORMAL_XID - self._xid % 2**32
        return self._xid % 2**32

    def _recreate(self) -> None:
        """Drop a table and create it again under the same name."""
        place = self._dice.randrange(len(self.tables))
        table = self.tables[place]
        if table.users or table.readers or table.owner is not None or table.identity == "f":
            return  # the key of a table with replica identity full is unknown after the table was dropped
        transaction = self._begin()
        self._add(transaction, "drop", table, is_published=False)
        base = tuple(column for column in table.columns if column[0] in ("id", "v", "w"))
        fresh = Table(table.oid + RECREATED, table.name, table.identity, base, altered=table.altered, shown=base)
        fresh.is_published, fresh.was_hidden = table.is_published, table.was_hidden
        fresh.has_key = table.has_key
        self.tables[place] = fresh
        self._commit(transaction)
        self._show(transaction)
        self.flush()

    def _publish_all(self) -> None:
        """Add all tables to the publication. ALTER PUBLICATION does not wait for transactions that write to them."""
        transaction = self._begin()
        for table in self.tables:
            if not table.is_published:
                table.is_published = True
                self.records.append(Altered(self._take(self._room())[0], transaction.xid, transaction.xid, table))
        self._commit(transaction)
        self._show(transaction)
        self.flush()

    def _column_list(self) -> None:
        hidden = {table.oid: table.hides for table in self.tables}
        super()._column_list()
        for table in self.tables:
            table.was_hidden = table.was_hidden or table.hides or hidden[table.oid]

    def _alter(self, transaction: Transaction) -> None:
        """Alter a table. Sometimes give a new column a default, which all rows get, although no event contains it."""
        altered = {table.oid: table.altered for table in self.tables}
        super()._alter(transaction)
        for table in self.tables:
            if table.altered != altered[table.oid] and self._dice.random() < 0.5:
                name, type_ = table.columns[-1]
                value = b"7" if type_ == wal.INT4 else b"x"
                table.filled |= {name}
                self._replace(transaction, table, {key: {**row, name: value} for key, row in table.rows.items()})
                self._add(transaction, "fill", table, new={name: value}, is_published=False)

    def _replace(self, transaction: Transaction, table: Table, rows: dict[bytes, Values]) -> None:
        """Lock the table, and set its rows. Both are undone if the subtransaction is rolled back."""
        before, owner = table.rows, table.owner

        def undo() -> None:
            table.rows, table.owner = before, owner

        transaction.undo.append((transaction.stack[-1][0], undo))
        table.rows, table.owner = rows, transaction.xid

    def _may_lock(self, transaction: Transaction, table: wal.Table) -> bool:
        assert isinstance(table, Table), "this WAL has no other kind of table"
        return not table.readers and super()._may_lock(transaction, table)

    def _change(self, transaction: Transaction) -> None:
        dice = self._dice
        free = [table for table in self.tables if table.owner in (None, transaction.xid)]
        if not free:
            return
        table = dice.choice(free)
        if dice.random() < 0.08:
            self._truncate(transaction, table)
            return
        ids = [b"%d" % number for number in range(IDS)]
        there = [one for one in ids if one in table.rows and table.locks.get(one) in (None, transaction.xid)]
        room = [one for one in ids if one not in table.rows and table.locks.get(one) in (None, transaction.xid)]
        kinds = ("insert",) if table.identity == "n" else ("insert", "insert", "update", "move", "move", "delete")
        op = dice.choice(kinds)
        if (op in ("insert", "move") and not room) or (op != "insert" and not there):
            return
        if op == "insert":
            self._insert(transaction, table, dice.choice(room))
        elif op == "delete":
            self._write(transaction, table, op, dice.choice(there), None)
        else:
            before = dice.choice(there)
            self._write(transaction, table, op, before, dice.choice(room) if op == "move" else before)

    def _insert(self, transaction: Transaction, table: Table, key: bytes) -> None:
        new = {**self._row(table), "id": key}
        self._note(transaction, table, key, new)
        self._add(transaction, "insert", table, new=new, is_published=table.is_published)

    def _write(self, transaction: Transaction, table: Table, op: str, before: bytes, after: bytes | None) -> None:
        old: Values = {name: table.rows[before].get(name) for name, _ in table.columns}
        new, unchanged = None, frozenset[str]()
        if after is not None:
            new = {**self._row(table), "id": after}
            large = [name for name in ("v", "w") if old.get(name) is not None and name in new]
            unchanged = frozenset(name for name in large if self._dice.random() < self._keeps_toast)
            new |= {name: old[name] for name in unchanged}
        if before != after:
            self._note(transaction, table, before, None)
        if after is not None and new is not None:
            self._note(transaction, table, after, {**old, **new})
        self._add(transaction, op, table, old=old, new=new, unchanged=unchanged, is_published=table.is_published)

    def _note(self, transaction: Transaction, table: Table, key: bytes, row: Values | None) -> None:
        """Set the row with this key, or delete it. This is undone if the subtransaction is rolled back."""
        before = table.rows.get(key)

        def put(row: Values | None) -> None:
            if row is None:
                table.rows.pop(key, None)
            else:
                table.rows[key] = row

        transaction.undo.append((transaction.stack[-1][0], lambda: put(before)))
        table.locks[key] = transaction.xid
        put(row)

    def _truncate(self, transaction: Transaction, table: Table) -> None:
        if not self._may_lock(transaction, table):
            return
        self._replace(transaction, table, {})
        columns_of: dict[int, Columns] = {table.oid: table.columns}
        if table.is_published:
            self._add(transaction, "truncate", None, tables=(table,), columns_of=columns_of)
        self._add(transaction, "clear", table, is_published=False)

    # Ends of transactions

    def _leave(self, transaction: Transaction) -> None:
        if self.outcomes.get(transaction.xid) == "aborted":
            self._free(transaction)
            return
        self.ending.append(transaction)
        drawn = self._dice.random()
        if drawn < self._slow_standby:
            if drawn < self._slow_standby / 2:
                self.flush()
        elif drawn < 0.7:
            self.flush()
            self._show(transaction)
        else:
            self._show(transaction)

    def _show(self, transaction: Transaction) -> None:
        """Make the transaction visible to all sessions."""
        if transaction in self.ending:
            self.ending.remove(transaction)
            for table in self.tables:
                if table.owner == transaction.xid:
                    table.shown = table.columns
                    table.attnums = max(table.attnums, *(attnum(name) for name, _ in table.shown))
            self._free(transaction)

    def _show_all(self) -> None:
        self.flush()
        for transaction in list(self.ending):
            self._show(transaction)

    def _free(self, transaction: Transaction) -> None:
        super()._leave(transaction)
        for table in self.tables:
            for key in [key for key, xid in table.locks.items() if xid == transaction.xid]:
                del table.locks[key]
