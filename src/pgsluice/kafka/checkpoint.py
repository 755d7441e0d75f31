"""The last committed checkpoints, read back from the compacted ``<prefix>.checkpoint`` topic; and what is loaded.

They decide where a session goes on, so the read has to be complete: see :mod:`.tail`.
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
"""Characters of a foreign key that the log shows."""


def checkpoint_key(pipeline: str) -> bytes:
    """Return the key of a pipeline's checkpoint records."""
    return pipeline.encode()


def read_checkpoints(tail: Tail, pipeline: str, *, is_atomic: bool) -> Sequence[Checkpoint]:
    """Return the last committed checkpoints of ``pipeline``; the last of them counts. Empty when there is none.

    There are checkpoints of two cuts at least, if the topic still has them: the last one does not always count.
    HistoryError, naming the record, when one of them is no checkpoint.

    Only records under the pipeline's own key are taken. Others are ignored, and the log says so. Only a pipeline that
    has no checkpoint yet gets another pipeline's, so that it does not begin in the topics of that one.

    With transactions (``is_atomic``) they come in the order in which they were written, and that is the order of the
    history: a session reads them after it has fenced the former ones, from which Kafka takes nothing any more. The
    checkpoint of an aborted cut, which a late transaction marker shows, stands where it was written, before everything
    that later sessions write. Its cut can even be higher than theirs, if it would have begun an epoch that never came
    about.

    Without transactions nobody is fenced, and a former owner can write a checkpoint late. So they are put into the
    order of their cuts. A refusal ends its epoch, so it comes last there: the late checkpoint can be of a later cut
    than that of the session which refused the server.
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
    """Return the tables that need not be loaded any more, by schema and name, as ``<prefix>.snapshots`` has them."""
    *_, values = tail.windows()
    found = [Loaded.from_json(value, f"Record {tail.offset} of topic {tail.topic}") for value in values if value]
    return {(one.schema, one.table): one for one in found}


@dataclass(slots=True)
class _Others:
    """The records that are not ours, of which there may be any number."""

    count: int = 0
    key: bytes = b""
    """Of the last one."""
    last: Checkpoint | None = None
    """The last checkpoint that another pipeline wrote under its own key."""

    def add(self, key: bytes, value: bytes) -> None:
        """Take the next one."""
        self.count, self.key = self.count + 1, key
        with suppress(HistoryError):
            one = Checkpoint.from_json(value)
            if key == checkpoint_key(one.pipeline):
                self.last = one

    def say_ignored(self, topic: str) -> None:
        """Log that there are some."""
        log.warning(
            "another program writes to the topic of checkpoints: its records are ignored. Take that right away from it",
            topic=topic,
            records=self.count,
            key=self.key.decode(errors="backslashreplace")[:KEY_SHOWN_MAX],
        )
