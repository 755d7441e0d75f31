"""The status of a session: its positions, the waiting transactions, and the reason if it makes no progress.

``tests/unit/pipeline/test_session.py`` covers this module by running whole sessions.
"""

import time
from typing import Final

from pgsluice.checkpoint import Checkpoint
from pgsluice.pipeline.ends import Spool
from pgsluice.pipeline.outbox import Outbox
from pgsluice.pipeline.vitals import Vitals
from pgsluice.progress import Progress
from pgsluice.transaction import Prepared, Transaction
from pgsluice.transactions import Transactions

STALL_S: Final = 10.0
"""The session counts as stalled if a call to Kafka takes longer than this, or if the session gives no sign of life for
this long. A cut normally takes milliseconds. So if a call takes this long, Kafka is unavailable, or so slow that
pgsluice must not report itself as ready."""

_MICROSECONDS: Final = 1_000_000
_POSTGRES_EPOCH_S: Final = 946_684_800


class SessionStatus:
    """The state of one session, for the status, the metrics and the log."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        progress: Progress,
        transactions: Transactions,
        outbox: Outbox,
        spool: Spool,
        vitals: Vitals,
    ) -> None:
        """``checkpoint`` is the checkpoint from which the session continues."""
        self.server_lsn = checkpoint.end_lsn
        """The last known end of the server's WAL."""
        self.heard_at: float | None = None
        """When the server last reported the end of its WAL, by the monotonic clock."""
        self._resumed_from = checkpoint
        self._progress = progress
        self._transactions = transactions
        self._outbox = outbox
        self._spool = spool
        self._vitals = vitals

    def hear_of(self, *positions: int) -> None:
        """Record that the server's WAL reaches at least to these positions."""
        self.server_lsn, self.heard_at = max(self.server_lsn, *positions), time.monotonic()

    @property
    def is_stalled(self) -> bool:
        """Return whether Kafka has been busy with the call in progress for a long time."""
        return self._outbox.busy_s > STALL_S

    @property
    def stall(self) -> str | None:
        """Return why the session has made no progress for a long time, or None if it makes progress."""
        if self.is_stalled:
            return "Kafka does not accept what pgsluice sends"
        if self._vitals.silent_s <= STALL_S:
            return None
        if self._spool.busy_s > STALL_S / 2:  # the disk was busy for most of that time, so it is the reason
            return f"the disk under buffer.spill_dir has not finished a job for {self._spool.busy_s:.0f} s"
        return f"the session has given no sign of life for {self._vitals.silent_s:.0f} s"

    @property
    def prepared(self) -> list[Prepared]:
        """Return the prepared transactions that have not ended, oldest first."""
        return sorted(self._transactions.prepared.values(), key=lambda one: one.prepare_lsn)

    @property
    def oldest_prepared(self) -> Prepared | None:
        """Return the prepared transaction with changes that has waited longest."""
        return next((one for one in self.prepared if one.has_rows), None)

    @property
    def streamed(self) -> list[int]:
        """Return the ids of the streamed transactions that are open."""
        return self._transactions.streamed

    @property
    def own(self) -> tuple[Transaction, int, float] | None:
        """Return the transaction that is being written in its own Kafka transaction.

        Also return how many bytes of it have been produced, and the seconds since the first of them.
        """
        transaction = self._outbox.own_transaction
        return None if transaction is None else (transaction, *self._outbox.own_written)

    @property
    def waiting_transactions(self) -> int:
        """Return how many streamed and prepared transactions wait for their commit."""
        return self._transactions.waiting

    @property
    def waiting_bytes(self) -> tuple[int, int]:
        """Return how many bytes the rows of waiting transactions take in memory and on disk."""
        return self._spool.memory, self._spool.spilled

    @property
    def buffered_bytes(self) -> int:
        """Return how many encoded bytes are not durable yet."""
        return self._outbox.size

    @property
    def confirmed_lsn(self) -> int:
        """Return the confirmed position, but at least the ``end_lsn`` from which the session continues."""
        return max(self._progress.confirmable, self._resumed_from.end_lsn)

    @property
    def caught_up_lsn(self) -> int:
        """Return the position before which nothing is left to deliver."""
        delivered = self._progress.delivered
        return max(self._progress.received, delivered) if self._outbox.is_empty else delivered

    def oldest_commit_age_s(self) -> float:
        """Return the age of the oldest commit that was received and is not durable yet. Return 0 if there is none."""
        oldest = self._outbox.own_transaction or self._outbox.oldest
        if oldest is None:
            return 0.0
        return age_s(oldest.commit_ts)

    def positions(self) -> dict[str, int]:
        """Return the positions by their names in the metrics."""
        return {
            "server": self.server_lsn,
            "received": self._progress.received,
            "delivered": self._progress.delivered,
            "confirmed": self._progress.confirmable,
        }


def age_s(timestamp: int) -> float:
    """Return the age of a PostgreSQL timestamp in seconds, by our clock."""
    return max(0.0, time.time() - _POSTGRES_EPOCH_S - timestamp / _MICROSECONDS)
