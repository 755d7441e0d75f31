"""Unit tests of pgsluice.pgbinary.numbers. Values and texts come from PostgreSQL 18."""

import pytest

from pgsluice.pgbinary import numbers
from pgsluice.pgbinary.base import UNREAD, ToText


@pytest.mark.parametrize(
    ("to_text", "text", "sent"),
    [
        (numbers.boolean, b"t", "01"),
        (numbers.boolean, b"f", "00"),
        (numbers.int2, b"-2", "fffe"),
        (numbers.int4, b"7", "00000007"),
        (numbers.int8, b"-9223372036854775808", "8000000000000000"),
        (numbers.oid, b"4294967295", "ffffffff"),
        (numbers.xid8, b"18446744073709551615", "ffffffffffffffff"),
        (numbers.money, b"-$1,234,567.50", "fffffffff8a43312"),
        (numbers.money, b"$0.05", "0000000000000005"),
        (numbers.float8, b"0", "0000000000000000"),
        (numbers.float8, b"-0", "8000000000000000"),
        (numbers.float8, b"0.1", "3fb999999999999a"),
        (numbers.float8, b"9.999999999999999e+22", "44b52d02c7e14af6"),
        (numbers.float8, b"1e+15", "430c6bf526340000"),
        (numbers.float8, b"-1.5e-07", "be8421f5f40d8376"),
        (numbers.float8, b"1.2345678901234568e+17", "437b69b4ba630f35"),
        (numbers.float8, b"5e-324", "0000000000000001"),
        (numbers.float8, b"1e+22", "4480f0cf064dd592"),
        (numbers.float8, b"NaN", "7ff8000000000000"),
        (numbers.float8, b"Infinity", "7ff0000000000000"),
        (numbers.float8, b"-Infinity", "fff0000000000000"),
        (numbers.float8, b"0.0001", "3f1a36e2eb1c432d"),
        (numbers.float8, b"1e+300", "7e37e43c8800759c"),
        (numbers.float4, b"0", "00000000"),
        (numbers.float4, b"-0", "80000000"),
        (numbers.float4, b"1.1", "3f8ccccd"),
        (numbers.float4, b"3.4028235e+38", "7f7fffff"),
        (numbers.float4, b"1e-45", "00000001"),
        (numbers.float4, b"1.6777216e+07", "4b800000"),
        (numbers.float4, b"0.00012", "38fba882"),
        (numbers.float4, b"1e-05", "3727c5ac"),
        (numbers.float4, b"NaN", "7fc00000"),
        (numbers.float4, b"-Infinity", "ff800000"),
        (numbers.float4, b"1", "3f800000"),
        (numbers.float4, b"123.5", "42f70000"),
        (numbers.float4, b"1.1754944e-38", "00800000"),
        (numbers.numeric, b"0", "0000000000000000"),
        (numbers.numeric, b"0.00", "0000000000000002"),
        (numbers.numeric, b"-1.50", "000200004000000200011388"),
        (numbers.numeric, b"12345678.9", "000300010000000104d2162e2328"),
        (numbers.numeric, b"0.00001234", "0001fffe0000000804d2"),
        (numbers.numeric, b"100000000000000000000", "00010005000000000001"),
        (numbers.numeric, b"NaN", "00000000c0000000"),
        (numbers.numeric, b"Infinity", "00000000d0000020"),
        (numbers.numeric, b"-Infinity", "00000000f0000020"),
        (numbers.numeric, b"10000", "00010001000000000001"),
        (numbers.numeric, b"0.10", "0001ffff0000000203e8"),
    ],
)
def test_the_text_is_that_of_postgresql(to_text: ToText, text: bytes, sent: str) -> None:
    assert to_text(bytes.fromhex(sent)) == text


@pytest.mark.parametrize(
    ("to_text", "sent"),
    [
        (numbers.boolean, "02"),
        (numbers.boolean, ""),
        (numbers.int4, "0000"),
        (numbers.float8, "00"),
        (numbers.money, "00"),
        (numbers.numeric, "00000000"),
        (numbers.numeric, "0000000000010000"),
        (numbers.numeric, "0000000000004000"),
        (numbers.numeric, "0001000000000000"),
        (numbers.numeric, "00010000000000002710"),
    ],
)
def test_bytes_that_no_send_function_writes_are_malformed(to_text: ToText, sent: str) -> None:
    with pytest.raises(UNREAD):
        to_text(bytes.fromhex(sent))


def test_numeric_values_that_postgresql_never_writes() -> None:
    """Read values that PostgreSQL never writes. Their text has no leading zeros, and no digits beyond the scale."""
    assert numbers.numeric(bytes.fromhex("0002 0001 0000 0000 0000 0007")) == b"7"
    assert numbers.numeric(bytes.fromhex("0001 ffff 0000 0001 04d2")) == b"0.1"
