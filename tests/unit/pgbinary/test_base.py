"""Unit tests of pgsluice.pgbinary.base."""

import pytest

from pgsluice.pgbinary.base import UNREAD, fixed, version_1
from pgsluice.pgoutput.cursor import Malformed


def test_a_value_of_fixed_width_is_read() -> None:
    read = fixed("hb")
    assert read(b"\x01\x02\xff") == (258, -1)
    for value in (b"", b"\x01\x02", b"\x01\x02\x03\x04"):
        with pytest.raises(UNREAD, match="requires a buffer of 3 bytes"):
            read(value)


def test_the_version_byte_is_checked() -> None:
    assert version_1(b"\x01{}") == b"{}"
    for value in (b"", b"\x02{}", b"{}"):
        with pytest.raises(Malformed, match="version 1"):
            version_1(value)
