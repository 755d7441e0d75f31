"""Unit tests of pgsluice.avro.text, which converts PostgreSQL's text to Avro's bytes, or raises Misfit."""

import struct

import pytest

from pgsluice.avro import text
from pgsluice.avro.binary import encode_array, encode_bytes
from pgsluice.avro.text import Misfit, Writer

INT = text.integer(-(2**31), 2**31 - 1)
LONG = text.integer(-(2**63), 2**63 - 1)


def refuses(write: Writer, value: bytes) -> bool:
    try:
        write(value)
    except Misfit as misfit:
        return not misfit.args  # the error must not contain the value, because it may be logged
    return False


def test_booleans_are_read() -> None:
    assert text.boolean(b"t") == b"\x01"
    assert text.boolean(b"f") == b"\x00"


@pytest.mark.parametrize("value", [b"", b"true", b"T", b"1", b"\xff"])
def test_other_words_are_not_booleans(value: bytes) -> None:
    assert refuses(text.boolean, value)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (b"0", "00"),
        (b"-1", "01"),
        (b"63", "7e"),
        (b"999999999", "fea7d6b907"),
        (b"1000000000", "80a8d6b907"),
        (b"2147483647", "feffffff0f"),
        (b"-2147483648", "ffffffff0f"),
    ],
)
def test_integers_are_read(value: bytes, data: str) -> None:
    assert INT(value).hex() == LONG(value).hex() == data


@pytest.mark.parametrize("value", [b"2147483648", b"-2147483649", b"9999999999", b"99999999999"])
def test_integers_beyond_32_bits_fit_only_a_long(value: bytes) -> None:
    assert refuses(INT, value)
    assert not refuses(LONG, value)


@pytest.mark.parametrize("value", [b"9223372036854775808", b"-9223372036854775809", b"9" * 10_000])
def test_integers_beyond_64_bits_fit_nothing(value: bytes) -> None:
    assert refuses(LONG, value)


@pytest.mark.parametrize("value", [b"", b"-", b"+1", b" 1", b"1 ", b"1_0", b"1.0", b"1e3", b"--1", b"\xb2", b"0x1"])
def test_only_texts_that_postgresql_writes_are_integers(value: bytes) -> None:
    assert refuses(INT, value)


@pytest.mark.parametrize(
    ("value", "unscaled"),
    [
        (b"0.00", 0),
        (b"12.30", 1230),
        (b"-12.30", -1230),
        (b"-0.01", -1),
        (b"99999999.99", 9_999_999_999),
        (b"-99999999.99", -9_999_999_999),
        (b"5", 500),  # fewer digits than the scale
        (b"5.1", 510),
        (b"5.1000000", 510),  # more digits, but all of them zero
    ],
)
def test_decimals_are_exact(value: bytes, unscaled: int) -> None:
    data = text.decimal(10, 2)(value)
    assert data[0] == 2 * (len(data) - 1)
    assert int.from_bytes(data[1:], "big", signed=True) == unscaled


@pytest.mark.parametrize(
    "value",
    [
        b"100000000.00",  # one digit too many before the decimal point
        b"-100000000.00",
        b"0.001",  # one digit too many after the decimal point
        b"1" * 10_000 + b".00",
        b"0." + b"1" * 10_000,
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"",
        b".",
        b"-",
        b"5.",
        b".5",
        b"-.5",
        b"1.2.3",
        b"1,50",
        b"1.-5",
        b"1e5",
    ],
)
def test_values_that_a_decimal_cannot_hold(value: bytes) -> None:
    assert refuses(text.decimal(10, 2), value)


def test_a_decimal_may_have_no_integer_part() -> None:
    write = text.decimal(5, 5)
    assert write(b"0.00012") == b"\x02\x0c"
    assert write(b"-0.99999") == b"\x06" + (-99999).to_bytes(3, "big", signed=True)
    assert refuses(write, b"1.00000")


def test_a_decimal_of_scale_0_has_no_fraction() -> None:
    write = text.decimal(5, 0)
    assert write(b"12300") == b"\x04" + (12300).to_bytes(2, "big")
    assert write(b"7.000") == b"\x02\x07"
    assert refuses(write, b"7.5")


def test_decimals_may_have_38_digits() -> None:
    write = text.decimal(38, 0)
    assert write(b"9" * 38) == b"\x20" + (10**38 - 1).to_bytes(16, "big")
    assert write(b"-" + b"9" * 38) == b"\x20" + (1 - 10**38).to_bytes(16, "big", signed=True)
    assert refuses(write, b"1" + b"0" * 38)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (b"0", 0.0),
        (b"-0", -0.0),
        (b"0.1", 0.1),
        (b"1e+308", 1e308),
        (b"-2.2250738585072014e-308", -2.2250738585072014e-308),
        (b"5e-324", 5e-324),
        (b"0.10000000000000001", 0.1),  # PostgreSQL 11 and older
        (b"12", 12.0),  # an integer column that was changed to double precision later
        (b"Infinity", float("inf")),
        (b"-Infinity", float("-inf")),
    ],
)
def test_float8_is_read(value: bytes, number: float) -> None:
    assert text.float8(value) == struct.pack("<d", number)


