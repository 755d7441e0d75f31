"""Queues records in librdkafka in runs. A run is a sequence of records that is queued in one call.

Nearly every record is part of a run. The sink passes a list of records and the index of the first one. A run ends when
the queue has no more room, or before a record that needs more work. The sink sends that record itself, and then starts
a new run. ``native.runs`` is the compiled twin of this module. ``speedups`` chooses between the two.
"""

from collections.abc import Callable
from typing import Any, Final

from pgsluice.cut import Cut
from pgsluice.kafka.partitioner import partition_for
from pgsluice.record import Record

TRUNCATE: Final = "t"

LONGEST: Final = 20_000
"""The most records in one run. A compiled run updates the counts of each table at its end, so short runs are slow if
there are many tables."""


def produce_run(  # noqa: PLR0913 - the arguments are the state of a sink
    produce: Callable[..., Any],
    records: list[Record],
    at: int,
    partitions: Callable[[str], int],
    cut: Cut,
    *,
    room: int,
    largest: int,
) -> tuple[int, int]:
    """Produce records, beginning with ``records[at]``, and count them in ``cut``.

    Return the index of the next record, and the remaining room.

    ``partitions`` returns how many partitions a topic has. ``room`` is how many bytes of values may be queued. The run
    ends when there is no more room, or after LONGEST records. It also ends before a record for all partitions, before a
    value of more than ``largest`` bytes, and before a record that ``produce`` refuses.
    """
    end = min(len(records), at + LONGEST)
    while at < end and room > 0:
        record = records[at]
        target, op, key, value, timestamp_ms = record
        if op == TRUNCATE or (value is not None and len(value) > largest):
            break
        partition = 0 if key is None else partition_for(key, partitions(target.topic))
        try:
            # Positional arguments are faster. The two None are the parameters ``callback`` and ``on_delivery``.
            produce(target.topic, value, key, partition, None, None, timestamp_ms)
        except Exception:  # noqa: BLE001 - the sink sends this record again and handles the error
            break
        room -= 0 if value is None else len(value)
        cut.count(target, {} if op is None else {op: 1}, {partition: 1})
        at += 1
    return at, room
