"""Unit tests of pgsluice.pgbinary.strings. Values and texts come from PostgreSQL 18."""

import pytest

from pgsluice.pgbinary import strings
from pgsluice.pgbinary.base import UNREAD, ToText


@pytest.mark.parametrize(
    ("to_text", "text", "sent"),
    [
        (strings.char, b"x", "78"),
        (strings.char, b"", "00"),
        (strings.char, b"\\377", "ff"),
        (strings.bytea, b"\\x00ff", "00ff"),
        (strings.uuid, b"123e4567-e89b-12d3-a456-426614174000", "123e4567e89b12d3a456426614174000"),
        (strings.bit, b"", "00000000"),
        (strings.bit, b"10110", "00000005b0"),
        (strings.bit, b"010101010", "000000095500"),
        (strings.inet, b"10.0.0.1/24", "021800040a000001"),
        (strings.inet, b"10.0.0.1", "022000040a000001"),
        (strings.inet, b"::1", "0380001000000000000000000000000000000001"),
        (strings.inet, b"::ffff:10.0.0.1", "0380001000000000000000000000ffff0a000001"),
        (strings.inet, b"::0.1.0.0", "0380001000000000000000000000000000010000"),
        (strings.inet, b"1:0:0:2::3/64", "0340001000010000000000020000000000000003"),
        (strings.inet, b"1:2:3:4:5:6:7:8", "0380001000010002000300040005000600070008"),
        (strings.inet, b"fe80::", "03800010fe800000000000000000000000000000"),
        (strings.inet, b"1:0:2:3:4:5:6:7", "0380001000010000000200030004000500060007"),
        (strings.cidr, b"10.0.0.0/8", "020801040a000000"),
        (strings.cidr, b"2001:db8::/32", "0320011020010db8000000000000000000000000"),
        (strings.cidr, b"10.0.0.1/32", "022001040a000001"),
        (strings.macaddr(6), b"08:00:2b:01:02:03", "08002b010203"),
        (strings.macaddr(8), b"08:00:2b:01:02:03:04:05", "08002b0102030405"),
        (strings.pg_lsn, b"16/B374D848", "00000016b374d848"),
        (strings.tid, b"(7,3)", "000000070003"),
        (strings.snapshot, b"10:20:10,14", "00000002000000000000000a0000000000000014000000000000000a000000000000000e"),
        (strings.snapshot, b"5:5:", "0000000000000000000000050000000000000005"),
    ],
)
def test_the_text_is_that_of_postgresql(to_text: ToText, text: bytes, sent: str) -> None:
    assert to_text(bytes.fromhex(sent)) == text


@pytest.mark.parametrize(
    ("to_text", "sent"),
    [
        (strings.char, ""),
        (strings.uuid, "12"),
        (strings.bit, "ffffffff"),
        (strings.bit, "00000009ff"),
        (strings.bit, "00"),
        (strings.inet, "021800030a0000"),
        (strings.inet, "041800040a000001"),
        (strings.inet, "022100040a000001"),
        (strings.inet, "022000040a0000"),
        (strings.macaddr(6), "00"),
        (strings.pg_lsn, "00"),
        (strings.tid, "00"),
        (strings.snapshot, "ffffffff00000000000000050000000000000005"),
        (strings.snapshot, "0000000100000000000000050000000000000005"),
    ],
)
def test_bytes_that_no_send_function_writes_are_malformed(to_text: ToText, sent: str) -> None:
    with pytest.raises(UNREAD):
        to_text(bytes.fromhex(sent))


def test_text_is_sent_unchanged() -> None:
    assert strings.text(b"x") == b"x"
