"""Turns PostgreSQL's text form of a value into Avro's bytes, with one writer per kind of conversion.

``types`` chooses the writer of a column, and ``encoder`` runs it per row. The writers of dates and times are in
``temporal_text``. A writer raises :class:`Misfit` for a text that PostgreSQL does not write for the type, and for a
value that the Avro type cannot hold. The caller then keeps the text as it is.

https://www.postgresql.org/docs/current/datatype.html
"""

import binascii
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Final, TypeAlias

from pgsluice.avro.binary import (
    FALSE,
    NULL,
    TRUE,
    VALUE,
    encode_array,
    encode_bytes,
    encode_double,
    encode_float,
    encode_long,
    encode_unscaled,
)

Writer: TypeAlias = Callable[[bytes], bytes]
"""Returns the Avro body of a value from its text, or in ``from_binary`` from its binary format. Raises Misfit if the
value does not fit the Avro type."""


class Misfit(ValueError):
    """A value does not fit its Avro type. The error has no message, because a message would have to show the value."""


def boolean(text: bytes) -> bytes:
    """Return the boolean that ``t`` or ``f`` stands for."""
    if text == b"t":
        return TRUE
    if text == b"f":
        return FALSE
    raise Misfit


# --- numbers


def integer(lowest: int, highest: int) -> Writer:
    """Return the writer of whole numbers within these bounds."""
    longest = len(str(highest))

    def write(text: bytes) -> bytes:
        if len(text) < longest and text.isdigit():
            return encode_long(int(text))
        if len(text) <= longest + 1 and _is_integer(text):
            number = int(text)
            if lowest <= number <= highest:
                return encode_long(number)
        raise Misfit

    return write


def _is_integer(text: bytes) -> bool:
    # int() alone would also accept blanks, underscores and a plus sign.
    return text.isdigit() or (text[:1] == b"-" and text[1:].isdigit())


def decimal(precision: int, scale: int) -> Writer:
    """Return the writer of ``decimal(precision, scale)``. It writes the unscaled value, and never rounds."""
    limit = 10**precision
    # The longest text has a sign, a zero before the point, and the digits. A longer one is not passed to int(), which
    # refuses thousands of digits.
    longest = precision + 2

    def write(text: bytes) -> bytes:
        whole, _, fraction = text.partition(b".")
        digits = whole + (fraction if len(fraction) == scale else _rescaled(text, scale))
        if len(digits) <= precision and digits.isdigit():
            return encode_unscaled(int(digits))
        if len(digits) <= longest and _is_integer(digits):
            unscaled = int(digits)
            if -limit < unscaled < limit:
                return encode_unscaled(unscaled)
        raise Misfit

    return write


_DECIMAL: Final = re.compile(rb"-?[0-9]++(?:\.[0-9]++)?")


def _rescaled(text: bytes, scale: int) -> bytes:
    """Return exactly ``scale`` digits after the point, for a number that has more or fewer of them."""
    if not _DECIMAL.fullmatch(text):
        raise Misfit
    digits = text.partition(b".")[2].rstrip(b"0").ljust(scale, b"0")
    if len(digits) > scale:
        raise Misfit
    return digits


_FLOAT_CHARACTERS: Final = b"0123456789+-.e"
_SPECIAL_FLOATS: Final = {b"NaN": float("nan"), b"Infinity": float("inf"), b"-Infinity": float("-inf")}
_SINGLE: Final = struct.Struct("<f")


def _double(text: bytes) -> float:
    if text.translate(None, _FLOAT_CHARACTERS):
        if text in _SPECIAL_FLOATS:
            return _SPECIAL_FLOATS[text]
        raise Misfit
    try:
        number = float(text)
    except ValueError:
        raise Misfit from None
    if number - number != 0:  # the number has overflowed to infinity
        raise Misfit
    return number


def _single(text: bytes) -> float:
    """Return the float4 that is nearest to ``text``.

    The text is first rounded to a double, and then to a single. The result can be wrong only if the double lies
    exactly in the middle between two singles. In this case, the digits of the text decide.
    """
    number = _double(text)
    try:
        near = _to_single(number)
        other = 2 * number - near  # exact. If number is halfway between two singles, this is the other single
        if near == number or _to_single(other) != other:
            return near
    except OverflowError:
        raise Misfit from None
    exact, middle = Decimal(text.decode()), Decimal(number)
    if exact == middle:
        return near
    return max(near, other) if exact > middle else min(near, other)


def _to_single(number: float) -> float:
    single: float = _SINGLE.unpack(_SINGLE.pack(number))[0]
    return single


def float8(text: bytes) -> bytes:
    """Return a float8 as a double, or an integer as a double if the column's field was widened to double."""
    return encode_double(_double(text))


def float4(text: bytes) -> bytes:
    """Return a float4 as a float."""
    return encode_float(_single(text))


def float4_as_double(text: bytes) -> bytes:
    """Return a float4 as a double, with the same value as PostgreSQL's cast, for a field of type double."""
    return encode_double(_single(text))


_ALWAYS_EXACT: Final = 15
"""A text of at most ``_ALWAYS_EXACT`` bytes needs no check. A double preserves every number of up to 15 digits. Without
an exponent, such a short text cannot express a number that is too small for a double."""


