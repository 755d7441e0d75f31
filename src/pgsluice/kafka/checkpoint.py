"""The last committed checkpoint, read back from the compacted ``<prefix>.checkpoint`` topic.

It is the one thing that decides where a session goes on, so the read has to be complete: see :mod:`.tail`.
"""

from collections.abc import Sequence

from pgsluice.kafka.tail import Tail
from pgsluice.progress import Checkpoint


def read_checkpoint(tail: Tail) -> Checkpoint | None:
    """Return the committed checkpoint that is furthest on, None when there is none."""
    for values in tail.windows():
        if found := [Checkpoint.from_json(value) for value in values]:
            return _furthest(found)
    return None


def _furthest(found: Sequence[Checkpoint]) -> Checkpoint:
    """Return the last one, unless it came late, from a former owner that nothing fenced (at least once)."""
    ours = [one for one in found if one.pipeline == found[-1].pipeline]
    return max(reversed(ours), key=lambda one: (one.epoch, one.end_lsn))
