"""Decodes pgoutput: turns the bytes of one message into one object of :mod:`pgsluice.pgoutput.messages`.

The pipeline uses one decoder per connection. The decoder knows all messages of protocol versions 1 to 4, because
servers send some messages that the session has not requested. A server sends two-phase messages whenever the slot has
the option two_phase, and some servers send a stray Stream Abort.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from pgsluice.errors import ProtocolError
from pgsluice.pgoutput.cursor import Cursor, FixedFields, Malformed, show, trailing
from pgsluice.pgoutput.messages import (
    UNCHANGED,
    Begin,
    BeginPrepare,
    BinaryValue,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    RelationColumn,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TupleData,
    Type,
    Update,
)

_NEW: Final = ord("N")
_KEY: Final = ord("K")
_OLD: Final = ord("O")

_NULL: Final = ord("n")
_UNCHANGED: Final = ord("u")
_TEXT: Final = ord("t")
_BINARY: Final = ord("b")

_CASCADE = 1
_RESTART_IDENTITY = 2

_ROW = FixedFields(relation_oid="I", tuple_kind="B", column_count="H")
_STREAMED_ROW = FixedFields(xid="I", relation_oid="I", tuple_kind="B", column_count="H")
_TUPLE = FixedFields(tuple_kind="B", column_count="H")
_XID = FixedFields(xid="I")
_OID = FixedFields(oid="I")
_LENGTH = FixedFields(length="I")
_BEGIN = FixedFields(commit_lsn="Q", commit_ts="q", xid="I")
_COMMIT = FixedFields(commit_lsn="Q", end_lsn="Q", commit_ts="q")
_LSN = FixedFields(lsn="Q")
_COLUMN_COUNT = FixedFields(column_count="H")
_COLUMN_TYPE = FixedFields(type_oid="I", typmod="i")
_RELATION_COUNT = FixedFields(relation_count="I")
_STREAM_ABORT = FixedFields(xid="I", subxid="I")
_STREAM_ABORT_PARALLEL = FixedFields(abort_lsn="Q", abort_ts="q")
_PREPARE = FixedFields(prepare_lsn="Q", end_lsn="Q", prepare_ts="q", xid="I")
_COMMIT_PREPARED = FixedFields(commit_lsn="Q", end_lsn="Q", commit_ts="q", xid="I")
_ROLLBACK_PREPARED = FixedFields(prepare_end_lsn="Q", end_lsn="Q", prepare_ts="q", rollback_ts="q", xid="I")

_unpack_length = struct.Struct(">I").unpack_from
_struct_error = struct.error


class Decoder:
    """Decodes the messages of one connection, in the order in which they arrived.

    The only state is ``in_stream``: between Stream Start and Stream Stop, changes have a transaction id. After a
    ProtocolError, neither the connection nor its decoder can be used any more.
    """

    __slots__ = ("in_stream",)

    def __init__(self) -> None:
        self.in_stream = False

    def decode(self, payload: bytes) -> Message:
        """Return the message. Raise ProtocolError with the message's name, the offset and what was expected there."""
        if not payload:
            raise ProtocolError("pgoutput message at offset 0: expected a message type, found the end")
        kind = payload[0]
        try:
            return _READERS[kind](self, payload)
        except Malformed as error:
            raise error.within(f"{_NAMES[kind]} ({show(kind)})") from None


def _row(decoder: Decoder, data: bytes) -> tuple[int | None, int, int, int, int]:
    """Return the xid, the relation's OID, and three facts about the first tuple.

    These are its kind, its number of columns, and the offset of its first value.
    """
    if decoder.in_stream:
        xid, relation_oid, kind, count = _STREAMED_ROW.read(data, 1)
        return xid, relation_oid, kind, count, 12
    relation_oid, kind, count = _ROW.read(data, 1)
    return None, relation_oid, kind, count, 8


def _insert(decoder: Decoder, data: bytes) -> Insert:
    xid, relation_oid, kind, count, at = _row(decoder, data)
    if kind != _NEW:
        raise _tuple_kind_error(at, kind, "'N'")
    new, at = _values(data, at, count)
    if at != len(data):
        raise trailing(data, at)
    return Insert(xid, relation_oid, new)


def _update(decoder: Decoder, data: bytes) -> Update:
    xid, relation_oid, kind, count, at = _row(decoder, data)
    if kind == _NEW:
        key = old = None
    else:
        key, old, at = _old_image(data, at, count, kind, "'K', 'O' or 'N'")
        kind, count = _TUPLE.read(data, at)
        at += _TUPLE.size
        if kind != _NEW:
            raise _tuple_kind_error(at, kind, "'N'")
    new, at = _values(data, at, count)
    if at != len(data):
        raise trailing(data, at)
    return Update(xid, relation_oid, key, old, new)


def _delete(decoder: Decoder, data: bytes) -> Delete:
    xid, relation_oid, kind, count, at = _row(decoder, data)
    key, old, at = _old_image(data, at, count, kind, "'K' or 'O'")
    if at != len(data):
        raise trailing(data, at)
    return Delete(xid, relation_oid, key, old)


