"""Runs of records into librdkafka's queue: the way that nearly every record takes.

The sink hands over what it has, and where it is; the run goes on while records are simple and there is room, and counts
them. What ends it, the sink does, and comes back. ``_runs`` is the compiled twin of this module, chosen by
``speedups``.
"""

from collections.abc import Callable
from typing import Any, Final

from pgsluice.cut import Cut
from pgsluice.kafka.partitioner import partition_for
from pgsluice.record import Record

TRUNCATE: Final = "t"

LONGEST: Final = 2000
"""Records in one run: a compiled one lets no other thread have a turn."""


def produce_run(  # noqa: PLR0913 - what a sink keeps, and where it stands
    produce: Callable[..., Any],
    records: list[Record],
    at: int,
    partitions: Callable[[str], int],
    cut: Cut,
    *,
    room: int,
    largest: int,
) -> tuple[int, int]:
    """Produce the records that begin at ``records[at]``, and count them in ``cut``; where it ended, and the room left.

    ``partitions``: how many a topic has. ``room``: bytes of values that may be queued; the run ends when there is
    none, and after LONGEST. It ends before a record for all partitions, a value above ``largest`` bytes, and one that
    ``produce`` refuses.
    """
    end = min(len(records), at + LONGEST)
    while at < end and room > 0:
        record = records[at]
        target, op, key, value, timestamp_ms = record
        if op == TRUNCATE or (value is not None and len(value) > largest):
            break
        partition = 0 if key is None else partition_for(key, partitions(target.topic))
        try:
            # by position, which is faster: the callback has two names, so two places
            produce(target.topic, value, key, partition, None, None, timestamp_ms)
        except Exception:  # noqa: BLE001 - whoever comes next meets it again, and knows what to do about it
            break
        room -= 0 if value is None else len(value)
        cut.count(target, {} if op is None else {op: 1}, {partition: 1})
        at += 1
    return at, room
