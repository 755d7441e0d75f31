"""Dates, times and intervals as PostgreSQL writes them with DateStyle ISO, IntervalStyle iso_8601, TimeZone UTC.

``conversions`` chooses the function for each type.

https://www.postgresql.org/docs/current/datatype-datetime.html
"""

from datetime import date as calendar_date
from typing import Final

from pgsluice.pgbinary.base import ToText, fixed
from pgsluice.pgoutput.cursor import Malformed

_EPOCH_ORDINAL: Final = calendar_date(2000, 1, 1).toordinal()
_CYCLE_DAYS: Final = 146_097
"""The number of days in 400 years, after which the calendar repeats. Python's calendar has only the years 1 to 9999."""

_DAY_US: Final = 86_400_000_000
_HOUR_US: Final = 3_600_000_000
_MINUTE_US: Final = 60_000_000
_SECOND_US: Final = 1_000_000

_INT4_RANGE: Final = (-(2**31), 2**31 - 1)
_INT8_RANGE: Final = (-(2**63), 2**63 - 1)
_INFINITIES: Final = (b"-infinity", b"infinity")

_DATE: Final = fixed("i")
_TIME: Final = fixed("q")
_TIMETZ: Final = fixed("qi")
_INTERVAL: Final = fixed("qii")


def date(value: bytes) -> bytes:
    """Return ``YYYY-MM-DD``, with `` BC`` for years before 1."""
    (days,) = _DATE(value)
    if days in _INT4_RANGE:
        return _INFINITIES[_INT4_RANGE.index(days)]
    text, era = _date_parts(days)
    return text + era


def time(value: bytes) -> bytes:
    """Return ``HH:MM:SS[.ffffff]``."""
    return _time_text(read_time(value))


def read_time(value: bytes) -> int:
    """Return the microseconds since midnight. A whole day of microseconds stands for 24:00:00."""
    return _checked_time(_TIME(value)[0])


def timetz(value: bytes) -> bytes:
    """Return ``HH:MM:SS[.ffffff]`` and the offset, ``+HH[:MM[:SS]]``."""
    time_us, seconds_west = _TIMETZ(value)
    return _time_text(_checked_time(time_us)) + _offset_text(-seconds_west)


def _timestamp(zone: bytes) -> ToText:
    def to_text(value: bytes) -> bytes:
        (moment_us,) = _TIME(value)
        if moment_us in _INT8_RANGE:
            return _INFINITIES[_INT8_RANGE.index(moment_us)]
        days, time_us = divmod(moment_us, _DAY_US)
        text, era = _date_parts(days)
        return text + b" " + _time_text(time_us) + zone + era

    return to_text


timestamp: Final = _timestamp(b"")
"""``YYYY-MM-DD HH:MM:SS[.ffffff]``."""

timestamptz: Final = _timestamp(b"+00")
"""Like ``timestamp``, with the offset ``+00``, because the time is in UTC."""


def _date_parts(days: int) -> tuple[bytes, bytes]:
    """Return the date that is ``days`` days after 2000-01-01, and the era.

    The era is `` BC`` for years before 1, and empty for all other years. In a timestamp, the era comes after the time.
    """
    cycles, ordinal = divmod(days + _EPOCH_ORDINAL - 1, _CYCLE_DAYS)
    day = calendar_date.fromordinal(ordinal + 1)
    year = day.year + 400 * cycles
    era = b""
    if year < 1:
        year, era = 1 - year, b" BC"
    return b"%04d-%02d-%02d" % (year, day.month, day.day), era


def _checked_time(time_us: int) -> int:
    if not 0 <= time_us <= _DAY_US:
        raise Malformed(0, "microseconds of a day")
    return time_us


def _time_text(time_us: int) -> bytes:
    seconds, fraction_us = divmod(time_us, _SECOND_US)
    minutes, second = divmod(seconds, 60)
    return b"%02d:%02d:%02d%b" % (minutes // 60, minutes % 60, second, _fraction_text(fraction_us))


def _fraction_text(fraction_us: int) -> bytes:
    return (b".%06d" % fraction_us).rstrip(b"0") if fraction_us else b""


def _offset_text(seconds: int) -> bytes:
    sign = b"-" if seconds < 0 else b"+"
    minutes, second = divmod(abs(seconds), 60)
    text = b"%b%02d" % (sign, minutes // 60)
    if minutes % 60 or second:
        text += b":%02d" % (minutes % 60)
    return text + b":%02d" % second if second else text


def interval(value: bytes) -> bytes:
    """Return ``P1Y2M3DT4H5M6.7S``. Each part has its own sign, and parts that are 0 are left out."""
    time_us, days, months = _INTERVAL(value)
    ends = (_INT8_RANGE, _INT4_RANGE, _INT4_RANGE)
    for index, infinity in enumerate(_INFINITIES):  # intervals can be infinite since PostgreSQL 17
        if (time_us, days, months) == tuple(end[index] for end in ends):
            return infinity
    years, rest_months = _truncated(months, 12)
    text = b"P" + _part(years, b"Y") + _part(rest_months, b"M") + _part(days, b"D")
    if time_us:
        text += b"T" + _interval_time(time_us)
    return b"PT0S" if text == b"P" else text


def _interval_time(time_us: int) -> bytes:
    hours, rest_us = _truncated(time_us, _HOUR_US)
    minutes, rest_us = _truncated(rest_us, _MINUTE_US)
    text = _part(hours, b"H") + _part(minutes, b"M")
    if not rest_us:
        return text
    seconds, fraction_us = divmod(abs(rest_us), _SECOND_US)
    return text + b"%b%d%bS" % (b"-" * (rest_us < 0), seconds, _fraction_text(fraction_us))


def _truncated(number: int, divisor: int) -> tuple[int, int]:
    """Return quotient and remainder as in C: the remainder has the sign of ``number``."""
    quotient, rest = divmod(abs(number), divisor)
    return (-quotient, -rest) if number < 0 else (quotient, rest)


def _part(number: int, unit: bytes) -> bytes:
    return b"%d%b" % (number, unit) if number else b""