def _truncate(decoder: Decoder, data: bytes) -> Truncate:
    cursor, xid = _change(decoder, data)
    (count,) = cursor.fields(_RELATION_COUNT)
    options = cursor.choice("options", b"\x00\x01\x02\x03")
    oids = cursor.content("relation OIDs", 4 * count)
    cursor.end()
    cascade, restart_identity = bool(options & _CASCADE), bool(options & _RESTART_IDENTITY)
    return Truncate(xid, cascade, restart_identity, struct.unpack(f">{count}I", oids))


def _change(decoder: Decoder, data: bytes) -> tuple[Cursor, int | None]:
    """Return a cursor and the xid. The cursor is after the xid, which only messages in a stream segment have."""
    cursor = Cursor(data, 1)
    if not decoder.in_stream:
        return cursor, None
    (xid,) = cursor.fields(_XID)
    return cursor, xid


def _relation(decoder: Decoder, data: bytes) -> Relation:
    cursor, xid = _change(decoder, data)
    (oid,) = cursor.fields(_OID)
    namespace, name = cursor.string("namespace"), cursor.string("name")
    replica_identity = chr(cursor.choice("replica identity", b"dnfi"))
    (count,) = cursor.fields(_COLUMN_COUNT)
    columns = tuple(_column(cursor) for _ in range(count))
    cursor.end()
    return Relation(xid, oid, namespace, name, replica_identity, columns)


def _type(decoder: Decoder, data: bytes) -> Type:
    cursor, xid = _change(decoder, data)
    (oid,) = cursor.fields(_OID)
    namespace, name = cursor.string("namespace"), cursor.string("name")
    cursor.end()
    return Type(xid, oid, namespace, name)


def _message(decoder: Decoder, data: bytes) -> LogicalMessage:
    cursor, xid = _change(decoder, data)
    transactional = cursor.flag("flags")
    (lsn,) = cursor.fields(_LSN)
    prefix = cursor.string("prefix")
    (length,) = cursor.fields(_LENGTH)
    content = cursor.content("content", length)
    cursor.end()
    return LogicalMessage(xid, transactional, lsn, prefix, content)


def _begin(_decoder: Decoder, data: bytes) -> Begin:
    commit_lsn, commit_ts, xid = _BEGIN.read(data, 1)
    if len(data) != 1 + _BEGIN.size:
        raise trailing(data, 1 + _BEGIN.size)
    return Begin(commit_lsn, commit_ts, xid)


def _commit(_decoder: Decoder, data: bytes) -> Commit:
    if data[1:2] != b"\x00":
        Cursor(data, 1).no_flags()
    commit_lsn, end_lsn, commit_ts = _COMMIT.read(data, 2)
    if len(data) != 2 + _COMMIT.size:
        raise trailing(data, 2 + _COMMIT.size)
    return Commit(commit_lsn, end_lsn, commit_ts)


def _origin(_decoder: Decoder, data: bytes) -> Origin:
    cursor = Cursor(data, 1)
    (origin_lsn,) = cursor.fields(_LSN)
    name = cursor.string("name")
    cursor.end()
    return Origin(origin_lsn, name)


def _stream_start(decoder: Decoder, data: bytes) -> StreamStart:
    if decoder.in_stream:
        raise Malformed(0, "Stream Stop before the next Stream Start")
    cursor = Cursor(data, 1)
    (xid,) = cursor.fields(_XID)
    first_segment = cursor.flag("first_segment")
    cursor.end()
    decoder.in_stream = True
    return StreamStart(xid, first_segment)


def _stream_stop(decoder: Decoder, data: bytes) -> StreamStop:
    if not decoder.in_stream:
        raise Malformed(0, "Stream Start before Stream Stop")
    Cursor(data, 1).end()
    decoder.in_stream = False
    return StreamStop()


def _stream_commit(_decoder: Decoder, data: bytes) -> StreamCommit:
    cursor = Cursor(data, 1)
    (xid,) = cursor.fields(_XID)
    cursor.no_flags()
    commit_lsn, end_lsn, commit_ts = cursor.fields(_COMMIT)
    cursor.end()
    return StreamCommit(xid, commit_lsn, end_lsn, commit_ts)


def _stream_abort(_decoder: Decoder, data: bytes) -> StreamAbort:
    cursor = Cursor(data, 1)
    xid, subxid = cursor.fields(_STREAM_ABORT)
    if cursor.at == len(data):
        return StreamAbort(xid, subxid, None, None)
    abort_lsn, abort_ts = cursor.fields(_STREAM_ABORT_PARALLEL)
    cursor.end()
    return StreamAbort(xid, subxid, abort_lsn, abort_ts)


def _begin_prepare(_decoder: Decoder, data: bytes) -> BeginPrepare:
    return BeginPrepare(*_fields_and_gid(Cursor(data, 1), _PREPARE))


def _prepare(_decoder: Decoder, data: bytes) -> Prepare:
    return Prepare(*_flags_fields_gid(data, _PREPARE))


