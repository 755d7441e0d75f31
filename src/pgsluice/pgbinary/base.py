"""What all families of types share: functions for values of a fixed width, and errors for unreadable values.

https://www.postgresql.org/docs/current/protocol-message-types.html
"""

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from pgsluice.pgoutput.cursor import FixedFields, Malformed

ToText: TypeAlias = Callable[[bytes], bytes]
"""Returns the text of a value in binary format. Raises one of UNREAD if the value cannot be read."""

BYTE = FixedFields(number="B")
INT16 = FixedFields(number="h")
INT32 = FixedFields(number="i")
UINT32 = FixedFields(number="I")


def fixed(codes: str) -> Callable[[bytes], tuple[Any, ...]]:
    """Return a function that reads the fields of a value. ``codes`` are the :mod:`struct` codes of the fields.

    The function raises struct.error if the value has another width.
    """
    return struct.Struct(f">{codes}").unpack


class Unreadable(Exception):
    """The binary format of a value's type is not known. The message has the reason."""


class NewPart(Unreadable):
    """A composite has an attribute of a type that it did not contain when the catalog was read (ALTER TYPE)."""


UNREAD: Final = (Malformed, struct.error, Unreadable)
"""The errors of a conversion: the bytes do not have the format of the type, or the format is not known."""


def version_1(value: bytes) -> bytes:
    """Return the text after the version byte of jsonb, jsonpath and the types of ltree."""
    if value[:1] != b"\x01":
        raise Malformed(0, "version 1 of the type's format")
    return value[1:]
