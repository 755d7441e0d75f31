"""Turns dates and times from PostgreSQL's text (DateStyle ISO, TimeZone UTC) into Avro's days and microseconds.

``types`` chooses the writer of a column, and ``encoder`` runs it per row. The common form has a fixed width, and is
read with tables such as ``_MINUTES_US``. Other years and offsets are read with a regular expression. Everything else is
a Misfit.

https://www.postgresql.org/docs/current/datatype-datetime.html
"""

import re
from collections.abc import Callable
from datetime import date as calendar_date
from functools import lru_cache
from typing import Final

from pgsluice.avro.binary import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN, encode_long
from pgsluice.avro.text import Misfit, Writer

DAY_US: Final = 86_400_000_000
_EPOCH_DAY: Final = calendar_date(1970, 1, 1).toordinal()
_DATE_LENGTH: Final = len("YYYY-MM-DD")
_TIMESTAMP_LENGTH: Final = len("YYYY-MM-DD HH:MM:SS")
_EPOCH_MIDNIGHT: Final = b"1970-01-01 "
_POINT: Final = ord(".")
_UTC: Final = b"+00"

_MINUTES_US: Final = {b" %02d:%02d" % (m // 60, m % 60): m * 60_000_000 for m in range(24 * 60)}
_SECONDS_US: Final = {b":%02d" % s: s * 1_000_000 for s in range(60)}
_FRACTION_UNITS_US: Final = {1: 100_000, 2: 10_000, 3: 1_000, 4: 100, 5: 10, 6: 1}  # by the number of digits

# Dates and timestamps with any year and any offset, which do not have the fixed width of the common form.
_DATE: Final = re.compile(rb"([0-9]{4}|[1-9][0-9]{4,6})-([0-9]{2})-([0-9]{2})( BC)?")
_TIMESTAMP: Final = re.compile(
    rb"([0-9]{4,7}-[0-9]{2}-[0-9]{2}) ([0-9:.]{8,15})"
    rb"(?:([+-])([0-9]{2})(?::([0-9]{2}))?(?::([0-9]{2}))?)?( BC)?"
)

# Exclusive bounds. COMMON: the years 0001 to 9999. FULL: all numbers except the two that stand for infinities in keys.
COMMON_DAYS: Final = (-_EPOCH_DAY, calendar_date.max.toordinal() - _EPOCH_DAY + 1)
FULL_DAYS: Final = (INT_MIN, INT_MAX)
COMMON_US: Final = ((COMMON_DAYS[0] + 1) * DAY_US - 1, COMMON_DAYS[1] * DAY_US)
FULL_US: Final = (LONG_MIN, LONG_MAX)


@lru_cache(maxsize=8192)
def _common_midnight_us(text: bytes) -> int:
    """Return the microseconds since 1970 of a ``YYYY-MM-DD``."""
    year, month, day = text[:4], text[5:7], text[8:]
    if len(text) != _DATE_LENGTH or text[4:8:3] != b"--" or not (year + month + day).isdigit():
        raise Misfit
    return _day(int(year), int(month), int(day)) * DAY_US


def _common_timestamp_us(text: bytes) -> int:
    """Return the microseconds since 1970 of a ``YYYY-MM-DD HH:MM:SS[.ffffff]``, with look-up tables."""
    try:
        second_us = _common_midnight_us(text[:10]) + _MINUTES_US[text[10:16]] + _SECONDS_US[text[16:19]]
        digits = text[20:]
        if digits.isdigit() and text[19] == _POINT:
            return second_us + int(digits) * _FRACTION_UNITS_US[len(digits)]
    except KeyError:
        raise Misfit from None
    if len(text) == _TIMESTAMP_LENGTH:
        return second_us
    raise Misfit


def _day(year: int, month: int, day: int, *, bc: bool = False) -> int:
    """Return the days since 1970 of a date in the proleptic Gregorian calendar."""
    if year == 0:
        raise Misfit
    if bc:
        year = 1 - year
    # The calendar repeats every 400 years, which have 146 097 days. Python's calendar has the years 1 to 9999.
    cycles, year_of_cycle = divmod(year, 400)
    try:
        ordinal = calendar_date(year_of_cycle + 400, month, day).toordinal()
    except ValueError:
        raise Misfit from None
    return ordinal + (cycles - 1) * 146_097 - _EPOCH_DAY


def _any_day(text: bytes) -> int:
    match = _DATE.fullmatch(text)
    if match is None:
        raise Misfit
    year, month, day, bc = match.groups()
    return _day(int(year), int(month), int(day), bc=bc is not None)


def _any_timestamp_us(text: bytes, *, zoned: bool) -> int:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise Misfit
    day, time_of_day, sign, hours, minutes, seconds, bc = match.groups()
    if zoned is (sign is None):
        raise Misfit
    local_us = _any_day(day + (bc or b"")) * DAY_US + _common_timestamp_us(_EPOCH_MIDNIGHT + time_of_day)
    if sign is None:
        return local_us
    offset_us = (int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)) * 1_000_000
    return local_us - offset_us if sign == b"+" else local_us + offset_us


def date(lowest: int, highest: int) -> Writer:
    """Return the writer of days since 1970, for days between these (exclusive) bounds."""

    def write(text: bytes) -> bytes:
        try:
            return encode_long(_common_midnight_us(text) // DAY_US)
        except Misfit:
            return encode_long(_between(_any_day(text), lowest, highest))

    return write


def time(limit: int, unit_us: int = 1) -> Writer:
    """Return the writer of times since midnight, which have to be below ``limit``.

    The limit is one day, or one day and 1 µs if 24:00:00 is included.
    """
    encode = in_units(unit_us)

    def write(text: bytes) -> bytes:
        if text == b"24:00:00" and limit > DAY_US:
            return encode(DAY_US)
        return encode(_common_timestamp_us(_EPOCH_MIDNIGHT + text))

    return write


def timestamp(lowest: int, highest: int, unit_us: int = 1) -> Writer:
    """Return the writer of the time since 1970, without time zone, between these (exclusive) bounds in microseconds."""
    encode = in_units(unit_us)

    def write(text: bytes) -> bytes:
        try:
            return encode(_common_timestamp_us(text))
        except Misfit:
            return encode(_between(_any_timestamp_us(text, zoned=False), lowest, highest))

    return write


def timestamptz(lowest: int, highest: int, unit_us: int = 1) -> Writer:
    """Return the writer of the time since 1970 UTC, between these (exclusive) bounds in microseconds."""
    encode = in_units(unit_us)

    def write(text: bytes) -> bytes:
        if text[-3:] == _UTC:
            try:
                return encode(_common_timestamp_us(text[:-3]))
            except Misfit:
                pass
        return encode(_between(_any_timestamp_us(text, zoned=True), lowest, highest))

    return write


def in_units(unit_us: int) -> Callable[[int], bytes]:
    """Return a function that writes microseconds as a whole number of units. It raises Misfit for a remainder."""
    if unit_us == 1:
        return encode_long

    def encode(time_us: int) -> bytes:
        number, rest = divmod(time_us, unit_us)
        if rest:
            raise Misfit
        return encode_long(number)

    return encode


def _between(number: int, lowest: int, highest: int) -> int:
    """Return ``number``. Raise Misfit if it is not between these (exclusive) bounds."""
    if lowest < number < highest:
        return number
    raise Misfit


# IntervalStyle iso_8601: every part has its sign, and parts that are zero are left out.
_INTERVAL: Final = re.compile(
    rb"P(?=.)(?:(-?[0-9]{1,10})D)?"
    rb"(?:T(?=.)(?:(-?[0-9]{1,10})H)?(?:(-?[0-9]{1,2})M)?(?:(-?)([0-9]{1,2})(?:\.([0-9]{1,6}))?S)?)?"
)
_HOUR_US: Final = 3_600_000_000
_MINUTE_US: Final = 60_000_000


def interval_micros(text: bytes) -> bytes:
    """Return the microseconds of an interval. A day has 24 hours. Raise Misfit if there are months or years."""
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise Misfit
    days, hours, minutes, sign, seconds, fraction = match.groups()
    rest_us = int(seconds or 0) * 1_000_000 + int((fraction or b"").ljust(6, b"0"))
    number = int(days or 0) * DAY_US + int(hours or 0) * _HOUR_US + int(minutes or 0) * _MINUTE_US
    number += -rest_us if sign else rest_us
    return encode_long(_between(number, LONG_MIN - 1, LONG_MAX + 1))


def or_infinity(write: Writer, lowest: int, highest: int) -> Writer:
    """Return a writer like ``write`` that also accepts the infinities. It writes them as ``lowest`` and ``highest``."""
    infinities = {b"-infinity": encode_long(lowest), b"infinity": encode_long(highest)}

    def write_or_infinity(text: bytes) -> bytes:
        return infinities.get(text) or write(text)

    return write_or_infinity
