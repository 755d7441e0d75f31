"""Reads the last committed checkpoints from ``<prefix>.checkpoint``, and the loaded tables from ``<prefix>.snapshots``.

Checkpoints decide where a session continues, so the read has to be complete (see :mod:`.tail`).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from pgsluice.checkpoint import Checkpoint
from pgsluice.errors import HistoryError
from pgsluice.kafka.tail import Tail
from pgsluice.loads import Loaded

log = structlog.get_logger(__name__)

KEY_SHOWN_MAX = 100
"""The log shows at most this many characters of another program's record key."""


def checkpoint_key(pipeline: str) -> bytes:
    """Return the key of a pipeline's checkpoint records."""
    return pipeline.encode()


def read_checkpoints(tail: Tail, pipeline: str, *, is_atomic: bool) -> Sequence[Checkpoint]:
    """Return the last committed checkpoints of ``pipeline``, or an empty sequence if there are none.

    A session normally continues from the last checkpoint. The caller may have to fall back to an earlier cut, so the
    result has checkpoints of at least two cuts if the topic still has them. Raise HistoryError, with the offset, if a
    record under the pipeline's key is not a checkpoint.

    Use only records with the pipeline's own key. Ignore all others, and log a warning. If the pipeline has no
    checkpoint yet, return another pipeline's checkpoint, if there is one. That checkpoint shows the caller that the
    topics belong to the other pipeline, so the caller does not write to them.

    With transactions (``is_atomic``), the checkpoints are in the order in which they were written, which is the order
    of the history. The reason is that a session reads them after it has fenced the former sessions, so Kafka accepts
    nothing more from the former sessions. A late transaction marker can make the checkpoint of an aborted cut visible.
    That checkpoint comes before everything that later sessions write. But its cut number can be higher than the numbers
    of later checkpoints, if it belongs to an epoch that never began.

    Without transactions nobody is fenced, so a former owner can write a checkpoint late. The checkpoints are therefore
    sorted by epoch and cut. There is one exception. If ``refused`` of a checkpoint is set, a session has refused
    to continue with the server. Such a checkpoint ends its epoch, so it is sorted after all other checkpoints of the
    epoch. Sorting by cut number alone could put a former owner's late checkpoint after it, because the cut number of
    the late checkpoint can be higher.
    """
    ours: list[Checkpoint] = []
    others = _Others()
    for values in tail.windows():
        ours, others = [], _Others()
        for value in values:
            if tail.key == checkpoint_key(pipeline):
                ours.append(Checkpoint.from_json(value, f"Record {tail.offset} of topic {tail.topic}"))
            else:
                others.add(tail.key or b"", value)
        if len({one.cut for one in ours}) > 1:
            break
    if not ours:
        return [] if others.last is None else [others.last]
    if others.count:
        others.say_ignored(tail.topic)
    return ours if is_atomic else sorted(ours, key=lambda one: (one.epoch, bool(one.refused), one.cut))


def read_loaded(tail: Tail) -> dict[tuple[str, str], Loaded]:
    """Return the tables whose load has ended, by schema and name, from the topic ``<prefix>.snapshots``."""
    *_, values = tail.windows()
    found = [Loaded.from_json(value, f"Record {tail.offset} of topic {tail.topic}") for value in values if value]
    return {(one.schema, one.table): one for one in found}


@dataclass(slots=True)
class _Others:
    """The records under other keys. There may be any number of them, so only the last one is kept."""

    count: int = 0
    key: bytes = b""
    """The key of the last of these records."""
    last: Checkpoint | None = None
    """The last checkpoint that another pipeline wrote under its own key."""

    def add(self, key: bytes, value: bytes) -> None:
        """Add the next record."""
        self.count, self.key = self.count + 1, key
        with suppress(HistoryError):
            one = Checkpoint.from_json(value)
            if key == checkpoint_key(one.pipeline):
                self.last = one

    def say_ignored(self, topic: str) -> None:
        """Log that records of other programs are ignored."""
        log.warning(
            "another program writes to the topic of checkpoints: its records are ignored. Withdraw its right to write",
            topic=topic,
            records=self.count,
            key=self.key.decode(errors="backslashreplace")[:KEY_SHOWN_MAX],
        )
