"""Log sequence numbers: positions in PostgreSQL's write-ahead log.

An LSN is an unsigned 64-bit byte position. The protocol sends it as Int64, and people write it as two hexadecimal
halves. All code here uses plain ``int``, and the name of a variable says *which* LSN it is.

https://www.postgresql.org/docs/current/datatype-pg-lsn.html
"""

import re

INVALID_LSN = 0
"""0/0: PostgreSQL's "no position" (InvalidXLogRecPtr)."""

MAX_LSN = 2**64 - 1

# Leading zeros are accepted, because PostgreSQL pads the second half with zeros from version 19 on.
_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})", re.ASCII)


def parse_lsn(text: str) -> int:
    """Return the LSN that PostgreSQL writes as ``text`` (``X/X``). Raise ValueError for anything else."""
    match = _LSN.fullmatch(text)
    if match is None:
        message = f"not an LSN: {text!r} (expected two hexadecimal halves, like 16/B374D848)"
        raise ValueError(message)
    return int(match[1], 16) << 32 | int(match[2], 16)


def format_lsn(lsn: int) -> str:
    """Return ``lsn`` as PostgreSQL 10 to 18 write it. Raise ValueError if it does not fit into 64 unsigned bits."""
    if not 0 <= lsn <= MAX_LSN:
        message = f"not an LSN: {lsn} (expected an unsigned 64-bit number)"
        raise ValueError(message)
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
