"""Turns the messages of one replication connection into committed changes.

The pipeline passes every message in order, and gets back the events that follow from it. Ordinary transactions
arrive whole and in commit order, and their Begin already says where they commit. So their rows pass on as they
arrive. Rows of streamed and prepared transactions wait, as the bytes in which they arrived, for their commit.

https://www.postgresql.org/docs/current/protocol-logical-replication.html
"""

import re
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from pgsluice.errors import Diverged, ProtocolError
from pgsluice.lsn import format_lsn
from pgsluice.pgoutput import messages
from pgsluice.pgoutput.decoder import Decoder
from pgsluice.relation import Relation, RelationCache, packed, size_of, unpacked


@dataclass(slots=True)
class Transaction:
    """The attributes that all rows of one transaction share. ``commit_ts`` is in µs since 2000-01-01 UTC."""

    xid: int
    commit_lsn: int
    commit_ts: int
    origin: str | None = None


@dataclass(slots=True)
class Change:
    """One row change of ``transaction``, or the truncation of one table.

    ``message``: the bytes of the message as they arrived. ``is_streamed``: these bytes contain the id of the
    (sub)transaction.
    """

    transaction: Transaction
    relation: Relation
    message: bytes
    is_streamed: bool = False


@dataclass(slots=True)
class Emitted:
    """A message of pg_logical_emit_message. ``transaction`` is None if the message is outside transactions."""

    transaction: Transaction | None
    message: messages.LogicalMessage


@dataclass(slots=True)
class Committed:
    """``transaction`` is complete, and everything before ``end_lsn`` has been received.

    ``is_bare``: a Commit Prepared without a Prepare. Either the transaction changed nothing that is published, or
    somebody else acknowledged its Prepare.
    """

    transaction: Transaction
    end_lsn: int
    is_bare: bool = False


@dataclass(slots=True)
class Resent:
    """A transaction came again that was delivered before. Its changes were left out."""

    transaction: Transaction
    end_lsn: int


@dataclass(frozen=True, slots=True)
class MessageResent:
    """A message outside transactions came again that was delivered before."""

    message: messages.LogicalMessage


@dataclass(slots=True)
class Unexpected:
    """A change or a message came at a position where the server had nothing to send when it was followed before.

    Such positions lie between the last transaction delivered and the position up to which everything is delivered. So
    this is not a change that comes again. The server has another history.
    """

    change: Change | Emitted


@dataclass(slots=True)
class Prepared:
    """A transaction is prepared. Its rows wait for COMMIT PREPARED or ROLLBACK PREPARED.

    ``has_rows``: whether it has any rows or messages. ``prepare_ts`` is in µs since 2000-01-01 UTC.
    """

    xid: int
    gid: str
    prepare_lsn: int
    end_lsn: int
    prepare_ts: int
    has_rows: bool


@dataclass(slots=True)
class Held:
    """``transaction`` is complete, but the gate holds it. Its changes come with :meth:`Transactions.release`."""

    transaction: Transaction


@dataclass(slots=True)
class RolledBack:
    """A prepared transaction was rolled back."""

    xid: int
    end_lsn: int


@dataclass(slots=True)
class Paused:
    """The next change is not ready. Await the spool's ``load`` before taking the next event.

    Either rows have to be read from disk first, or many rows of subtransactions that were rolled back were skipped. In
    the second case, awaiting gives other tasks a turn.
    """


Event: TypeAlias = (
    Change | Emitted | Committed | Resent | MessageResent | Unexpected | Prepared | Held | RolledBack | Paused
)


@dataclass(frozen=True, slots=True)
class Delivered:
    """The positions up to which changes are durable downstream.

    ``lsn``: everything that PostgreSQL committed before it is delivered. ``transaction_lsn``: no transaction with
    changes to deliver ended between it and ``lsn``. ``message_lsn``: no message outside transactions came between it
    and ``lsn``.
    """

    lsn: int
    transaction_lsn: int
    message_lsn: int


class Rows(Protocol):
    """The waiting rows of one transaction, as pieces of bytes in their order."""

    def append(self, number: int, data: bytes) -> None:
        """Add a piece. Iteration returns it with its ``number``, which is unsigned and has 32 bits."""

    def __iter__(self) -> Iterator[tuple[int, bytes] | None]:
        """Return all pieces, oldest first. None stands where more has to be loaded before the next piece."""

    def discard(self) -> None:
        """Forget all pieces."""


class Spool(Protocol):
    """Keeps the rows that wait."""

    def open(self) -> Rows:
        """Return room for one more transaction."""


