"""What earlier sessions left in Kafka, for ``pgsluice check``. Reading it disturbs no owner at work.

A session fences the former ones first, so that nothing can change afterwards. Here, an owner may go on writing.
``tests/integration/test_cli.py`` covers it.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from pgsluice.checkpoint import Checkpoint
from pgsluice.cut import Recorded
from pgsluice.kafka.checkpoint import read_checkpoints
from pgsluice.kafka.client import ClientOptions
from pgsluice.kafka.ledger import read_last_cuts
from pgsluice.kafka.tail import Tail
from pgsluice.kafka.topics import Topics

PATIENCE_S: Final = 30.0
"""How long Kafka may take to show the last records of one topic."""


def read_past(
    client: ClientOptions,
    checkpoint_topic: str,
    transactions_topic: str,
    pipeline: str,
    decode: Callable[[bytes], Mapping[str, Any]],
    *,
    is_atomic: bool,
) -> tuple[Sequence[Checkpoint], Recorded]:
    """Return the last checkpoints, and what the cut records say. A topic that does not exist has nothing. This blocks.

    ``decode`` reads a cut record. Raise the same as a start.
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
        if transactions_topic not in present:
            return checkpoints, Recorded()
        with tail(transactions_topic) as read:
            last = read_last_cuts(read, decode)
    return checkpoints, Recorded(last.epoch, last.number, last.end_lsn, frozenset(last.account.topics), last.positions)
