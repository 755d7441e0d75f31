from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from sandbox.demo.comparison import Comparison, Row, compare, lines

WIDTH = 100

ROW = {
    "id": 1,
    "price": Decimal("12.50"),
    "placed_at": datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
    "seen": datetime(2024, 2, 29, 12, 30, 0, 120000),  # noqa: DTZ001 - the value of a timestamp without time zone
    "since": date(2024, 2, 29),
    "interests": ["poetry", None],
    "email": None,
}


def compared(postgres: Sequence[Row], mirror: Sequence[Row]) -> Comparison:
    return compare("orders", ["id"], postgres, mirror)


def test_equal_rows_have_no_differences() -> None:
    elsewhere = datetime(2024, 2, 29, 14, 30, tzinfo=timezone(timedelta(hours=2)))

    assert compared([ROW], [{**ROW, "placed_at": elsewhere}]).equal


@pytest.mark.parametrize(
    "mirror",
    [
        pytest.param([], id="a row is missing"),
        pytest.param([{"id": 1, "name": "Ada"}] * 2, id="a row is there twice"),
        pytest.param([{"id": 1, "name": "Eve"}], id="another value"),
        pytest.param([{"id": 1, "name": None}], id="null"),
        pytest.param([{"id": 1, "name": "Ada", "x": None}], id="another column"),
        pytest.param([{"id": 1, "name": "Ada"}, {"id": 2, "name": "Ada"}], id="a row too many"),
    ],
)
def test_differences_are_found(mirror: list[Row]) -> None:
    assert not compared([{"id": 1, "name": "Ada"}], mirror).equal


def test_lines_show_differences_first() -> None:
    ours = [{"id": n, "name": f"n{n}"} for n in range(1, 6)]
    theirs = [{"id": n, "name": "other" if n == 4 else f"n{n}"} for n in range(1, 6)]

    found = list(lines([compared(ours, theirs)], WIDTH))

    assert [line.split() for line, _ in found] == [
        ["|", "PostgreSQL", "|", "mirror", "|", "equal"],
        ["orders", "|", "5", "rows", "|", "5", "rows", "|", "NO"],
        ["id=4", "|", "n4", "|", "other", "|", "NO"],
        ["id=1", "|", "n1", "|", "n1", "|", "yes"],
        ["id=2", "|", "n2", "|", "n2", "|", "yes"],
        ["2", "more", "|", "...", "|", "...", "|", "yes"],
    ]
    assert [equal for _, equal in found] == [True, False, False, True, True, True]
    assert all(len(line) <= WIDTH for line, _ in found)


def test_rows_that_only_one_side_has() -> None:
    found = list(lines([compared([{"id": 1, "name": "Ada"}], [{"id": 2, "name": "Eve"}])], WIDTH))

    assert [line.split() for line, _ in found[2:]] == [
        ["id=1", "|", "Ada", "|", "|", "NO"],
        ["id=2", "|", "|", "Eve", "|", "NO"],
    ]
