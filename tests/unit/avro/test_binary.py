"""Unit tests of pgsluice.avro.binary. The bytes are taken from the specification, or were derived from it by hand."""

import math
import struct
from datetime import UTC, datetime

import pytest

from pgsluice.avro import binary


@pytest.mark.parametrize(
    ("number", "data"),
    [
        # the table in the specification
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-2, "03"),
        (2, "04"),
        (-64, "7f"),
        (64, "8001"),
        # the values at which the number of bytes changes
        (63, "7e"),
        (-65, "8101"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (-8193, "818001"),
        (1048575, "feff7f"),
        (1048576, "80808001"),
        (134217727, "feffff7f"),
        (134217728, "8080808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**41 - 1, "feffffffff7f"),
        (2**41, "80808080808001"),
        (2**55 - 1, "feffffffffffff7f"),
        (2**55, "808080808080808001"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_a_long_is_a_zigzag_varint(number: int, data: str) -> None:
    assert binary.encode_long(number).hex() == data


def test_bytes_and_strings_begin_with_their_length() -> None:
    assert binary.encode_bytes(b"") == b"\x00"
    assert binary.encode_bytes(b"\x00\xff") == b"\x04\x00\xff"
    assert binary.encode_bytes(b"x" * 64) == b"\x80\x01" + b"x" * 64
    assert binary.encode_string("foo") == b"\x06foo"
    assert binary.encode_string("é") == b"\x04\xc3\xa9"


@pytest.mark.parametrize("number", [0.0, -0.0, 1.5, math.inf, -math.inf])
def test_floating_point_numbers_are_little_endian(number: float) -> None:
    assert binary.encode_float(number) == struct.pack("<f", number)
    assert binary.encode_double(number) == struct.pack("<d", number)


def test_a_float_beyond_single_precision_overflows() -> None:
    with pytest.raises(OverflowError):
        binary.encode_float(1e39)


@pytest.mark.parametrize(
    ("unscaled", "data"),
    [
        (0, "0200"),
        (1, "0201"),
        (-1, "02ff"),
        (127, "027f"),
        (128, "040080"),
        (-128, "0280"),
        (-129, "04ff7f"),
        (32767, "047fff"),
        (32768, "06008000"),
        (-32768, "048000"),
        (10**38 - 1, "20" + f"{10**38 - 1:032x}"),
        (-(10**38) + 1, "20" + f"{2**128 - 10**38 + 1:032x}"),
    ],
)
def test_an_unscaled_value_takes_as_few_bytes_as_it_can(unscaled: int, data: str) -> None:
    assert binary.encode_unscaled(unscaled).hex() == data


def test_arrays_and_maps_are_one_block() -> None:
    assert binary.encode_array([]) == b"\x00"
    assert binary.encode_array([b"\x06", b"\x36"]) == b"\x04\x06\x36\x00"  # the example [3, 27] of the specification


def test_the_epoch_of_postgresql_is_the_year_2000() -> None:
    epoch = datetime(2000, 1, 1, tzinfo=UTC)
    assert epoch.timestamp() * 1_000_000 == binary.POSTGRES_EPOCH_US
