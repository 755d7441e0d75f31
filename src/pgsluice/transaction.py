"""From messages to committed changes: which transaction a row belongs to, and where it ends.

The pipeline feeds it every message of one replication connection, in order, and gets back what follows
from it. Ordinary transactions come whole and in commit order, and their Begin already says where they
commit, so their rows go through as they arrive. Rows of streamed and prepared transactions wait, as the
bytes they came in, until their commit arrives.

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
    """What all rows of one transaction share; ``commit_ts`` is in µs since 2000-01-01 UTC."""

    xid: int
    commit_lsn: int
    commit_ts: int
    origin: str | None = None


@dataclass(slots=True)
class Change:
    """One row change (or the truncation of one table) of ``transaction``; ``message`` as it came.

    ``is_streamed``: the message carries the id of the (sub)transaction.
    """

    transaction: Transaction
    relation: Relation
    message: bytes
    is_streamed: bool = False


@dataclass(slots=True)
class Emitted:
    """A message of pg_logical_emit_message; ``transaction`` None: it is not part of one."""

    transaction: Transaction | None
    message: messages.LogicalMessage


@dataclass(slots=True)
class Committed:
    """``transaction`` is complete: everything before ``end_lsn`` has been received.

    ``is_bare``: a Commit Prepared without a Prepare. Either the transaction changed nothing that is published,
    or somebody else acknowledged its Prepare.
    """

    transaction: Transaction
    end_lsn: int
    is_bare: bool = False


@dataclass(slots=True)
class Resent:
    """A transaction that ends before the position delivered came again; its changes were left out."""

    transaction: Transaction
    end_lsn: int


@dataclass(frozen=True, slots=True)
class MessageResent:
    """A message outside transactions came again."""

    message: messages.LogicalMessage


@dataclass(slots=True)
class Unexpected:
    """A change, or a message, that lies before the position delivered, where there was nothing to deliver.

    Only changes that are left out can come again there. Any other shows that the server has another history.
    """

    change: Change | Emitted


@dataclass(slots=True)
class Prepared:
    """A transaction is prepared; its rows wait for COMMIT PREPARED or ROLLBACK PREPARED.

    ``has_rows``: there is something to lose. ``prepare_ts`` is in µs since 2000-01-01 UTC.
    """

    xid: int
    gid: str
    prepare_lsn: int
    end_lsn: int
    prepare_ts: int
    has_rows: bool


@dataclass(slots=True)
class Held:
    """``transaction`` is complete, but the gate has not admitted it: it comes with :meth:`Transactions.release`."""

    transaction: Transaction


@dataclass(slots=True)
class RolledBack:
    """A prepared transaction was rolled back."""

    xid: int
    end_lsn: int


@dataclass(slots=True)
class Paused:
    """The next change is not there yet: await the spool's ``load``, which also gives whoever waits a turn.

    Rows have to be read from disk first, or many rows of subtransactions that were rolled back were passed over.
    """


Event: TypeAlias = (
    Change | Emitted | Committed | Resent | MessageResent | Unexpected | Prepared | Held | RolledBack | Paused
)


@dataclass(frozen=True, slots=True)
class Delivered:
    """How far changes are durable downstream: everything that PostgreSQL committed before ``lsn``.

    ``transaction_lsn``: from there to ``lsn`` no transaction ended of which anything was to be delivered, and from
    ``message_lsn`` there was no message outside transactions.
    """

    lsn: int
    transaction_lsn: int
    message_lsn: int


class Rows(Protocol):
    """What waits of one transaction: pieces of bytes, in order."""

    def append(self, number: int, data: bytes) -> None:
        """Add a piece; ``number`` (unsigned, 32 bits) comes back with it."""

    def __iter__(self) -> Iterator[tuple[int, bytes] | None]:
        """Return all of them, oldest first, and None wherever more has to be loaded before the next one."""

    def discard(self) -> None:
        """Forget all of them."""


class Spool(Protocol):
    """Where rows wait."""

    def open(self) -> Rows:
        """Return room for one more transaction."""


class Gate(Protocol):
    """Decides which transactions go on while rows of a table are read that belong between two of them."""

    def admits(self, transaction: Transaction) -> bool:
        """Return whether ``transaction``, which begins or has just committed, may go on at once."""

    def admits_message(self, lsn: int) -> bool:
        """Return whether a message outside transactions, whose record ends at ``lsn``, may go on at once."""

    def hold(self, transaction: Transaction) -> None:
        """Take notice that ``transaction`` has changes, has committed, and waits with all that come behind it."""


class _Xids:
    """A set of transaction ids in few bytes: a loop with an EXCEPTION clause can leave millions."""

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}
        """256 ids each, which lie together as a rule."""

    def add(self, xid: int) -> None:
        self._bits[xid >> 8] = self._bits.get(xid >> 8, 0) | 1 << (xid & 255)

    def __contains__(self, xid: int) -> bool:
        return bool(self._bits.get(xid >> 8, 0) >> (xid & 255) & 1)

    def __bool__(self) -> bool:
        return bool(self._bits)


@dataclass(slots=True)
class _Waiting:
    """A transaction whose rows wait. ``is_streamed``: they carry the id of their (sub)transaction."""

    xid: int
    rows: Rows
    is_streamed: bool
    versions_bytes: Callable[[], int]
    """What the versions of tables take that all transactions keep."""
    bytes: int = 0
    """What those in ``relations`` take."""
    relations: list[Relation] = field(default_factory=list)
    """The versions of tables that its rows were sent under, VERSIONS_MAX of them, and VERSIONS_BYTES_MAX of
    all transactions; the others wait among the rows."""
    numbers: dict[Relation, int] = field(default_factory=dict)
    """From a version to its place in ``relations``, plus one."""
    last: dict[int, tuple[Relation, int]] = field(default_factory=dict)
    """By OID, the version of the row that came last, and its number, if that is its place in ``relations``."""
    written: Relation | None = None
    """The version that was last put among the rows."""
    aborted: _Xids = field(default_factory=_Xids)
    """Subtransactions that were rolled back."""
    origin: str | None = None
    has_rows: bool = False

    def number(self, relation: Relation) -> int:
        """Return the number under which a row of this version of the table waits; the row has to come next."""
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
        """Return the number of a version, the same for equal ones: a transaction can alter a table to and fro."""
        number = self.numbers.get(relation)
        if number is None and self._has_room(size := size_of(relation)):
            self.bytes += size
            self.relations.append(relation)
            number = self.numbers[relation] = len(self.relations)
        return _WRITTEN if number is None else number

    def _has_room(self, size: int) -> bool:
        return len(self.relations) < VERSIONS_MAX and self.versions_bytes() + size <= VERSIONS_BYTES_MAX


VERSIONS_MAX: Final = 4000
"""Versions of tables that one transaction keeps in memory: more than it touches tables, as a rule."""

VERSIONS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Memory for the versions that all transactions keep, by estimate: 10,000 with 20 columns, 100 with 1,600 columns."""

