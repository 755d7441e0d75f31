"""Unit tests of pgsluice.pgoutput.cursor."""

import pytest

from pgsluice.errors import ProtocolError
from pgsluice.pgoutput.cursor import Cursor, FixedFields, Malformed, show, trailing

LAYOUT = FixedFields(oid="I", typmod="i", count="H", flags="B")


def _malformed(raised: pytest.ExceptionInfo[Malformed]) -> tuple[int, str]:
    return raised.value.at, raised.value.expected


def test_malformed_becomes_the_documented_error() -> None:
    error = Malformed(7, "the end").within("Begin ('B')")
    assert isinstance(error, ProtocolError)
    assert str(error) == "Begin ('B') at offset 7: expected the end"


def test_a_layout_reads_big_endian_and_unaligned() -> None:
    assert LAYOUT.size == 11
    assert LAYOUT.read(bytes.fromhex("00 ffffffff ffffffff 0102 03 00"), 1) == (2**32 - 1, -1, 0x102, 3)


@pytest.mark.parametrize(
    ("length", "at", "expected"),
    [
        (1, 1, "oid (4 bytes), found the end after 0"),
        (4, 1, "oid (4 bytes), found the end after 3"),
        (5, 5, "typmod (4 bytes), found the end after 0"),
        (10, 9, "count (2 bytes), found the end after 1"),
        (11, 11, "flags (1 bytes), found the end after 0"),
    ],
)
def test_a_layout_names_the_first_incomplete_field(length: int, at: int, expected: str) -> None:
    with pytest.raises(Malformed) as raised:
        LAYOUT.read(bytes(length), 1)
    assert _malformed(raised) == (at, expected)


def test_every_read_advances_the_cursor() -> None:
    cursor = Cursor(b"?\x00\x00\x00\x05\xff\xff\xff\xff\x00\x01\x02\x01\x00d\xc3\xa4\x00\x00xyz", 1)
    assert cursor.fields(LAYOUT) == (5, -1, 1, 2)
    assert cursor.flag("flag") is True
    assert cursor.flag("flag") is False
    assert cursor.choice("identity", b"df") == ord("d")
    assert cursor.string("name") == "ä"
    assert cursor.string("empty") == ""
    assert cursor.content("content", 3) == b"xyz"
    assert cursor.content("nothing", 0) == b""
    cursor.end()


def test_a_string_may_take_all_bytes() -> None:
    assert Cursor(b"\x00", 0).string("name") == ""


def test_single_bytes_and_zero_flags_are_read() -> None:
    cursor = Cursor(b"\xff\x00", 0)
    assert cursor.byte("first") == 255
    cursor.no_flags()
    with pytest.raises(Malformed) as raised:
        cursor.byte("third")
    assert _malformed(raised) == (2, "third (1 byte), found the end")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x01", "flags 0, found 1"),
        (b"A", "flags 0, found 'A'"),
    ],
)
def test_flags_must_be_zero(data: bytes, expected: str) -> None:
    with pytest.raises(Malformed) as raised:
        Cursor(data, 0).no_flags()
    assert _malformed(raised) == (0, expected)


def test_a_string_must_be_ended_by_nul() -> None:
    with pytest.raises(Malformed) as raised:
        Cursor(b"?abc", 1).string("gid")
    assert _malformed(raised) == (1, "gid, ended by NUL, found the end after 3")


@pytest.mark.parametrize("text", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"])
def test_a_string_must_be_utf8(text: bytes) -> None:
    with pytest.raises(Malformed) as raised:
        Cursor(b"?ab" + text + b"\x00", 1).string("gid")
    assert _malformed(raised) == (3, "gid in UTF-8")


def test_missing_content_is_not_allocated() -> None:
    with pytest.raises(Malformed) as raised:
        Cursor(b"?ab", 1).content("content", 2**32 - 1)
    assert _malformed(raised) == (1, "content (4294967295 bytes), found the end after 2")


def test_end_refuses_trailing_bytes() -> None:
    with pytest.raises(Malformed) as raised:
        Cursor(b"?ab", 1).end()
    assert _malformed(raised) == _fields(trailing(b"?ab", 1))
    assert _malformed(raised) == (1, "the end of the message, found 2 more bytes")


def _fields(error: Malformed) -> tuple[int, str]:
    return error.at, error.expected


def test_show_quotes_letters() -> None:
    assert [show(value) for value in (0, 0x30, 0x41, 0x7A, 0x7F, 255)] == [
        "0",
        "48",
        "'A'",
        "'z'",
        "127",
        "255",
    ]
