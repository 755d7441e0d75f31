"""Unit tests of pgsluice_spark.cuts: cut records in parts, repeated cuts, and missing cuts."""

import pytest

from pgsluice_spark.cuts import Cut, Mark, Position, TopicCut, check_order, joined, last_of_each_number, marks_of
from pgsluice_spark.errors import RetentionGap

MARK = Mark("public.orders", "a", "begin", Position(1, 1, 1), 0, True)  # noqa: FBT003


def part(number: int, offset: int, index: int = 0, parts: int = 1, *topics: str) -> Cut:
    uses = {topic: TopicCut("id", {0: (0, 1)}, {"c": 1}) for topic in topics}
    return Cut(number, 1, 100, None, offset, index, parts, uses, [MARK] if index == 0 else ())


def test_parts_are_joined() -> None:
    cuts = joined([part(1, 0), part(2, 2, 0, 3, "a"), part(2, 3, 1, 3, "b"), part(2, 4, 2, 3, "c"), part(3, 6)])
    assert [(cut.number, cut.offset, sorted(cut.topics)) for cut in cuts] == [
        (1, 0, []),
        (2, 4, ["a", "b", "c"]),
        (3, 6, []),
    ]
    assert (cuts[1].part, cuts[1].parts, cuts[1].marks, cuts[1].events) == (0, 1, [MARK], 3)


def test_a_cut_whose_last_part_is_missing_is_skipped() -> None:
    assert [cut.number for cut in joined([part(1, 0), part(2, 2, 0, 2)])] == [1]
    assert joined([]) == []


def test_a_cut_whose_first_part_is_missing_is_skipped() -> None:
    assert [cut.number for cut in joined([part(2, 3, 1, 2), part(3, 5)])] == [3]
    # In at-least-once mode, a writer that has crashed between two parts writes all parts again.
    assert [cut.offset for cut in joined([part(2, 3, 0, 2), part(2, 5, 0, 2), part(2, 6, 1, 2)])] == [6]


def test_the_last_record_of_a_repeated_cut_is_used() -> None:
    cuts = [part(1, 0), part(2, 2), part(3, 4), part(2, 6), part(3, 8), part(4, 10)]
    assert [cut.offset for cut in last_of_each_number(cuts)] == [0, 6, 8, 10]


def test_the_marks_of_a_table_are_found() -> None:
    assert marks_of([part(1, 0), part(2, 2)], "public.orders") == [MARK, MARK]
    assert marks_of([part(1, 0)], "public.lines") == []


def test_missing_cuts_are_reported() -> None:
    check_order([part(5, 0), part(6, 2)], None, "shop.transactions")
    check_order([part(5, 0), part(6, 2)], 4, "shop.transactions")
    check_order([part(4, 0), part(5, 2)], 4, "shop.transactions")
    check_order([], 4, "shop.transactions")
    with pytest.raises(RetentionGap, match=r"shop\.transactions: cut 6 follows cut 4\."):
        check_order([part(6, 0)], 4, "shop.transactions")
    with pytest.raises(RetentionGap, match=r"cut 7 follows cut 5"):
        check_order([part(5, 0), part(7, 2)], 4, "shop.transactions")
