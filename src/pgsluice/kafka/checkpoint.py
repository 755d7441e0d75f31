"""The last committed checkpoints, read back from the compacted ``<prefix>.checkpoint`` topic.

They decide where a session goes on, so the read has to be complete: see :mod:`.tail`.
"""

from collections.abc import Iterable, Sequence

import structlog

from pgsluice.errors import HistoryError
from pgsluice.history import Checkpoint
from pgsluice.kafka.tail import Tail

log = structlog.get_logger(__name__)

KEY_SHOWN_MAX = 100
"""Characters of a foreign key that the log shows."""

_Foreign = tuple[bytes | None, bytes]
"""Key and value of a record that is not ours."""


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
    about. Without transactions nobody is fenced, and a former owner can write an older checkpoint late. So they are put
    into the order of their cuts.
    """
    ours: list[Checkpoint] = []
    others: list[_Foreign] = []
    for values in tail.windows():
        ours, others = [], []
        for value in values:
            if tail.key == checkpoint_key(pipeline):
                ours.append(Checkpoint.from_json(value, f"Record {tail.offset} of topic {tail.topic}"))
            else:
                others.append((tail.key, value))
        if len({one.cut for one in ours}) > 1:
            break
    if not ours:
        ours = _checkpoints_of_others(others)
    elif others:
        _say_ignored(tail.topic, others)
    return ours if is_atomic else sorted(ours, key=lambda one: (one.epoch, one.cut))


def _checkpoints_of_others(others: Iterable[_Foreign]) -> list[Checkpoint]:
    """Return the last checkpoint that another pipeline wrote under its own key, if there is one."""
    last: list[Checkpoint] = []
    for key, value in others:
        try:
            one = Checkpoint.from_json(value)
        except HistoryError:
            continue
        if key == checkpoint_key(one.pipeline):
            last = [one]
    return last


def _say_ignored(topic: str, others: Sequence[_Foreign]) -> None:
    key = (others[-1][0] or b"").decode(errors="backslashreplace")[:KEY_SHOWN_MAX]
    log.warning(
        "another program writes to the topic of checkpoints: its records are ignored. Take that right away from it",
        topic=topic,
        records=len(others),
        key=key,
    )
