"""What all families of types share: values of a fixed width, and what cannot be read.

https://www.postgresql.org/docs/current/protocol-message-types.html
"""

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from pgsluice.pgoutput.cursor import Layout, Malformed

ToText: TypeAlias = Callable[[bytes], bytes]
"""A value in binary format in, its text out; UNREAD when it is none."""

BYTE = Layout(number="B")
INT16 = Layout(number="h")
INT32 = Layout(number="i")
UINT32 = Layout(number="I")


def fixed(codes: str) -> Callable[[bytes], tuple[Any, ...]]:
    """Return what reads all of a value that consists of the fields with these codes of :mod:`struct`.

    It raises struct.error for a value of another width.
    """
    return struct.Struct(f">{codes}").unpack


class Unreadable(Exception):
    """A value of a type whose binary format is not known; says why."""


class NewPart(Unreadable):
    """A composite with a value of a type that was no part of it when it was described: an ALTER TYPE came since."""


UNREAD: Final = (Malformed, struct.error, Unreadable)
"""What a conversion may raise: the bytes are not what they should be, or nobody knows what they should be."""


def version_1(value: bytes) -> bytes:
    """Return the text behind the version byte of jsonb, jsonpath and ltree."""
    if value[:1] != b"\x01":
        raise Malformed(0, "version 1 of the type's format")
    return value[1:]
