"""From messages to committed changes: which transaction a row belongs to, and where it ends.

The pipeline feeds it every message of one replication connection, in order, and gets back what follows
from it. Ordinary transactions come one after the other, whole and in commit order; their Begin already
says where they commit, so their rows go through as they arrive.

https://www.postgresql.org/docs/current/protocol-logical-replication.html
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from pgsluice.errors import ConfigError, HistoryError, ProtocolError
from pgsluice.lsn import format_lsn
from pgsluice.pgoutput import messages
from pgsluice.relation import Relation, RelationCache

RowMessage: TypeAlias = messages.Insert | messages.Update | messages.Delete | messages.Truncate


@dataclass(slots=True)
class Transaction:
    """What all rows of one transaction share; ``commit_ts`` is in µs since 2000-01-01 UTC."""

    xid: int
    commit_lsn: int
    commit_ts: int
    origin: str | None = None


@dataclass(slots=True)
class Change:
    """One row change (or the truncation of one table) of ``transaction``."""

    transaction: Transaction
    relation: Relation
    message: RowMessage


@dataclass(slots=True)
class Committed:
    """``transaction`` is complete: everything before ``end_lsn`` has been received."""

    transaction: Transaction
    end_lsn: int


@dataclass(slots=True)
class Resent:
    """A transaction that was delivered in an earlier session came again; its changes were left out."""

    transaction: Transaction
    end_lsn: int


Event: TypeAlias = Change | Committed | Resent


class Transactions:
    """The transactions of one replication connection.

    ``delivered_lsn`` is the end LSN of the last transaction that is durable downstream: the server may
    send transactions before it once more, and they come out as :class:`Resent`, without changes.
    """

    def __init__(self, delivered_lsn: int) -> None:
        self.relations = RelationCache()
        self.current: Transaction | None = None
        self._delivered_lsn = delivered_lsn
        self._resent = False
        self._handlers: dict[type, Callable[[Any], Iterable[Event]]] = {
            messages.Insert: self._row,
            messages.Update: self._row,
            messages.Delete: self._row,
            messages.Truncate: self._truncate,
            messages.Begin: self._begin,
            messages.Commit: self._commit,
            messages.Relation: self._relation,
            messages.Type: self._type,
            messages.Origin: self._origin,
            # Some minors of PostgreSQL 18 send it with streaming off: it aborts nothing that was sent.
            messages.StreamAbort: self._nothing,
        }

    def receive(self, message: messages.Message) -> Iterable[Event]:
        """Return what follows from ``message``; ProtocolError when it cannot come here."""
        handler = self._handlers.get(type(message))
        if handler is None:
            raise _not_asked_for(message)
        return handler(message)

    def _row(self, message: messages.Insert | messages.Update | messages.Delete) -> Iterable[Event]:
        transaction = self.current
        if transaction is None:
            raise _outside(message)
        if self._resent:
            return ()
        return (Change(transaction, self.relations[message.relation_oid], message),)

    def _truncate(self, message: messages.Truncate) -> Iterable[Event]:
        transaction = self.current
        if transaction is None:
            raise _outside(message)
        if self._resent:
            return ()
        return [Change(transaction, self.relations[oid], message) for oid in message.relation_oids]

    def _begin(self, message: messages.Begin) -> Iterable[Event]:
        if self.current is not None:
            raise ProtocolError(
                f"Begin of transaction {message.xid} inside transaction {self.current.xid}: expected its Commit first. "
                "This is a defect of the server or of pgsluice; please report it."
            )
        self.current = Transaction(message.xid, message.commit_lsn, message.commit_ts)
        # A commit record is [commit_lsn, end_lsn), and a delivered position never lies inside one.
        self._resent = message.commit_lsn < self._delivered_lsn
        return ()

    def _commit(self, message: messages.Commit) -> Iterable[Event]:
        transaction, self.current = self.current, None
        if transaction is None:
            raise _outside(message)
        if message.commit_lsn != transaction.commit_lsn:
            raise ProtocolError(
                f"Commit at {format_lsn(message.commit_lsn)} for a transaction that began with commit LSN "
                f"{format_lsn(transaction.commit_lsn)}: this is a defect of the server or of pgsluice; please report "
                "it."
            )
        if not self._resent:
            return (Committed(transaction, message.end_lsn),)
        if message.end_lsn > self._delivered_lsn:
            raise HistoryError(
                f"Position {format_lsn(self._delivered_lsn)}, recorded as delivered, lies inside the commit record "
                f"{format_lsn(message.commit_lsn)} to {format_lsn(message.end_lsn)}: the server is not the one that "
                "was followed before. Compare the tables, drop the slot, then start a new history with --adopt-slot."
            )
        return (Resent(transaction, message.end_lsn),)

    def _relation(self, message: messages.Relation) -> Iterable[Event]:
        self.relations.on_relation(message)
        return ()

    def _type(self, message: messages.Type) -> Iterable[Event]:
        self.relations.on_type(message)
        return ()

    def _origin(self, message: messages.Origin) -> Iterable[Event]:
        if self.current is None:
            raise _outside(message)
        self.current.origin = message.name
        return ()

    def _nothing(self, _message: messages.StreamAbort) -> Iterable[Event]:
        return ()


def _outside(message: messages.Message) -> ProtocolError:
    return ProtocolError(
        f"{type(message).__name__} outside a transaction: expected Begin first. This is a defect of the server or of "
        "pgsluice; please report it."
    )


def _not_asked_for(message: messages.Message) -> ConfigError | ProtocolError:
    if isinstance(message, (messages.BeginPrepare, messages.CommitPrepared, messages.RollbackPrepared)):
        return ConfigError(
            "The slot sends two-phase transactions, which this version does not take. On PostgreSQL 18 and later run "
            "ALTER_REPLICATION_SLOT with TWO_PHASE false; before, drop the slot and create it again without two-phase."
        )
    return ProtocolError(
        f"{type(message).__name__} came although its option was not asked for. This is a defect of the server or of "
        "pgsluice; please report it."
    )
