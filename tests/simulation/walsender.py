"""A scripted walsender, with the reorder buffer and the pgoutput plugin. It turns WAL records into protocol messages.

The code follows ``reorderbuffer.c``, ``decode.c`` and ``pgoutput.c`` of PostgreSQL. These files decide which
transactions are skipped, when a transaction is streamed, when a table is described (again), and which messages are sent
for prepared transactions.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from pgsluice.pgoutput import messages
from pgsluice.pgoutput.framing import XLogData
from tests.simulation import wal
from tests.simulation.wal import Columns, Table, Values, Wal
from tests.support.pgoutput_encoder import encode, xlog_data


@dataclass(frozen=True, slots=True)
class Options:
    """The client's options, and the quirks of this server's minor version.

    ``work_mem``: how many changes are kept in memory before a transaction is streamed or spilled. ``empty``:
    transactions without published changes are sent (up to version 14). ``stray_aborts``: a Stream Abort is also sent
    for transactions that were never streamed (18.0 to 18.6). ``skips_aborted``: a transaction that is known to be
    aborted is not decoded any further (18 and later). ``bare_prepare``: for a prepared transaction that only locked
    rows, a Prepare is sent without a Begin Prepare (18.0 to 18.4).
    """

    streaming: bool = False
    two_phase: bool = False
    messages: bool = False
    parallel: bool = False
    work_mem: int = 4
    empty: bool = False
    stray_aborts: bool = False
    skips_aborted: bool = True
    bare_prepare: bool = False


@dataclass(slots=True)
class _Described:
    """The equivalent of RelationSyncEntry in pgoutput."""

    columns: Columns
    schema_sent: bool = False
    streamed: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Buffered:
    """The equivalent of ReorderBufferTXN in the reorder buffer, with its subtransactions."""

    xid: int
    changes: list[wal.Change | wal.Altered] = field(default_factory=list)
    spilled: int = 0
    streamed: bool = False
    seen: set[int] = field(default_factory=set)
    streamed_subxids: set[int] = field(default_factory=set)
    altered: list[wal.Altered] = field(default_factory=list)
    prepared: bool = False
    given_up: bool = False


class Walsender:
    """Decodes the WAL from its beginning, and sends the transactions that commit at ``start`` or later."""

    def __init__(
        self, source: Wal, start: int, two_phase_at: int | None, options: Options, dice: random.Random
    ) -> None:
        self.sent = 0
        """The end of the last decoded record (sentPtr in PostgreSQL)."""
        self._wal = source
        self._start = start
        self._two_phase_at = two_phase_at
        self._options = options
        self._dice = dice
        self.decoded = 0
        """The number of decoded records."""
        self._transactions: dict[int, _Buffered] = {}
        self._described: dict[int, _Described] = {}
        self._hides: dict[int, bool] = {}
        self._in_stream = False

    @property
    def caught_up(self) -> bool:
        return self.decoded == self._wal.flushed

    def decode_next(self) -> list[XLogData]:
        """Decode the next record, and return the resulting messages."""
        record = self._wal.records[self.decoded]
        self.decoded += 1
        found = [xlog_data(encode(message), lsn) for lsn, message in self._decode(record)]
        records = self._wal.records
        self.sent = self._wal.end if self.decoded == len(records) else records[self.decoded].lsn
        return found

    def _decode(self, record: wal.Record) -> "Iterator[_Sent]":
        if isinstance(record, wal.Change | wal.Altered):
            yield from self._on_change(record)
        elif isinstance(record, wal.SubAbort):
            yield from self._on_sub_abort(record)
        elif isinstance(record, wal.Abort):
            yield from self._on_abort(record.xid, record.lsn)
        elif isinstance(record, wal.Commit):
            yield from self._on_commit(record)
        elif isinstance(record, wal.Prepare):
            yield from self._on_prepare(record)
        elif isinstance(record, wal.CommitPrepared):
            yield from self._on_commit_prepared(record)
        elif isinstance(record, wal.RollbackPrepared):
            yield from self._on_rollback_prepared(record)
        elif isinstance(record, wal.Standalone) and self._options.messages and record.lsn >= self._start:
            message = messages.LogicalMessage(None, False, record.end, "sim", record.content)  # noqa: FBT003 - not transactional
            yield record.end, message

    # The reorder buffer.

    def _on_change(self, change: wal.Change | wal.Altered) -> "Iterator[_Sent]":
        transaction = self._transactions.setdefault(change.xid, _Buffered(change.xid))
        transaction.seen.add(change.subxid)
        if transaction.given_up:
            return
        transaction.changes.append(change)
        held = sum(len(one.changes) - one.spilled for one in self._transactions.values() if not one.prepared)
        if held <= self._options.work_mem:
            return
        largest = max(self._transactions.values(), key=lambda one: (len(one.changes) - one.spilled, -one.xid))
        if self._options.streaming and change.lsn >= self._start:
            yield from self._stream(largest)
        else:
            largest.spilled = len(largest.changes)

    def _stream(self, transaction: _Buffered) -> "Iterator[_Sent]":
        changes, transaction.changes, transaction.spilled = transaction.changes, [], 0
        if self._wal.outcomes.get(transaction.xid) == "aborted" and self._dice.random() < 0.5:
            # While the walsender decodes the transaction's changes, it notices that the transaction was aborted.
            transaction.given_up = True
            if self._options.skips_aborted and not transaction.streamed:
                return
            changes = changes[: self._dice.randrange(len(changes) + 1)]
        first = not transaction.streamed
        transaction.streamed = True
        transaction.streamed_subxids |= {change.subxid for change in changes}
        origin = self._wal.origins[transaction.xid] if first else None
        yield (0 if origin else changes[0].lsn if changes else 0), messages.StreamStart(transaction.xid, first)
        if origin:
            yield 0, messages.Origin(0, origin)
        self._in_stream = True
        yield from self._replay(transaction, changes)
        self._in_stream = False
        yield (changes[-1].lsn if changes else 0), messages.StreamStop()

    def _on_sub_abort(self, record: wal.SubAbort) -> "Iterator[_Sent]":
        transaction = self._transactions.get(record.xid)
        if transaction is None or record.subxid not in transaction.seen:
            return
        transaction.changes = [change for change in transaction.changes if change.subxid != record.subxid]
        transaction.spilled = min(transaction.spilled, len(transaction.changes))
        if record.subxid in transaction.streamed_subxids:
            self._forget_streamed(record.xid)
            yield self._abort(record.xid, record.subxid, record.lsn)
        elif self._options.stray_aborts and self._dice.random() < 0.3:
            yield self._abort(record.xid, record.subxid, record.lsn)
        self._invalidate(transaction.altered)

    def _on_abort(self, xid: int, lsn: int) -> "Iterator[_Sent]":
        transaction = self._transactions.pop(xid, None)
        if transaction is None:
            return
        if transaction.streamed:
            self._forget_streamed(xid)
            yield self._abort(xid, xid, lsn)
        elif self._options.stray_aborts and self._dice.random() < 0.3:
            yield self._abort(xid, xid, lsn)
        self._invalidate(transaction.altered)

    def _abort(self, xid: int, subxid: int, lsn: int) -> "_Sent":
        with_lsn = (lsn, 0) if self._options.parallel else (None, None)
        return lsn, messages.StreamAbort(xid, subxid, *with_lsn)

    def _on_commit(self, record: wal.Commit) -> "Iterator[_Sent]":
        transaction = self._transactions.pop(record.xid, None) or _Buffered(record.xid)
        if record.lsn < self._start:
            self._skip(transaction)
        elif transaction.streamed:
            yield from self._stream_rest(transaction)
            yield record.end, messages.StreamCommit(record.xid, record.lsn, record.end, record.ts)
            self._keep_streamed(record.xid)
        else:
            yield from self._send_whole(
                transaction,
                messages.Begin(record.lsn, record.ts, record.xid),
                record.end,
                messages.Commit(record.lsn, record.end, record.ts),
            )
        self._apply(transaction)

    def _on_prepare(self, record: wal.Prepare) -> "Iterator[_Sent]":
        if not self._is_two_phase or record.lsn < self._start:
            return
        transaction = self._transactions.get(record.xid)
        if transaction is None:  # the transaction only locked rows
            if self._options.bare_prepare:
                yield record.end, messages.Prepare(record.lsn, record.end, record.ts, record.xid, record.gid)
            return
        yield from self._send_prepare(transaction, record)

    def _send_prepare(self, transaction: _Buffered, record: wal.Prepare) -> "Iterator[_Sent]":
        about = (record.lsn, record.end, record.ts, record.xid, record.gid)
        if transaction.streamed:
            yield from self._stream_rest(transaction)
            yield record.end, messages.StreamPrepare(*about)
            self._keep_streamed(record.xid)
        else:
            begin, end = messages.BeginPrepare(*about), messages.Prepare(*about)
            yield from self._send_whole(transaction, begin, record.end, end)
        transaction.prepared = True
        transaction.changes, transaction.spilled = [], 0

    def _on_commit_prepared(self, record: wal.CommitPrepared) -> "Iterator[_Sent]":
        if not self._is_two_phase:
            yield from self._on_commit(wal.Commit(record.lsn, record.end, record.xid, record.ts))
            return
        transaction = self._transactions.pop(record.xid, None)
        if record.lsn < self._start:
            self._skip(transaction or _Buffered(record.xid))
            return
        assert self._two_phase_at is not None
        if transaction is not None and record.prepare.lsn < self._two_phase_at:
            yield from self._send_prepare(transaction, record.prepare)
        yield record.end, messages.CommitPrepared(record.lsn, record.end, record.ts, record.xid, record.gid)
        if transaction is not None:
            self._skip(transaction)

    def _on_rollback_prepared(self, record: wal.RollbackPrepared) -> "Iterator[_Sent]":
        if not self._is_two_phase:
            yield from self._on_abort(record.xid, record.lsn)
            return
        transaction = self._transactions.pop(record.xid, None)
        if record.lsn >= self._start:
            prepare = record.prepare
            yield (
                record.end,
                messages.RollbackPrepared(prepare.end, record.end, prepare.ts, record.ts, record.xid, record.gid),
            )
        if transaction is not None:
            self._invalidate(transaction.altered)

    @property
    def _is_two_phase(self) -> bool:
        return self._two_phase_at is not None

    # pgoutput.

    def _send_whole(
        self, transaction: _Buffered, begin: messages.Message, end_lsn: int, end: messages.Message
    ) -> "Iterator[_Sent]":
        origin = self._wal.origins[transaction.xid]
        rows = list(self._replay(transaction, transaction.changes))
        is_ordinary = isinstance(begin, messages.Begin)
        if is_ordinary and not rows and not self._options.empty:
            return
        first = transaction.changes[0].lsn if transaction.changes else end_lsn
        yield (0 if origin else first), begin
        if origin:
            yield 0, messages.Origin(5, origin)
        yield from rows
        yield end_lsn, end

    def _stream_rest(self, transaction: _Buffered) -> "Iterator[_Sent]":
        if transaction.changes or self._dice.random() < 0.3:
            yield from self._stream(transaction)

    def _replay(self, transaction: _Buffered, changes: list[wal.Change | wal.Altered]) -> "Iterator[_Sent]":
        for change in changes:
            if isinstance(change, wal.Altered):
                transaction.altered.append(change)
                self._invalidate([change])
            elif change.op == "message":
                if self._options.messages:
                    xid = transaction.xid if self._in_stream else None
                    yield change.end, messages.LogicalMessage(xid, True, change.end, change.prefix, change.content)  # noqa: FBT003 - transactional
            elif change.is_published:
                yield from self._row(transaction.xid, change)
        self._invalidate(transaction.altered)

    def _row(self, top: int, change: wal.Change) -> "Iterator[_Sent]":
        xid = change.subxid if self._in_stream else None
        if change.table is None:
            for table in change.tables:
                yield from self._describe(top, xid, table, change.columns_of[table.oid])
            oids = tuple(table.oid for table in change.tables)
            yield change.lsn, messages.Truncate(xid, False, False, oids)  # noqa: FBT003 - neither option
            for table in change.tables:
                self._described.pop(table.oid, None)
            return
        yield from self._describe(top, xid, change.table, change.columns)
        yield change.lsn, _row_message(xid, change, self._described[change.table.oid].columns)

    def _describe(self, top: int, xid: int | None, table: Table, columns: Columns) -> "Iterator[_Sent]":
        """Send a Relation message, unless the client already has this description of the table."""
        visible = tuple(one for one in columns if not (self._hides.get(table.oid) and one[0] == "w"))
        entry = self._described.get(table.oid)
        if entry is None:
            entry = self._described[table.oid] = _Described(visible)
        assert entry.columns == visible, "a wrong description would be an error of the simulation"
        if (top in entry.streamed) if self._in_stream else entry.schema_sent:
            return
        if self._in_stream:
            entry.streamed.add(top)
        else:
            entry.schema_sent = True
        yield 0, relation_message(xid, table, visible)

    def _invalidate(self, altered: list[wal.Altered]) -> None:
        for change in altered:
            self._described.pop(change.table.oid, None)

    def _forget_streamed(self, xid: int) -> None:
        for entry in self._described.values():
            entry.streamed.discard(xid)

    def _keep_streamed(self, xid: int) -> None:
        for entry in self._described.values():
            if xid in entry.streamed:
                entry.streamed.discard(xid)
                entry.schema_sent = True

    def _skip(self, transaction: _Buffered) -> None:
        """Drop a transaction that is not sent, but apply its changes to the catalog."""
        transaction.altered += [change for change in transaction.changes if isinstance(change, wal.Altered)]
        self._apply(transaction)

    def _apply(self, transaction: _Buffered) -> None:
        self._invalidate(transaction.altered)
        for change in transaction.altered:
            if change.hides is not None:
                self._hides[change.table.oid] = change.hides


_Sent = tuple[int, messages.Message]


def relation_message(xid: int | None, table: Table, columns: Columns) -> messages.Relation:
    def is_key(name: str) -> bool:
        return table.identity == "f" or (table.identity == "d" and name == "id")

    return messages.Relation(
        xid,
        table.oid,
        "public",
        table.name,
        table.identity,
        tuple(messages.RelationColumn(is_key(name), name, type_, -1) for name, type_ in columns),
    )


def _row_message(xid: int | None, change: wal.Change, columns: Columns) -> messages.Message:
    table = change.table
    assert table is not None

    def image(row: Values | None, *, key_only: bool = False) -> messages.TupleData:
        assert row is not None
        return [row[name] if not key_only or name == "id" else None for name, _ in columns]

    def new_image() -> messages.TupleData:
        values = image(change.new)
        if not change.unchanged:
            return values
        return [
            messages.UNCHANGED if name in change.unchanged else value
            for (name, _), value in zip(columns, values, strict=True)
        ]

    if change.op == "insert":
        return messages.Insert(xid, table.oid, new_image())
    full = table.identity == "f"
    old = image(change.old) if full else None
    key = None if full else image(change.old, key_only=True)
    if change.op == "delete":
        return messages.Delete(xid, table.oid, key, old)
    return messages.Update(xid, table.oid, key if change.op == "move" else None, old, new_image())
