"""What all families of types share: values of a fixed width, and what cannot be read.

https://www.postgresql.org/docs/current/protocol-message-types.html
"""

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from pgsluice.pgoutput.cursor import Layout, Malformed

ToText: TypeAlias = Callable[[bytes], bytes]
"""A value in binary format in, its text out; Malformed when it is none."""

BYTE = Layout(number="B")
INT16 = Layout(number="h")
INT32 = Layout(number="i")
UINT32 = Layout(number="I")


def fixed(codes: str) -> Callable[[bytes], tuple[Any, ...]]:
    """Return what reads all of a value that consists of the fields with these codes of :mod:`struct`."""
    unpack, size = struct.Struct(f">{codes}").unpack, struct.calcsize(f">{codes}")

    def read(value: bytes) -> tuple[Any, ...]:
        try:
            return unpack(value)
        except struct.error:
            raise Malformed(0, f"{size} bytes, found {len(value)}") from None

    return read


class Unreadable(Exception):
    """A value of a type whose binary format is not known; says why."""


def version_1(value: bytes) -> bytes:
    """Return the text behind the version byte of jsonb, jsonpath and ltree."""
    if value[:1] != b"\x01":
        raise Malformed(0, "version 1 of the type's format")
    return value[1:]
