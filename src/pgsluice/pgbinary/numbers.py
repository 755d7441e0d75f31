"""Numbers as PostgreSQL writes them: integers, floats, numeric and money.

``conversions`` chooses the function for each type. Floats are written as PostgreSQL 12 and later write them with
extra_float_digits > 0.

https://www.postgresql.org/docs/current/datatype-numeric.html
"""

import math
import struct
from decimal import Context, Decimal
from typing import Final, NamedTuple

from pgsluice.pgbinary.base import ToText, fixed
from pgsluice.pgoutput.cursor import FixedFields, Malformed

_BOOLEANS: Final = {b"\x00": b"f", b"\x01": b"t"}


def boolean(value: bytes) -> bytes:
    """Return ``t`` or ``f``."""
    try:
        return _BOOLEANS[value]
    except KeyError:
        raise Malformed(0, "one byte, 0 or 1") from None


def integer(code: str) -> ToText:
    """Return the conversion of integers. ``code`` is their :mod:`struct` code."""
    read = fixed(code)
    return lambda value: b"%d" % read(value)[0]


int2: Final = integer("h")
int4: Final = integer("i")
int8: Final = integer("q")
oid: Final = integer("I")
xid8: Final = integer("Q")

_INT8: Final = fixed("q")


def money(value: bytes) -> bytes:
    """Return money as PostgreSQL writes it with lc_monetary = C: ``-$1,234.50``."""
    (cents,) = _INT8(value)
    whole, rest = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}${whole:,}.{rest:02}".encode()


# --- floats

_FLOAT8: Final = fixed("d")
_FLOAT4: Final = fixed("f")
_SINGLE: Final = struct.Struct(">f")
_SINGLE_BITS: Final = struct.Struct(">i")

# A float is written with an exponent in two cases: the exponent is below _LOWEST_EXPONENT, or it is at least the limit
# for the type of the float (_FLOAT8_EXPONENTS or _FLOAT4_EXPONENTS).
_LOWEST_EXPONENT: Final = -4
_FLOAT8_EXPONENTS: Final = 15
_FLOAT4_EXPONENTS: Final = 6
_PLAIN: Final = (1e-4, 1e15)

# PostgreSQL never writes a number that lies exactly in the middle between two floats, but Python may. Such a middle is
# an odd number of 54 bits, multiplied by a power of two. Python writes it only if it has at most 17 digits. Below
# 2 ** 52, every middle has at least two digits after the point, and at least 18 digits in all. From 1e40 on, the odd
# number would have to be a multiple of 5 ** 24, which has more than 54 bits.
# Only middles between these two limits can therefore be written.
_MIDDLES: Final = (2.0**52, 1e40)

_EXACT: Final = Context(prec=1200)
"""A context for exact sums of two neighbouring floats. No such sum has more digits than this precision."""
_HALF: Final = Decimal("0.5")
_INFINITE_SINGLE: Final = 0x7F800000
_ROUNDINGS: Final = ("ROUND_HALF_EVEN", "ROUND_FLOOR", "ROUND_CEILING")


def float8(value: bytes) -> bytes:
    """Return a text like ``1.5``, with only as many digits as are needed to read the same number."""
    return float8_text(_FLOAT8(value)[0])


def float4(value: bytes) -> bytes:
    """Return a text like ``1.5``, with only as many digits as are needed to read the same number."""
    return float4_text(_FLOAT4(value)[0])


def float8_text(number: float) -> bytes:
    """Return the text that float8out writes."""
    size = abs(number)
    if _PLAIN[0] <= size < _PLAIN[1] or number == 0:
        return repr(number).removesuffix(".0").encode()
    if not math.isfinite(number):
        return _special(number)
    shortest = Decimal(repr(number))
    if _MIDDLES[0] < size < _MIDDLES[1]:
        low, high = (_middle(number, math.nextafter(number, end)) for end in (-math.inf, math.inf))
        if shortest in (low, high):
            shortest = _shortest(number, low, high)
    return _float_text(shortest, _FLOAT8_EXPONENTS)


def float4_text(number: float) -> bytes:
    """Return the text that float4out writes."""
    if not math.isfinite(number):
        return _special(number)
    if number == 0:
        return b"-0" if math.copysign(1, number) < 0 else b"0"
    low, high = sorted(_middle(number, _neighbour(number, step)) for step in (-1, 1))
    return _float_text(_shortest(number, low, high), _FLOAT4_EXPONENTS)


def _special(number: float) -> bytes:
    if math.isnan(number):
        return b"NaN"
    return b"Infinity" if number > 0 else b"-Infinity"


