"""Unit tests of pgsluice_spark.batches: pieces of whole cuts, and the offsets of the records in each piece."""

from pgsluice_spark.batches import declared, pieces, places, ranges, topics
from pgsluice_spark.cuts import Cut, TopicCut


def cut(number: int, *, epoch: int = 1, **uses: TopicCut) -> Cut:
    return Cut(number, epoch, number * 100, None, number * 2, 0, 1, uses)


def use(events: int, first: int = 0, following: int = 0, partition: int = 0) -> TopicCut:
    return TopicCut("id", {partition: (first, following)} if following else {}, {"c": events})


def numbers(cuts: list[Cut], max_events: int) -> list[list[int]]:
    return [[one.number for one in piece] for piece in pieces(cuts, max_events)]


def test_pieces_have_whole_cuts() -> None:
    cuts = [cut(1, a=use(3), b=use(1)), cut(2, a=use(6)), cut(3), cut(4, a=use(50)), cut(5, a=use(1))]
    assert numbers(cuts, 10) == [[1, 2, 3], [4], [5]]
    assert numbers(cuts, 9) == [[1], [2, 3], [4], [5]]
    assert numbers(cuts, 1000) == [[1, 2, 3, 4, 5]]
    assert numbers([], 10) == []


def test_a_piece_has_one_epoch() -> None:
    assert numbers([cut(1), cut(2), cut(3, epoch=2), cut(4, epoch=2)], 10) == [[1, 2], [3, 4]]


def test_topics_and_partitions_that_were_written_to_are_found() -> None:
    cuts = [cut(1, b=use(1, 5, 6), a=use(1, 0, 9)), cut(2, b=use(1, 0, 3, partition=1), c=use(0))]
    assert topics(cuts) == ["a", "b"]
    assert places(cuts, ["b", "c"]) == {("b", 0), ("b", 1)}


def test_ranges_are_those_in_the_cuts() -> None:
    cuts = [cut(1, a=use(1, 5, 10)), cut(2), cut(3, a=use(1, 10, 12)), cut(4, a=use(1, 13, 20))]
    assert ranges(cuts, "a") == {0: [(5, 12), (13, 20)]}
    assert ranges([cut(1, a=use(1, 5, 10)), cut(2, a=use(1, 8, 9))], "a") == {0: [(5, 10)]}
    assert ranges(cuts, "b") == {}
    two = [cut(1, a=use(1, 5, 10)), cut(2, a=use(1, 0, 1, partition=1))]
    assert ranges(two, "a") == {0: [(5, 10)], 1: [(0, 1)]}


def test_counts_are_summed_by_op() -> None:
    cuts = [
        cut(1, a=TopicCut("id", {}, {"c": 2, "u": 1, "t": 0})),
        cut(2, b=use(7)),
        cut(3, a=TopicCut("id", {}, {"c": 1, "d": 4})),
    ]
    assert declared(cuts, "a") == {"c": 3, "u": 1, "d": 4}
    assert declared(cuts, "c") == {}
