"""Turns rows of COPY TO in text format into frames with Insert messages, as a walsender would send them.

In this form, rows that were read at a snapshot take the same path as rows of the stream. ``native.copy`` is the
compiled twin of ``row_frame``, and ``native.speedups`` chooses between the two.

https://www.postgresql.org/docs/current/sql-copy.html#SQL-COPY-FILE-FORMATS
"""

import re
import struct
from typing import Final

from pgsluice.errors import ProtocolError
from pgsluice.pgoutput.framing import MESSAGE_AT, XLogData

_NULL: Final = rb"\N"

_ESCAPE: Final = re.compile(rb"\\(.?)", re.DOTALL)

_ESCAPED: Final = {
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
    b"\\": b"\\",
}
"""The escapes that COPY TO writes. COPY FROM accepts further escapes."""

_FRAME_HEAD: Final = b"w".ljust(MESSAGE_AT, b"\0")
"""The head of an XLogData. Its LSNs are 0, because rows that were read from a table have no position in the WAL."""

_pack_head = struct.Struct(">cIcH").pack
_pack_length = struct.Struct(">cI").pack


def row_values(line: bytes, columns: int) -> list[bytes | None]:
    """Return the values of one row in text format. Raise ProtocolError if there are not ``columns`` values.

    ``line`` is the content of one CopyData, which ends with a newline.
    """
    fields = line[:-1].split(b"\t") if columns or len(line) > 1 else []
    if line[-1:] != b"\n" or len(fields) != columns:
        raise ProtocolError(
            f"expected a row of COPY with {columns} columns and a newline at its end, found {len(fields)} columns, or "
            "no newline. Please report it."
        )
    if b"\\" not in line:
        return list(fields)
    return [None if field == _NULL else _ESCAPE.sub(_unescaped, field) for field in fields]


def row_frame(line: bytes, oid: int, columns: int) -> XLogData:
    """Return the frame of one row of relation ``oid``. Raise ProtocolError if there are not ``columns`` values."""
    return insert_frame(oid, row_values(line, columns))


def insert_frame(oid: int, values: list[bytes | None]) -> XLogData:
    """Return the frame with the Insert message of a row of relation ``oid``."""
    pieces = [_FRAME_HEAD, _pack_head(b"I", oid, b"N", len(values))]
    for value in values:
        if value is None:
            pieces.append(b"n")
        else:
            pieces.append(_pack_length(b"t", len(value)))
            pieces.append(value)
    return b"".join(pieces)


def _unescaped(found: re.Match[bytes]) -> bytes:
    try:
        return _ESCAPED[found[1]]
    except KeyError:
        raise ProtocolError(f"a row of COPY has the escape {found[0]!r}, which PostgreSQL does not write") from None
