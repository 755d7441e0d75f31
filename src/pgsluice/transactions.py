"""Turns the messages of one replication connection into committed changes.

The pipeline passes every message in order, and gets the resulting events. Ordinary transactions arrive whole and in
commit order, and their Begin already says where they commit. So their rows become events as they arrive. Rows of
streamed and prepared transactions wait for their commit. They are kept as the bytes in which they arrived.

https://www.postgresql.org/docs/current/protocol-logical-replication.html
"""

import re
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

from pgsluice.errors import Diverged, ProtocolError
from pgsluice.lsn import format_lsn
from pgsluice.pgoutput import messages
from pgsluice.pgoutput.decoder import Decoder
from pgsluice.relation import RelationCache
from pgsluice.transaction import (
    Change,
    Committed,
    Delivered,
    Emitted,
    Event,
    Held,
    MessageResent,
    Paused,
    Prepared,
    Resent,
    RolledBack,
    Transaction,
    Unexpected,
)
from pgsluice.waiting import NO_RELATION, Spool, Waiting, changes


class Gate(Protocol):
    """Decides, while rows of tables are read, which transactions pass and which have to wait.

    A transaction that passes is delivered before the rows that are read. A transaction that waits is delivered after
    these rows.
    """

    def admits(self, transaction: Transaction) -> bool:
        """Return whether ``transaction``, which begins or has just committed, may pass."""

    def admits_message(self, lsn: int) -> bool:
        """Return whether a message outside transactions, whose record ends at ``lsn``, may pass."""

    def hold(self, transaction: Transaction) -> None:
        """Record that ``transaction`` has to wait, and all later transactions as well.

        The transaction has changes, and has committed.
        """


_ROWS = frozenset((b"I", b"U", b"D"))
_CHANGES = frozenset((*_ROWS, b"T"))
_DESCRIPTIONS = frozenset((b"R", b"Y"))
"""The kinds of messages that describe tables and types."""
_KINDS_THAT_WAIT = frozenset((*_CHANGES, b"M"))

_unpack_oid = struct.Struct(">xI").unpack_from
_unpack_streamed_oid = struct.Struct(">xxxxxI").unpack_from


