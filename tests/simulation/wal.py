"""A WAL of random transactions: the changes that clients make, and the changes that a consumer has to see.

The scripted walsender (:mod:`tests.simulation.walsender`) decodes the WAL. Locks are as in PostgreSQL: a transaction or
subtransaction that changes a table's columns locks the table until the (sub)transaction ends.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

INT4, TEXT = 23, 25

Columns: TypeAlias = tuple[tuple[str, int], ...]
"""The columns of a table: names and types (OIDs)."""


@dataclass(slots=True)
class Table:
    """A table in its present form. A row keeps the columns that the table had when the row was written."""

    oid: int
    name: str
    identity: str
    columns: Columns
    users: set[int] = field(default_factory=set)
    owner: int | None = None
    hides: bool = False
    """Whether the publication leaves out the column "w"."""
    altered: int = 0
    is_published: bool = True
    has_key: bool = True


Values: TypeAlias = dict[str, bytes | None]
"""The values of a row by column."""


@dataclass(slots=True)
class Change:
    """A row change, a truncate (``tables``) or a transactional message (``content``).

    ``unchanged`` has the columns whose value in ``new`` is not sent. ``is_published`` says whether the table was
    published.
    """

    lsn: int
    xid: int
    subxid: int
    op: str
    table: Table | None
    columns: Columns = ()
    old: Values | None = None
    new: Values | None = None
    tables: tuple[Table, ...] = ()
    columns_of: dict[int, Columns] = field(default_factory=dict)
    content: bytes = b""
    end: int = 0
    prefix: str = "sim"
    unchanged: frozenset[str] = frozenset()
    is_published: bool = True


@dataclass(slots=True)
class Altered:
    """A change of a table's columns, or (if ``hides`` is set) of the columns that the publication sends."""

    lsn: int
    xid: int
    subxid: int
    table: Table
    hides: bool | None = None


@dataclass(slots=True)
class SubAbort:
    """The rollback of a savepoint."""

    lsn: int
    xid: int
    subxid: int


@dataclass(slots=True)
class Abort:
    """The rollback of a whole transaction, or its end in a crash of the server."""

    lsn: int
    xid: int


@dataclass(slots=True)
class Commit:
    """The commit of a transaction. ``lsn`` is the start of the commit record, which PostgreSQL calls the commit LSN."""

    lsn: int
    end: int
    xid: int
    ts: int


@dataclass(slots=True)
class Prepare:
    lsn: int
    end: int
    xid: int
    ts: int
    gid: str


@dataclass(slots=True)
class CommitPrepared:
    lsn: int
    end: int
    xid: int
    ts: int
    gid: str
    prepare: Prepare


@dataclass(slots=True)
class RollbackPrepared:
    lsn: int
    end: int
    xid: int
    ts: int
    gid: str
    prepare: Prepare


@dataclass(slots=True)
class Standalone:
    """A message outside transactions. ``lsn`` is the start of its record. The walsender sends ``end`` as its LSN."""

    lsn: int
    end: int
    content: bytes


@dataclass(slots=True)
class Other:
    """WAL without published changes, such as the WAL of vacuum or of other databases."""

    lsn: int
    end: int


Record: TypeAlias = (
    Change | Altered | SubAbort | Abort | Commit | Prepare | CommitPrepared | RollbackPrepared | Standalone | Other
)


@dataclass(slots=True)
class Truth:
    """The changes of one transaction that a consumer has to see, or (``standalone``) a message outside transactions."""

    lsn: int
    end: int
    xid: int
    ts: int
    origin: str | None
    changes: list[Change]
    prepare_lsn: int | None = None
    standalone: bool = False


@dataclass(slots=True)
class Transaction:
    """An open or prepared transaction."""

    xid: int
    origin: str | None
    stack: list[list[int]]
    """The current savepoints, each as a list of its own id and the ids of the savepoints that were released into it."""
    changes: list[Change] = field(default_factory=list)
    undo: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    tables: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    prepared: Prepare | None = None
    locks_only: bool = False