_NO_RELATION: Final = 0
_VERSION: Final = 2**32 - 1
"""The number of a piece that is a version of a table itself, because there are too many to keep them in memory."""
_WRITTEN: Final = 2**32 - 2
"""The number of rows of the version that was written last."""

_ROWS = frozenset((b"I", b"U", b"D"))
_CHANGES = frozenset((*_ROWS, b"T"))
_KINDS_THAT_WAIT = frozenset((*_CHANGES, b"M"))

_unpack_xid = struct.Struct(">xI").unpack_from
_unpack_oid = struct.Struct(">xI").unpack_from
_unpack_streamed_oid = struct.Struct(">xxxxxI").unpack_from


class Transactions:
    """The transactions of one replication connection.

    The server may send again what is ``delivered``. Such transactions come out as :class:`Resent`, without changes.
    """

    def __init__(self, delivered: Delivered, spool: Spool) -> None:
        self.relations = RelationCache()
        self.current: Transaction | None = None
        """The ordinary transaction that is being received."""
        self.passing: Transaction | None = None
        """The same while its rows need not wait and are not there already."""
        self.prepared: dict[int, Prepared] = {}
        """The transactions that are prepared, by xid: a gid may be used again at once."""
        self.gate: Gate | None = None
        """Set and reset only while no transaction passes; reset right before everything is released."""
        self._held: deque[tuple[_Waiting, Transaction, int] | Emitted] = deque()
        """What the gate has not admitted, with the end LSN, and the messages behind it."""
        self._held_bytes = 0
        """What the versions of tables take that these keep."""
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
        """Return what follows from the transactions that were held, as if they arrived now, in their order.

        All events have to be taken before the next message is received.
        """
        while self._held:
            one = self._held.popleft()
            if isinstance(one, Emitted):
                yield one
            else:
                yield from self._release(*one)
                self._held_bytes -= one[0].bytes

    def receive(self, payload: bytes) -> Iterable[Event]:
        """Return what follows from a message; ProtocolError when it is none, or cannot come here.

        The events of a commit whose rows have waited are made while they are iterated over, and all of them
        have to be taken before the next message is received.
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
        """Return whether anything of ``transaction``, which is not passed on, would have been delivered before."""
        return transaction.commit_lsn >= self._delivered.transaction_lsn

    def _relation_oids(self, payload: bytes, *, is_streamed: bool) -> Sequence[int]:
        """Return the tables of a change: one, or all that were truncated by one command."""
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
        # Its own record ends there: delivered is delivered, as with a commit.
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
        # A commit record is [commit_lsn, end_lsn), and a delivered position never lies inside one.
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
                f"{format_lsn(transaction.commit_lsn)} to {format_lsn(end_lsn)}: the server is not the one that "
                "was followed before. Compare the tables, then start a new history with --adopt-slot."
            )
        return Resent(transaction, end_lsn)

    # What may come anywhere

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
        """Keep a change as it came, with the version of its table: a later Relation message is not for it.

        A truncate once for each of its tables; a message without any.
        """
        if payload[:1] in _CHANGES:
            for oid in self._relation_oids(payload, is_streamed=waiting.is_streamed):
                waiting.rows.append(waiting.number(self.relations[oid]), payload)
        else:
            self._decoder.decode(payload)  # an error belongs here, where the stream can still be looked at
            waiting.rows.append(_NO_RELATION, payload)
        waiting.has_rows = True

    def _complete(self, waiting: _Waiting, transaction: Transaction, end_lsn: int) -> Iterable[Event]:
        """Return the transaction that has waited for its commit, unless the gate keeps it waiting."""
        is_new = transaction.commit_lsn >= self._delivered.lsn
        if is_new and waiting.has_rows and self.gate is not None and not self.gate.admits(transaction):
            self.gate.hold(transaction)
            self._held.append((waiting, transaction, end_lsn))
            self._held_bytes += waiting.bytes
            return (Held(transaction),)
        return self._release(waiting, transaction, end_lsn)

    def _release(self, waiting: _Waiting, transaction: Transaction, end_lsn: int) -> Iterator[Event]:
        """Return the transaction that has waited, as if it arrived now."""
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
        # Not to know it is no error: it had no published rows, or (some minors of 18) was never streamed.
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
        self._expect_between(message)  # not inside an ordinary transaction
        if waiting is None:  # some servers send no Begin Prepare when there was nothing but locks
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
"""Rows passed over between two events."""


def _changes(waiting: _Waiting, transaction: Transaction) -> Iterator[Change | Emitted | Paused]:
    """Return what has waited, but for the subtransactions that were rolled back."""
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
"""An Avro long holds what is below, and the years until 1970 beside it; no server comes near."""


def _transaction(message: messages.Begin | messages.StreamCommit | messages.CommitPrepared) -> Transaction:
    """Return the transaction; ProtocolError for a position or a time that no server reaches, nor any Avro long."""
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
