"""The content of CopyData while a slot is streamed: the server's WAL data and keepalives, and our status updates.

``postgres/`` uses this module for its end of the replication stream, and test servers use it for the server's end.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

from pgsluice.errors import ProtocolError
from pgsluice.pgoutput.cursor import Cursor, FixedFields, Malformed

XLogData: TypeAlias = bytes
"""``w``: a head, and after it one message of pgoutput. Nearly all frames contain a row. A frame is not parsed into an
object here, so that the bytes of a row are read only once.

Never confirm the LSNs in the head, because they are 0/0 or lie inside a transaction.
"""


@dataclass(slots=True)
class Keepalive:
    """``k``: the server is alive, and its WAL ends at ``wal_end``. If ``reply_requested``, answer immediately."""

    wal_end: int
    send_time: int
    reply_requested: bool


@dataclass(slots=True)
class PrimaryStatus:
    """``s``: the answer to a request that this client never sends (PostgreSQL 19). Ignore it."""


Frame: TypeAlias = XLogData | Keepalive | PrimaryStatus


@dataclass(slots=True)
class StandbyStatusUpdate:
    """``r``: the positions up to which the client has written, flushed and applied. 0/0 leaves the slot unchanged."""

    write: int
    flush: int
    apply: int
    client_time: int
    reply_requested: bool


_XLOG_DATA = FixedFields(start="Q", wal_end="Q", send_time="q")

MESSAGE_AT: Final = 1 + _XLOG_DATA.size
"""The offset of the message in an XLogData."""

XLOG_DATA: Final = ord("w")

_WAL_END_AT: Final = 9

_KEEPALIVE = FixedFields(wal_end="Q", send_time="q")
_STATUS_UPDATE = FixedFields(write="Q", flush="Q", apply="Q", client_time="q")

_pack_status_update = struct.Struct(">cQQQqB").pack

_NAMES = {b"w": "XLogData ('w')", b"k": "Primary keepalive ('k')"}


def parse_frame(data: bytes | memoryview) -> Frame:
    """Return the content of one CopyData from the server. Raise ProtocolError if it is invalid."""
    frame = bytes(data)  # a copy, because libpq frees its buffer after the next read
    kind = frame[:1]
    try:
        if kind == b"w":
            _XLOG_DATA.read(frame, 1)
            return frame
        if kind == b"k":
            return _keepalive(Cursor(frame, 1))
    except Malformed as error:
        raise error.within(_NAMES[kind]) from None
    if kind == b"s":
        return PrimaryStatus()
    raise ProtocolError("CopyData at offset 0: expected kind 'w', 'k' or 's'")


def wal_end(frame: XLogData) -> int:
    """Return the end of the server's WAL at the time when it sent the frame."""
    return int.from_bytes(frame[_WAL_END_AT : _WAL_END_AT + 8], "big")


def _keepalive(cursor: Cursor) -> Keepalive:
    wal_end, send_time = cursor.fields(_KEEPALIVE)
    reply_requested = cursor.flag("reply_requested")
    cursor.end()
    return Keepalive(wal_end, send_time, reply_requested)


def standby_status_update(write: int, flush: int, apply: int, client_time: int, *, reply_requested: bool) -> bytes:
    """Return the CopyData that reports the positions of this client to the server."""
    return _pack_status_update(b"r", write, flush, apply, client_time, reply_requested)


def parse_standby_status_update(data: bytes | memoryview) -> StandbyStatusUpdate:
    """Return the positions that a client reports in a CopyData. Only test servers call this function."""
    cursor = Cursor(bytes(data), 0)
    try:
        cursor.choice("kind", b"r")
        write, flush, apply, client_time = cursor.fields(_STATUS_UPDATE)
        reply_requested = cursor.flag("reply_requested")
        cursor.end()
    except Malformed as error:
        raise error.within("Standby status update ('r')") from None
    return StandbyStatusUpdate(write, flush, apply, client_time, reply_requested)
