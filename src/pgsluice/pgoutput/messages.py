"""The classes of pgoutput's messages, with the names that PostgreSQL's manual uses (but LogicalMessage for Message).

:mod:`pgsluice.pgoutput.decoder` creates the messages. LSNs are unsigned 64-bit numbers, transaction ids and OIDs are
unsigned 32-bit numbers, and timestamps are signed microseconds since 2000-01-01 00:00 UTC. The ``xid`` of a change is
the id of the (sub)transaction that made the change. The ``xid`` is None for changes outside of stream segments, because
their messages do not contain it.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias


class Unchanged(Enum):
    """The type of :data:`UNCHANGED`."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED
"""An out-of-line (TOAST) value that the server did not send because it did not change. It is not a NULL."""


class BinaryValue(bytes):
    """A column value in the binary format of the type's send function."""

    __slots__ = ()


ColumnValue: TypeAlias = bytes | Unchanged | None
"""Text format as plain ``bytes``, binary format as :class:`BinaryValue`, SQL NULL as None, or UNCHANGED."""

TupleData: TypeAlias = list[ColumnValue]
"""One row image: a value for each column of the relation, in the relation's order."""


@dataclass(slots=True)
class Begin:
    """``B``: an ordinary transaction begins. The position and time of its commit are already known."""

    commit_lsn: int
    commit_ts: int
    xid: int


@dataclass(slots=True)
class Commit:
    """``C``: the ordinary transaction ends. Confirm ``end_lsn``, never ``commit_lsn``."""

    commit_lsn: int
    end_lsn: int
    commit_ts: int


@dataclass(slots=True)
class Origin:
    """``O``: the transaction was replicated from another server. ``origin_lsn`` is 0 if the transaction is streamed."""

    origin_lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """One column of a :class:`Relation`. ``is_key`` says whether the column is part of the replica identity."""

    is_key: bool
    name: str
    type_oid: int
    typmod: int


@dataclass(slots=True)
class Relation:
    """``R``: the description of a table for the messages that follow. An empty ``namespace`` means pg_catalog."""

    xid: int | None
    oid: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(slots=True)
class Type:
    """``Y``: the name of a type that is not built in, or the name of a domain's base type."""

    xid: int | None
    oid: int
    namespace: str
    name: str


@dataclass(slots=True)
class Insert:
    """``I``: a new row."""

    xid: int | None
    relation_oid: int
    new: TupleData


@dataclass(slots=True)
class Update:
    """``U``: a changed row. At most one of ``old`` and ``key`` is set. ``key`` has only the identity columns."""

    xid: int | None
    relation_oid: int
    key: TupleData | None
    old: TupleData | None
    new: TupleData


@dataclass(slots=True)
class Delete:
    """``D``: a deleted row. Exactly one of ``old`` and ``key`` is set. ``key`` has only the identity columns."""

    xid: int | None
    relation_oid: int
    key: TupleData | None
    old: TupleData | None


@dataclass(slots=True)
class Truncate:
    """``T``: one command emptied these tables."""

    xid: int | None
    cascade: bool
    restart_identity: bool
    relation_oids: tuple[int, ...]


@dataclass(slots=True)
class LogicalMessage:
    """``M``: a message of pg_logical_emit_message. ``lsn`` is the end of its WAL record."""

    xid: int | None
    transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(slots=True)
class StreamStart:
    """``S``: a segment of a transaction in progress begins. ``xid`` is the id of the top-level transaction."""

    xid: int
    first_segment: bool


@dataclass(slots=True)
class StreamStop:
    """``E``: the segment ends."""


@dataclass(slots=True)
class StreamCommit:
    """``c``: the streamed transaction is committed."""

    xid: int
    commit_lsn: int
    end_lsn: int
    commit_ts: int


@dataclass(slots=True)
class StreamAbort:
    """``A``: the subtransaction ``subxid`` is rolled back, or the whole transaction if ``subxid`` equals ``xid``.

    LSN and time are sent only with streaming=parallel.
    """

    xid: int
    subxid: int
    abort_lsn: int | None
    abort_ts: int | None


@dataclass(slots=True)
class BeginPrepare:
    """``b``: a two-phase transaction begins."""

    prepare_lsn: int
    end_lsn: int
    prepare_ts: int
    xid: int
    gid: str


@dataclass(slots=True)
class Prepare:
    """``P``: the two-phase transaction is prepared."""

    prepare_lsn: int
    end_lsn: int
    prepare_ts: int
    xid: int
    gid: str


@dataclass(slots=True)
class StreamPrepare:
    """``p``: the streamed transaction is prepared."""

    prepare_lsn: int
    end_lsn: int
    prepare_ts: int
    xid: int
    gid: str


@dataclass(slots=True)
class CommitPrepared:
    """``K``: COMMIT PREPARED."""

    commit_lsn: int
    end_lsn: int
    commit_ts: int
    xid: int
    gid: str


@dataclass(slots=True)
class RollbackPrepared:
    """``r``: ROLLBACK PREPARED."""

    prepare_end_lsn: int
    end_lsn: int
    prepare_ts: int
    rollback_ts: int
    xid: int
    gid: str


RowMessage: TypeAlias = Insert | Update | Delete | Truncate
"""The messages that change a table."""

Message: TypeAlias = (
    Begin
    | Commit
    | Origin
    | Relation
    | Type
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | StreamPrepare
    | CommitPrepared
    | RollbackPrepared
)
