"""Writes pgoutput messages as a walsender does: encodes them as bytes, and puts the bytes into CopyData frames.

The tests and their scripted servers use this module. It shares only the message classes with the decoder. It was
written field by field from the tables in the manual, so that it does not repeat the decoder's mistakes.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from collections.abc import Callable, Iterable
from typing import Any

from pgsluice.pgoutput import messages
from pgsluice.pgoutput.messages import UNCHANGED, BinaryValue, ColumnValue, Message


def encode(message: Message, *, flags: int = 0) -> bytes:
    """Return the bytes of ``message``.

    If ``message`` is a change with an xid, the bytes contain the xid. A Stream Abort with an LSN has the long form.
    Some messages (C, c, P, p, K, r, M, T) have a byte of flags. ``flags`` are set in this byte to create invalid input.
    """
    return _WRITERS[type(message)](message, flags)


def xlog_data(payload: bytes, start: int = 0, wal_end: int | None = None, send_time: int = 0) -> bytes:
    """Return a ``w`` frame. In logical streams, both LSNs are equal, which is the default."""
    return b"w" + _int64(start) + _int64(start if wal_end is None else wal_end) + _signed64(send_time) + payload


def keepalive(wal_end: int, send_time: int = 0, *, reply_requested: bool = False) -> bytes:
    """Return a ``k`` frame."""
    return b"k" + _int64(wal_end) + _signed64(send_time) + _int8(reply_requested)


def primary_status() -> bytes:
    """Return an ``s`` frame. It has an LSN, the oldest and the next transaction id with their epochs, and a time."""
    return b"s" + _int64(0x1000) + _int64(700) + _int64(701) + _signed64(0)


def tuple_data(values: Iterable[ColumnValue]) -> bytes:
    """Return the bytes of a TupleData."""
    columns = [_column_value(value) for value in values]
    return _int16(len(columns)) + b"".join(columns)


def _int8(value: int) -> bytes:
    return value.to_bytes(1, "big")


def _int16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def _int32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _int64(value: int) -> bytes:
    return value.to_bytes(8, "big")


def _signed32(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def _signed64(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def _string(value: str) -> bytes:
    return value.encode() + b"\x00"


def _counted(value: bytes) -> bytes:
    return _int32(len(value)) + value


def _xid(value: int | None) -> bytes:
    return b"" if value is None else _int32(value)


def _column_value(value: ColumnValue) -> bytes:
    if value is None:
        return b"n"
    if value is UNCHANGED:
        return b"u"
    return (b"b" if isinstance(value, BinaryValue) else b"t") + _counted(value)


def _begin(m: messages.Begin, _flags: int) -> bytes:
    return b"B" + _int64(m.commit_lsn) + _signed64(m.commit_ts) + _int32(m.xid)


def _commit(m: messages.Commit, flags: int) -> bytes:
    return b"C" + _int8(flags) + _int64(m.commit_lsn) + _int64(m.end_lsn) + _signed64(m.commit_ts)


def _origin(m: messages.Origin, _flags: int) -> bytes:
    return b"O" + _int64(m.origin_lsn) + _string(m.name)


def _relation(m: messages.Relation, _flags: int) -> bytes:
    head = b"R" + _xid(m.xid) + _int32(m.oid) + _string(m.namespace) + _string(m.name)
    columns = b"".join(_relation_column(column) for column in m.columns)
    return head + m.replica_identity.encode("ascii") + _int16(len(m.columns)) + columns


def _relation_column(column: messages.RelationColumn) -> bytes:
    return _int8(column.is_key) + _string(column.name) + _int32(column.type_oid) + _signed32(column.typmod)


def _type(m: messages.Type, _flags: int) -> bytes:
    return b"Y" + _xid(m.xid) + _int32(m.oid) + _string(m.namespace) + _string(m.name)


def _insert(m: messages.Insert, _flags: int) -> bytes:
    return b"I" + _xid(m.xid) + _int32(m.relation_oid) + b"N" + tuple_data(m.new)


def _update(m: messages.Update, _flags: int) -> bytes:
    return b"U" + _xid(m.xid) + _int32(m.relation_oid) + _old_image(m) + b"N" + tuple_data(m.new)


def _delete(m: messages.Delete, _flags: int) -> bytes:
    return b"D" + _xid(m.xid) + _int32(m.relation_oid) + _old_image(m)


def _old_image(m: messages.Update | messages.Delete) -> bytes:
    key = b"" if m.key is None else b"K" + tuple_data(m.key)
    return key + (b"" if m.old is None else b"O" + tuple_data(m.old))


def _truncate(m: messages.Truncate, flags: int) -> bytes:
    options = (1 if m.cascade else 0) | (2 if m.restart_identity else 0) | flags
    oids = b"".join(map(_int32, m.relation_oids))
    return b"T" + _xid(m.xid) + _int32(len(m.relation_oids)) + _int8(options) + oids


def _message(m: messages.LogicalMessage, flags: int) -> bytes:
    head = b"M" + _xid(m.xid) + _int8(m.transactional | flags) + _int64(m.lsn)
    return head + _string(m.prefix) + _counted(m.content)


def _stream_start(m: messages.StreamStart, _flags: int) -> bytes:
    return b"S" + _int32(m.xid) + _int8(m.first_segment)


def _stream_stop(_m: messages.StreamStop, _flags: int) -> bytes:
    return b"E"


def _stream_commit(m: messages.StreamCommit, flags: int) -> bytes:
    lsns = _int64(m.commit_lsn) + _int64(m.end_lsn)
    return b"c" + _int32(m.xid) + _int8(flags) + lsns + _signed64(m.commit_ts)


def _stream_abort(m: messages.StreamAbort, _flags: int) -> bytes:
    short = b"A" + _int32(m.xid) + _int32(m.subxid)
    if m.abort_lsn is None or m.abort_ts is None:
        return short
    return short + _int64(m.abort_lsn) + _signed64(m.abort_ts)


def _begin_prepare(m: messages.BeginPrepare, _flags: int) -> bytes:
    return b"b" + _prepare_fields(m)


def _prepare(m: messages.Prepare, flags: int) -> bytes:
    return b"P" + _int8(flags) + _prepare_fields(m)


def _stream_prepare(m: messages.StreamPrepare, flags: int) -> bytes:
    return b"p" + _int8(flags) + _prepare_fields(m)


def _prepare_fields(m: messages.BeginPrepare | messages.Prepare | messages.StreamPrepare) -> bytes:
    lsns = _int64(m.prepare_lsn) + _int64(m.end_lsn)
    return lsns + _signed64(m.prepare_ts) + _int32(m.xid) + _string(m.gid)


def _commit_prepared(m: messages.CommitPrepared, flags: int) -> bytes:
    lsns = _int64(m.commit_lsn) + _int64(m.end_lsn)
    return b"K" + _int8(flags) + lsns + _signed64(m.commit_ts) + _int32(m.xid) + _string(m.gid)


def _rollback_prepared(m: messages.RollbackPrepared, flags: int) -> bytes:
    lsns = _int64(m.prepare_end_lsn) + _int64(m.end_lsn)
    times = _signed64(m.prepare_ts) + _signed64(m.rollback_ts)
    return b"r" + _int8(flags) + lsns + times + _int32(m.xid) + _string(m.gid)


_WRITERS: dict[type[Any], Callable[[Any, int], bytes]] = {
    messages.Begin: _begin,
    messages.Commit: _commit,
    messages.Origin: _origin,
    messages.Relation: _relation,
    messages.Type: _type,
    messages.Insert: _insert,
    messages.Update: _update,
    messages.Delete: _delete,
    messages.Truncate: _truncate,
    messages.LogicalMessage: _message,
    messages.StreamStart: _stream_start,
    messages.StreamStop: _stream_stop,
    messages.StreamCommit: _stream_commit,
    messages.StreamAbort: _stream_abort,
    messages.BeginPrepare: _begin_prepare,
    messages.Prepare: _prepare,
    messages.StreamPrepare: _stream_prepare,
    messages.CommitPrepared: _commit_prepared,
    messages.RollbackPrepared: _rollback_prepared,
}
