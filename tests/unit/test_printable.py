"""Unit tests of pgsluice.printable."""

import pytest

from pgsluice.printable import printable, without_url_secrets


@pytest.mark.parametrize("text", ["", "public.orders", "Größe 50 %", "\u8868 \U0001f600", 'a\\n "b"', "e\u0301"])
def test_what_people_can_read_stays(text: str) -> None:
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
def test_what_they_cannot_is_escaped(character: str, escaped: str) -> None:
    assert printable(f"a{character}\u00e4") == f"a{escaped}\u00e4"


@pytest.mark.parametrize("code", [0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
def test_marks_of_direction_are_escaped(code: int) -> None:
    assert printable(f"a{chr(code)}b") == f"a\\u{code:04x}b"


def test_what_is_printable_already_stays() -> None:
    assert printable(printable("a\x1b[31m\nOK  b")) == r"a\x1b[31m\nOK  b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain@text?a", "plain@text?a"),
        ("http://db:80/a", "http://db:80/a"),
        ("at http://u:p@db:80/a now", "at http://***@db:80/a now"),
        ("http://u:p@ss@db", "http://***@db"),
        ("http://u:a?b@db/c?d=e", "http://***@db/c?***"),
        ("http://a:1,https://u:p@b:2", "http://***@b:2"),
        ("://" * 100_000, "://" * 100_000),  # takes no longer than its length asks for
    ],
)
def test_urls_keep_their_secrets(text: str, shown: str) -> None:
    assert without_url_secrets(text) == shown
