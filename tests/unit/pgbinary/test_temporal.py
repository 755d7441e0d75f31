"""Unit tests of pgsluice.pgbinary.temporal. Values and texts come from PostgreSQL 18."""

import pytest

from pgsluice.pgbinary import temporal
from pgsluice.pgbinary.base import UNREAD, ToText


@pytest.mark.parametrize(
    ("to_text", "text", "sent"),
    [
        (temporal.date, b"2024-02-29", "00002279"),
        (temporal.date, b"0044-03-15 BC", "fff49d7b"),
        (temporal.date, b"infinity", "7fffffff"),
        (temporal.date, b"-infinity", "80000000"),
        (temporal.date, b"10000-01-01", "002c95d4"),
        (temporal.date, b"0001-01-01", "fff4dbf9"),
        (temporal.time, b"12:34:56.7", "0000000a8be4ca60"),
        (temporal.time, b"24:00:00", "000000141dd76000"),
        (temporal.time, b"00:00:00", "0000000000000000"),
        (temporal.timetz, b"12:34:56+05:30", "0000000a8bda1c00ffffb2a8"),
        (temporal.timetz, b"00:00:00.000001-15:59:59", "00000000000000010000e0ff"),
        (temporal.timetz, b"12:00:00+00", "0000000a0eebb00000000000"),
        (temporal.timestamp, b"2024-02-29 12:34:56.789", "0002b58341728608"),
        (temporal.timestamp, b"infinity", "7fffffffffffffff"),
        (temporal.timestamp, b"-infinity", "8000000000000000"),
        (temporal.timestamp, b"0001-12-31 23:59:59.999999 BC", "ff1fe2ffc59c5fff"),
        (temporal.timestamptz, b"2024-02-29 12:34:56+00", "0002b58341667c00"),
        (temporal.timestamptz, b"0044-03-15 12:00:00+00 BC", "ff1af9e8fb46d000"),
        (temporal.interval, b"P1Y2M-3DT4H5M6.789S", "000000036c97ca88fffffffd0000000e"),
        (temporal.interval, b"PT0S", "00000000000000000000000000000000"),
        (temporal.interval, b"PT-0.000001S", "ffffffffffffffff0000000000000000"),
        (temporal.interval, b"P-1M1DT-25H", "ffffffeb0b94fc0000000001ffffffff"),
        (temporal.interval, b"infinity", "7fffffffffffffff7fffffff7fffffff"),
        (temporal.interval, b"-infinity", "80000000000000008000000080000000"),
        (temporal.interval, b"PT1H", "00000000d693a4000000000000000000"),
        (temporal.interval, b"PT-1M-1S", "fffffffffc5d36c00000000000000000"),
    ],
)
def test_the_text_is_that_of_postgresql(to_text: ToText, text: bytes, sent: str) -> None:
    assert to_text(bytes.fromhex(sent)) == text


@pytest.mark.parametrize(
    ("to_text", "sent"),
    [
        (temporal.date, "00"),
        (temporal.time, "000000141dd76001"),
        (temporal.time, "ffffffffffffffff"),
        (temporal.timetz, "0000000a8be4ca60"),
        (temporal.timestamp, "00"),
        (temporal.interval, "00"),
    ],
)
def test_bytes_that_no_send_function_writes_are_malformed(to_text: ToText, sent: str) -> None:
    with pytest.raises(UNREAD):
        to_text(bytes.fromhex(sent))