def test_nan_is_read() -> None:
    assert struct.unpack("<d", text.float8(b"NaN"))[0] != 0
    assert text.float4(b"NaN") == struct.pack("<f", float("nan"))


@pytest.mark.parametrize(
    "value",
    [b"", b"nan", b"inf", b"infinity", b"+Infinity", b"1e", b"1_0", b" 1", b"1e400", b"-1e400", b".", b"0x1p3", b"--1"],
)
def test_texts_that_are_not_floats(value: bytes) -> None:
    assert refuses(text.float8, value)
    assert refuses(text.float4, value)


# In the first five cases, the double that is nearest to the text is exactly halfway between two singles, so the digits
# of the text have to decide. Except in the fourth case, rounding twice, first to a double and then to a single, would
# give a wrong result.
@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (b"7.038531e-26", 0x15AE43FD),
        (b"7.038531e-26".replace(b"31e", b"310000000000000000000001e"), 0x15AE43FD),
        (b"1.00000017881393432617187499", 0x3F800001),
        (b"1.00000017881393432617187501", 0x3F800002),
        (b"-1.00000017881393432617187499", 0xBF800001),
        (b"1.000000178813934326171875", 0x3F800002),  # exactly halfway between two singles, so it is rounded to even
        (b"0.1", 0x3DCCCCCD),
        (b"1.5", 0x3FC00000),
        (b"16777216", 0x4B800000),
        (b"3.4028235e+38", 0x7F7FFFFF),
        (b"1e-45", 1),
        (b"1.1754944e-38", 0x00800000),
        (b"-0", 0x80000000),
        (b"Infinity", 0x7F800000),
    ],
)
def test_float4_is_the_single_nearest_to_the_text(value: bytes, bits: int) -> None:
    assert text.float4(value) == bits.to_bytes(4, "little")
    assert text.float4_as_double(value) == struct.pack("<d", *struct.unpack("<f", bits.to_bytes(4, "little")))


@pytest.mark.parametrize("value", [b"3.4028236e38", b"3.40282354e38", b"1e39", b"-1e39"])
def test_values_that_single_precision_cannot_hold(value: bytes) -> None:
    assert refuses(text.float4, value)


def test_uuids_are_read() -> None:
    value = b"123e4567-e89b-12d3-a456-426614174000"
    assert text.uuid(value) == b"\x48" + value


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"123e4567-e89b-12d3-a456-42661417400",
        b"123e4567-e89b-12d3-a456-4266141740000",
        b"123E4567-e89b-12d3-a456-426614174000",
        b"123e45678-89b-12d3-a456-426614174000",
        b"-23e4567-e89b-12d3-a456-426614174000",
        b"{23e4567-e89b-12d3-a456-42661417400}",
        b"123e4567e89b12d3a456426614174000",
    ],
)
def test_texts_that_are_not_uuids(value: bytes) -> None:
    assert refuses(text.uuid, value)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (b"\\x", b""),
        (b"\\x00ff5c", b"\x00\xff\\"),
        (b"", b""),  # from here on: the escape format
        (b"abc ~", b"abc ~"),
        (b"\\000\\377a\\\\b\\134", b"\x00\xffa\\b\\"),
        (b"\\\\x00", b"\\x00"),
    ],
)
def test_bytea_is_read_in_both_formats(value: bytes, data: bytes) -> None:
    assert text.bytea(value) == bytes((2 * len(data),)) + data


@pytest.mark.parametrize("value", [b"\\x0", b"\\xzz", b"\\x 00", b"\\", b"\\12", b"\\400", b"\\z", b"a\n", b"\xff"])
def test_texts_that_are_not_bytea(value: bytes) -> None:
    assert refuses(text.bytea, value)


STRINGS = text.array(encode_bytes)
INTS = text.array(INT)


@pytest.mark.parametrize(
    ("value", "items"),
    [
        (b"{}", []),
        (b"{a}", [b"a"]),
        (b"{a,NULL,b}", [b"a", None, b"b"]),
        (b'{"NULL","null",""}', [b"NULL", b"null", b""]),
        (b'{"a,b",c,"{}"}', [b"a,b", b"c", b"{}"]),
        (b'{"a\\"b","\\\\",x}', [b'a"b', b"\\", b"x"]),
        (b'{"two\nlines"," ",NULL}', [b"two\nlines", b" ", None]),
        ("{é,ß}".encode(), ["é".encode(), "ß".encode()]),
        (b'{"\\x00ff"}', [b"x00ff"]),
    ],
)
def test_arrays_are_read(value: bytes, items: list[bytes | None]) -> None:
    encoded = [b"\x00" if item is None else b"\x02" + encode_bytes(item) for item in items]
    expected = encode_array(encoded)
    assert STRINGS(value) == expected


