"""Properties of values in binary format.

Any bytes cause only documented errors. Encoding a value directly gives the same result as encoding its text.
"""

from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pgsluice.avro.encoder import RowEncoder
from pgsluice.avro.schema import TableFields
from pgsluice.avro.types import TypeOptions
from pgsluice.errors import ProtocolError, TypeChanged
from pgsluice.pgbinary.base import ToText
from pgsluice.pgbinary.conversions import BUILT_IN, TypeDescription, conversions
from pgsluice.pgbinary.numbers import float4_text, float8_text
from pgsluice.pgoutput.messages import BinaryValue
from pgsluice.relation import CATALOG, Column, PgType, Relation
from tests.support.avro_oracle import nearest_single, numeric, same

# Values as PostgreSQL's send functions write them. Mutations start from these.
ARRAY = "00000001 00000001 00000017 00000002 00000001 00000004 00000007 ffffffff"
POINTS = "00000002 3ff0000000000000 4000000000000000 4008000000000000 4010000000000000"
QUERY = "00000005 0204 0001 01000063 00 0203 0101000062 00 0100006100"
SEEDS = {
    "bool": "01",
    "int4": "00000007",
    "int8": "0000000000000007",
    "float4": "3f8ccccd",
    "float8": "3fb999999999999a",
    "numeric": "0002 0000 4000 0002 0001 1388",
    "money": "fffffffff8a43312",
    "text": "616263",
    "char": "78",
    "bytea": "00ff",
    "uuid": "123e4567e89b12d3a456426614174000",
    "jsonb": "017b7d",
    "date": "00002279",
    "time": "0000000a8be4ca60",
    "timetz": "0000000a8bda1c00 ffffb2a8",
    "timestamp": "0002b58341728608",
    "timestamptz": "7fffffffffffffff",
    "interval": "000000036c97ca88 fffffffd 0000000e",
    "bit": "00000009 5500",
    "inet": "03400010 0001 0000 0000 0002 0000 0000 0000 0003",
    "cidr": "02080104 0a000000",
    "macaddr": "08002b010203",
    "pg_lsn": "00000016b374d848",
    "tid": "000000070003",
    "pg_snapshot": "00000001 000000000000000a 0000000000000014 000000000000000a",
    "point": "3ff8000000000000 c000000000000000",
    "path": f"01 {POINTS}",
    "polygon": POINTS,
    "tsvector": "00000002 6100 0002 c001 8002 6200 0000",
    "tsquery": QUERY,
    "int2vector": "00000001 00000000 00000015 00000001 00000000 00000002 0007",
    "int4range": "02 00000004 00000001 00000004 00000005",
    "int4multirange": "00000001 00000011 02 00000004 00000001 00000004 00000005",
    "_int4": ARRAY,
    "_text": "00000002 00000000 00000019 00000001 00000001 00000002 00000001 00000000 00000001 78",
    "_date": "00000001 00000000 0000043a 00000001 00000001 00000004 7fffffff",
    "_int4range": "00000001 00000000 00000f40 00000001 00000001 00000001 01",
    "hstore": "00000002 00000001 61 00000001 31 00000001 62 ffffffff",
    "cube": "00000001 3ff8000000000000 3ff8000000000000",
    "vector": "0001 0000 3f800000",
    "pair": "00000003 00000017 00000004 00000007 00000019 ffffffff 00004005 00000003 736164",
}
DESCRIBED = [
    TypeDescription(16_400, "public", "hstore", "hstore_send"),
    TypeDescription(16_401, "public", "cube", "cube_send"),
    TypeDescription(16_402, "public", "vector", "vector_send"),
    TypeDescription(16_403, "public", "pair", "record_send", (23, 25, 16_389)),
    TypeDescription(16_389, "public", "mood", "enum_send"),
]
OIDS = {description.name.removeprefix("public."): description.oid for description in DESCRIBED}
OPTIONS = (TypeOptions(), TypeOptions(numeric=(38, 9), time_range="full"))
TYPMODS = {"numeric": (-1, numeric(10, 2)[1])}


