"""Processes frames as a session does, either message by message or with the shortcut for whole transactions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType

from pgsluice.cut import Cut
from pgsluice.envelope import ChangeEncoder, Stamp
from pgsluice.errors import PgsluiceError
from pgsluice.pgoutput.framing import MESSAGE_AT, Keepalive
from pgsluice.record import Pending, Record, held_bytes
from pgsluice.relation import Relation
from pgsluice.rows import is_row
from pgsluice.transaction import Change, Committed, Delivered, Transaction, WholeTransactions
from pgsluice.transactions import Transactions
from tests.support.ends import MemorySpool

DELIVERED = Delivered(1000, 1000, 1000)
EPOCH = 3

Frames = list[bytes | Keepalive]
Tables = Mapping[int, tuple[Relation, ChangeEncoder | None]]
Close = tuple[Sequence[Record], int, int, int, Transaction | None, object]


@dataclass
class Intake:
    """Processes frames as a session does, and collects the results."""

    twin: ModuleType
    tables: Tables
    limit: int
    room: int
    commit_timestamps: bool
    has_shortcut: bool
    cuts: list[Close] = field(default_factory=list)
    own: list[Record] = field(default_factory=list)
    """The records of transactions that were too large to share a cut with others."""
    received: int = 0
    whole: int = 0
    """The number of transactions that took the shortcut and have records."""
    error: str = ""

    def take(self, frames: Frames) -> object:
        """Process all frames. Return all results."""
        self._transactions = Transactions(DELIVERED, MemorySpool())
        self._transactions.relations.by_oid.update({oid: one for oid, (one, _) in self.tables.items()})
        self._ready = {oid: self.twin.Rows(one, encoder) for oid, (one, encoder) in self.tables.items()}
        self._pending, self._cut = Pending(self.limit), Cut()
        self._stamp: Stamp | None = None
        at = 0
        try:
            while at < len(frames):
                at = self._step(frames, at)
        except PgsluiceError as error:
            self.error = f"{type(error).__name__}: {error}"
        self._close()
        return self.cuts, self.own, self.received, self.error, self._pending.records

    def _step(self, frames: Frames, at: int) -> int:
        passing, frame = self._transactions.passing, frames[at]
        if passing is not None and is_row(frame):
            end: int = self.twin.add_run(
                frames, at, self._transactions.relations.by_oid, self._ready, self._stamp_of(passing), self._pending
            )
            self._overflow()
            if end > at:
                return end
        elif passing is None and self.has_shortcut and (whole := self._whole(frames, at)) is not None:
            return whole.at
        if isinstance(frame, bytes):
            self._receive(frame[MESSAGE_AT:])
        return at + 1

    def _whole(self, frames: Frames, at: int) -> WholeTransactions | None:
        passes_from = self._transactions.passes_from
        if passes_from is None:
            return None
        add: Callable[..., WholeTransactions | None] = self.twin.add_transactions
        whole = add(
            *(frames, at, self._transactions.relations.by_oid, self._ready, self._pending),
            from_lsn=max(passes_from, self.received),
            room=self.room - held_bytes(self._cut.size, len(self._cut.records)),
            epoch=EPOCH,
            commit_timestamps=self.commit_timestamps,
        )
        if whole is not None:
            self.received = max(self.received, whole.end_lsn)
            self.whole += whole.count
            if whole.count:
                self._join()
                self._cut.add_whole(whole)
                self._close_if_large()
        return whole

    def _receive(self, message: bytes) -> None:
        for event in self._transactions.receive(message):
            if isinstance(event, Change):
                self._ready[event.relation.oid].add(
                    event.message, self._stamp_of(event.transaction), self._pending, is_streamed=False
                )
                self._overflow()
            elif isinstance(event, Committed):
                self.received = max(self.received, event.end_lsn)
                if self._pending.records:
                    self._join()
                    self._cut.add(event.transaction, event.end_lsn)
                    self._close_if_large()

    def _stamp_of(self, transaction: Transaction) -> Stamp:
        if self._stamp is None or self._stamp.transaction is not transaction:
            self._stamp = Stamp(transaction, EPOCH, commit_timestamps=self.commit_timestamps)
        return self._stamp

    def _overflow(self) -> None:
        if self._pending.full:
            self.own += self._pending.records
            self._pending.clear()

    def _join(self) -> None:
        self._cut.add_records(self._pending.records, self._pending.size, self._pending.events)
        self._pending.clear()

    def _close_if_large(self) -> None:
        if held_bytes(self._cut.size, len(self._cut.records)) >= self.room:
            self._close()

    def _close(self) -> None:
        cut, self._cut = self._cut, Cut()
        self.cuts.append((cut.records, cut.size, cut.events, cut.transactions, cut.first, cut.last))