class Gate(Protocol):
    """Decides which transactions pass while rows of a table are read whose place is between two transactions."""

    def admits(self, transaction: Transaction) -> bool:
        """Return whether ``transaction``, which begins or has just committed, may pass at once."""

    def admits_message(self, lsn: int) -> bool:
        """Return whether a message outside transactions, whose record ends at ``lsn``, may pass at once."""

    def hold(self, transaction: Transaction) -> None:
        """Note that ``transaction`` has changes, has committed, and waits together with all that follow it."""


class _Xids:
    """A set of transaction ids in few bytes, because a loop with an EXCEPTION clause can roll back millions."""

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}
        """256 ids for each number. Ids that were rolled back usually follow each other closely."""

    def add(self, xid: int) -> None:
        self._bits[xid >> 8] = self._bits.get(xid >> 8, 0) | 1 << (xid & 255)

    def __contains__(self, xid: int) -> bool:
        return bool(self._bits.get(xid >> 8, 0) >> (xid & 255) & 1)

    def __bool__(self) -> bool:
        return bool(self._bits)


@dataclass(slots=True)
class _Waiting:
    """A transaction whose rows wait. ``is_streamed``: the rows contain the id of their (sub)transaction.

    Each row needs the version of its table that held when the row arrived, because the table may be altered before
    the commit. So each row waits with a number. A number from 1 on refers to a version in ``relations``. If a
    transaction uses more versions than fit in memory, the others are written between the rows: a piece with the number
    ``_VERSION`` is a version, and the rows with the number ``_WRITTEN`` after it belong to this version.
    """

    xid: int
    rows: Rows
    is_streamed: bool
    versions_bytes: Callable[[], int]
    """Returns the memory that the versions of tables of all transactions take."""
    bytes: int = 0
    """The memory that the versions in ``relations`` take."""
    relations: list[Relation] = field(default_factory=list)
    """The first versions of tables that its rows use: at most VERSIONS_MAX, and VERSIONS_BYTES_MAX over all
    transactions."""
    numbers: dict[Relation, int] = field(default_factory=dict)
    """The index of each version in ``relations``, plus one."""
    last: dict[int, tuple[Relation, int]] = field(default_factory=dict)
    """By OID, the version of the table's last row and its number, if the version is in ``relations``."""
    written: Relation | None = None
    """The version that was written last between the rows."""
    aborted: _Xids = field(default_factory=_Xids)
    """Subtransactions that were rolled back."""
    origin: str | None = None
    has_rows: bool = False

    def number(self, relation: Relation) -> int:
        """Return the number with which a row of this version of the table waits. The row has to be appended next."""
        last = self.last.get(relation.oid)
        if last is not None and last[0] is relation:
            return last[1]
        if self.written is relation:
            return _WRITTEN
        number = self._number_of(relation)
        if number == _WRITTEN:
            self.rows.append(_VERSION, packed(relation))
            self.written = relation
        else:
            self.last[relation.oid] = relation, number
        return number

    def _number_of(self, relation: Relation) -> int:
        """Return the number of a version. Equal versions get the same, because a table can be altered back and forth."""
        number = self.numbers.get(relation)
        if number is None and self._has_room(size := size_of(relation)):
            self.bytes += size
            self.relations.append(relation)
            number = self.numbers[relation] = len(self.relations)
        return _WRITTEN if number is None else number

    def _has_room(self, size: int) -> bool:
        return len(self.relations) < VERSIONS_MAX and self.versions_bytes() + size <= VERSIONS_BYTES_MAX


VERSIONS_MAX: Final = 4000
"""Versions of tables that one transaction keeps in memory. Most transactions touch fewer tables."""

