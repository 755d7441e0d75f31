"""Values that contain other values: arrays, ranges, composites and hstore as PostgreSQL writes them.

``conversions`` builds the conversion of such a type from the conversions of its parts. ``avro.from_binary`` reads
arrays without converting them to text.

https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from pgsluice.pgbinary.base import BYTE, INT32, UINT32, NewPart, ToText, Unreadable
from pgsluice.pgoutput.cursor import Cursor, FixedFields, Malformed

TEXT_MAX_BYTES: Final = 64 * 1024 * 1024
"""The longest text of an array, range, multirange or composite.

Each level of nesting doubles the quotes in the text of its parts, so a few hundred bytes could become gigabytes.
"""

_LENGTH: Final = INT32
_NULL_LENGTH: Final = -1


def _part(cursor: Cursor) -> bytes | None:
    """Read a length and the value of that length. Return None if the value is null."""
    (length,) = cursor.fields(_LENGTH)
    if length == _NULL_LENGTH:
        return None
    if length < 0:
        raise Malformed(cursor.at - _LENGTH.size, "a length")
    return cursor.content("value", length)


def _value(cursor: Cursor) -> bytes:
    """Read one value that cannot be null."""
    part = _part(cursor)
    if part is None:
        raise Malformed(cursor.at - _LENGTH.size, "a value")
    return part


def _limited(texts: Iterable[bytes]) -> list[bytes]:
    """Return the texts of a value's parts. Raise Unreadable as soon as their total length exceeds the limit."""
    found, size = [], 0
    for text in texts:
        size += len(text)
        if size > TEXT_MAX_BYTES:
            raise Unreadable(f"its text is longer than {TEXT_MAX_BYTES // 1024**2} MiB")
        found.append(text)
    return found


# --- arrays

_ARRAY: Final = FixedFields(dimensions="i", has_nulls="i", element="I")
_DIMENSION: Final = FixedFields(length="i", lower="i")
_DIMENSIONS_MAX: Final = 6
_QUOTED_ITEM: Final = re.compile(rb'["\\{}\s]')


class Array(NamedTuple):
    """An array's shape (the length and the lower bound of each dimension) and its items, in row-major order."""

    shape: list[tuple[int, int]]
    items: list[bytes | None]


def read_array(value: bytes) -> Array:
    """Return the array that array_send wrote."""
    cursor = Cursor(value, 0)
    dimensions, _, _ = cursor.fields(_ARRAY)
    if not 0 <= dimensions <= _DIMENSIONS_MAX:
        raise Malformed(0, f"at most {_DIMENSIONS_MAX} dimensions")
    shape: list[tuple[int, int]] = [cursor.fields(_DIMENSION) for _ in range(dimensions)]
    count = 1 if shape else 0
    for length, _ in shape:
        count *= length
        # Every item takes at least 4 bytes, so a count that is too large for the value is refused here.
        if length < 0 or count * _LENGTH.size > len(value):
            raise Malformed(_ARRAY.size, "lengths of the dimensions")
    items = [_part(cursor) for _ in range(count)]
    cursor.end()
    return Array(shape, items)


@dataclass(frozen=True, slots=True)
class ArrayText:
    """The conversion of arrays: ``{a,NULL,"b c"}``, preceded by the bounds unless every dimension starts at 1."""

    element: ToText
    delimiter: bytes = b","

    def __call__(self, value: bytes) -> bytes:
        """Return the text of an array."""
        shape, items = read_array(value)
        if not items:  # an empty array can still have a dimension, if it was cast from int2vector
            return b"{}"
        texts = _limited(self._item_text(item) for item in items)
        for length, _ in reversed(shape):
            rows = (texts[start : start + length] for start in range(0, len(texts), length))
            texts = [b"{%b}" % self.delimiter.join(row) for row in rows]
        return _bounds(shape) + texts[0]

    def _item_text(self, item: bytes | None) -> bytes:
        if item is None:
            return b"NULL"
        text = self.element(item)
        if text and not _QUOTED_ITEM.search(text) and self.delimiter not in text and text.upper() != b"NULL":
            return text
        return _escaped(text)


def _bounds(shape: list[tuple[int, int]]) -> bytes:
    if all(lower == 1 for _, lower in shape):
        return b""
    return b"".join([b"[%d:%d]" % (lower, lower + length - 1) for length, lower in shape]) + b"="