def _stream_prepare(_decoder: Decoder, data: bytes) -> StreamPrepare:
    return StreamPrepare(*_flags_fields_gid(data, _PREPARE))


def _commit_prepared(_decoder: Decoder, data: bytes) -> CommitPrepared:
    return CommitPrepared(*_flags_fields_gid(data, _COMMIT_PREPARED))


def _rollback_prepared(_decoder: Decoder, data: bytes) -> RollbackPrepared:
    return RollbackPrepared(*_flags_fields_gid(data, _ROLLBACK_PREPARED))


def _unknown(_decoder: Decoder, _data: bytes) -> Message:
    raise Malformed(0, "a message type of protocol versions 1 to 4")


def _values(data: bytes, at: int, count: int) -> tuple[TupleData, int]:
    """Return the ``count`` column values that start at ``at``, and the offset after them.

    Slices never fail. If a length is too large, ``at`` moves beyond the end, which is noticed at the next column or
    after the loop. A negative length is read as unsigned, so it is also too large.
    """
    values: TupleData = []
    append = values.append
    start = at
    try:
        for _ in range(count):
            kind = data[at]
            if kind == _TEXT:
                start = at + 5
                (length,) = _unpack_length(data, at + 1)
                at = start + length
                append(data[start:at])
            elif kind == _NULL:
                append(None)
                at += 1
            elif kind == _UNCHANGED:
                append(UNCHANGED)
                at += 1
            elif kind == _BINARY:
                start = at + 5
                (length,) = _unpack_length(data, at + 1)
                at = start + length
                append(BinaryValue(data[start:at]))
            else:
                raise Malformed(at, f"a column value 'n', 'u', 't' or 'b', found {show(kind)}")
    except (IndexError, _struct_error):
        raise _cut_short(data, at, start) from None
    if at > len(data):
        raise _cut_short(data, at, start)
    return values, at


def _cut_short(data: bytes, at: int, start: int) -> Malformed:
    """Return the error that names the missing part of a tuple.

    ``start`` is the offset of the last value that has a length.
    """
    end = len(data)
    if at > end:
        return Malformed(start, f"a column value ({at - start} bytes), found the end after {end - start}")
    if at == end:
        return Malformed(at, "a column value 'n', 'u', 't' or 'b', found the end")
    return Malformed(at + 1, f"length of a column value (4 bytes), found the end after {end - at - 1}")


def _old_image(
    data: bytes, at: int, count: int, kind: int, allowed: str
) -> tuple[TupleData | None, TupleData | None, int]:
    """Return the key or the old row, whichever was sent, and the offset after it."""
    if kind not in (_KEY, _OLD):
        raise _tuple_kind_error(at, kind, allowed)
    values, at = _values(data, at, count)
    return (values, None, at) if kind == _KEY else (None, values, at)


def _tuple_kind_error(at: int, kind: int, allowed: str) -> Malformed:
    return Malformed(at - _TUPLE.size, f"tuple kind {allowed}, found {show(kind)}")


def _column(cursor: Cursor) -> RelationColumn:
    is_key = cursor.flag("column flags")
    name = cursor.string("column name")
    type_oid, typmod = cursor.fields(_COLUMN_TYPE)
    return RelationColumn(is_key, name, type_oid, typmod)


def _flags_fields_gid(data: bytes, layout: FixedFields) -> tuple[Any, ...]:
    cursor = Cursor(data, 1)
    cursor.no_flags()
    return _fields_and_gid(cursor, layout)


def _fields_and_gid(cursor: Cursor, layout: FixedFields) -> tuple[Any, ...]:
    values = cursor.fields(layout)
    gid = cursor.string("gid")
    cursor.end()
    return (*values, gid)


_Reader: TypeAlias = Callable[[Decoder, bytes], Message]

_MESSAGES: dict[str, tuple[str, _Reader]] = {
    "B": ("Begin", _begin),
    "C": ("Commit", _commit),
    "O": ("Origin", _origin),
    "R": ("Relation", _relation),
    "Y": ("Type", _type),
    "I": ("Insert", _insert),
    "U": ("Update", _update),
    "D": ("Delete", _delete),
    "T": ("Truncate", _truncate),
    "M": ("Message", _message),
    "S": ("Stream Start", _stream_start),
    "E": ("Stream Stop", _stream_stop),
    "c": ("Stream Commit", _stream_commit),
    "A": ("Stream Abort", _stream_abort),
    "b": ("Begin Prepare", _begin_prepare),
    "P": ("Prepare", _prepare),
    "p": ("Stream Prepare", _stream_prepare),
    "K": ("Commit Prepared", _commit_prepared),
    "r": ("Rollback Prepared", _rollback_prepared),
}
_UNKNOWN: tuple[str, _Reader] = ("pgoutput message", _unknown)

# These are lists indexed by the type byte, because a look-up in a list costs half as much as one in a dictionary.
_NAMES = [_MESSAGES.get(chr(kind), _UNKNOWN)[0] for kind in range(256)]
_READERS = [_MESSAGES.get(chr(kind), _UNKNOWN)[1] for kind in range(256)]
