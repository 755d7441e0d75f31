"""Unit tests of pgsluice.avro.encoder. fastavro reads the encoded records back."""

import io
from collections.abc import Sequence
from typing import Any

import fastavro
import pytest

from pgsluice.avro.encoder import FormerKey, KeyEncoder, RowEncoder
from pgsluice.avro.schema import TableFields, key_fields, key_schema, value_schema
from pgsluice.avro.types import TypeOptions
from pgsluice.avro.wire import header
from pgsluice.errors import NotInBinary, NullKey, PoisonError, ProtocolError, TypeChanged
from pgsluice.pgbinary.conversions import TypeDescription, conversions
from pgsluice.pgoutput.messages import UNCHANGED, BinaryValue, ColumnValue
from pgsluice.relation import CATALOG, Column, PgType, Relation

OPTIONS = TypeOptions()


def column(name: str, type_name: str, *, is_key: bool = False) -> Column:
    return Column(name, PgType(0, CATALOG, type_name), typmod=-1, is_key=is_key)


TABLE = Relation(
    16385,
    "public",
    "orders",
    "d",
    (column("id", "int8", is_key=True), column("Größe", "text"), column("day", "date", is_key=True)),
)
FIELDS = TableFields(OPTIONS).assign(TABLE)
GROESSE = b"Gr_x00F6__x00DF_e"


class Row:
    """An encoded row, and its content as fastavro reads it."""

    def __init__(self, values: Sequence[ColumnValue], *, key_image: bool = False) -> None:
        encoder = RowEncoder(TABLE, FIELDS)
        self.unchanged: list[bytes] = []
        self.raw: list[tuple[bytes, bytes]] = []
        encode = encoder.encode_key_image if key_image else encoder.encode
        self.body = encode(list(values), self.unchanged, self.raw)
        stream = io.BytesIO(self.body)
        read: Any = fastavro.schemaless_reader(stream, value_schema("a.b.c", FIELDS), None)
        assert not stream.read(1)
        self.values = [None if value is None else str(value) for value in read.values()]


def encode_key(values: Sequence[ColumnValue], key: Sequence[str] = ("id", "day")) -> bytes:
    return KeyEncoder(TABLE, key_fields(TABLE, FIELDS, key, OPTIONS)).encode(list(values))


def test_a_row_is_encoded_in_the_order_of_its_columns() -> None:
    row = Row([b"7", "größer".encode(), b"2024-02-29"])
    assert row.body == bytes.fromhex("02 0e") + b"\x02\x10" + "größer".encode() + bytes.fromhex("02 8cb502")
    assert row.values == ["7", "größer", "2024-02-29"]
    assert (row.unchanged, row.raw) == ([], [])


def test_nulls_take_one_byte_each() -> None:
    row = Row([None, None, None])
    assert row.body == bytes(3)
    assert row.values == [None, None, None]
    assert (row.unchanged, row.raw) == ([], [])


def test_a_value_that_was_not_sent_is_named_as_unchanged() -> None:
    row = Row([b"7", UNCHANGED, None])
    assert row.values == ["7", None, None]
    assert (row.unchanged, row.raw) == ([GROESSE], [])


def test_a_value_that_does_not_fit_is_kept_as_text() -> None:
    row = Row([b"x", UNCHANGED, b"infinity"])
    assert row.values == [None, None, None]
    assert (row.unchanged, row.raw) == ([GROESSE], [(b"id", b"x"), (b"day", b"infinity")])


def test_reported_values_are_appended() -> None:
    unchanged, raw = [b"a"], [(b"b", b"c")]
    RowEncoder(TABLE, FIELDS).encode([b"x", UNCHANGED, None], unchanged, raw)
    assert (unchanged, raw) == ([b"a", GROESSE], [(b"b", b"c"), (b"id", b"x")])


def test_only_the_identity_columns_of_a_key_image_are_read() -> None:
    row = Row([b"7", b"filler", b"infinity"], key_image=True)
    assert row.values == ["7", None, None]
    assert (row.unchanged, row.raw) == ([], [(b"day", b"infinity")])
    assert Row([b"7", BinaryValue(b"filler"), UNCHANGED], key_image=True).unchanged == [b"day"]


