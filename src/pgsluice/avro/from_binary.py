"""Turns values in binary format directly into Avro, without converting them to text, for the most common types.

``encoder`` gets the writer of each column from here, once per version of a relation. If there is no shortcut for a
type, the writer first converts the value to text, and then the text to Avro.

https://avro.apache.org/docs/1.12.0/specification/#binary-encoding
"""

import math
from collections.abc import Callable
from typing import Final

from pgsluice.avro import temporal_text as dates
from pgsluice.avro.binary import (
    FALSE,
    INT_MAX,
    INT_MIN,
    LONG_MAX,
    LONG_MIN,
    NULL,
    POSTGRES_EPOCH_US,
    TRUE,
    VALUE,
    encode_array,
    encode_bytes,
    encode_double,
    encode_float,
    encode_long,
    encode_unscaled,
)
from pgsluice.avro.text import Misfit, Writer
from pgsluice.avro.types import ColumnType, Opcode
from pgsluice.pgbinary import containers, geometry, numbers, strings, temporal
from pgsluice.pgbinary.base import ToText, fixed
from pgsluice.pgoutput.cursor import Malformed

_FLOAT4: Final = fixed("f")
_FLOAT8: Final = fixed("d")


def binary_writer(kind: ColumnType, to_text: ToText) -> Writer:
    """Return a writer for the binary format that ``to_text`` reads. It writes the same Avro as ``kind.write``."""
    if kind.element is not None and isinstance(to_text, containers.ArrayText):
        return _array(binary_writer(kind.element, to_text.element))
    make = _SHORT_CUTS.get((kind.opcode, to_text))
    return make(*kind.parameters) if make is not None else _by_text(kind.write, to_text)


def _by_text(write: Writer, to_text: ToText) -> Writer:
    return lambda value: write(to_text(value))


_BOOLEANS: Final = {b"\x00": FALSE, b"\x01": TRUE}


def _boolean(value: bytes) -> bytes:
    try:
        return _BOOLEANS[value]
    except KeyError:
        raise Malformed(0, "one byte, 0 or 1") from None


def _integer(code: str) -> Callable[[int, int], Writer]:
    read = fixed(code)

    def write(value: bytes) -> bytes:
        (number,) = read(value)
        return encode_long(number)

    return lambda _lowest, _highest: write  # the bounds admit every value of the PostgreSQL type


def _float4() -> Writer:
    return lambda value: encode_float(_number(_FLOAT4(value)[0]))


def _float4_as_double() -> Writer:
    return lambda value: encode_double(_number(_FLOAT4(value)[0]))


def _float8() -> Writer:
    return lambda value: encode_double(_number(_FLOAT8(value)[0]))


def _number(number: float) -> float:
    """Return ``number``. If it is a NaN, return the one NaN that the conversion from text returns."""
    return number if number == number else math.nan  # noqa: PLR0124 - the definition of NaN


_GROUPS_MAX: Final = 12
"""The maximum number of base-10000 digits for which there is a shortcut."""
_NUMERICS: Final = {8 + 2 * groups: fixed(f"HhHH{groups}H") for groups in range(1, _GROUPS_MAX + 1)}
_NEGATIVE: Final = 0x4000
_GROUP_DIGITS: Final = 4
_BASE: Final = 10**_GROUP_DIGITS


def _decimal(precision: int, scale: int) -> Writer:
    limit, powers = 10**precision, [10**exponent for exponent in range(precision + _GROUP_DIGITS)]
    write_any = _any_decimal(precision, scale)

    def write(value: bytes) -> bytes:
        read = _NUMERICS.get(len(value))
        if read is None:
            return write_any(value)
        ndigits, weight, sign, dscale, *groups = read(value)
        zeros = (weight + 1 - ndigits) * _GROUP_DIGITS + scale
        # This function reads only the usual numbers. ``write_any`` reads all numbers, and is slower.
        is_usual = scale <= dscale <= numbers.DSCALE_MAX and not sign & ~_NEGATIVE and ndigits == len(groups)
        if not is_usual or not -_GROUP_DIGITS < zeros <= precision:
            return write_any(value)
        number = 0
        for group in groups:
            number = number * _BASE + group
        unscaled, rest = (number * powers[zeros], 0) if zeros >= 0 else divmod(number, powers[-zeros])
        if rest or unscaled >= limit or max(groups) >= _BASE:
            return write_any(value)
        return encode_unscaled(-unscaled if sign else unscaled)

    return write