@dataclass(frozen=True, slots=True)
class Habits:
    """The probabilities of the clients' actions in one world."""

    two_phase: float
    ddl: float
    savepoints: float
    rollbacks: float
    messages: float
    column_lists: float
    rows_max: int

    @classmethod
    def of(cls, dice: random.Random) -> "Habits":
        def often(most: float) -> float:
            return dice.choice((0.0, most / 3, most))

        return cls(often(0.5), often(0.2), often(0.4), often(0.4), often(0.3), often(0.1), dice.choice((1, 3, 8, 20)))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the WAL at one moment: its end, the numbers of records and transactions, and the last xid."""

    end: int
    records: int
    truth: int
    xid: int


class Wal:
    """The WAL, and the clients that write it."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.habits = Habits.of(dice)
        self.end = 0x10000
        self.records: list[Record] = []
        self.truth: list[Truth] = []
        """The committed transactions, in commit order."""
        self.open: list[Transaction] = []
        self.prepared: list[Transaction] = []
        self.outcomes: dict[int, str] = {}
        """The outcomes of transactions. A decoder may look up an outcome before it decodes the transaction's end."""
        self.origins: dict[int, str | None] = {}
        self._xid = 700
        self._token = 0
        self._ts = 800_000_000_000_000
        base: Columns = (("id", INT4), ("v", TEXT), ("w", TEXT))
        kinds = ["d", "f", "d", "n"]
        self.tables = [Table(1000 + n, f"t{n}", kinds[n], base) for n in range(dice.choice((1, 2, 2, 4)))]

    @property
    def flushed(self) -> int:
        """The number of records that are on disk. A walsender sends only these."""
        return len(self.records)

    # The actions of clients. Each of them adds records to the WAL.

    def step(self) -> None:
        """Let a random client act."""
        dice, habits = self._dice, self.habits
        if dice.random() < 0.05:
            self._other()
        elif dice.random() < habits.messages / 3:
            self._standalone()
        elif dice.random() < habits.column_lists:
            self._column_list()
        elif self.prepared and dice.random() < len(self.prepared) / 6:
            self._resolve(dice.choice(self.prepared))
        elif not self.open or (len(self.open) < 4 and dice.random() < 0.3):
            self._begin()
        else:
            self._act(dice.choice(self.open))

    def finish(self) -> None:
        """End all open and prepared transactions."""
        for transaction in list(self.open):
            self._end(transaction)
        for transaction in list(self.prepared):
            self._resolve(transaction)

    def crash(self) -> None:
        """Let the server crash. Transactions that are neither committed nor prepared are gone."""
        for transaction in list(self.open):
            self._abort(transaction)

    def write_elsewhere(self) -> None:
        """Write some WAL that is not published."""
        for _ in range(self._dice.randrange(1, 6)):
            self._other()

    def lose_tail(self, since: int) -> int:
        """Remove unpublished WAL from the end, at most back to ``since``. Return the new end of the WAL."""
        while self.records and isinstance(self.records[-1], Other) and self.records[-1].lsn >= since:
            self.end = self.records.pop().lsn
        return self.end

    def snapshot(self) -> "Snapshot":
        """End all transactions, and return the state that a snapshot of the disk would contain."""
        while self.open or self.prepared:
            self.finish()
        return Snapshot(self.end, len(self.records), len(self.truth), self._xid)

    def transact(self, messages: float) -> None:
        """Commit a small transaction that alters no table, or emit a message outside transactions.

        ``messages`` is the probability of a message.
        """
        if self._dice.random() < messages:
            self._standalone()
            return
        transaction = self._begin()
        for _ in range(self._dice.randrange(1, 4)):
            self._change(transaction)
        self._commit(transaction)

    def restore(self, snapshot: "Snapshot") -> int:
        """Remove everything after the snapshot, so that positions and ids are reused. Return the new end of the WAL."""
        del self.records[snapshot.records :], self.truth[snapshot.truth :]
        self.end, self._xid = snapshot.end, snapshot.xid
        self.outcomes = {xid: outcome for xid, outcome in self.outcomes.items() if xid <= snapshot.xid}
        return self.end

    def _take(self, size: int) -> tuple[int, int]:
        start = self.end
        self.end += size
        return start, self.end

    def _room(self) -> int:
        return self._dice.choice((8, 24, 100))

    def _text(self) -> bytes:
        self._token += 1
        return f"x{self._token}".encode()

    def _now(self) -> int:
        self._ts += self._dice.randrange(1, 1_000_000)
        return self._ts

    def _other(self) -> None:
        self.records.append(Other(*self._take(self._room())))

    def _standalone(self) -> None:
        start, end = self._take(self._room())
        content = self._text()
        self.records.append(Standalone(start, end, content))
        change = Change(start, 0, 0, "message", None, content=content, end=end)
        self.truth.append(Truth(end, end, 0, 0, None, [change], standalone=True))

    def _column_list(self) -> None:
        """Change the columns that the publication sends. ALTER PUBLICATION is a transaction that locks no table."""
        table = self._dice.choice(self.tables)
        if table.identity != "d" or table.owner is not None:
            return
        transaction = self._begin()
        table.hides = not table.hides
        lsn, _ = self._take(self._room())
        self.records.append(Altered(lsn, transaction.xid, transaction.xid, table, hides=table.hides))
        self._commit(transaction)

    def _new_xid(self) -> int:
        self._xid += 1
        return self._xid

    def _begin(self) -> Transaction:
        xid = self._new_xid()
        origin = self._dice.choice((None, None, None, "elsewhere"))
        transaction = Transaction(xid, origin, [[xid]])
        self.origins[xid] = origin
        self.open.append(transaction)
        return transaction

    def _act(self, transaction: Transaction) -> None:
        dice, habits = self._dice, self.habits
        if transaction.locks_only or (transaction.changes and dice.random() < 2 / (1 + habits.rows_max)):
            self._end(transaction)
        elif dice.random() < habits.savepoints:
            self._savepoint(transaction)
        elif dice.random() < habits.ddl:
            self._alter(transaction)
        elif dice.random() < habits.messages:
            self._message(transaction)
        elif dice.random() < 0.05:
            self._end(transaction)
        elif dice.random() < habits.two_phase / 20 and not transaction.changes:
            transaction.locks_only = True
        else:
            self._change(transaction)

    def _savepoint(self, transaction: Transaction) -> None:
        stack = transaction.stack
        if len(stack) == 1 or (len(stack) < 4 and self._dice.random() < 0.4):
            stack.append([self._new_xid()])
        elif self._dice.random() < 0.4:
            released = stack.pop()
            stack[-1] += released
        else:
            self._roll_back(transaction, stack.pop())

    def _roll_back(self, transaction: Transaction, subxids: list[int]) -> None:
        """Roll back the subtransactions ``subxids``."""
        wrote = {change.subxid for change in transaction.changes} | {subxid for subxid, _ in transaction.undo}
        for subxid in subxids:
            if subxid in wrote:
                self.records.append(SubAbort(self._take(self._room())[0], transaction.xid, subxid))
        transaction.aborted |= set(subxids)
        self._undo(transaction, set(subxids))

    def _undo(self, transaction: Transaction, subxids: set[int] | None) -> None:
        for entry in reversed(list(transaction.undo)):
            if subxids is None or entry[0] in subxids:
                entry[1]()
                transaction.undo.remove(entry)

    def _alter(self, transaction: Transaction) -> None:
        """Add or drop a column, if no other transaction uses the table."""
        table = self._dice.choice(self.tables)
        if not self._may_lock(transaction, table):
            return
        before, owner = table.columns, table.owner

        def undo() -> None:
            table.columns, table.owner = before, owner

        transaction.undo.append((transaction.stack[-1][0], undo))
        table.owner = transaction.xid
        transaction.tables.add(table.oid)
        if len(before) > 2 and self._dice.random() < 0.4:
            table.columns = before[:-1]
        else:
            table.altered += 1
            table.columns = (*before, (f"c{table.altered}", self._dice.choice((INT4, TEXT))))
        lsn, _ = self._take(self._room())
        self.records.append(Altered(lsn, transaction.xid, transaction.stack[-1][0], table))

    def _may_lock(self, transaction: Transaction, table: Table) -> bool:
        """Return whether no other transaction uses the table."""
        return table.owner in (None, transaction.xid) and table.users <= {transaction.xid}

    def _change(self, transaction: Transaction) -> None:
        dice = self._dice
        free = [table for table in self.tables if table.owner in (None, transaction.xid)]
        if not free:
            return
        if dice.random() < 0.04:
            tables = dice.sample(free, dice.randrange(1, len(free) + 1))
            columns_of = {table.oid: table.columns for table in tables}
            self._add(transaction, "truncate", None, tables=tuple(tables), columns_of=columns_of)
            return
        table = dice.choice(free)
        kinds = ("insert",) if table.identity == "n" else ("insert", "insert", "update", "move", "delete")
        op = dice.choice(kinds)
        old = new = None
        if op != "insert":
            old = self._row(table)
        if op != "delete":
            new = self._row(table)
        if op == "update" and old and new:
            new["id"] = old["id"]
        self._add(transaction, op, table, old=old, new=new)

    def _message(self, transaction: Transaction) -> None:
        self._add(transaction, "message", None, content=self._text())

    def _add(self, transaction: Transaction, op: str, table: Table | None, **values: Any) -> None:  # noqa: ANN401 - fields of Change
        lsn, end = self._take(self._room())
        columns = table.columns if table is not None else ()
        change = Change(lsn, transaction.xid, transaction.stack[-1][0], op, table, columns, end=end, **values)
        for used in (table, *change.tables):
            if used is not None:
                used.users.add(transaction.xid)
                transaction.tables.add(used.oid)
        transaction.changes.append(change)
        self.records.append(change)

    def _row(self, table: Table) -> Values:
        self._token += 1
        return {name: b"%d" % self._token if type_ == INT4 else b"x%d" % self._token for name, type_ in table.columns}

    # The ends of transactions.

    def _end(self, transaction: Transaction) -> None:
        dice, habits = self._dice, self.habits
        if dice.random() < habits.two_phase:
            self._prepare(transaction)
        elif dice.random() < habits.rollbacks:
            self._abort(transaction)
        else:
            self._commit(transaction)

    def _leave(self, transaction: Transaction) -> None:
        for table in self.tables:
            table.users.discard(transaction.xid)
            if table.owner == transaction.xid:
                table.owner = None

    def _abort(self, transaction: Transaction) -> None:
        self.open.remove(transaction)
        self.outcomes[transaction.xid] = "aborted"
        lsn, _ = self._take(self._room())
        subxids = {change.subxid for change in transaction.changes} - {transaction.xid} - transaction.aborted
        self.records += [SubAbort(lsn, transaction.xid, subxid) for subxid in sorted(subxids)]
        self.records.append(Abort(lsn, transaction.xid))
        self._undo(transaction, None)
        self._leave(transaction)

    def _commit(self, transaction: Transaction) -> None:
        self.open.remove(transaction)
        start, end = self._take(self._room())
        ts = self._now()
        self.records.append(Commit(start, end, transaction.xid, ts))
        self._publish(transaction, start, end, ts)
        self._leave(transaction)

    def _publish(self, transaction: Transaction, start: int, end: int, ts: int) -> None:
        changes = [change for change in transaction.changes if change.subxid not in transaction.aborted]
        prepare_lsn = transaction.prepared.lsn if transaction.prepared else None
        self.truth.append(Truth(start, end, transaction.xid, ts, transaction.origin, changes, prepare_lsn))

    def _prepare(self, transaction: Transaction) -> None:
        self.open.remove(transaction)
        self.prepared.append(transaction)
        start, end = self._take(self._room())
        # Reuse a few names, because a gid is free again when its transaction has ended.
        taken = {one.prepared.gid for one in self.prepared if one.prepared}
        gid = next(name for name in ("", "a", "b", "c", "d", "e", "f", "g", "h") if name not in taken)
        transaction.prepared = Prepare(start, end, transaction.xid, self._now(), gid)
        self.records.append(transaction.prepared)

    def _resolve(self, transaction: Transaction) -> None:
        self.prepared.remove(transaction)
        prepare = transaction.prepared
        assert prepare is not None
        start, end = self._take(self._room())
        ts = self._now()
        if self._dice.random() < self.habits.rollbacks / 2:
            self.outcomes[transaction.xid] = "aborted"
            self.records.append(RollbackPrepared(start, end, transaction.xid, ts, prepare.gid, prepare))
            self._undo(transaction, None)
        else:
            self.records.append(CommitPrepared(start, end, transaction.xid, ts, prepare.gid, prepare))
            self._publish(transaction, start, end, ts)
        self._leave(transaction)
