"""Unit tests of pgsluice.pgbinary.containers. Values and texts come from PostgreSQL 18."""

from collections.abc import Callable

import pytest

from pgsluice.pgbinary import containers, numbers, strings, temporal
from pgsluice.pgbinary.base import UNREAD, ToText, Unreadable
from pgsluice.pgbinary.geometry import box

INTS = containers.ArrayText(numbers.int4)
TEXTS = containers.ArrayText(strings.text)
BOXES = containers.ArrayText(box, b";")
RANGE = containers.range_(numbers.int4)
PAIR = containers.record({25: strings.text}, {23: numbers.int4})


@pytest.mark.parametrize(
    ("to_text", "text", "sent"),
    [
        (INTS, b"{}", "000000000000000000000017"),
        (INTS, b"{}", "0000000100000000000000170000000000000000"),
        (containers.old_vector(numbers.int2), b"", "0000000100000000000000150000000000000000"),
        (INTS, b"{1,NULL}", "00000001000000010000001700000002000000010000000400000001ffffffff"),
        (
            INTS,
            b"{{1,2},{3,4}}",
            (
                "000000020000000000000017000000020000000100000002000000010000000400000001"
                "000000040000000200000004000000030000000400000004"
            ),
        ),
        (INTS, b"[0:1]={1,2}", "000000010000000000000017000000020000000000000004000000010000000400000002"),
        (
            TEXTS,
            b'{a,"NULL",NULL,"","b c","d\\\\e","f\\"g","h,i","{j}"}',
            (
                "00000001000000010000001900000009000000010000000161000000044e554c4cffffff"
                "ff000000000000000362206300000003645c650000000366226700000003682c69000000"
                "037b6a7d"
            ),
        ),
        (
            BOXES,
            b"{(1,1),(0,0);(2,2),(1,1)}",
            (
                "00000001000000000000025b0000000200000001000000203ff00000000000003ff00000"
                "000000000000000000000000000000000000000000000020400000000000000040000000"
                "000000003ff00000000000003ff0000000000000"
            ),
        ),
        (
            containers.old_vector(numbers.int2),
            b"1 2 3",
            "0000000100000000000000150000000300000000000000020001000000020002000000020003",
        ),
        (RANGE, b"[1,5)", "0200000004000000010000000400000005"),
        (RANGE, b"empty", "01"),
        (RANGE, b"(,)", "18"),
        (RANGE, b"[5,)", "120000000400000005"),
        (
            containers.range_(numbers.numeric),
            b"(1.5,2]",
            "040000000c0002000000000001000113880000000a00010000000000000002",
        ),
        (containers.range_(temporal.timestamp), b'["2020-01-01 00:00:00",)', "120000000800023e0786c26000"),
        (containers.multirange(RANGE), b"{}", "00000000"),
        (
            containers.multirange(RANGE),
            b"{[1,3),[5,7)}",
            "00000002000000110200000004000000010000000400000003000000110200000004000000050000000400000007",
        ),
        (PAIR, b'(1,"a ""b\\\\",)', "000000030000001700000004000000010000001900000005612022625c00000019ffffffff"),
        (PAIR, b'(,"",x)', "0000000300000017ffffffff0000001900000000000000190000000178"),
        (PAIR, b'(,"a,b","(c)")', "0000000300000017ffffffff0000001900000003612c620000001900000003286329"),
        (containers.hstore, b"", "00000000"),
        (containers.hstore, b'"a"=>"1", "b\\"c\\\\"=>NULL', "0000000200000001610000000131000000046222635cffffffff"),
    ],
)
def test_the_text_is_that_of_postgresql(to_text: ToText, text: bytes, sent: str) -> None:
    assert to_text(bytes.fromhex(sent)) == text


@pytest.mark.parametrize(
    ("to_text", "sent"),
    [
        (INTS, "00"),
        (INTS, "ffffffff0000000000000017"),
        (INTS, "000000070000000000000017"),
        (INTS, "0000000100000000000000177fffffff00000001"),
        (INTS, "000000010000000000000017ffffffff00000001"),
        (INTS, "000000010000000000000017000000010000000100000004"),
        (INTS, "000000010000000000000017000000010000000100000004000000"),
        (INTS, "000000010000000000000017000000010000000100000002000000"),
        (INTS, "0000000100000000000000170000000100000001fffffffe"),
        (INTS, "00000000000000000000001700"),
        (containers.old_vector(numbers.int2), "0000000100000000000000150000000100000000ffffffff"),
        (RANGE, ""),
        (RANGE, "0100"),
        (RANGE, "02"),
        (RANGE, "02ffffffff"),
        (RANGE, "1800"),
        (containers.multirange(RANGE), "7fffffff"),
        (containers.multirange(RANGE), "ffffffff"),
        (containers.multirange(RANGE), "0000000000"),
        (PAIR, "ffffffff"),
        (PAIR, "0000000100000017"),
        (PAIR, "0000000000"),
        (containers.hstore, "00000001ffffffffffffffff"),
        (containers.hstore, "00000001"),
    ],
)
def test_bytes_that_no_send_function_writes_are_malformed(to_text: ToText, sent: str) -> None:
    with pytest.raises(UNREAD):
        to_text(bytes.fromhex(sent))


def test_a_field_of_an_unknown_type_cannot_be_read_unless_it_is_null() -> None:
    assert PAIR(bytes.fromhex("00000001 00004000 ffffffff")) == b"()"
    with pytest.raises(Unreadable, match="the composite had no attribute of type 16384 when the catalog was read"):
        PAIR(bytes.fromhex("00000001 00004000 00000000"))


def test_an_array_that_is_read() -> None:
    sent = "00000001 00000001 00000017 00000002 00000001 00000004 00000001 ffffffff"
    assert containers.read_array(bytes.fromhex(sent)) == ([(2, 1)], [b"\0\0\0\1", None])


@pytest.mark.parametrize(
    ("wrap", "head"),
    [
        (containers.ArrayText, "00000001 00000000 00000019 00000001 00000001"),
        (containers.range_, "12"),
        (lambda inner: containers.record({25: inner}, {}), "00000001 00000019"),
    ],
    ids=["array", "range", "record"],
)
def test_text_does_not_grow_without_limit(wrap: Callable[[ToText], ToText], head: str) -> None:
    """Refuse deep nesting. Each level doubles the quotes inside it, so 40 levels would have 2 ** 40 quotes."""
    to_text: ToText = strings.text
    sent = b'"'
    for _ in range(40):
        to_text, sent = wrap(to_text), bytes.fromhex(head) + len(sent).to_bytes(4, "big") + sent
    with pytest.raises(Unreadable, match=r"^its text is longer than 64 MiB$"):
        to_text(sent)
