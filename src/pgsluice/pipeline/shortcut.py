"""The shortcut for small transactions, which encodes many of them in one step.

Without the shortcut, a transaction of one row takes ten times as long as the row alone, because the session handles
Begin and Commit as events. The session handles all transactions that the shortcut leaves out. Both ways give the same
result.

``tests/unit/pipeline/test_session.py`` covers this module.
"""

from collections.abc import Sequence

from pgsluice.pgoutput.framing import Keepalive, XLogData
from pgsluice.pipeline.encoders import Encoders, add_transactions
from pgsluice.pipeline.loader import Loader
from pgsluice.pipeline.outbox import Outbox
from pgsluice.progress import Progress
from pgsluice.transactions import Transactions


class Shortcut:
    """Handles whole transactions of one session without passing their messages to :class:`Transactions`."""

    def __init__(  # noqa: PLR0913 - the arguments are all objects that have to know of a Commit
        self,
        transactions: Transactions,
        encoders: Encoders,
        outbox: Outbox,
        progress: Progress,
        loader: Loader | None,
        *,
        epoch: int,
        commit_timestamps: bool,
    ) -> None:
        self._transactions = transactions
        self._encoders = encoders
        self._outbox = outbox
        self._progress = progress
        self._loader = loader
        self._epoch = epoch
        self._commit_timestamps = commit_timestamps

    async def take(self, frames: Sequence[XLogData | Keepalive], at: int) -> int:
        """Add transactions to the open cut, beginning at ``frames[at]``, up to the first one that needs more work.

        Return the index of the next frame. Call it only between transactions.
        """
        passes_from = self._transactions.passes_from
        if passes_from is None or not self._is_simple:
            return at
        progress, outbox = self._progress, self._outbox
        whole = add_transactions(
            *(frames, at, self._transactions.relations.by_oid, self._encoders.ready, outbox.pending),
            from_lsn=max(passes_from, progress.received, progress.delivered),
            room=outbox.room,
            epoch=self._epoch,
            commit_timestamps=self._commit_timestamps,
        )
        if whole is None:
            return at
        progress.on_received(whole.end_lsn)
        await outbox.commit_whole(whole)
        return whole.at

    @property
    def _is_simple(self) -> bool:
        """Return whether nothing has to be noted for each single transaction."""
        return self._progress.is_simple and (self._loader is None or self._loader.ignores_commits)