def _any_decimal(precision: int, scale: int) -> Writer:
    def write(value: bytes) -> bytes:
        found = numbers.read_numeric(value)
        if not isinstance(found, numbers.Numeric):
            raise Misfit
        significant = found.digits.lstrip(b"0")
        digits = significant.rstrip(b"0")
        if not digits:
            return encode_unscaled(0)
        zeros = found.point - len(found.digits) + len(significant) - len(digits) + scale
        if zeros < 0 or len(digits) + zeros > precision:
            raise Misfit
        unscaled = int(digits) * 10**zeros
        return encode_unscaled(-unscaled if found.is_negative else unscaled)

    return write


def _uuid() -> Writer:
    return lambda value: encode_bytes(strings.uuid(value))


# --- dates and times: the infinities are sent as the lowest and highest integer, and only keys can hold them


def _moment(code: str, epoch: int, infinities: tuple[int, int], *, key: bool = False) -> Callable[..., Writer]:
    read = fixed(code)

    def make(lowest: int, highest: int, unit_us: int = 1) -> Writer:
        encode = dates.in_units(unit_us)

        def write(value: bytes) -> bytes:
            (number,) = read(value)
            if number in infinities:
                if key:
                    return encode_long(number)
            elif lowest < number + epoch < highest:
                return encode(number + epoch)
            raise Misfit

        return write

    return make


_EPOCH_DAYS: Final = POSTGRES_EPOCH_US // dates.DAY_US
_timestamp: Final = _moment("q", POSTGRES_EPOCH_US, (LONG_MIN, LONG_MAX))
_key_timestamp: Final = _moment("q", POSTGRES_EPOCH_US, (LONG_MIN, LONG_MAX), key=True)


def _time(limit: int, unit_us: int = 1) -> Writer:
    encode = dates.in_units(unit_us)

    def write(value: bytes) -> bytes:
        time_us = temporal.read_time(value)
        if time_us >= limit:
            raise Misfit
        return encode(time_us)

    return write


# --- containers


def _array(element: Writer) -> Writer:
    def write(value: bytes) -> bytes:
        shape, items = containers.read_array(value)
        if items and (len(shape) > 1 or shape[0][1] != 1):
            raise Misfit
        return encode_array([NULL if item is None else VALUE + element(item) for item in items])

    return write


def _hstore() -> Writer:
    return lambda value: encode_array(
        [
            encode_bytes(key) + (NULL if item is None else VALUE + encode_bytes(item))
            for key, item in containers.read_hstore(value)
        ]
    )


def _vector() -> Writer:
    return lambda value: encode_array([encode_float(_number(item)) for item in geometry.vector_items(value)])


# The shortcuts, by opcode and by the function that converts the value to text. A shortcut is a function that makes a
# writer from the type's parameters. The compiled twin, ``native.rows``, has shortcuts for the scalars in this list, and
# for other common types.
_SHORT_CUTS: Final[dict[tuple[Opcode, ToText], Callable[..., Writer]]] = {
    (Opcode.BOOLEAN, numbers.boolean): lambda: _boolean,
    (Opcode.INTEGER, numbers.int2): _integer("h"),
    (Opcode.INTEGER, numbers.int4): _integer("i"),
    (Opcode.INTEGER, numbers.int8): _integer("q"),
    (Opcode.INTEGER, numbers.oid): _integer("I"),
    (Opcode.FLOAT4, numbers.float4): _float4,
    (Opcode.FLOAT4_AS_DOUBLE, numbers.float4): _float4_as_double,
    (Opcode.FLOAT8, numbers.float8): _float8,
    (Opcode.DECIMAL, numbers.numeric): _decimal,
    (Opcode.DATE, temporal.date): _moment("i", _EPOCH_DAYS, (INT_MIN, INT_MAX)),
    (Opcode.KEY_DATE, temporal.date): _moment("i", _EPOCH_DAYS, (INT_MIN, INT_MAX), key=True),
    (Opcode.TIME, temporal.time): _time,
    (Opcode.TIMESTAMP, temporal.timestamp): _timestamp,
    (Opcode.KEY_TIMESTAMP, temporal.timestamp): _key_timestamp,
    (Opcode.TIMESTAMPTZ, temporal.timestamptz): _timestamp,
    (Opcode.KEY_TIMESTAMPTZ, temporal.timestamptz): _key_timestamp,
    (Opcode.UUID, strings.uuid): _uuid,
    (Opcode.STRING, strings.text): lambda: encode_bytes,
    (Opcode.BYTEA, strings.bytea): lambda: encode_bytes,
    (Opcode.HSTORE, containers.hstore): _hstore,
    (Opcode.VECTOR, geometry.vector): _vector,
}
