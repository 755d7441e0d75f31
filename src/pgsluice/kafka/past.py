"""Reads the records of earlier sessions in Kafka for ``pgsluice check``, without disturbing a running owner.

A session fences former sessions before it reads, so that they write nothing more. This module fences nobody, so an
owner may write while this module reads. ``tests/integration/test_cli.py`` covers this module.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from pgsluice.checkpoint import Checkpoint
from pgsluice.cut import Recorded
from pgsluice.kafka.account import LastCuts
from pgsluice.kafka.checkpoint import read_checkpoints
from pgsluice.kafka.client import ClientOptions
from pgsluice.kafka.ledger import compare, in_words, lost_cuts, read_last_cuts
from pgsluice.kafka.tail import Tail
from pgsluice.kafka.topics import Topics

PATIENCE_S: Final = 30.0
"""We wait at most this long for Kafka to show the last records of one topic."""


@dataclass(frozen=True, slots=True)
class PastInKafka:
    """The records of earlier sessions. ``changes`` says how the topics differ from these records, or is None."""

    checkpoints: Sequence[Checkpoint]
    recorded: Recorded
    changes: str | None


def read_past(
    client: ClientOptions,
    checkpoint_topic: str,
    transactions_topic: str,
    pipeline: str,
    decode: Callable[[bytes], Mapping[str, Any]],
    *,
    is_atomic: bool,
) -> PastInKafka:
    """Return the last checkpoints, the content of the cut records, and the differences between them and the topics.

    A topic of checkpoints or cut records that does not exist is treated as empty. ``decode`` decodes a cut record.
    Raise the errors that a new session would raise when it reads these topics.
    """
    given_up = threading.Event()
    with closing(Topics(client, given_up)) as topics:
        present = topics.describe([checkpoint_topic, transactions_topic])

        def tail(topic: str) -> Tail:
            return Tail(client, topics, topic, patience_s=PATIENCE_S, given_up=given_up, complete=False)

        checkpoints: Sequence[Checkpoint] = ()
        if checkpoint_topic in present:
            with tail(checkpoint_topic) as read:
                checkpoints = read_checkpoints(read, pipeline, is_atomic=is_atomic)
        last, low = LastCuts(), 0
        if transactions_topic in present:
            with tail(transactions_topic) as read:
                last, low = read_last_cuts(read, decode), read.low
        lost = lost_cuts(transactions_topic, last, low, max((one.cut for one in checkpoints), default=0))
        _, changed = compare(topics, last.account, given_up)
    sentences = [*([] if lost is None else [lost]), *changed.values()]
    recorded = Recorded(last.epoch, last.number, last.end_lsn, frozenset(last.account.topics), last.positions)
    return PastInKafka(checkpoints, recorded, in_words(sentences) if sentences else None)
