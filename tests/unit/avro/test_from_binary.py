"""Unit tests of pgsluice.avro.from_binary.

For a binary value, the module must write the same bytes as for the value's text.
"""

import pytest

from pgsluice.avro.choices import Choice, ColumnChoice
from pgsluice.avro.from_binary import binary_writer
from pgsluice.avro.types import ColumnType, Misfit, TypeOptions, column_type, key_type, widened
from pgsluice.pgbinary.base import UNREAD
from pgsluice.pgbinary.conversions import BUILT_IN, TypeDescription, conversions
from pgsluice.relation import CATALOG, Column, PgType, Relation

FULL = TypeOptions(time_range="full")
COMMON = TypeOptions()


def column(name: str, typmod: int = -1) -> Column:
    return Column("c", PgType(0, CATALOG, name), typmod, is_key=False)


def decimal(precision: int, scale: int) -> Column:
    return column("numeric", (precision << 16 | scale) + 4)


def same_as_text(kind: ColumnType, name: str, sent: str) -> bool:
    """Return whether the value fits. Check that its text has the same result, and the same encoded bytes."""
    value, to_text = bytes.fromhex(sent), BUILT_IN[name]
    try:
        body = kind.write(to_text(value))
    except Misfit:
        with pytest.raises(Misfit):
            binary_writer(kind, to_text)(value)
        return False
    assert binary_writer(kind, to_text)(value) == body
    return True


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("bool", "00"),
        ("bool", "01"),
        ("int2", "8000"),
        ("int4", "7fffffff"),
        ("int8", "8000000000000000"),
        ("oid", "ffffffff"),
        ("xid", "00000003"),
        ("float4", "3f8ccccd"),
        ("float4", "ffc00001"),
        ("float4", "80000000"),
        ("float8", "3fb999999999999a"),
        ("float8", "fff8000000000001"),
        ("float8", "7ff0000000000000"),
        ("text", "c3bc"),
        ("bytea", "00ff"),
        ("uuid", "123e4567e89b12d3a456426614174000"),
        ("date", "00002279"),
        ("time", "0000000a8be4ca60"),
        ("timestamp", "0002b58341728608"),
        ("timestamptz", "0002b58341667c00"),
        ("jsonb", "017b7d"),
        ("numeric", "000200004000000200011388"),
        ("_int4", "000000000000000000000017"),
        ("_int4", "0000000100000000000000170000000000000000"),
        ("_int4", "00000001000000010000001700000002000000010000000400000001ffffffff"),
    ],
)
def test_values_that_fit_are_encoded_like_their_text(name: str, sent: str) -> None:
    for options in (COMMON, FULL):
        assert same_as_text(column_type(column(name), options), name, sent)
        assert same_as_text(key_type(column(name), options), name, sent)


@pytest.mark.parametrize(
    ("name", "sent", "fits_full", "fits_key"),
    [
        ("date", "7fffffff", False, True),
        ("date", "80000000", False, True),
        ("date", "fff49d7b", True, True),
        ("time", "000000141dd76000", True, True),
        ("timestamp", "7fffffffffffffff", False, True),
        ("timestamp", "ff1fe2ffc59c5fff", True, True),
        ("timestamptz", "8000000000000000", False, True),
        ("timestamptz", "ff1af9e8fb46d000", True, True),
        ("_int4", "0000000100000000000000170000000100000000" + "0000000400000001", False, False),
        ("_int4", "0000000200000000000000170000000100000001" + "0000000100000001" + "0000000400000001", False, False),
    ],
)
def test_values_that_do_not_fit_are_refused_like_their_text(
    name: str, sent: str, *, fits_full: bool, fits_key: bool
) -> None:
    assert not same_as_text(column_type(column(name), COMMON), name, sent)
    assert same_as_text(column_type(column(name), FULL), name, sent) is fits_full
    assert same_as_text(key_type(column(name), FULL), name, sent) is fits_key