def test_arrays_of_numbers_are_read() -> None:
    assert INTS(b"{3,NULL,-1}") == bytes.fromhex("06 0206 00 0201 00")
    assert INTS(b'{"3"}') == bytes.fromhex("02 0206 00")


def test_arrays_may_have_another_delimiter() -> None:
    boxes = text.array(encode_bytes, b";")
    assert boxes(b"{(1,1),(0,0);(2,2),(1,1)}") == b"\x04\x02\x16(1,1),(0,0)\x02\x16(2,2),(1,1)\x00"
    assert boxes(b'{"a;b";c}') == b"\x04\x02\x06a;b\x02\x02c\x00"


@pytest.mark.parametrize(
    "value",
    [
        b"{{1,2},{3,4}}",  # two dimensions
        b"[0:1]={1,2}",  # another lower bound
        b"",
        b"{",
        b"}",
        b"{}}",
        b"{a",
        b"a}",
        b"{,}",
        b"{a,}",
        b"{,a}",
        b"{a b}",
        b"{a\\b}",
        b'{"a}',
        b'{"a\\"}',
        b'{"a"b}',
        b'{"a",}',
        b'{"a" ,b}',
        b"{1,2}{3}",
    ],
)
def test_other_texts_are_not_arrays(value: bytes) -> None:
    assert refuses(STRINGS, value)
    assert refuses(INTS, value)


def test_an_array_with_an_item_that_does_not_fit_does_not_fit() -> None:
    assert refuses(INTS, b"{1,x}")
    assert refuses(INTS, b'{1,"x"}')


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (b"", b"\x00"),
        (b'"a"=>"1"', b"\x02\x02a\x02\x021\x00"),
        (b'"a"=>NULL, "b"=>"NULL"', b"\x04\x02a\x00\x02b\x02\x08NULL\x00"),
        (b'""=>""', b"\x02\x00\x02\x00\x00"),
        (b'"a\\"=>\\\\"=>"x, \\"y\\""', b'\x02\x0aa"=>\\\x02\x0cx, "y"\x00'),
    ],
)
def test_hstore_is_read(value: bytes, data: bytes) -> None:
    assert text.hstore(value) == data


@pytest.mark.parametrize(
    "value", [b"a=>1", b'"a"', b'"a"=>', b'"a"=>1', b'"a"=>"1",', b'"a"=>"1", ', b'"a"=>"1","b"=>"2"', b'"a"=>"1" ']
)
def test_texts_that_are_not_hstore(value: bytes) -> None:
    assert refuses(text.hstore, value)


def test_vectors_are_read() -> None:
    assert text.vector(b"[1,-2.5,0.1]") == b"\x06" + struct.pack("<3f", 1, -2.5, 0.1) + b"\x00"


@pytest.mark.parametrize("value", [b"", b"[", b"[]", b"[1,]", b"1,2", b"[1,x]", b"[1 ,2]", b"{1:1}/3"])
def test_texts_that_are_not_vectors(value: bytes) -> None:
    assert refuses(text.vector, value)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (b"0", 0.0),
        (b"-1.50", -1.5),
        (b"0.1", 0.1),
        (b"123456789012345", 123456789012345.0),
        (b"9007199254740992", 9007199254740992.0),
        (b"9007199254740994", 9007199254740994.0),
        (b"0.30000000000000004", 0.30000000000000004),
        (b"1" + b"0" * 300, 1e300),
        (b"Infinity", float("inf")),
        (b"-Infinity", float("-inf")),
    ],
)
def test_numbers_that_a_double_represents_exactly_are_read(value: bytes, number: float) -> None:
    assert text.numeric_as_double(value) == struct.pack("<d", number)


def test_nan_is_a_double() -> None:
    assert text.numeric_as_double(b"NaN") == struct.pack("<d", float("nan"))


@pytest.mark.parametrize(
    "value",
    [
        *(b"12345678901234567890.001", b"0.1000000000000000055511151231257827", b"1234567890.123456789"),
        *(b"0." + b"0" * 400 + b"1", b"9" * 400, b"x", b""),
        *(b"9007199254740993", b"9999999999999999", b"-9007199254740993", b"900719925474099.3"),
    ],
)
def test_numbers_that_a_double_would_round_are_refused(value: bytes) -> None:
    assert refuses(text.numeric_as_double, value)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        *((b"", b""), (b"x", b"x"), (b"\\377", b"\\377"), (b"\xc3", b"\\303")),
        *(("ü".encode(), "ü".encode()), (b"(\xc3)", b'("\\\\303")')),
    ],
)
def test_a_char_beyond_ascii_is_octal(value: bytes, found: bytes) -> None:
    assert text.checked_string(value) == encode_bytes(found)


def test_chars_beyond_ascii_are_read_in_arrays() -> None:
    assert text.utf8(b"{{a,\xc3\xbc}}") == b"{{a,\xc3\xbc}}"
    assert text.utf8(b"{{a,\xc3},{\xff,b}}") == b'{{a,"\\\\303"},{"\\\\377",b}}'