VERSIONS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Memory for the versions that all transactions keep, by estimate: 10,000 with 20 columns, or 100 with 1,600."""

_NO_RELATION: Final = 0
"""The number of a message of pg_logical_emit_message, which has no table."""
_VERSION: Final = 2**32 - 1
"""The number of a piece that is a version of a table, and no row."""
_WRITTEN: Final = 2**32 - 2
"""The number of the rows whose version was the last one written between the rows."""

_ROWS = frozenset((b"I", b"U", b"D"))
_CHANGES = frozenset((*_ROWS, b"T"))
_KINDS_THAT_WAIT = frozenset((*_CHANGES, b"M"))

_unpack_xid = struct.Struct(">xI").unpack_from
_unpack_oid = struct.Struct(">xI").unpack_from
_unpack_streamed_oid = struct.Struct(">xxxxxI").unpack_from


class Transactions:
    """The transactions of one replication connection.

    The server may send transactions again that are ``delivered``. They come out as :class:`Resent`, without changes.
    """

    def __init__(self, delivered: Delivered, spool: Spool) -> None:
        self.relations = RelationCache()
        self.current: Transaction | None = None
        """The ordinary transaction that is being received."""
        self.passing: Transaction | None = None
        """The current transaction, if its rows pass on at once: they need not wait, and were not delivered before."""
        self.prepared: dict[int, Prepared] = {}
        """The transactions that are prepared, by xid. A gid is no key, because it may be used again at once."""
        self.gate: Gate | None = None
        """The caller sets and resets it only while no transaction passes, and resets it right before it releases
        everything."""
        self._held: deque[tuple[_Waiting, Transaction, int] | Emitted] = deque()
        """The transactions that the gate has not admitted, each with its end LSN, and the messages after them."""
        self._held_bytes = 0
        """The memory that the versions of tables of held transactions take."""
        self._spool = spool
        self._decoder = Decoder()
        self._delivered = delivered
        self._streams: dict[int, _Waiting] = {}
        self._prepares: dict[int, _Waiting] = {}
        self._receiving: _Waiting | None = None
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
        """Whether no transaction, and no segment of one, is being received."""
        return self.current is None and self._receiving is None

    @property
    def waiting(self) -> int:
        """How many streamed and prepared transactions wait for their commit."""
        return len(self._streams) + len(self._prepares)

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
        """Return the events that follow from a message; ProtocolError if it is invalid, or cannot come here.

        If the rows of a commit have waited, its events are made while the caller iterates over them. The caller has to
        take all of them before it passes the next message.
        """
        receiving, kind = self._receiving, payload[:1]
        if receiving is not None and kind in _KINDS_THAT_WAIT:
            self._wait(receiving, payload)
            return ()
        if kind in _CHANGES:
            return self._change(payload)
        message = self._decoder.decode(payload)
        return self._handlers[type(message)](message)

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
        """Return whether ``transaction`` came where the server had nothing to send before (:class:`Unexpected`)."""
        return transaction.commit_lsn >= self._delivered.transaction_lsn

    def _relation_oids(self, payload: bytes, *, is_streamed: bool) -> Sequence[int]:
        """Return the tables of a change: the one of a row, or all that one TRUNCATE emptied."""
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
        # The LSN of such a message is the end of its record, so it is compared like the end of a commit.
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
                f"{format_lsn(transaction.commit_lsn)} to {format_lsn(end_lsn)}. So the server is not the one that "
                "was followed before. Compare the tables, then start a new history with --adopt-slot."
            )
        return Resent(transaction, end_lsn)

    # Messages that may come anywhere

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

    def _wait(self, waiting: _Waiting, payload: bytes) -> None:
        """Keep a change as it arrived, with the version of its table, because a later version is not for this change.

        A truncate is kept once for each of its tables. A message of pg_logical_emit_message is kept without a table.
        """
        if payload[:1] in _CHANGES:
            for oid in self._relation_oids(payload, is_streamed=waiting.is_streamed):
                waiting.rows.append(waiting.number(self.relations[oid]), payload)
        else:
            self._decoder.decode(payload)  # to find an error now, and not at the commit when the stream has gone on
            waiting.rows.append(_NO_RELATION, payload)
        waiting.has_rows = True

    def _complete(self, waiting: _Waiting, transaction: Transaction, end_lsn: int) -> Iterable[Event]:
        """Return the events of a transaction whose commit has arrived, unless the gate keeps it waiting."""
        is_new = transaction.commit_lsn >= self._delivered.lsn
        if is_new and waiting.has_rows and self.gate is not None and not self.gate.admits(transaction):
            self.gate.hold(transaction)
            self._held.append((waiting, transaction, end_lsn))
            self._held_bytes += waiting.bytes
            return (Held(transaction),)
        return self._release(waiting, transaction, end_lsn)

    def _release(self, waiting: _Waiting, transaction: Transaction, end_lsn: int) -> Iterator[Event]:
        """Return the events of a transaction that has waited, as if all of it arrived now."""
        ended = self._ended(transaction, end_lsn)
        if isinstance(ended, Committed):
            transaction.origin = waiting.origin
            yield from _changes(waiting, transaction)
        elif self._is_unexpected(transaction):
            for event in _changes(waiting, transaction):
                yield event if isinstance(event, Paused) else Unexpected(event)
        waiting.rows.discard()
        yield ended

    # Streamed transactions: segments, interleaved with other transactions

    def _stream_start(self, message: messages.StreamStart) -> Iterable[Event]:
        self._expect_between(message)
        known = self._streams.get(message.xid)
        if message.first_segment != (known is None):
            which = "second first" if message.first_segment else "later"
            raise ProtocolError(f"Stream Start with a {which} segment of transaction {message.xid}: {_DEFECT}")
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
        # It is no error if the transaction is unknown. Either it had no published rows, or it was never streamed, which
        # some minor versions of PostgreSQL 18 do.
        if message.xid not in self._streams:
            return ()
        if message.subxid != message.xid:
            self._streams[message.xid].aborted.add(message.subxid)
        else:
            self._take(message).rows.discard()
        return ()

    def _take(self, message: messages.StreamCommit | messages.StreamAbort | messages.StreamPrepare) -> _Waiting:
        self._expect_between(message)
        waiting = self._streams.pop(message.xid, None)
        if waiting is None:
            raise ProtocolError(f"{_name(message)} of transaction {message.xid}, which was not streamed: {_DEFECT}")
        return waiting

    # Two-phase transactions: rows at PREPARE TRANSACTION, the commit later

    def _begin_prepare(self, message: messages.BeginPrepare) -> Iterable[Event]:
        self._expect_between(message)
        self._receiving = self._open(message.xid, is_streamed=False)
        return ()

    def _prepare(self, message: messages.Prepare) -> Iterable[Event]:
        waiting, self._receiving = self._receiving, None
        self._expect_between(message)  # a Prepare cannot come inside an ordinary transaction
        if waiting is None:  # some servers send no Begin Prepare if the transaction had nothing but locks
            waiting = self._open(message.xid, is_streamed=False)
        if waiting.is_streamed or waiting.xid != message.xid:
            raise ProtocolError(f"Prepare of transaction {message.xid} inside transaction {waiting.xid}: {_DEFECT}")
        return self._hold(message, waiting)

    def _stream_prepare(self, message: messages.StreamPrepare) -> Iterable[Event]:
        return self._hold(message, self._take(message))

    def _hold(self, message: messages.Prepare | messages.StreamPrepare, waiting: _Waiting) -> Iterable[Event]:
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

    def _open(self, xid: int, *, is_streamed: bool) -> _Waiting:
        return _Waiting(xid, self._spool.open(), is_streamed, self._versions_bytes)

    def _versions_bytes(self) -> int:
        waiting = [*self._streams.values(), *self._prepares.values()]
        if self._receiving is not None and not self._receiving.is_streamed:
            waiting.append(self._receiving)
        return self._held_bytes + sum(one.bytes for one in waiting)

    def _expect_between(self, message: messages.Message) -> None:
        if not self.is_between:
            raise ProtocolError(f"{_name(message)} inside another transaction: {_DEFECT}")


SKIPPED_AT_ONCE: Final = 10_000
"""Rows that are skipped between two events."""


def _changes(waiting: _Waiting, transaction: Transaction) -> Iterator[Change | Emitted | Paused]:
    """Return the changes that have waited, without those of subtransactions that were rolled back."""
    decoder = Decoder()
    decoder.in_stream = waiting.is_streamed
    aborted, relations = waiting.aborted, waiting.relations
    skipped = 0
    written: Relation | None = None
    for piece in waiting.rows:
        if piece is None:
            yield Paused()
            continue
        number, payload = piece
        if number == _VERSION:
            written = unpacked(payload)
            continue
        if aborted and _unpack_xid(payload)[0] in aborted:
            skipped += 1
            if skipped % SKIPPED_AT_ONCE == 0:
                yield Paused()
            continue
        if number == _NO_RELATION:
            message: Any = decoder.decode(payload)
            yield Emitted(transaction, message)
        else:
            relation = written if number == _WRITTEN else relations[number - 1]
            assert relation is not None, "a version is written before its rows"
            yield Change(transaction, relation, payload, waiting.is_streamed)


_DEFECT = "this is a defect of the server or of pgsluice; please report it."


_BOUND: Final = 2**62
"""An Avro long holds all lower numbers, even after the years from 1970 to 2000 are added. No server comes near it."""


def _transaction(message: messages.Begin | messages.StreamCommit | messages.CommitPrepared) -> Transaction:
    """Return the transaction; ProtocolError if its position or time is one that no server reaches."""
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