def test_a_table_without_columns_has_an_empty_row() -> None:
    table = Relation(1, "public", "nothing", "n", ())
    assert RowEncoder(table, ()).encode([], [], []) == b""


@pytest.mark.parametrize("values", [[], [b"7"], [b"7", b"x", None, None]])
def test_a_row_must_have_a_value_for_every_column(values: list[ColumnValue]) -> None:
    expectation = rf"row of table public\.orders with {len(values)} values \(expected 3,"
    for encode in (Row, lambda values: Row(values, key_image=True), encode_key):
        with pytest.raises(ProtocolError, match=expectation):
            encode(values)


def test_unrequested_binary_values_are_a_protocol_error() -> None:
    values: list[ColumnValue] = [BinaryValue(bytes(8)), BinaryValue(b"x"), None]
    for encode in (Row, lambda values: Row(values, key_image=True), encode_key):
        with pytest.raises(ProtocolError, match=r"public\.orders: column id came in binary format"):
            encode(values)
    with pytest.raises(ProtocolError, match=r"column Größe came in binary format"):
        Row([b"7", BinaryValue(b"x"), None])


SENT = conversions(TABLE, [])
BINARY_ROW = [BinaryValue.fromhex("0000000000000007"), BinaryValue("größer".encode()), BinaryValue.fromhex("00002279")]
"""The row of ``test_a_row_is_encoded_in_the_order_of_its_columns`` in binary format."""


def encode_binary(values: Sequence[ColumnValue]) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    unchanged: list[bytes] = []
    raw: list[tuple[bytes, bytes]] = []
    body = RowEncoder(TABLE, FIELDS, SENT).encode(list(values), unchanged, raw)
    assert unchanged == []
    return body, raw


def encode_binary_key(values: Sequence[ColumnValue]) -> bytes:
    return KeyEncoder(TABLE, key_fields(TABLE, FIELDS, ("id", "day"), OPTIONS), SENT).encode(list(values))


def test_binary_values_give_what_their_text_gives() -> None:
    texts: list[ColumnValue] = [b"7", "größer".encode(), b"2024-02-29"]
    assert encode_binary(BINARY_ROW) == (Row(texts).body, [])
    assert encode_binary([texts[0], BINARY_ROW[1], None]) == (Row([*texts[:2], None]).body, [])
    assert encode_binary_key(BINARY_ROW) == encode_key(texts)


def test_the_conversions_of_binary_values_are_known() -> None:
    key = key_fields(TABLE, FIELDS, ("day",), OPTIONS)
    assert RowEncoder(TABLE, FIELDS, SENT).sent == SENT
    assert KeyEncoder(TABLE, key, SENT).sent == SENT[2:]
    assert (RowEncoder(TABLE, FIELDS).sent, KeyEncoder(TABLE, key).sent) == ([None] * 3, [None])


def test_a_binary_value_that_does_not_fit_is_kept_as_text() -> None:
    infinity = BinaryValue.fromhex("7fffffff")
    assert encode_binary([None, None, infinity]) == (bytes(3), [(b"day", b"infinity")])
    assert encode_binary_key([b"7", None, infinity]) == encode_key([b"7", None, b"infinity"])
    with pytest.raises(PoisonError, match="key column day has a value outside its Avro type"):
        encode_binary_key([b"7", None, BinaryValue.fromhex("fff49d7b")])


def test_a_binary_value_that_is_malformed_is_a_protocol_error() -> None:
    for encode in (encode_binary, encode_binary_key):
        with pytest.raises(ProtocolError, match=r"^row of table public\.orders: binary value of column id: .* 8 bytes"):
            encode([BinaryValue(b"x"), BinaryValue(b"x"), BinaryValue(b"x")])


