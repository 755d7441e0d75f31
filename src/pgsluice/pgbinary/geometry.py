"""Geometric types as PostgreSQL writes them, the type of the extension cube, and pgvector's vector.

``conversions`` chooses the function for each type.

https://www.postgresql.org/docs/current/datatype-geometric.html
"""

import struct
from typing import Final

from pgsluice.pgbinary.base import fixed
from pgsluice.pgbinary.numbers import float4_text, float8_text
from pgsluice.pgoutput.cursor import FixedFields, Malformed

_TWO: Final = fixed("2d")
_THREE: Final = fixed("3d")
_FOUR: Final = fixed("4d")


def point(value: bytes) -> bytes:
    """Return ``(x,y)``."""
    return b"(%b,%b)" % _texts(_TWO(value))


def lseg(value: bytes) -> bytes:
    """Return ``[(x,y),(x,y)]``."""
    return b"[(%b,%b),(%b,%b)]" % _texts(_FOUR(value))


def box(value: bytes) -> bytes:
    """Return ``(x,y),(x,y)``, with the upper right corner first."""
    return b"(%b,%b),(%b,%b)" % _texts(_FOUR(value))


def line(value: bytes) -> bytes:
    """Return ``{A,B,C}``."""
    return b"{%b,%b,%b}" % _texts(_THREE(value))


def circle(value: bytes) -> bytes:
    """Return ``<(x,y),r>``."""
    return b"<(%b,%b),%b>" % _texts(_THREE(value))


_PATH: Final = FixedFields(closed="B", points="i")
_POLYGON: Final = FixedFields(points="i")


def path(value: bytes) -> bytes:
    """Return ``((x,y),...)``, or ``[(x,y),...]`` if the path is open."""
    closed, count = _PATH.read(value, 0)
    points = _points(value, _PATH.size, count)
    return b"(%b)" % points if closed else b"[%b]" % points


def polygon(value: bytes) -> bytes:
    """Return ``((x,y),...)``."""
    (count,) = _POLYGON.read(value, 0)
    return b"(%b)" % _points(value, _POLYGON.size, count)


def _points(value: bytes, at: int, count: int) -> bytes:
    numbers = _texts(_float8s(value, at, 2 * count))
    return b",".join([b"(%b,%b)" % pair for pair in zip(numbers[::2], numbers[1::2], strict=True)])


def _texts(numbers: tuple[float, ...]) -> tuple[bytes, ...]:
    return tuple(map(float8_text, numbers))


def _float8s(value: bytes, at: int, count: int) -> tuple[float, ...]:
    if count < 0 or len(value) != at + 8 * count:
        raise Malformed(at, f"{count} numbers of 8 bytes")
    return struct.unpack_from(f">{count}d", value, at)


# --- extensions

_CUBE: Final = FixedFields(header="I")
_CUBE_IS_POINT: Final = 0x8000_0000
_CUBE_DIMENSIONS: Final = 0x7FFF_FFFF


def cube(value: bytes) -> bytes:
    """Return ``(x, y),(x, y)``, or one corner if both are the same."""
    (header,) = _CUBE.read(value, 0)
    dimensions, is_point = header & _CUBE_DIMENSIONS, header & _CUBE_IS_POINT
    numbers = _texts(_float8s(value, _CUBE.size, dimensions if is_point else 2 * dimensions))
    corners = [numbers] if is_point else [numbers[:dimensions], numbers[dimensions:]]
    return b",".join([b"(%b)" % b", ".join(corner) for corner in corners])


_VECTOR: Final = FixedFields(dimensions="H", unused="H")


def vector(value: bytes) -> bytes:
    """Return ``[x,y]``."""
    return b"[%b]" % b",".join(map(float4_text, vector_items(value)))


def vector_items(value: bytes) -> tuple[float, ...]:
    """Return the numbers of a vector."""
    dimensions, _ = _VECTOR.read(value, 0)
    if not dimensions or len(value) != _VECTOR.size + 4 * dimensions:
        raise Malformed(_VECTOR.size, f"{dimensions} numbers of 4 bytes, and at least one")
    return struct.unpack_from(f">{dimensions}f", value, _VECTOR.size)
