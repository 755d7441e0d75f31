"""Unit tests of pgsluice.printable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.printable import printable, quoted, sql_identifier, without_url_secrets
from pgsluice.tables import TablePattern


@pytest.mark.parametrize("text", ["", "public.orders", "Größe 50 %", "\u8868 \U0001f600", 'a\\n "b"', "e\u0301"])
def test_readable_characters_stay(text: str) -> None:
    assert printable(text) is text


@pytest.mark.parametrize(
    ("character", "escaped"),
    [
        ("\n", r"\n"),
        ("\r", r"\r"),
        ("\t", r"\t"),
        ("\0", r"\x00"),
        ("\x1b", r"\x1b"),
        ("\x7f", r"\x7f"),
        ("\x85", r"\x85"),
        ("\x9b", r"\x9b"),
        ("\xa0", r"\xa0"),
        ("\u061c", r"\u061c"),
        ("\u200b", r"\u200b"),
        ("\u2028", r"\u2028"),
        ("\u2029", r"\u2029"),
        ("\ufeff", r"\ufeff"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_unreadable_characters_are_escaped(character: str, escaped: str) -> None:
    assert printable(f"a{character}\u00e4") == f"a{escaped}\u00e4"


@pytest.mark.parametrize("code", [0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
def test_marks_of_direction_are_escaped(code: int) -> None:
    assert printable(f"a{chr(code)}b") == f"a\\u{code:04x}b"


def test_escaping_a_second_time_changes_nothing() -> None:
    assert printable(printable("a\x1b[31m\nOK  b")) == r"a\x1b[31m\nOK  b"


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (("public", "orders"), "public.orders"),
        (("public", "Größe-1$_2"), "public.Größe-1$_2"),
        (("a.b", 'c"d'), '"a.b"."c""d"'),
        (("public", "z: OK all fine. table public.orders"), 'public."z: OK all fine. table public.orders"'),
        (("a b",), '"a b"'),
        (("a\n",), '"a\n"'),
        (("",), '""'),
    ],
)
def test_a_name_that_could_read_like_a_sentence_is_in_quotes(names: tuple[str, ...], shown: str) -> None:
    assert quoted(*names) == shown


# Names without "[", which begins a set of characters in a pattern.
NAMES = st.text(st.characters(exclude_characters="["), min_size=1)


@given(NAMES, NAMES)
def test_names_can_be_read_back_as_patterns_are(schema: str, table: str) -> None:
    assert TablePattern.parse(quoted(schema, table)) == TablePattern(schema, table)


@pytest.mark.parametrize(
    ("names", "sql"),
    [
        (("public", "order items"), '"public"."order items"'),
        (('a"b\\',), '"a""b\\"'),
        (('a\n\\"\u202e\U000e0041é',), r'''U&"a\+00000a\\""\+00202e\+0e0041é"'''),
    ],
)
def test_sql_that_can_be_copied_from_a_terminal(names: tuple[str, ...], sql: str) -> None:
    assert sql_identifier(*names) == sql
    assert sql.isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain@text?a", "plain@text?a"),
        ("http://db:80/a", "http://db:80/a"),
        ("at http://u:p@db:80/a now", "at http://***@db:80/a now"),
        ("http://u:p@ss@db", "http://***@db"),
        ("http://u:a?b@db/c?d=e", "http://***@db/c?***"),
        ("http://db/#access_token=c?d", "http://db/#***"),
        ("at http://u:p a ss@db/x now", "at http://***@db/x now"),
        ("http://db/x is not that of a@b", "http://db/x is not that of a@b"),
        ("http://db is not that of a@b", "http://db is not that of a@b"),
        ("http://db/a b:c@d", "http://db/a b:c@d"),
        ("://" + ":" * 100_000, "://" + ":" * 100_000),
        ("://a " * 100_000, "://a " * 100_000),
        ("http://a:1,https://u:p@b:2", "http://***@b:2"),
        ("://" * 100_000, "://" * 100_000),  # this must take linear time
    ],
)
def test_secrets_in_urls_are_replaced(text: str, shown: str) -> None:
    assert without_url_secrets(text) == shown
