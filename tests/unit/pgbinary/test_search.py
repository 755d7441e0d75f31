"""Unit tests of pgsluice.pgbinary.search. Values and texts come from PostgreSQL 18."""

import pytest

from pgsluice.pgbinary import search
from pgsluice.pgbinary.base import UNREAD, ToText


@pytest.mark.parametrize(
    ("to_text", "text", "sent"),
    [
        (search.tsvector, b"'a':1A,2B,3C,4 'b'", "0000000261000004c00180024003000462000000"),
        (search.tsvector, b"", "00000000"),
        (search.tsvector, b"'back\\\\slash' 'it''s'", "000000026261636b5c736c61736800000069742773000000"),
        (search.tsquery, b"", "00000000"),
        (search.tsquery, b"'a'", "000000010100006100"),
        (search.tsquery, b"'a' & 'b' | 'c'", "0000000502030100006300020201000062000100006100"),
        (search.tsquery, b"'a' & ( 'b' | 'c' )", "0000000502020203010000630001000062000100006100"),
        (search.tsquery, b"!( 'a' & 'b' )", "000000040201020201000062000100006100"),
        (search.tsquery, b"!!'a'", "00000003020102010100006100"),
        (search.tsquery, b"'a' <-> ( 'b' <-> 'c' )", "000000050204000102040001010000630001000062000100006100"),
        (search.tsquery, b"'a' <-> 'b' <-> 'c'", "000000050204000101000063000204000101000062000100006100"),
        (search.tsquery, b"'a' <3> 'b'", "000000030204000301000062000100006100"),
        (search.tsquery, b"'it''s':*AB | 'x':CD", "0000000302030103007800010c016974277300"),
        (search.tsquery, b"( 'a' | 'b' ) <-> 'c'", "00000005020400010100006300020301000062000100006100"),
    ],
)
def test_the_text_is_that_of_postgresql(to_text: ToText, text: bytes, sent: str) -> None:
    assert to_text(bytes.fromhex(sent)) == text


@pytest.mark.parametrize(
    ("to_text", "sent"),
    [
        (search.tsvector, "7fffffff"),
        (search.tsvector, "ffffffff"),
        (search.tsvector, "0000000100"),
        (search.tsvector, "0000000000"),
        (search.tsvector, "00000001ff000000"),
        (search.tsquery, "0000000103"),
        (search.tsquery, "000000010205"),
        (search.tsquery, "000000010202"),
        (search.tsquery, "0000000201000061000100006100"),
        (search.tsquery, "00000001010002"),
        (search.tsquery, "00000001010000610000"),
    ],
)
def test_bytes_that_no_send_function_writes_are_malformed(to_text: ToText, sent: str) -> None:
    with pytest.raises(UNREAD):
        to_text(bytes.fromhex(sent))