def numeric_as_double(text: bytes) -> bytes:
    """Return a number as a double. Raise Misfit if ``repr`` of the double has another value than the text."""
    number = _double(text)
    if len(text) > _ALWAYS_EXACT and number - number == 0 and Decimal(repr(number)) != Decimal(text.decode()):
        raise Misfit
    return encode_double(number)


# --- bytes and strings

_UUID_LENGTH: Final = 36
_HYPHENS: Final = b"----"
_ESCAPED_BYTEA: Final = re.compile(rb"(?:[ -\[\]-~]++|\\\\|\\[0-3][0-7]{2})*+")
_BYTEA_ESCAPE: Final = re.compile(rb"\\(\\|[0-3][0-7]{2})")


def uuid(text: bytes) -> bytes:
    """Return a UUID as a string of 36 characters."""
    hyphens = text[8:24:5]
    if hyphens == _HYPHENS == text.translate(None, b"0123456789abcdef") and len(text) == _UUID_LENGTH:
        return encode_bytes(text)
    raise Misfit


def checked_string(text: bytes) -> bytes:
    """Return a ``"char"``, or a text that may contain such values, as a UTF-8 string.

    The result is the same for all versions of PostgreSQL. Versions before 16 send the byte itself, which is not UTF-8.
    """
    if text.isascii():
        return encode_bytes(text)
    return encode_bytes(utf8(text) if len(text) > 1 else b"\\%03o" % text[0])


def marked(_text: bytes) -> bytes:
    """Raise Misfit, because no value of this type can be parsed. The caller keeps the text."""
    raise Misfit


_NO_UTF8: Final = re.compile("[\udc80-\udcff]")


def utf8(text: bytes) -> bytes:
    """Return the text of an array or composite, with each ``"char"`` beyond ASCII as PostgreSQL 16 writes it."""
    readable = text.decode("utf-8", "surrogateescape")
    return _NO_UTF8.sub(lambda match: f'"\\\\{ord(match[0]) & 0xFF:03o}"', readable).encode()


def bytea(text: bytes) -> bytes:
    """Return the bytes of a text in hex form or in escape form. Servers send the form that bytea_output asks for."""
    if text[:2] == b"\\x":
        try:
            return encode_bytes(binascii.a2b_hex(text[2:]))
        except binascii.Error:
            raise Misfit from None
    if _ESCAPED_BYTEA.fullmatch(text):
        return encode_bytes(_BYTEA_ESCAPE.sub(_unescape_byte, text))
    raise Misfit


def _unescape_byte(match: re.Match[bytes]) -> bytes:
    escape = match[1]
    return escape if escape == b"\\" else bytes((int(escape, 8),))


# --- containers

_BACKSLASH: Final = re.compile(rb"\\(.)", re.DOTALL)
_QUOTED: Final = rb'"((?:[^"\\]++|\\.)*+)"'
_BARE: Final = rb'([^{}"\\\s%b]++)'
_ARRAY_SYNTAX: Final = b'{}"\\ \t\n\r\v\f'
_HSTORE_PAIR: Final = re.compile(_QUOTED + rb"=>(?:" + _QUOTED + rb"|NULL)", re.DOTALL)


def array(element: Writer, delimiter: bytes = b",") -> Writer:
    """Return the writer of one-dimensional arrays with the lower bound 1. All other arrays raise Misfit."""
    item = re.compile(_QUOTED + rb"|" + _BARE % delimiter, re.DOTALL)

    def write_bare(text: bytes) -> bytes:
        return NULL if text == b"NULL" else VALUE + element(text)

    def write_match(match: re.Match[bytes]) -> bytes:
        quoted, text = match.groups()
        return write_bare(text) if quoted is None else VALUE + element(_BACKSLASH.sub(rb"\1", quoted))

    def write(text: bytes) -> bytes:
        if text[:1] != b"{" or text[-1:] != b"}":
            raise Misfit
        body = text[1:-1]
        if not body:
            return encode_array([])
        parts = body.split(delimiter)
        if body.translate(None, _ARRAY_SYNTAX) == body and b"" not in parts:
            return encode_array([write_bare(part) for part in parts])
        return encode_array([write_match(match) for match in _sequence(item, body, delimiter)])

    return write


def _sequence(item: re.Pattern[bytes], text: bytes, separator: bytes) -> list[re.Match[bytes]]:
    """Return the matches of ``item`` that make up ``text``, with ``separator`` between them."""
    matches: list[re.Match[bytes]] = []
    position = 0
    while match := item.match(text, position):
        matches.append(match)
        position = match.end()
        if position == len(text):
            return matches
        if not text.startswith(separator, position):
            break
        position += len(separator)
    raise Misfit


def hstore(text: bytes) -> bytes:
    """Return the pairs as a map of nullable strings."""
    if not text:
        return encode_array([])
    return encode_array([_hstore_pair(match) for match in _sequence(_HSTORE_PAIR, text, b", ")])


def _hstore_pair(match: re.Match[bytes]) -> bytes:
    key, value = match.groups()
    encoded_key = encode_bytes(_BACKSLASH.sub(rb"\1", key))
    if value is None:
        return encoded_key + NULL
    return encoded_key + VALUE + encode_bytes(_BACKSLASH.sub(rb"\1", value))


def vector(text: bytes) -> bytes:
    """Return pgvector's ``[1,2,3]`` as an array of float."""
    if text[:1] != b"[" or text[-1:] != b"]":
        raise Misfit
    return encode_array([float4(part) for part in text[1:-1].split(b",")])
