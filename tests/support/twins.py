"""The compiled modules and their twins in Python, for tests that check both and compare their results."""

from types import ModuleType

import pytest

from pgsluice import rows as in_python
from pgsluice.envelope import ChangeEncoder, Stamp
from pgsluice.errors import PgsluiceError
from pgsluice.kafka import runs as runs_in_python
from pgsluice.native import speedups
from pgsluice.pgoutput import copy as copy_in_python
from pgsluice.record import Pending, Record
from pgsluice.relation import Relation
from pgsluice.transaction import Transaction

if speedups.COMPILED:
    from pgsluice.native import copy as copy_compiled
    from pgsluice.native import rows as compiled
    from pgsluice.native import runs as runs_compiled

    TWINS: list[ModuleType] = [in_python, compiled]
    RUNS: list[ModuleType] = [runs_in_python, runs_compiled]
    COPIES: list[ModuleType] = [copy_in_python, copy_compiled]
else:
    TWINS, RUNS, COPIES = [in_python], [runs_in_python], [copy_in_python]

needs_compiled = pytest.mark.skipif(not speedups.COMPILED, reason="the compiled modules were not built here")

Outcome = tuple[list[Record] | str, int, int, int]
"""The records or the error, the next seq, and the size and the number of events of the pending records."""


def outcome(  # noqa: PLR0913 - all are needed for a row
    twin: ModuleType,
    relation: Relation,
    encoder: ChangeEncoder | None,
    message: bytes,
    transaction: Transaction,
    *,
    is_streamed: bool = False,
    epoch: int = 1,
    seq: int = 0,
) -> Outcome:
    """Return the result of a twin for one message."""
    stamp, pending = Stamp(transaction, epoch, commit_timestamps=False), Pending(1_000_000_000)
    stamp.next_seq = seq
    try:
        twin.Rows(relation, encoder).add(message, stamp, pending, is_streamed=is_streamed)
    except PgsluiceError as error:
        return f"{type(error).__name__}: {error}", stamp.next_seq, pending.size, pending.events
    return pending.records, stamp.next_seq, pending.size, pending.events
