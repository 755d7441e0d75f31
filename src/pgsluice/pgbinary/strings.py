"""Strings, bytes, bits, network addresses, positions and snapshots as PostgreSQL writes them.

``conversions`` chooses the function for each type.

https://www.postgresql.org/docs/current/datatype-net-types.html
"""

import struct
from typing import Final

from pgsluice.pgbinary.base import INT32, ToText, fixed
from pgsluice.pgoutput.cursor import FixedFields, Malformed


def text(value: bytes) -> bytes:
    """Return the value itself, because text is sent as it is, in client_encoding."""
    return value


_CHAR: Final = fixed("B")
_ASCII: Final = 0x80


def char(value: bytes) -> bytes:
    """Return one byte as PostgreSQL 16 and later write it: 0 as the empty string, and bytes beyond ASCII in octal.

    Older versions write bytes beyond ASCII unchanged, which is not valid UTF-8.
    """
    (byte,) = _CHAR(value)
    if byte >= _ASCII:
        return b"\\%03o" % byte
    return value if byte else b""


def bytea(value: bytes) -> bytes:
    """Return the hexadecimal form, as with bytea_output = hex."""
    return b"\\x" + value.hex().encode()


_UUID: Final = fixed("16s")


def uuid(value: bytes) -> bytes:
    """Return the 36 characters of a UUID."""
    digits = _UUID(value)[0].hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}".encode()


def bit(value: bytes) -> bytes:
    """Return the bits: ``0101``."""
    (length,) = INT32.read(value, 0)
    data = value[INT32.size :]
    if length < 0 or len(data) != (length + 7) // 8:
        raise Malformed(0, "the number of bits, and the bytes for them")
    if not length:
        return b""
    bits: str = f"{int.from_bytes(data, 'big'):0{len(data) * 8}b}"
    return bits[:length].encode()


# --- network addresses


def macaddr(length: int) -> ToText:
    """Return the conversion of MAC addresses of ``length`` bytes. Colons separate the hexadecimal bytes."""
    read = fixed(f"{length}s")
    return lambda value: read(value)[0].hex(":").encode()


_INET: Final = FixedFields(family="B", bits="B", is_cidr="B", length="B")
_FAMILIES: Final = {2: 4, 3: 16}
"""The size of an address in bytes, by family: PGSQL_AF_INET and PGSQL_AF_INET6."""

_WORDS: Final = struct.Struct(">8H").unpack
_MAPPED: Final = 0xFFFF


def inet(value: bytes) -> bytes:
    """Return ``10.0.0.1/8``. The length of the netmask is left out if the netmask covers the whole address."""
    return _address(value, always_bits=False)


def cidr(value: bytes) -> bytes:
    """Return ``10.0.0.0/8``."""
    return _address(value, always_bits=True)


def _address(value: bytes, *, always_bits: bool) -> bytes:
    family, bits, _, length = _INET.read(value, 0)
    address = value[_INET.size :]
    if length != _FAMILIES.get(family) or len(address) != length or bits > length * 8:
        raise Malformed(0, "an address of IPv4 or IPv6")
    written = _ipv4(address) if family == 2 else _ipv6(address)  # noqa: PLR2004 - see _FAMILIES
    return written + b"/%d" % bits if always_bits or bits < length * 8 else written


def _ipv4(address: bytes) -> bytes:
    return b"%d.%d.%d.%d" % tuple(address)


def _ipv6(address: bytes) -> bytes:
    words = _WORDS(address)
    start, length = _longest_zeros(words)
    if start == 0 and (length == 6 or (length == 5 and words[5] == _MAPPED)):  # noqa: PLR2004 - IPv4 within IPv6
        return (b"::" if length == 6 else b"::ffff:") + _ipv4(address[12:])  # noqa: PLR2004 - IPv4 within IPv6
    if not length:
        return _hexadecimal(words)
    return _hexadecimal(words[:start]) + b"::" + _hexadecimal(words[start + length :])


def _longest_zeros(words: tuple[int, ...]) -> tuple[int, int]:
    """Return start and length of the longest sequence of at least two zeros. If several are longest, take the first."""
    best, start = (0, 0), 0
    for index, word in enumerate((*words, 1)):
        if word:
            if index - start > max(best[1], 1):
                best = (start, index - start)
            start = index + 1
    return best


def _hexadecimal(words: tuple[int, ...]) -> bytes:
    return b":".join([b"%x" % word for word in words])


# --- positions and snapshots

_LSN: Final = fixed("II")
_TID: Final = fixed("IH")
_SNAPSHOT: Final = FixedFields(nxip="i", xmin="q", xmax="q")


def pg_lsn(value: bytes) -> bytes:
    """Return the LSN: ``16/B374D848``."""
    return b"%X/%X" % _LSN(value)


def tid(value: bytes) -> bytes:
    """Return ``(block,line)``."""
    return b"(%d,%d)" % _TID(value)


def snapshot(value: bytes) -> bytes:
    """Return ``xmin:xmax:xip,xip``."""
    nxip, xmin, xmax = _SNAPSHOT.read(value, 0)
    if nxip < 0 or len(value) != _SNAPSHOT.size + 8 * nxip:
        raise Malformed(_SNAPSHOT.size, f"{nxip} transaction ids")
    running = struct.unpack_from(f">{nxip}q", value, _SNAPSHOT.size)
    return b"%d:%d:%b" % (xmin, xmax, b",".join([b"%d" % xid for xid in running]))