@pytest.mark.parametrize(
    ("sent", "fits"),
    [
        ("000200004000000200011388", True),  # -1.50
        ("0000000000000002", True),  # 0.00
        ("00010001000000000001", True),  # 10000
        ("000100010000000003e7", True),  # 9990000
        ("00010005000000000001", False),  # 1e20
        ("0001fffe0000000804d2", False),  # 0.00001234
        ("0001ffff0000000203e8", True),  # 0.10
        ("00000000c0000000", False),
        ("0001000100000000270f", False),  # 99990000
        ("00020001000000020000270f", True),  # a leading zero
        ("0001ffff0000000203ec", True),  # one digit is beyond the scale of the value
        ("0001ffff0000000103e8", True),  # fewer digits than the column's scale
    ],
)
def test_decimals_are_encoded_like_their_text(sent: str, *, fits: bool) -> None:
    assert same_as_text(column_type(decimal(9, 2), COMMON), "numeric", sent) is fits


@pytest.mark.parametrize(
    "sent", ["0002000000000002000a", "0001000080000002000a", "0001000000004002000a", "00010000000000022710"]
)
def test_malformed_decimals_are_refused(sent: str) -> None:
    with pytest.raises(UNREAD):
        binary_writer(column_type(decimal(9, 2), COMMON), BUILT_IN["numeric"])(bytes.fromhex(sent))


def test_fields_may_be_wider_than_their_column() -> None:
    for name, schema, sent in (
        ("int4", "long", "80000000"),
        ("int4", "double", "80000000"),
        ("float4", "double", "3f8ccccd"),
    ):
        assert same_as_text(widened(column_type(column(name), COMMON), schema), name, sent)


@pytest.mark.parametrize(
    ("name", "send", "sent"),
    [
        ("hstore", "hstore_send", "0000000200000001610000000131000000046222635cffffffff"),
        ("hstore", "hstore_send", "00000000"),
        ("vector", "vector_send", "000200003f8000003dcccccd"),
    ],
)
def test_types_of_extensions_are_encoded_like_their_text(name: str, send: str, sent: str) -> None:
    found = Column("c", PgType(16_400, "public", name), -1, is_key=False)
    relation = Relation(16_385, "public", "orders", "d", (found,))
    (to_text,) = conversions(relation, [TypeDescription(16_400, "public", name, send)])
    kind, value = column_type(found, COMMON), bytes.fromhex(sent)
    assert binary_writer(kind, to_text)(value) == kind.write(to_text(value))


@pytest.mark.parametrize(
    ("name", "sent"), [("bool", "02"), ("int4", "00"), ("time", "ffffffffffffffff"), ("_int4", "00"), ("uuid", "00")]
)
def test_bytes_that_no_send_function_writes_are_malformed(name: str, sent: str) -> None:
    with pytest.raises(UNREAD):
        binary_writer(column_type(column(name), COMMON), BUILT_IN[name])(bytes.fromhex(sent))


@pytest.mark.parametrize(
    ("name", "choice", "sent", "fits"),
    [
        ("time", "time-millis", "0000000a8be4ca61", False),
        ("time", "time-millis", "000000000000" + "03e8", True),
        ("timestamp", "timestamp-millis", "0002b58341667c00", True),
        ("timestamp", "timestamp-millis", "0002b58341667c01", False),
        ("timestamptz", "timestamp-millis", "0002b58341667c01", False),
        ("timestamptz", "timestamp-millis", "7fffffffffffffff", False),
        ("numeric", "double", "000200004000000200011388", True),
        ("numeric", "long", "00010001000000000001", True),
        ("numeric", "long", "000200004000000200011388", False),
        ("int4", "long", "80000000", True),
        ("int4", "string", "80000000", True),
        ("_int4", "string", "000000000000000000000017", True),
        ("interval", "interval-micros", "0000000000000001" + "00000001" + "00000000", True),
        ("interval", "interval-micros", "0000000000000001" + "00000001" + "00000001", False),
    ],
)
def test_chosen_types_are_encoded_like_their_text(name: str, choice: str, sent: str, *, fits: bool) -> None:
    options = TypeOptions(choices=(ColumnChoice("c", Choice.parse(choice)),))
    assert same_as_text(column_type(column(name), options), name, sent) is fits