def test_malformed_bytes_are_refused_even_if_the_value_is_kept_as_text() -> None:
    """The first item, infinity, does not fit, so the value is kept as text. The second item is malformed."""
    relation = Relation(1, "public", "t", "n", (column("a", "_date"),))
    encoder = RowEncoder(relation, TableFields(OPTIONS).assign(relation), conversions(relation, []))
    array = "00000001 00000000 0000043a 00000002 00000001 00000004 7fffffff 00000003 000000"
    with pytest.raises(ProtocolError, match=r"binary value of column a: .* 4 bytes"):
        encoder.encode([BinaryValue.fromhex(array)], [], [])


def test_a_binary_value_of_an_unknown_type_has_to_come_as_text() -> None:
    relation = Relation(
        1, "public", "places", "n", (Column("place", PgType(16_400, "gis", "geometry"), -1, is_key=False),)
    )
    described = [TypeDescription(16_400, "gis", "geometry", "geometry_send")]
    encoder = RowEncoder(relation, TableFields(OPTIONS).assign(relation), conversions(relation, described))
    assert encoder.encode([None], [], []) == b"\0"
    with pytest.raises(NotInBinary) as again:
        encoder.encode([BinaryValue(b"secret")], [], [])
    assert str(again.value) == (
        "Table public.places: column place of type gis.geometry came in binary format, but the binary format of"
        " gis.geometry is not known."
    )


def test_after_an_unknown_attribute_type_the_catalog_is_read_again() -> None:
    relation = Relation(1, "public", "t", "n", (Column("a", PgType(16_400, "public", "pair"), -1, is_key=False),))
    described = [TypeDescription(16_400, "public", "pair", "record_send", (23,))]
    encoder = RowEncoder(relation, TableFields(OPTIONS).assign(relation), conversions(relation, described))
    with pytest.raises(TypeChanged) as again:
        encoder.encode([BinaryValue.fromhex("00000001 00004010 00000003 736164")], [], [])
    assert str(again.value) == (
        "Table public.t: column a of type public.pair came in binary format, but the composite had no attribute of "
        "type 16400 when the catalog was read."
    )


def test_a_key_has_only_the_key_columns() -> None:
    body = encode_key([b"7", None, b"2024-02-29"])
    assert body == bytes.fromhex("0e 8cb502")
    schema = key_schema("a.b.c", key_fields(TABLE, FIELDS, ("id", "day"), OPTIONS))
    read: Any = fastavro.schemaless_reader(io.BytesIO(body), schema, None)
    assert read["id"] == 7
    assert str(read["day"]) == "2024-02-29"


def test_a_key_can_hold_infinities() -> None:
    assert encode_key([b"7", None, b"-infinity"]) == bytes.fromhex("0e ffffffff0f")


def test_any_columns_may_be_the_key() -> None:
    assert encode_key([b"7", b"x", None], key=["Größe"]) == b"\x02x"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([None, None, b"2024-02-29"], "key column id is null"),
        ([b"7", None, UNCHANGED], r"the value of key column day was not sent \(unchanged, out of line\)"),
        (
            [b"7", None, b"0044-03-15 BC"],
            r'key column day has a value outside its Avro type \{"logicalType":"date","type":"int"\}',
        ),
    ],
)
def test_a_key_that_avro_cannot_hold_is_poison(values: list[ColumnValue], reason: str) -> None:
    with pytest.raises(PoisonError, match=rf"^{reason}$") as poison:
        encode_key(values)
    assert "0044" not in str(poison.value)
    assert poison.value.__cause__ is None


def test_a_row_from_before_the_primary_key_has_the_former_key() -> None:
    encoder = KeyEncoder(TABLE, key_fields(TABLE, FIELDS, ("id",), OPTIONS))
    row: list[ColumnValue] = [None] * len(TABLE.columns)
    with pytest.raises(NullKey):
        encoder.encode(row)
    assert FormerKey(7, None).encode(row) is None
    assert FormerKey(7, encoder).encode(row) is None
    with pytest.raises(NullKey, match="is null"):
        FormerKey(7, encoder, is_optional=False).encode(row)
    row = [b"1"] * len(TABLE.columns)
    assert FormerKey(7, encoder, is_optional=False).encode(row) == header(7) + encoder.encode(row)
