"""Unit tests of pgsluice.lsn."""

import pytest

from pgsluice.lsn import INVALID_LSN, MAX_LSN, format_lsn, parse_lsn


@pytest.mark.parametrize(
    ("text", "lsn"),
    [
        ("0/0", 0),
        ("0/1", 1),
        ("16/B374D848", 0x16_B374D848),
        ("16/b374d848", 0x16_B374D848),
        ("1/2000000", 0x1_02000000),
        ("1/02000000", 0x1_02000000),  # PostgreSQL 19 pads the second half
        ("00000001/00000002", 0x1_00000002),
        ("FFFFFFFF/FFFFFFFF", MAX_LSN),
    ],
)
def test_parse_accepts_both_forms_of_the_servers(text: str, lsn: int) -> None:
    assert parse_lsn(text) == lsn


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "0",
        "0/",
        "/0",
        "0/0/0",
        " 0/0",
        "0/0 ",
        "0/0\n",
        "-1/0",
        "+1/0",
        "0x1/0",
        "1_0/0",
        "G/0",
        "100000000/0",  # nine digits
        "0/100000000",
        "٣/٣",  # digits in Unicode, but not in PostgreSQL
    ],
)
def test_parse_refuses_what_is_not_an_lsn(text: str) -> None:
    with pytest.raises(ValueError, match="not an LSN"):
        parse_lsn(text)


@pytest.mark.parametrize(
    ("lsn", "text"),
    [
        (INVALID_LSN, "0/0"),
        (0xFFFFFFFF, "0/FFFFFFFF"),
        (0x1_00000000, "1/0"),
        (0x16_B374D848, "16/B374D848"),
        (MAX_LSN, "FFFFFFFF/FFFFFFFF"),
    ],
)
def test_format_is_that_of_the_servers(lsn: int, text: str) -> None:
    assert format_lsn(lsn) == text
    assert parse_lsn(text) == lsn


@pytest.mark.parametrize("lsn", [-1, MAX_LSN + 1])
def test_format_refuses_what_does_not_fit_in_64_bits(lsn: int) -> None:
    with pytest.raises(ValueError, match=r"not an LSN: .* \(expected an unsigned 64-bit number\)"):
        format_lsn(lsn)