def _neighbour(number: float, step: int) -> float:
    """Return the float4 next to ``number``: towards 0 if ``step`` is -1, away from 0 if it is 1."""
    bits: int = _SINGLE_BITS.unpack(_SINGLE.pack(abs(number)))[0] + step
    size: float = _SINGLE.unpack(_SINGLE_BITS.pack(bits))[0] if bits < _INFINITE_SINGLE else 2.0**128
    return math.copysign(size, number)


def _middle(one: float, other: float) -> Decimal:
    return _EXACT.multiply(_EXACT.add(Decimal(one), Decimal(other)), _HALF)


def _shortest(number: float, low: Decimal, high: Decimal) -> Decimal:
    """Return the number between the bounds (exclusive) that has the fewest digits.

    If several numbers have equally few digits, return the one nearest to ``number``.
    """
    exact = Decimal(number)
    inside: list[Decimal] = []
    digits = 0
    while not inside:  # the loop ends, because with enough digits the candidate is the number itself
        digits += 1
        near = [Context(prec=digits, rounding=rounding).plus(exact) for rounding in _ROUNDINGS]
        inside = [candidate for candidate in near if low < candidate < high]
    return min(inside, key=lambda candidate: _EXACT.abs(_EXACT.subtract(candidate, exact)))


def _float_text(number: Decimal, exponents: int) -> bytes:
    """Return the text as printf's %g writes it. An exponent is written if it is below -4 or at least ``exponents``."""
    sign, all_digits, last = number.as_tuple()
    written = "".join(map(str, all_digits))
    digits = written.rstrip("0")
    assert isinstance(last, int), "not a special number"
    exponent = last + len(written) - 1
    if exponent < _LOWEST_EXPONENT or exponent >= exponents:
        text = f"{digits[0]}{'.' * (len(digits) > 1)}{digits[1:]}e{exponent:+03}"
    elif exponent < 0:
        text = f"0.{'0' * (-exponent - 1)}{digits}"
    else:
        whole, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
        text = f"{whole}{'.' * bool(fraction)}{fraction}"
    return f"{'-' * sign}{text}".encode()


# --- numeric

_HEAD: Final = FixedFields(ndigits="H", weight="h", sign="H", dscale="H")
_NEGATIVE: Final = 0x4000
_SPECIAL_NUMERICS: Final = {0xC000: b"NaN", 0xD000: b"Infinity", 0xF000: b"-Infinity"}
_GROUP: Final = 4
"""One digit of numeric, which has the base 10000, stands for this many decimal digits."""
_GROUPS: Final = tuple(b"%04d" % group for group in range(10_000))
DSCALE_MAX: Final = 0x3FFF


class Numeric(NamedTuple):
    """A finite number. ``point`` and ``dscale`` are the numbers of decimal digits before and after the point."""

    is_negative: bool
    digits: bytes
    point: int
    dscale: int


def read_numeric(value: bytes) -> Numeric | bytes:
    """Return the number that numeric_send wrote, or the text of a special value."""
    ndigits, weight, sign, dscale = _HEAD.read(value, 0)
    if sign in _SPECIAL_NUMERICS:
        return _SPECIAL_NUMERICS[sign]
    if sign not in (0, _NEGATIVE) or dscale > DSCALE_MAX:
        raise Malformed(0, "a sign and a scale of numeric")
    point = (weight + 1) * _GROUP
    # Digits beyond the scale are not part of the number. numeric_recv drops them as well.
    digits = _decimal_digits(value, ndigits)[: max(point + dscale, 0)]
    return Numeric(sign == _NEGATIVE, digits, point, dscale)


def numeric(value: bytes) -> bytes:
    """Return the decimal digits, with as many digits after the point as the value's display scale says."""
    found = read_numeric(value)
    if not isinstance(found, Numeric):
        return found
    is_negative, digits, point, dscale = found
    whole = digits[:point].ljust(point, b"0").lstrip(b"0") if point > 0 else b""
    text = b"-" * is_negative + (whole or b"0")
    if not dscale:
        return text
    fraction = digits[point:] if point >= 0 else b"0" * -point + digits
    return text + b"." + fraction[:dscale].ljust(dscale, b"0")


def _decimal_digits(value: bytes, ndigits: int) -> bytes:
    if len(value) != _HEAD.size + 2 * ndigits:
        raise Malformed(_HEAD.size, f"{ndigits} digits of 2 bytes")
    try:
        return b"".join([_GROUPS[group] for group in struct.unpack_from(f">{ndigits}H", value, _HEAD.size)])
    except IndexError:
        raise Malformed(_HEAD.size, "digits to the base 10000") from None
