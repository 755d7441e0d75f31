"""From PostgreSQL's text form of a value to Avro's bytes: one writer per kind of conversion.

``types`` chooses the writer of a column, ``encoder`` runs it per row. A writer takes exactly what PostgreSQL
writes under the session's settings (DateStyle ISO, TimeZone UTC, client_encoding UTF8); anything else, and
what the Avro type cannot hold, is a :class:`Misfit`, and the caller keeps the text as it is.

https://www.postgresql.org/docs/current/datatype.html
"""

import binascii
import re
import struct
from collections.abc import Callable
from datetime import date as calendar_date
from decimal import Decimal
from functools import lru_cache
from typing import Final, TypeAlias

from pgsluice.avro.binary import (
    FALSE,
    INT_MAX,
    INT_MIN,
    LONG_MAX,
    LONG_MIN,
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
"""A value's text in, its Avro body out; Misfit when there is none."""


class Misfit(ValueError):
    """A value that its Avro type cannot hold. Carries no message: it would have to show the value."""


def boolean(text: bytes) -> bytes:
    """``t`` or ``f``."""
    if text == b"t":
        return TRUE
    if text == b"f":
        return FALSE
    raise Misfit


# --- numbers


def _integer(text: bytes) -> int:
    # int() alone would also take blanks, underscores and a plus sign.
    if text.isdigit() or (text[:1] == b"-" and text[1:].isdigit()):
        return int(text)
    raise Misfit


def integer(lowest: int, highest: int) -> Writer:
    """Return the writer of whole numbers within these bounds."""
    longest = len(str(lowest))

    def write(text: bytes) -> bytes:
        if len(text) > longest:
            raise Misfit
        number = _integer(text)
        if lowest <= number <= highest:
            return encode_long(number)
        raise Misfit

    return write


def decimal(precision: int, scale: int) -> Writer:
    """Return the writer of ``decimal(precision, scale)``: the unscaled value, never rounded."""
    limit = 10**precision

    def write(text: bytes) -> bytes:
        whole, _, fraction = text.partition(b".")
        if len(fraction) != scale:
            fraction = fraction.rstrip(b"0").ljust(scale, b"0")
            if len(fraction) > scale:
                raise Misfit
        # Longer cannot fit: a sign, a zero before the point, and the digits. int() has a limit of its own.
        digits = whole + fraction
        if len(digits) > precision + 2:
            raise Misfit
        unscaled = _integer(digits)
        if -limit < unscaled < limit:
            return encode_unscaled(unscaled)
        raise Misfit

    return write


_FLOAT_CHARACTERS: Final = b"0123456789+-.e"
_SPECIAL_FLOATS: Final = {b"NaN": float("nan"), b"Infinity": float("inf"), b"-Infinity": float("-inf")}
_round_to_single: Final = struct.Struct("<f")


def _double(text: bytes) -> float:
    if text.translate(None, _FLOAT_CHARACTERS):
        if text in _SPECIAL_FLOATS:
            return _SPECIAL_FLOATS[text]
        raise Misfit
    try:
        number = float(text)
    except ValueError:
        raise Misfit from None
    if number - number != 0:  # infinite, though the text was not
        raise Misfit
    return number


def _single(text: bytes) -> float:
    """Return the float4 that ``text`` names, exactly.

    Rounding the nearest double once more is wrong where that double is the very middle of two singles: there
    the text decides.
    """
    number = _double(text)
    try:
        near = _to_single(number)
    except OverflowError:
        raise Misfit from None
    other = 2 * number - near  # exact; the other neighbour if number is the middle of two singles
    if near == number or number != number or _to_single(other) != other:  # noqa: PLR0124 - NaN
        return near
    exact, middle = Decimal(text.decode()), Decimal(number)
    if exact == middle:
        return near
    return max(near, other) if exact > middle else min(near, other)


def _to_single(number: float) -> float:
    single: float = _round_to_single.unpack(_round_to_single.pack(number))[0]
    return single


def float8(text: bytes) -> bytes:
    """Double precision, and whole numbers of a column that has become double precision since."""
    return encode_double(_double(text))


def float4(text: bytes) -> bytes:
    """Single precision."""
    return encode_float(_single(text))


def float4_as_double(text: bytes) -> bytes:
    """Single precision, of a column that has been double precision: the value PostgreSQL's cast gives."""
    return encode_double(_single(text))


# --- dates and times

DAY_US: Final = 86_400_000_000
_EPOCH_DAY: Final = calendar_date(1970, 1, 1).toordinal()
_DATE_LENGTH: Final = len("YYYY-MM-DD")
_TIME_LENGTH: Final = len("HH:MM:SS")
_UTC: Final = b"+00"

_MINUTES_US: Final = {b"%02d:%02d" % (m // 60, m % 60): m * 60_000_000 for m in range(24 * 60)}
_SECONDS_US: Final = {b":%02d" % s: s * 1_000_000 for s in range(60)}
_FRACTION_US: Final = (None, None, 100_000, 10_000, 1_000, 100, 10, 1)  # by the length of ".123"

# Any year, any offset: what the fixed-width reading of the common case leaves over.
_DATE: Final = re.compile(rb"([0-9]{4,7})-([0-9]{2})-([0-9]{2})( BC)?")
_TIMESTAMP: Final = re.compile(
    rb"([0-9]{4,6}-[0-9]{2}-[0-9]{2}) ([0-9:.]{8,15})"
    rb"(?:([+-])([0-9]{2})(?::([0-9]{2}))?(?::([0-9]{2}))?)?( BC)?"
)

# Bounds, exclusive: of the years 0001 to 9999, and of everything but what stands for the infinities in keys.
COMMON_DAYS: Final = (-_EPOCH_DAY, calendar_date.max.toordinal() - _EPOCH_DAY + 1)
FULL_DAYS: Final = (INT_MIN, INT_MAX)
COMMON_US: Final = ((COMMON_DAYS[0] + 1) * DAY_US - 1, COMMON_DAYS[1] * DAY_US)
FULL_US: Final = (LONG_MIN, LONG_MAX)


@lru_cache(maxsize=8192)
def _common_day(text: bytes) -> int:
    """Return the days since 1970 of a ``YYYY-MM-DD``."""
    if len(text) != _DATE_LENGTH or text[4] != 45 or text[7] != 45:  # noqa: PLR2004 - 45 is a hyphen
        raise Misfit
    return _day(text[:4], text[5:7], text[8:])


def _day(year_text: bytes, month: bytes, day: bytes, *, bc: bool = False) -> int:
    """Return the days since 1970 of a date in the proleptic Gregorian calendar of any year."""
    if not (year_text.isdigit() and month.isdigit() and day.isdigit()):
        raise Misfit
    year = int(year_text)
    if year == 0:
        raise Misfit
    if bc:
        year = 1 - year
    # The calendar repeats every 400 years of 146 097 days; Python's knows the years 1 to 9999.
    cycles, year_of_cycle = divmod(year, 400)
    try:
        ordinal = calendar_date(year_of_cycle + 400, int(month), int(day)).toordinal()
    except ValueError:
        raise Misfit from None
    return ordinal + (cycles - 1) * 146_097 - _EPOCH_DAY


def _any_day(text: bytes) -> int:
    match = _DATE.fullmatch(text)
    if match is None:
        raise Misfit
    year, month, day, bc = match.groups()
    return _day(year, month, day, bc=bc is not None)


def _time_us(text: bytes) -> int:
    """Return the microseconds since midnight of ``HH:MM:SS[.ffffff]``."""
    try:
        time_us = _MINUTES_US[text[:5]] + _SECONDS_US[text[5:8]]
    except KeyError:
        raise Misfit from None
    if len(text) == _TIME_LENGTH:
        return time_us
    return time_us + _fraction_us(text[8:])


def _fraction_us(text: bytes) -> int:
    unit = _FRACTION_US[len(text)] if len(text) < len(_FRACTION_US) else None
    if unit is None or text[:1] != b"." or not text[1:].isdigit():
        raise Misfit
    return int(text[1:]) * unit


def date(lowest: int, highest: int) -> Writer:
    """Return the writer of days since 1970, for days between these (exclusive) bounds."""

    def write(text: bytes) -> bytes:
        try:
            return encode_long(_common_day(text))
        except Misfit:
            return _encode_between(_any_day(text), lowest, highest)

    return write


def time(limit: int) -> Writer:
    """Return the writer of microseconds since midnight, below ``limit``: of a day, or of 24:00:00 with it."""

    def write(text: bytes) -> bytes:
        if text == b"24:00:00" and limit > DAY_US:
            return encode_long(DAY_US)
        return encode_long(_time_us(text))

    return write


def timestamp(lowest: int, highest: int) -> Writer:
    """Return the writer of microseconds since 1970, without time zone, between these (exclusive) bounds."""

    def write(text: bytes) -> bytes:
        if text[10:11] == b" ":
            try:
                return encode_long(_common_day(text[:10]) * DAY_US + _time_us(text[11:]))
            except Misfit:
                pass
        return _encode_between(_any_timestamp_us(text, zoned=False), lowest, highest)

    return write


def timestamptz(lowest: int, highest: int) -> Writer:
    """Return the writer of microseconds since 1970 UTC, between these (exclusive) bounds."""

    def write(text: bytes) -> bytes:
        if text[10:11] == b" " and text[-3:] == _UTC:
            try:
                return encode_long(_common_day(text[:10]) * DAY_US + _time_us(text[11:-3]))
            except Misfit:
                pass
        return _encode_between(_any_timestamp_us(text, zoned=True), lowest, highest)

    return write


def _encode_between(number: int, lowest: int, highest: int) -> bytes:
    """Return ``number`` as a long, Misfit when it is not between these (exclusive) bounds."""
    if lowest < number < highest:
        return encode_long(number)
    raise Misfit


def or_infinity(write: Writer, lowest: int, highest: int) -> Writer:
    """Return the writer of dates or timestamps that takes the infinities, too, as these two numbers."""
    infinities = {b"-infinity": encode_long(lowest), b"infinity": encode_long(highest)}

    def write_or_infinity(text: bytes) -> bytes:
        return infinities.get(text) or write(text)

    return write_or_infinity


def _any_timestamp_us(text: bytes, *, zoned: bool) -> int:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise Misfit
    day, time_of_day, sign, hours, minutes, seconds, bc = match.groups()
    if zoned is (sign is None):
        raise Misfit
    local_us = _any_day(day + (bc or b"")) * DAY_US + _time_us(time_of_day)
    if sign is None:
        return local_us
    offset_us = (int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)) * 1_000_000
    return local_us - offset_us if sign == b"+" else local_us + offset_us


# --- bytes and strings

_UUID: Final = re.compile(rb"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_ESCAPED_BYTEA: Final = re.compile(rb"(?:[ -\[\]-~]++|\\\\|\\[0-3][0-7]{2})*+")
_BYTEA_ESCAPE: Final = re.compile(rb"\\(\\|[0-3][0-7]{2})")


def uuid(text: bytes) -> bytes:
    """Return the 36 characters as a string."""
    if _UUID.fullmatch(text):
        return encode_bytes(text)
    raise Misfit


def bytea(text: bytes) -> bytes:
    """Hex form, and the escape form of sessions without bytea_output=hex."""
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
_HSTORE_PAIR: Final = re.compile(_QUOTED + rb"=>(?:" + _QUOTED + rb"|NULL)", re.DOTALL)


def array(element: Writer, delimiter: bytes = b",") -> Writer:
    """Return the writer of one-dimensional arrays that start at 1; other shapes do not fit."""
    bare = _BARE % re.escape(delimiter)
    plain = re.compile(bare + rb"(?:" + re.escape(delimiter) + bare + rb")*+")
    item = re.compile(_QUOTED + rb"|" + bare, re.DOTALL)

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
        if plain.fullmatch(body):
            return encode_array([write_bare(part) for part in body.split(delimiter)])
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
