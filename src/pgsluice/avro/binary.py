"""The primitive types of Avro's binary encoding, as bytes.

All code that writes Avro uses this module: the conversions of ``text``, the row encoder, the envelope, dead letters.

https://avro.apache.org/docs/1.12.0/specification/#binary-encoding
"""

import struct
from typing import Final

POSTGRES_EPOCH_US: Final = 946_684_800_000_000
"""2000-01-01 00:00 UTC in microseconds since 1970. Adding it to a timestamp of the protocol gives Unix time."""

LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1
INT_MIN: Final = -(2**31)
INT_MAX: Final = 2**31 - 1

NULL: Final = b"\x00"
"""A null in a ["null", T] union: branch 0, and nothing after it."""

VALUE: Final = b"\x02"
"""The prefix of a value in a ["null", T] union: branch 1."""

TRUE: Final = b"\x01"
FALSE: Final = b"\x00"

END: Final = b"\x00"
"""The end of the blocks of an array or a map. Alone, it is an empty array or map."""

_MORE: Final = 0x80
"""The highest bit of a byte. In a varint, it is set if another byte follows."""

_ONE_BYTE: Final = tuple(bytes((z,)) for z in range(_MORE))
"""The varints of one byte. Most varints have one byte."""

_DOUBLE: Final = struct.Struct("<d").pack
_FLOAT: Final = struct.Struct("<f").pack


def encode_long(number: int) -> bytes:
    """Return ``number``, which has to fit into 64 signed bits, as an Avro int or long.

    Zigzag maps numbers of small magnitude to small unsigned numbers: 0, -1, 1, -2 become 0, 1, 2, 3. Each byte of the
    varint has 7 bits, and the lowest bits come first. The highest bit is set in all bytes except the last one.
    """
    zigzag = number << 1 if number >= 0 else ~(number << 1)
    if zigzag < _MORE:
        return _ONE_BYTE[zigzag]
    varint = []
    while zigzag >= _MORE:
        varint.append(zigzag & 0x7F | _MORE)
        zigzag >>= 7
    varint.append(zigzag)
    return bytes(varint)


def encode_bytes(data: bytes) -> bytes:
    """Return ``data`` as Avro bytes, which is also the encoding of UTF-8 text as an Avro string."""
    return encode_long(len(data)) + data


def encode_string(text: str) -> bytes:
    """Return ``text`` as an Avro string."""
    return encode_bytes(text.encode())


def encode_float(number: float) -> bytes:
    """Return ``number`` as an Avro float. Raise OverflowError if it is beyond single precision."""
    return _FLOAT(number)


def encode_double(number: float) -> bytes:
    """Return ``number`` as an Avro double."""
    return _DOUBLE(number)


def encode_unscaled(number: int) -> bytes:
    """Return a decimal's unscaled value as Avro bytes: the shortest big-endian two's complement."""
    length = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return encode_bytes(number.to_bytes(length, "big", signed=True))


def encode_array(items: list[bytes]) -> bytes:
    """Return encoded items as an Avro array. If each item is an encoded key with its value, the result is a map."""
    if not items:
        return END
    return b"".join((encode_long(len(items)), *items, END))
