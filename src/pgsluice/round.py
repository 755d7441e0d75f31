"""One round: finds the position in the stream for rows that were read at a database snapshot.

The session takes the snapshot between two transactions. From then on, the round decides for every transaction whether
it passes or waits. A transaction that passes is delivered immediately. One that waits is delivered after the rows. If
the snapshot sees a transaction, it passes, because the rows that were read include its changes. The first transaction
whose changes the snapshot does not see waits, and so does everything after it. So the rows come after all changes that
they include, and before all changes that they do not include.
"""

from pgsluice.snapshot import Snapshot
from pgsluice.transaction import Transaction


class Round:
    """The ``transactions.Gate`` for one snapshot. ``end_lsn``: a position after all changes that the snapshot sees."""

    def __init__(self, snapshot: Snapshot, end_lsn: int) -> None:
        self.is_complete = False
        """Whether the stream has reached ``end_lsn``, so that no visible transaction can follow."""
        self.is_void = False
        """Whether a visible transaction came after one that waits. In this case, no position fits the rows."""
        self._snapshot = snapshot
        self._end_lsn = end_lsn
        self._waiting_lsn: int | None = None

    def admits(self, transaction: Transaction) -> bool:
        """Return whether ``transaction``, which begins or has just committed, may pass."""
        self.reach(transaction.commit_lsn)
        return self._waiting_lsn is None and self.sees(transaction)

    def sees(self, transaction: Transaction) -> bool:
        """Return whether the rows include the changes of ``transaction``."""
        return self._snapshot.is_visible(transaction.xid)

    def admits_message(self, lsn: int) -> bool:
        """Return whether a message outside transactions, whose record ends at ``lsn``, comes before the rows."""
        return lsn <= self._end_lsn

    def hold(self, transaction: Transaction) -> None:
        """Record that ``transaction`` has to wait, and all later transactions as well.

        The transaction has changes, and has committed.
        """
        if self._waiting_lsn is None:
            self._waiting_lsn = transaction.commit_lsn
        elif self.sees(transaction):
            self.is_void = True

    def reach(self, lsn: int) -> None:
        """Record that everything that the server wrote before ``lsn`` has been received."""
        self.is_complete = self.is_complete or lsn >= self._end_lsn

    @property
    def lsn(self) -> int:
        """The position of the rows: after all transactions that passed, and before all that wait."""
        return self._end_lsn if self._waiting_lsn is None else min(self._end_lsn, self._waiting_lsn)