def old_vector(element: ToText) -> ToText:
    """Return the conversion of int2vector and oidvector: items separated by spaces. PostgreSQL sends them as arrays."""

    def to_text(value: bytes) -> bytes:
        items = read_array(value).items
        if None in items:
            raise Malformed(0, "no null among the items")
        return b" ".join([element(item) for item in items if item is not None])

    return to_text


# --- ranges

_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _LOWER_INFINITE, _UPPER_INFINITE = 0x01, 0x02, 0x04, 0x08, 0x10
_QUOTED_BOUND: Final = re.compile(rb'["\\()\[\],\s]')


def range_(subtype: ToText) -> ToText:
    """Return the conversion of ranges: ``[a,b)``."""

    def bound(cursor: Cursor) -> bytes:
        return _doubled(subtype(_value(cursor)), _QUOTED_BOUND)

    def to_text(value: bytes) -> bytes:
        cursor = Cursor(value, 0)
        (flags,) = cursor.fields(BYTE)
        if flags & _EMPTY:
            cursor.end()
            return b"empty"
        bounds = (b"" if flags & infinite else bound(cursor) for infinite in (_LOWER_INFINITE, _UPPER_INFINITE))
        lower, upper = _limited(bounds)
        cursor.end()
        left, right = b"[" if flags & _LOWER_INCLUSIVE else b"(", b"]" if flags & _UPPER_INCLUSIVE else b")"
        return left + lower + b"," + upper + right

    return to_text


def multirange(one: ToText) -> ToText:
    """Return the conversion of multiranges: ``{[a,b),[c,d)}``."""

    def to_text(value: bytes) -> bytes:
        cursor = Cursor(value, 0)
        texts = _limited(one(_value(cursor)) for _ in range(_count(cursor)))
        cursor.end()
        return b"{%b}" % b",".join(texts)

    return to_text


def _count(cursor: Cursor) -> int:
    """Read the number of parts, each of which has a length."""
    (count,) = cursor.fields(INT32)
    if not 0 <= count * _LENGTH.size <= len(cursor.data):
        raise Malformed(0, "a count of elements that fits the length of the value")
    return int(count)


def _doubled(text: bytes, quoted: re.Pattern[bytes]) -> bytes:
    """Quote a bound or a field if necessary. Its quotes and backslashes are doubled, unlike those of array items."""
    if text and not quoted.search(text):
        return text
    return b'"%b"' % text.replace(b"\\", b"\\\\").replace(b'"', b'""')


# --- composites

_QUOTED_FIELD: Final = re.compile(rb'["\\(),\s]')


def record(types: Mapping[int, ToText], others: Mapping[int, ToText]) -> ToText:
    """Return the conversion of composites: ``(a,,"b c")``.

    The value itself contains the OID of each field's type. The conversion of this type is in ``others``, which all
    composites share, or in ``types``.
    """

    def field(cursor: Cursor) -> bytes:
        (oid,) = cursor.fields(UINT32)
        part = _part(cursor)
        if part is None:
            return b""
        to_text = others.get(oid) or types.get(oid)
        if to_text is None:
            raise NewPart(f"the composite had no attribute of type {oid} when the catalog was read")
        return _doubled(to_text(part), _QUOTED_FIELD)

    def to_text(value: bytes) -> bytes:
        cursor = Cursor(value, 0)
        fields = _limited(field(cursor) for _ in range(_count(cursor)))
        cursor.end()
        return b"(%b)" % b",".join(fields)

    return to_text


# --- hstore


def read_hstore(value: bytes) -> list[tuple[bytes, bytes | None]]:
    """Return the keys and values, in the order in which they were sent."""
    cursor = Cursor(value, 0)
    pairs = [(_value(cursor), _part(cursor)) for _ in range(_count(cursor))]
    cursor.end()
    return pairs


def hstore(value: bytes) -> bytes:
    """Return the text of an hstore: ``"key"=>"value", "key"=>NULL``."""
    return b", ".join([_escaped(key) + b"=>" + _nullable(item) for key, item in read_hstore(value)])


def _nullable(text: bytes | None) -> bytes:
    return b"NULL" if text is None else _escaped(text)


def _escaped(text: bytes) -> bytes:
    return b'"%b"' % text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
