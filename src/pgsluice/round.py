"""One round: rows that were read at a database snapshot find their place in the stream.

The session takes the snapshot between two transactions, and asks the round about every transaction from then on. Those
that the snapshot sees go on: the rows that were read have their changes. Those that it does not see wait, with
everything behind them, until the rows are in the stream. So at every position of the stream, the rows there are those
of the table.
"""

from pgsluice.snapshot import Snapshot
from pgsluice.transaction import Transaction


class Round:
    """The gate (``transactions.Gate``) of one snapshot. ``end_lsn``: every change that it sees lies before."""

    def __init__(self, snapshot: Snapshot, end_lsn: int) -> None:
        self.is_complete = False
        """Whether the stream has come to ``end_lsn``, so that no visible transaction can follow."""
        self.is_void = False
        """Whether a visible transaction came behind one that waits: no position fits the rows."""
        self._snapshot = snapshot
        self._end_lsn = end_lsn
        self._waiting_lsn: int | None = None

    def admits(self, transaction: Transaction) -> bool:
        """Return whether ``transaction``, which begins or has just committed, may go on at once."""
        self.reach(transaction.commit_lsn)
        return self._waiting_lsn is None and self.sees(transaction)

    def sees(self, transaction: Transaction) -> bool:
        """Return whether the rows have the changes of ``transaction``."""
        return self._snapshot.is_visible(transaction.xid)

    def admits_message(self, lsn: int) -> bool:
        """Return whether a message outside transactions, whose record ends at ``lsn``, comes before the rows."""
        return lsn <= self._end_lsn

    def hold(self, transaction: Transaction) -> None:
        """Take notice that ``transaction`` has changes, has committed, and waits with all that come behind it."""
        if self._waiting_lsn is None:
            self._waiting_lsn = transaction.commit_lsn
        elif self.sees(transaction):
            self.is_void = True

    def reach(self, lsn: int) -> None:
        """Take notice that everything that the server has written before ``lsn`` has been received."""
        self.is_complete = self.is_complete or lsn >= self._end_lsn

    @property
    def lsn(self) -> int:
        """The rows' position: behind all transactions that went on, and before all that wait."""
        return self._end_lsn if self._waiting_lsn is None else min(self._end_lsn, self._waiting_lsn)