class Transactions:
    """The transactions of one replication connection.

    ``delivered``: the positions up to which earlier sessions have delivered changes. If the server sends a delivered
    transaction again, the result is a :class:`Resent` event without changes.
    """

    def __init__(self, delivered: Delivered, spool: Spool) -> None:
        self.relations = RelationCache()
        self.current: Transaction | None = None
        """The ordinary transaction that is being received."""
        self.passing: Transaction | None = None
        """The current transaction, if its rows become events as they arrive: the rows need not wait, and were not
        delivered before. Otherwise None."""
        self.prepared: dict[int, Prepared] = {}
        """The transactions that are prepared, by xid. A gid cannot be the key, because as soon as a transaction ends,
        another one may use the same gid."""
        self.gate: Gate | None = None
        """The gate while rows of tables are read, otherwise None. The caller changes this attribute only while no
        transaction is passing, and sets it to None right before it calls :meth:`release`."""
        self._held: deque[tuple[Waiting, Transaction, int] | Emitted] = deque()
        """The transactions that the gate has not admitted, each with its end LSN, and the messages after them."""
        self._held_bytes = 0
        """The memory that the table versions of the transactions in ``_held`` take."""
        self._spool = spool
        self._decoder = Decoder()
        self._delivered = delivered
        self._streams: dict[int, Waiting] = {}
        self._prepares: dict[int, Waiting] = {}
        self._receiving: Waiting | None = None
        self._handlers: dict[type, Callable[[Any], Iterable[Event]]] = {
            messages.LogicalMessage: self._message,
            messages.Begin: self._begin,
            messages.Commit: self._commit,
            messages.Relation: self._relation,
            messages.Type: self._type,
            messages.Origin: self._origin,
            messages.StreamStart: self._stream_start,
            messages.StreamStop: self._stream_stop,
            messages.StreamCommit: self._stream_commit,
            messages.StreamAbort: self._stream_abort,
            messages.BeginPrepare: self._begin_prepare,
            messages.Prepare: self._prepare,
            messages.StreamPrepare: self._stream_prepare,
            messages.CommitPrepared: self._commit_prepared,
            messages.RollbackPrepared: self._rollback_prepared,
        }

    @property
    def is_between(self) -> bool:
        """Whether the stream is between transactions: no transaction or segment is being received."""
        return self.current is None and self._receiving is None

    @property
    def passes_from(self) -> int | None:
        """The lowest ``commit_lsn`` with which an ordinary transaction certainly passes.

        It is None if the stream is not between transactions, or if transactions may have to wait.
        """
        return self._delivered.lsn if self.is_between and self.gate is None and not self._held else None

    @property
    def waiting(self) -> int:
        """How many streamed and prepared transactions wait for their commit."""
        return len(self._streams) + len(self._prepares)

    @property
    def streamed(self) -> list[int]:
        """The ids of the streamed transactions that have neither ended nor been prepared, in the order of arrival."""
        return list(self._streams)

    def release(self) -> Iterator[Event]:
        """Return the events of the transactions and messages that were held, in order, as if they arrived now.

        The caller has to take all events before it passes the next message.
        """
        while self._held:
            one = self._held.popleft()
            if isinstance(one, Emitted):
                yield one
            else:
                yield from self._release(*one)
                self._held_bytes -= one[0].bytes

    def receive(self, payload: bytes) -> Iterable[Event]:
        """Return the events that follow from a message. Raise ProtocolError if it is invalid or unexpected.

        If the rows of a committed transaction have waited, their events are created while the caller iterates over the
        result. The caller has to take all events before it passes the next message.
        """
        receiving, kind = self._receiving, payload[:1]
        if self.relations.described and kind not in _DESCRIPTIONS:
            self.end_descriptions(payload)
        if receiving is not None and kind in _KINDS_THAT_WAIT:
            self._wait(receiving, payload)
            return ()
        if kind in _CHANGES:
            return self._change(payload)
        message = self._decoder.decode(payload)
        return self._handlers[type(message)](message)

    def end_descriptions(self, payload: bytes) -> None:
        """Note which message follows descriptions of tables. :meth:`receive` does this itself."""
        if payload[:1] in _ROWS:
            is_streamed = self._receiving is not None and self._receiving.is_streamed
            self.relations.on_row(*self._relation_oids(payload, is_streamed=is_streamed))
        else:
            self.relations.on_other()

    # Ordinary transactions

    def _change(self, payload: bytes) -> Iterable[Event]:
        transaction = self.passing
        if transaction is not None:
            relations = [self.relations[oid] for oid in self._relation_oids(payload, is_streamed=False)]
            return [Change(transaction, relation, payload) for relation in relations]
        transaction = self.current
        if transaction is None:
            raise _outside(self._decoder.decode(payload))
        if not self._is_unexpected(transaction):
            return ()
        relations = [self.relations[oid] for oid in self._relation_oids(payload, is_streamed=False)]
        return [Unexpected(Change(transaction, relation, payload)) for relation in relations]

    def _is_unexpected(self, transaction: Transaction) -> bool:
        """Return whether ``transaction`` is at a position where nothing was sent before (see :class:`Unexpected`)."""
        return transaction.commit_lsn >= self._delivered.transaction_lsn

    def _relation_oids(self, payload: bytes, *, is_streamed: bool) -> Sequence[int]:
        """Return the OIDs of the tables of a change: the table of a row, or all tables of a TRUNCATE."""
        if payload[:1] not in _ROWS:
            return self._decoder.decode(payload).relation_oids  # type: ignore[union-attr]  # of a Truncate
        unpack_oid = _unpack_streamed_oid if is_streamed else _unpack_oid
        try:
            return unpack_oid(payload)
        except struct.error:
            raise ProtocolError(
                f"{chr(payload[0])!r} at offset 1: expected the OID of a relation, found the end at {len(payload)}"
            ) from None

    def _message(self, message: messages.LogicalMessage) -> Iterable[Event]:
        if message.transactional:
            if self.current is None:
                raise _outside(message)
            emitted = Emitted(self.current, message)
            if self.passing is not None:
                return (emitted,)
            return (Unexpected(emitted),) if self._is_unexpected(self.current) else ()
        self._expect_between(message)
        # The LSN of a message outside transactions is the end of its WAL record, so it is compared like an end LSN.
        if message.lsn > self._delivered.lsn:
            if self._held or (self.gate is not None and not self.gate.admits_message(message.lsn)):
                self._held.append(Emitted(None, message))
                return ()
            return (Emitted(None, message),)
        if message.lsn > self._delivered.message_lsn:
            return (Unexpected(Emitted(None, message)),)
        return (MessageResent(message),)

    def _begin(self, message: messages.Begin) -> Iterable[Event]:
        self._expect_between(message)
        self.current = _transaction(message)
        # A commit record reaches from commit_lsn to end_lsn, and a delivered position never lies inside one. So the
        # transaction was delivered if its commit record begins before the delivered position.
        is_resent = message.commit_lsn < self._delivered.lsn
        if not is_resent and self.gate is not None and not self.gate.admits(self.current):
            self._receiving = self._open(message.xid, is_streamed=False)
        else:
            self.passing = None if is_resent else self.current
        return ()

    def _commit(self, message: messages.Commit) -> Iterable[Event]:
        transaction, self.current, self.passing = self.current, None, None
        waiting, self._receiving = self._receiving, None
        if transaction is None:
            raise _outside(message)
        if message.commit_lsn != transaction.commit_lsn:
            raise ProtocolError(
                f"Commit at {format_lsn(message.commit_lsn)} for a transaction that began with commit LSN "
                f"{format_lsn(transaction.commit_lsn)}: {_DEFECT}"
            )
        if waiting is not None:
            return self._complete(waiting, transaction, message.end_lsn)
        return (self._ended(transaction, message.end_lsn),)

    def _ended(self, transaction: Transaction, end_lsn: int, *, is_bare: bool = False) -> Committed | Resent:
        delivered_lsn = self._delivered.lsn
        if transaction.commit_lsn >= delivered_lsn:
            return Committed(transaction, end_lsn, is_bare)
        if end_lsn > delivered_lsn:
            raise Diverged(
                f"Position {format_lsn(delivered_lsn)}, recorded as delivered, lies inside the commit record "
                f"{format_lsn(transaction.commit_lsn)} to {format_lsn(end_lsn)}. So this is not the server that "
                "pgsluice streamed from before. Compare the tables, then start a new history with --adopt-slot."
            )
        return Resent(transaction, end_lsn)

    # Messages about tables, types and origins

    def _relation(self, message: messages.Relation) -> Iterable[Event]:
        self.relations.on_relation(message)
        return ()

    def _type(self, message: messages.Type) -> Iterable[Event]:
        self.relations.on_type(message)
        return ()

    def _origin(self, message: messages.Origin) -> Iterable[Event]:
        if self._receiving is not None:
            self._receiving.origin = message.name
        elif self.current is not None:
            self.current.origin = message.name
        else:
            raise _outside(message)
        return ()

    # Rows that wait

    def _wait(self, waiting: Waiting, payload: bytes) -> None:
        """Keep a change as it arrived, with the present version of its table, because the table may be altered later.

        A truncate is kept once for each of its tables. A message of pg_logical_emit_message is kept without a table.
        """
        if payload[:1] in _CHANGES:
            for oid in self._relation_oids(payload, is_streamed=waiting.is_streamed):
                waiting.rows.append(waiting.number(self.relations[oid]), payload)
        else:
            self._decoder.decode(payload)  # finds an invalid message now, and not only at the commit
            waiting.rows.append(NO_RELATION, payload)
        waiting.has_rows = True

    def _complete(self, waiting: Waiting, transaction: Transaction, end_lsn: int) -> Iterable[Event]:
        """Return the events of a transaction whose commit has arrived. If the gate does not admit it, return Held."""
        is_new = transaction.commit_lsn >= self._delivered.lsn
        if is_new and waiting.has_rows and self.gate is not None and not self.gate.admits(transaction):
            self.gate.hold(transaction)
            self._held.append((waiting, transaction, end_lsn))
            self._held_bytes += waiting.bytes
            return (Held(transaction),)
        return self._release(waiting, transaction, end_lsn)

    def _release(self, waiting: Waiting, transaction: Transaction, end_lsn: int) -> Iterator[Event]:
        """Return the events of a transaction that has waited, as if all of it arrived now."""
        ended = self._ended(transaction, end_lsn)
        if isinstance(ended, Committed):
            transaction.origin = waiting.origin
            yield from changes(waiting, transaction)
        elif self._is_unexpected(transaction):
            for event in changes(waiting, transaction):
                yield event if isinstance(event, Paused) else Unexpected(event)
        waiting.rows.discard()
        yield ended

    # Streamed transactions: segments, interleaved with other transactions

    def _stream_start(self, message: messages.StreamStart) -> Iterable[Event]:
        self._expect_between(message)
        known = self._streams.get(message.xid)
        if message.first_segment != (known is None):
            problem = "comes twice" if message.first_segment else "is missing"
            raise ProtocolError(f"Stream Start: the first segment of transaction {message.xid} {problem}: {_DEFECT}")
        if known is None:
            known = self._streams[message.xid] = self._open(message.xid, is_streamed=True)
        self._receiving = known
        return ()

    def _stream_stop(self, _message: messages.StreamStop) -> Iterable[Event]:
        self._receiving = None
        return ()

    def _stream_commit(self, message: messages.StreamCommit) -> Iterable[Event]:
        waiting = self._take(message)
        transaction = _transaction(message)
        return self._complete(waiting, transaction, message.end_lsn)

    def _stream_abort(self, message: messages.StreamAbort) -> Iterable[Event]:
        # It is not an error if the transaction is unknown, because it may have had no published rows. Also, some minor
        # versions of PostgreSQL 18 send Stream Abort for transactions that were never streamed.
        if message.xid not in self._streams:
            return ()
        if message.subxid != message.xid:
            self._streams[message.xid].aborted.add(message.subxid)
        else:
            self._take(message).rows.discard()
        return ()

    def _take(self, message: messages.StreamCommit | messages.StreamAbort | messages.StreamPrepare) -> Waiting:
        self._expect_between(message)
        waiting = self._streams.pop(message.xid, None)
        if waiting is None:
            raise ProtocolError(f"{_name(message)} of transaction {message.xid}, which was not streamed: {_DEFECT}")
        return waiting

    # Two-phase transactions: the rows come at PREPARE TRANSACTION, and the commit comes later

    def _begin_prepare(self, message: messages.BeginPrepare) -> Iterable[Event]:
        self._expect_between(message)
        self._receiving = self._open(message.xid, is_streamed=False)
        return ()

    def _prepare(self, message: messages.Prepare) -> Iterable[Event]:
        waiting, self._receiving = self._receiving, None
        self._expect_between(message)  # a Prepare cannot come inside an ordinary transaction
        if waiting is None:  # some servers send no Begin Prepare if the transaction only took locks
            waiting = self._open(message.xid, is_streamed=False)
        if waiting.is_streamed or waiting.xid != message.xid:
            raise ProtocolError(f"Prepare of transaction {message.xid} inside transaction {waiting.xid}: {_DEFECT}")
        return self._hold(message, waiting)

    def _stream_prepare(self, message: messages.StreamPrepare) -> Iterable[Event]:
        return self._hold(message, self._take(message))

    def _hold(self, message: messages.Prepare | messages.StreamPrepare, waiting: Waiting) -> Iterable[Event]:
        if message.xid in self.prepared:
            raise ProtocolError(f"{_name(message)} of transaction {message.xid}, which is prepared already: {_DEFECT}")
        self._prepares[message.xid] = waiting
        found = self.prepared[message.xid] = Prepared(
            message.xid, message.gid, message.prepare_lsn, message.end_lsn, message.prepare_ts, waiting.has_rows
        )
        return (found,)

    def _commit_prepared(self, message: messages.CommitPrepared) -> Iterable[Event]:
        self._expect_between(message)
        transaction = _transaction(message)
        if self.prepared.pop(message.xid, None) is None:
            return (self._ended(transaction, message.end_lsn, is_bare=True),)
        return self._complete(self._prepares.pop(message.xid), transaction, message.end_lsn)

    def _rollback_prepared(self, message: messages.RollbackPrepared) -> Iterable[Event]:
        self._expect_between(message)
        if self.prepared.pop(message.xid, None) is not None:
            self._prepares.pop(message.xid).rows.discard()
        return (RolledBack(message.xid, message.end_lsn),)

    def _open(self, xid: int, *, is_streamed: bool) -> Waiting:
        return Waiting(xid, self._spool.open(), is_streamed, self._versions_bytes)

    def _versions_bytes(self) -> int:
        waiting = [*self._streams.values(), *self._prepares.values()]
        if self._receiving is not None and not self._receiving.is_streamed:
            waiting.append(self._receiving)
        return self._held_bytes + sum(one.bytes for one in waiting)

    def _expect_between(self, message: messages.Message) -> None:
        if not self.is_between:
            raise ProtocolError(f"{_name(message)} inside another transaction: {_DEFECT}")


_DEFECT = "this is a defect of the server or of pgsluice; please report it."


_BOUND: Final = 2**62
"""The lowest position or time that is refused. An Avro long holds all lower ones, even if a time is counted from 1970
instead of 2000. No server comes near this bound."""


def _transaction(message: messages.Begin | messages.StreamCommit | messages.CommitPrepared) -> Transaction:
    """Return the transaction. Raise ProtocolError if its position or time is so high that no server can reach it."""
    if message.commit_lsn >= _BOUND or message.commit_ts >= _BOUND:
        raise ProtocolError(
            f"{_name(message)}: commit at {format_lsn(message.commit_lsn)}, {message.commit_ts} µs since 2000, is"
            f" beyond all bounds: {_DEFECT}"
        )
    return Transaction(message.xid, message.commit_lsn, message.commit_ts)


def _name(message: messages.Message) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(message).__name__)


def _outside(message: messages.Message) -> ProtocolError:
    return ProtocolError(f"{_name(message)} outside a transaction: {_DEFECT}")
