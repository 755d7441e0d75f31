"""Divides a batch into pieces of whole cuts with a limited number of events, and finds the records of each piece.

Used by :mod:`.query`, :mod:`.job`, :mod:`.origin` and :mod:`.audit`. This module does no I/O.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from pgsluice_spark.cuts import Cut, Ranges


def pieces(cuts: Iterable[Cut], max_events: int) -> Iterator[list[Cut]]:
    """Yield ``cuts`` in pieces.

    The cuts of a piece have the same epoch, and together at most ``max_events`` events. A cut with more events is a
    piece of its own.
    """
    piece: list[Cut] = []
    events = 0
    for cut in cuts:
        if piece and (events + cut.events > max_events or cut.epoch != piece[-1].epoch):
            yield piece
            piece, events = [], 0
        piece.append(cut)
        events += cut.events
    if piece:
        yield piece


def topics(cuts: Iterable[Cut]) -> list[str]:
    """Return the topics that these cuts wrote to."""
    return sorted({topic for cut in cuts for topic, use in cut.topics.items() if use.ranges})


def places(cuts: Iterable[Cut], chosen: Collection[str]) -> set[tuple[str, int]]:
    """Return the partitions that the cuts wrote to in the ``chosen`` topics."""
    return {
        (topic, partition)
        for cut in cuts
        for topic, use in cut.topics.items()
        if topic in chosen
        for partition in use.ranges
    }


def ranges(cuts: Sequence[Cut], topic: str) -> Ranges:
    """Return the offsets of the records that these cuts have in a topic, as ranges. Adjacent ranges are merged.

    The ranges have exactly the offsets that the cut records list. The offsets between two ranges are left out, because
    the records at these offsets may belong to no cut.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    for cut in cuts:
        if topic in cut.topics:
            for partition, (first, following) in sorted(cut.topics[topic].ranges.items()):
                _extend(found.setdefault(partition, []), first, following)
    return found


def _extend(known: list[tuple[int, int]], first: int, following: int) -> None:
    """Add a range. Its first offset is a lower bound, so the range may overlap the previous one."""
    if known and first <= known[-1][1]:
        known[-1] = known[-1][0], max(known[-1][1], following)
    else:
        known.append((first, following))


def declared(cuts: Iterable[Cut], topic: str) -> Mapping[str, int]:
    """Return how many events of each op these cuts declare for a topic."""
    counts: dict[str, int] = {}
    for cut in cuts:
        for op, count in cut.topics[topic].counts.items() if topic in cut.topics else ():
            counts[op] = counts.get(op, 0) + count
    return {op: count for op, count in counts.items() if count}
