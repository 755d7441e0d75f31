"""Transactions, and the events about them that :class:`pgsluice.transactions.Transactions` returns.

``tests/unit/test_transactions.py`` covers this module.
"""

from dataclasses import dataclass
from typing import TypeAlias

from pgsluice.pgoutput import messages
from pgsluice.relation import Relation


@dataclass(slots=True)
class Transaction:
    """The attributes that all rows of one transaction share. ``commit_ts`` is in µs since 2000-01-01 UTC."""

    xid: int
    commit_lsn: int
    commit_ts: int
    origin: str | None = None


@dataclass(frozen=True, slots=True)
class WholeTransactions:
    """Ordinary transactions that ``rows.add_transactions`` has added as a whole, from Begin to Commit.

    ``at``: the index of the frame after the last transaction. ``end_lsn``: the end of the last transaction. ``count``,
    ``first``, ``last`` and ``last_end_lsn`` describe only the transactions that have records. They keep their defaults
    if no transaction has any.
    """

    at: int
    end_lsn: int
    count: int = 0
    first: Transaction | None = None
    last: Transaction | None = None
    last_end_lsn: int = 0


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

    ``is_bare``: the Commit Prepared came without a Prepare. Either the transaction changed nothing that is published,
    or another client has confirmed its Prepare to PostgreSQL.
    """

    transaction: Transaction
    end_lsn: int
    is_bare: bool = False


@dataclass(slots=True)
class Resent:
    """The server sent a delivered transaction again. The changes of the transaction are left out."""

    transaction: Transaction
    end_lsn: int


@dataclass(frozen=True, slots=True)
class MessageResent:
    """The server again sent a message outside transactions, which was delivered before."""

    message: messages.LogicalMessage


@dataclass(slots=True)
class Unexpected:
    """A change or a message came at a position where the server had nothing to send in an earlier session.

    Changes are delivered up to a position P, but the last delivered transaction ended at an earlier position E. Between
    E and P, an earlier session received nothing. If the server now sends something between E and P, it has another
    history than the server from which the earlier session received its changes.
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
    """``transaction`` is complete, but a :class:`pgsluice.transactions.Gate` makes it wait.

    :meth:`pgsluice.transactions.Transactions.release` returns its changes later.
    """

    transaction: Transaction


@dataclass(slots=True)
class RolledBack:
    """A prepared transaction was rolled back."""

    xid: int
    end_lsn: int


@dataclass(slots=True)
class Paused:
    """The next change is not ready. Await the spool's ``load`` before taking the next event.

    Either rows have to be read from disk first, or many rows were skipped because their subtransactions were rolled
    back. If rows were skipped, awaiting ``load`` gives other tasks a turn.
    """


Event: TypeAlias = (
    Change | Emitted | Committed | Resent | MessageResent | Unexpected | Prepared | Held | RolledBack | Paused
)


@dataclass(frozen=True, slots=True)
class Delivered:
    """The positions up to which changes are durable downstream.

    ``lsn``: everything that PostgreSQL committed before this position is delivered. ``transaction_lsn``: between this
    position and ``lsn``, no transaction with changes to deliver ended. ``message_lsn``: between this position and
    ``lsn``, there was no message outside transactions.
    """

    lsn: int
    transaction_lsn: int
    message_lsn: int
