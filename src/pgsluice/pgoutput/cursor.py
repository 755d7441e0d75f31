"""Reads fields from the bytes of one message, and reports the offset at which they are invalid.

:mod:`framing` and :mod:`decoder` use this module, and add the name of the message to the errors.
:mod:`pgsluice.pgbinary` uses it for values in binary format. Every length is compared with the number of remaining
bytes before it is used.

https://www.postgresql.org/docs/current/protocol-message-types.html
"""

import itertools
import struct
from typing import Any

from pgsluice.errors import ProtocolError


class Malformed(Exception):
    """The bytes at offset ``at`` are not what was ``expected``. Callers turn this into a ProtocolError."""

    def __init__(self, at: int, expected: str) -> None:
        super().__init__(at, expected)
        self.at = at
        self.expected = expected

    def within(self, message: str) -> ProtocolError:
        """Return the error for users, with the message's name, the offset in it, and what was expected there."""
        return ProtocolError(f"{message} at offset {self.at}: expected {self.expected}")


class FixedFields:
    """A sequence of fixed-width fields, with a precompiled Struct for speed and names for errors."""

    __slots__ = ("_names", "_sizes", "_unpack", "size")

    def __init__(self, **fields: str) -> None:
        compiled = struct.Struct(">" + "".join(fields.values()))
        self._names = tuple(fields)
        self._sizes = tuple(struct.calcsize(">" + code) for code in fields.values())
        self._unpack = compiled.unpack_from
        self.size = compiled.size

    def read(self, data: bytes, at: int) -> tuple[Any, ...]:
        """Return the values of the fields that start at ``at``."""
        try:
            return self._unpack(data, at)
        except struct.error:
            raise self._missing(data, at) from None

    def _missing(self, data: bytes, at: int) -> Malformed:
        """Return the error that names the first field that is not complete."""
        fields = zip(self._names, itertools.accumulate(self._sizes, initial=at), self._sizes, strict=False)
        name, at, size = next(field for field in fields if field[1] + field[2] > len(data))
        return Malformed(at, f"{name} ({size} bytes), found the end after {len(data) - at}")


class Cursor:
    """A position in the bytes of one message. Every method reads one field, and moves to its end."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def fields(self, layout: FixedFields) -> tuple[Any, ...]:
        """Read a sequence of fixed-width fields."""
        values = layout.read(self.data, self.at)
        self.at += layout.size
        return values

    def byte(self, name: str) -> int:
        """Read an unsigned Int8."""
        at = self.at
        if at >= len(self.data):
            raise Malformed(at, f"{name} (1 byte), found the end")
        self.at = at + 1
        return self.data[at]

    def choice(self, name: str, allowed: bytes) -> int:
        """Read a byte that must be one of ``allowed``."""
        value = self.byte(name)
        if value not in allowed:
            raise Malformed(self.at - 1, f"{name} {' or '.join(map(show, allowed))}, found {show(value)}")
        return value

    def flag(self, name: str) -> bool:
        """Read a boolean byte: 0 or 1."""
        return self.choice(name, b"\x00\x01") == 1

    def no_flags(self) -> None:
        """Read the flags byte that PostgreSQL reserves, which has to be 0."""
        self.choice("flags", b"\x00")

    def string(self, name: str) -> str:
        """Read a String. It ends with NUL, and is in UTF-8, because the session sets client_encoding to UTF-8."""
        at = self.at
        end = self.data.find(0, at)
        if end < 0:
            raise Malformed(at, f"{name}, ended by NUL, found the end after {len(self.data) - at}")
        self.at = end + 1
        try:
            return self.data[at:end].decode()
        except UnicodeDecodeError as error:
            raise Malformed(at + error.start, f"{name} in UTF-8") from None

    def content(self, name: str, length: int) -> bytes:
        """Read ``length`` bytes as they are."""
        at = self.at
        if length > len(self.data) - at:
            raise Malformed(at, f"{name} ({length} bytes), found the end after {len(self.data) - at}")
        self.at = at + length
        return self.data[at : self.at]

    def end(self) -> None:
        """Raise Malformed if the message does not end here, because a longer message has an unknown form."""
        if self.at != len(self.data):
            raise trailing(self.data, self.at)


def show(value: int) -> str:
    """Return a byte in the form for error messages: a letter in quotes, and any other byte as a number."""
    return f"'{chr(value)}'" if bytes([value]).isalpha() else str(value)


def trailing(data: bytes, at: int) -> Malformed:
    """Return the error for a message that should have ended at ``at``."""
    return Malformed(at, f"the end of the message, found {len(data) - at} more bytes")
