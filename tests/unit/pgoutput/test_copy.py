"""Unit tests of pgsluice.pgoutput.copy, and of its compiled twin.

The escapes are those in the manual's table of COPY's text format.
"""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.errors import ProtocolError
from pgsluice.pgoutput.copy import insert_frame, row_values
from pgsluice.pgoutput.decoder import Decoder
from pgsluice.pgoutput.framing import MESSAGE_AT
from pgsluice.pgoutput.messages import Insert
from tests.support.pgoutput_encoder import encode, xlog_data
from tests.support.twins import COPIES

ESCAPES = {
    b"\\": rb"\\",
    b"\b": rb"\b",
    b"\f": rb"\f",
    b"\n": rb"\n",
    b"\r": rb"\r",
    b"\t": rb"\t",
    b"\v": rb"\v",
}

VALUE = st.none() | st.binary(max_size=12) | st.lists(st.sampled_from([*ESCAPES, b"N", b"n", b"."])).map(b"".join)


def line(values: list[bytes | None]) -> bytes:
    """Return the line that COPY TO writes for a row. It has a backslash before every special byte."""
    return b"\t".join(rb"\N" if value is None else escaped(value) for value in values) + b"\n"


def escaped(value: bytes) -> bytes:
    return b"".join(ESCAPES.get(byte, byte) for byte in (value[at : at + 1] for at in range(len(value))))


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (b"1\tGr\xc3\xbc\xc3\x9fe\t\n", [b"1", b"Gr\xc3\xbc\xc3\x9fe", b""]),
        (b"\n", [b""]),
        (b"\\N\n", [None]),
        (b"\\N\t\\\\N\tN\n", [None, b"\\N", b"N"]),
        (rb"\b\f\n\r\t\v" + b"\n", [b"\b\f\n\r\t\v"]),
        (rb"C:\\new\\\t" + b"\n", [b"C:\\new\\\t"]),
        (b"\\\\.\n", [b"\\."]),
        (b"a\rb\n", [b"a\rb"]),
    ],
)
def test_the_values_of_a_row_are_read(data: bytes, values: list[bytes | None]) -> None:
    assert row_values(data, len(values)) == values


def test_a_row_of_a_table_without_columns_is_read() -> None:
    assert row_values(b"\n", 0) == []


@given(st.lists(VALUE, max_size=6))
def test_any_values_are_read_as_they_were_written(values: list[bytes | None]) -> None:
    assert row_values(line(values), len(values)) == values


@pytest.mark.parametrize(
    ("data", "columns", "found"),
    [
        (b"1\t2\n", 1, 2),
        (b"1\t2\n", 3, 2),
        (b"1\n", 0, 1),
        (b"\t\n", 0, 2),
        (b"1", 1, 1),
        (b"1\t2", 2, 2),
        (b"", 1, 1),
        (b"", 0, 0),
    ],
)
def test_a_row_of_other_columns_or_without_an_end_is_refused(data: bytes, columns: int, found: int) -> None:
    with pytest.raises(ProtocolError, match=f"{columns} columns and a newline at its end, found {found} columns"):
        row_values(data, columns)


@pytest.mark.parametrize("data", [rb"\x41", rb"\101", rb"a\Nb", rb"\.", b"\\\n", b"\\\\\\", b"1\\"])
def test_an_escape_that_postgresql_does_not_write_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="which PostgreSQL does not write"):
        row_values(data + b"\n", 1)


@pytest.mark.parametrize("values", [[], [None], [b""], [b"1", None, b"\x00\xff"], [b"x" * 100_000]])
def test_a_frame_has_the_insert_message_of_the_walsender(values: list[bytes | None]) -> None:
    assert insert_frame(2**32 - 1, values)[MESSAGE_AT:] == encode(Insert(None, 2**32 - 1, list(values)))


def test_a_frame_is_an_xlog_data_without_positions() -> None:
    assert insert_frame(7, [b"1"]) == xlog_data(encode(Insert(None, 7, [b"1"])), start=0, wal_end=0, send_time=0)


@given(st.integers(0, 2**32 - 1), st.lists(VALUE, max_size=6))
def test_the_decoder_reads_any_values_from_a_frame(oid: int, values: list[bytes | None]) -> None:
    assert Decoder().decode(insert_frame(oid, values)[MESSAGE_AT:]) == Insert(None, oid, list(values))


@pytest.fixture(params=COPIES, ids=lambda twin: str(twin.__name__))
def twin(request: pytest.FixtureRequest) -> ModuleType:
    found: ModuleType = request.param
    return found


@pytest.mark.parametrize(
    "values",
    [
        [None],
        [b""],
        [b"1", None, b"", b"x" * 100_000],
        [b"N", b"\\N", b"\\", b"\b\f\n\r\t\v", None, None],
        [b"\0\xff"] * 1600,
        [],
    ],
)
def test_a_row_becomes_the_frame_of_its_values(twin: ModuleType, values: list[bytes | None]) -> None:
    assert twin.row_frame(line(values), 2**32 - 1, len(values)) == insert_frame(2**32 - 1, values)


PIECES = st.sampled_from([b"\\", b"N", b"n", b"t", b"x", b"\t", b"\n", b"", b"ab"])


@given(st.lists(PIECES, max_size=10).map(b"".join) | st.binary(max_size=12), st.integers(0, 4))
def test_both_twins_give_the_same_result_for_any_line(data: bytes, columns: int) -> None:
    found = [made(twin, data, columns) for twin in COPIES]
    assert found == found[:1] * len(COPIES)


def made(twin: ModuleType, data: bytes, columns: int) -> bytes | str:
    try:
        frame: bytes = twin.row_frame(data, 7, columns)
    except ProtocolError as error:
        return str(error)
    return frame
