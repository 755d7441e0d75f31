"""Unit tests of pgsluice.avro.choices: the texts that can choose the type of a column."""

import pytest

from pgsluice.avro.choices import NAMES, Choice, ColumnChoice, parse_decimal


@pytest.mark.parametrize("text", [*NAMES, "decimal(38,9)"])
def test_a_choice_is_written_as_it_is_read(text: str) -> None:
    assert str(Choice.parse(text)) == text


def test_a_decimal_has_precision_and_scale() -> None:
    assert Choice.parse("decimal( 20 , 4 )") == Choice("decimal", (20, 4))
    assert parse_decimal("decimal(20,4)") == (20, 4)
    assert parse_decimal("string") is None


@pytest.mark.parametrize("text", ["decimal(39,0)", "decimal(0,0)", "decimal(5,6)"])
def test_impossible_decimals_are_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"is not possible: precision goes from 1 to 38, scale from 0 to the precision$"
    ):
        Choice.parse(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("timestamp-milis", r"did you mean timestamp-millis\?"),
        ("decimal", r"did you mean decimal\(38,9\)\?"),
        ("jsonb", r"choose one of string, boolean, int, .*, interval-micros and decimal\(38,9\)"),
    ],
)
def test_other_words_are_refused(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"^'{text}' is not a type that can be chosen: {hint}$"):
        Choice.parse(text)


@pytest.mark.parametrize(
    ("pattern", "column", "matches", "names"),
    [
        ("amount", "amount", True, True),
        ("amount", "Amount", False, False),
        ("*_at", "created_at", True, False),
        ("a?", "ab", True, False),
        ("[ab]", "b", True, False),
        ("[ab]", "[ab]", True, False),
        ("*", "anything", True, False),
        ("*_at", "amount", False, False),
    ],
)
def test_patterns_are_globs(pattern: str, column: str, *, matches: bool, names: bool) -> None:
    choice = ColumnChoice(pattern, Choice("string"))
    assert choice.matches(column) is matches
    assert choice.names(column) is names