@cache
def encoders(name: str) -> list[tuple[RowEncoder, ToText]]:
    """Return encoders of rows with one column of the type ``name``, each with the conversion to text that it uses."""
    pg_type = PgType(OIDS[name], "public", name) if name in OIDS else PgType(0, CATALOG, name)
    found = []
    for typmod in TYPMODS.get(name, (-1,)):
        relation = Relation(1, "public", "t", "d", (Column("c", pg_type, typmod, is_key=False),))
        (to_text,) = conversions(relation, DESCRIBED)
        fields = [TableFields(options).assign(relation) for options in OPTIONS]
        found += [(RowEncoder(relation, assigned, [to_text]), to_text) for assigned in fields]
    return found


def encoded(encoder: RowEncoder, value: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    raw: list[tuple[bytes, bytes]] = []
    return encoder.encode([value], [], raw), raw


def confirm(name: str, value: bytes) -> None:
    """Encode a value directly and through its text, and compare the results. Only documented errors are allowed."""
    for encoder, to_text in encoders(name):
        try:
            found = encoded(encoder, BinaryValue(value))
        except ProtocolError as error:
            assert "binary value of column c" in str(error)  # noqa: PT017 - no error is required
        except TypeChanged:
            assert name == "pair"  # the bytes give an attribute another type
        else:
            assert found == encoded(encoder, bytes(to_text(value)))


def mutations(value: bytes) -> st.SearchStrategy[bytes]:
    """Return copies of ``value`` in which some bytes are replaced, or the end is cut off."""
    position, length = st.integers(0, len(value)), st.integers(0, 4)
    piece = st.binary(max_size=4) | st.sampled_from([bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0\0\0\x01"])
    replaced = st.builds(lambda at, gone, new: value[:at] + new + value[at + gone :], position, length, piece)
    return replaced | position.map(lambda end: value[:end])


@pytest.mark.parametrize("name", SEEDS)
@settings(max_examples=60)
@given(st.data())
def test_bytes_similar_to_those_of_send_functions(name: str, data: st.DataObject) -> None:
    value = bytes.fromhex(SEEDS[name])
    confirm(name, value)
    once = data.draw(mutations(value))
    confirm(name, once)
    confirm(name, data.draw(mutations(once)))


def test_the_text_of_a_value_that_does_not_fit_is_utf_8() -> None:
    """If a value does not fit, its text has to be valid UTF-8, even if PostgreSQL sent the value in binary format.

    The example is a two-dimensional array with a byte that only a database with the encoding SQL_ASCII accepts.
    """
    confirm("_text", bytes.fromhex("00000002 00000000 00000019" + "00000001 00000001" * 2 + "00000001 80"))


@pytest.mark.parametrize("name", [*BUILT_IN, *OIDS])
@settings(max_examples=20)
@given(st.binary(max_size=60))
def test_any_bytes_cause_only_documented_errors(name: str, value: bytes) -> None:
    confirm(name, value)


def test_a_query_of_any_depth_is_read() -> None:
    """Read a deeply nested query. A server's stack still allows this depth."""
    depth = 20_000
    value = (depth + 1).to_bytes(4, "big") + b"\x02\x01" * depth + b"\x01\x00\x00a\x00"
    assert BUILT_IN["tsquery"](value) == b"!" * depth + b"'a'"


@given(st.floats(allow_nan=False))
@example(1e23)
@example(-5e-324)
def test_a_float8_is_read_back(number: float) -> None:
    assert same(float(float8_text(number)), number)


@given(st.floats(width=32, allow_nan=False))
@example(16_777_216.0)
def test_a_float4_is_read_back(number: float) -> None:
    assert same(nearest_single(float4_text(number)), number)
