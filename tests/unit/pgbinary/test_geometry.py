"""Unit tests of pgsluice.pgbinary.geometry. Values and texts come from PostgreSQL 18."""

import pytest

from pgsluice.pgbinary import geometry
from pgsluice.pgbinary.base import UNREAD, ToText


@pytest.mark.parametrize(
    ("to_text", "text", "sent"),
    [
        (geometry.point, b"(1.5,-2)", "3ff8000000000000c000000000000000"),
        (geometry.lseg, b"[(1,2),(3,4)]", "3ff0000000000000400000000000000040080000000000004010000000000000"),
        (geometry.box, b"(3,4),(1,2)", "400800000000000040100000000000003ff00000000000004000000000000000"),
        (geometry.line, b"{1,2,3}", "3ff000000000000040000000000000004008000000000000"),
        (geometry.circle, b"<(1,2),3>", "3ff000000000000040000000000000004008000000000000"),
        (geometry.path, b"[(1,2),(3,4)]", "00000000023ff0000000000000400000000000000040080000000000004010000000000000"),
        (geometry.path, b"((1,2))", "01000000013ff00000000000004000000000000000"),
        (
            geometry.polygon,
            b"((1,2),(3,4))",
            "000000023ff0000000000000400000000000000040080000000000004010000000000000",
        ),
        (geometry.cube, b"(1, 2),(3, 4)", "000000023ff0000000000000400000000000000040080000000000004010000000000000"),
        (geometry.cube, b"(1.5)", "800000013ff8000000000000"),
        (geometry.cube, b"(1, 2)", "800000023ff00000000000004000000000000000"),
        (geometry.cube, b"()", "80000000"),
    ],
)
def test_the_text_is_that_of_postgresql(to_text: ToText, text: bytes, sent: str) -> None:
    assert to_text(bytes.fromhex(sent)) == text


@pytest.mark.parametrize(
    ("to_text", "sent"),
    [
        (geometry.point, "00"),
        (geometry.path, "0000000001"),
        (geometry.path, "00ffffffff"),
        (geometry.polygon, "7fffffff"),
        (geometry.cube, "00000001"),
        (geometry.vector, "00020000"),
        (geometry.vector, "00000000"),
        (geometry.vector, "00"),
    ],
)
def test_bytes_that_no_send_function_writes_are_malformed(to_text: ToText, sent: str) -> None:
    with pytest.raises(UNREAD):
        to_text(bytes.fromhex(sent))


def test_a_vector_is_read() -> None:
    assert geometry.vector(bytes.fromhex("0002 0000 3f800000 3dcccccd")) == b"[1,0.1]"
    assert geometry.vector_items(bytes.fromhex("0001 0000 3f800000")) == (1.0,)
