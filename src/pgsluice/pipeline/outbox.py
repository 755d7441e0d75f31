"""Encoded records in flight: the open cut, the cut that is being committed, and the records of an open transaction.

While one cut is being committed, the next one is filled. A transaction larger than ``cut_bytes`` gets its own Kafka
transaction and is produced while it arrives. This Kafka transaction contains nothing else, so it can be aborted without
losing a part of another PostgreSQL transaction.

``tests/unit/pipeline/test_session.py`` covers this module.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pgsluice.checkpoint import Checkpoint
from pgsluice.commands import Answer, CommandState
from pgsluice.cut import Cut
from pgsluice.loads import Load, Loaded, LoadMark, LoadPosition
from pgsluice.pgoutput.messages import LogicalMessage
from pgsluice.pipeline.ends import Sink
from pgsluice.pipeline.vitals import Vitals
from pgsluice.progress import Progress
from pgsluice.record import Pending, held_bytes
from pgsluice.transaction import Transaction, WholeTransactions

CHUNK_BYTES = 1024 * 1024
"""A large transaction is passed to the producer in batches of this size. Each batch costs one switch between
threads."""

MANY_EVENTS = 1000
"""Committing a cut with fewer events takes hardly longer than committing a cut with a single event."""

CLOSING_S = 0.001
"""``until_closed`` waits this long after a commit, so that the session can begin to commit the next cut."""

QUIET_S = 60.0
"""While the position does not change, a cut without changes is written at this interval. It is written because pgsluice
checks at every cut whether its topics in Kafka have changed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits at which a cut closes, and the limit of data in flight."""

    cut_interval_s: float
    cut_bytes: int
    inflight_max: int
    heartbeat_s: float


class Outbox:
    """The cuts of one session. ``on_delivered`` is called with each committed cut and the duration of its commit."""

    def __init__(
        self,
        sink: Sink,
        checkpoint: Checkpoint,
        progress: Progress,
        limits: Limits,
        on_delivered: Callable[[Cut, float], None],
        vitals: Vitals,
    ) -> None:
        self.checkpoint = self.attempted = checkpoint
        """``checkpoint`` is the last checkpoint that was committed. ``attempted`` is the last checkpoint that the
        session has tried to commit. The outcome of that attempt may be unknown."""
        self.committing: asyncio.Task[None] | None = None
        self._sink = sink
        self._progress = progress
        self._limits = limits
        self._on_delivered = on_delivered
        self._vitals = vitals
        self.pending = Pending(limits.cut_bytes)
        """The records of the transaction in progress. When these records reach the limit, call :meth:`overflow`."""
        self._open = Cut()
        self._opened_at = 0.0
        self._closed_at = time.monotonic()
        self._closing: Cut | None = None
        self._own: Cut | None = None
        self._own_since = 0.0
        self._busy_since: float | None = None
        self.own_transaction: Transaction | None = None
        """The transaction that is being written in its own Kafka transaction."""

    @property
    def size(self) -> int:
        """Return how many bytes in memory are not durable yet."""
        return self.pending.held + _held(self._open) + (_held(self._closing) if self._closing else 0)

    @property
    def busy_s(self) -> float:
        """Return how long Kafka has been busy with the call in progress, or 0 if no call is in progress."""
        return 0.0 if self._busy_since is None else time.monotonic() - self._busy_since

    @property
    def own_written(self) -> tuple[int, float]:
        """Return how many bytes of :attr:`own_transaction` were produced, and the seconds since the first of them."""
        return (0, 0.0) if self._own is None else (self._own.size, time.monotonic() - self._own_since)

    @property
    def oldest(self) -> Transaction | None:
        """Return the first transaction that is complete and not durable yet."""
        closing = self._closing.first if self._closing is not None else None
        return closing or self._open.first

    @property
    def is_empty(self) -> bool:
        """Return whether everything that was received is durable, or did not have to be delivered."""
        closing = self._closing.events if self._closing is not None else 0
        return self._own is None and not (closing or self._open.events or self.pending.events)

    @property
    def full(self) -> bool:
        """Return whether nothing more may be read until something has been delivered."""
        return self.size >= self._limits.inflight_max and self.committing is not None

    async def until_closed(self) -> None:
        """Wait until the open cut has few records, or until no other cut is being committed.

        Call it before you add records that may be late, such as the rows of a load. If the open cut grows large during
        another commit, its own commit takes long, which delays the changes in it.
        """
        cut = self._open
        while self.committing is not None and self._open is cut and cut.events >= MANY_EVENTS:
            await asyncio.wait([self.committing])
            await asyncio.sleep(CLOSING_S)

    async def overflow(self, transaction: Transaction) -> None:
        """Produce the pending records of the transaction in progress, in a Kafka transaction that has no other records.

        All earlier cuts are delivered first, because cuts are committed in the order of the WAL.
        """
        if self._own is None:
            await self.drain()
            self.own_transaction = transaction
            await self._wait(self._sink.begin())
            self._own, self._own_since = Cut(), time.monotonic()
            self.pending.limit = CHUNK_BYTES
        await self._wait(self._sink.produce(self._own, self.pending.records))
        self._own.size += self.pending.size
        self._own.events += self.pending.events
        self.pending.clear()

    async def commit(self, transaction: Transaction, end_lsn: int) -> None:
        """End the transaction in progress. Add its records to the open cut, or commit its own cut if it has one."""
        if self._own is not None:
            await self._commit_own(transaction, end_lsn)
        elif self.pending.records:
            self.join()
            self._open.add(transaction, end_lsn)
            if _held(self._open) >= self._limits.cut_bytes:
                await self._close_large()

    @property
    def room(self) -> int:
        """Return how many bytes of whole transactions may be added before :meth:`commit_whole` has to be called.

        The cut is not closed between these transactions.
        """
        room = self._limits.cut_bytes - _held(self._open)
        is_occupied = self.committing is not None and not self.committing.done()
        return max(room, self._limits.inflight_max - self.size) if is_occupied else room

    async def commit_whole(self, whole: WholeTransactions) -> None:
        """End whole transactions, whose records are pending, and add these records to the open cut."""
        if whole.count:
            self.join()
            self._open.add_whole(whole)
            if _held(self._open) >= self._limits.cut_bytes:
                await self._close_large()

    async def _close_large(self) -> None:
        """Begin to commit the open cut, because it has reached its size limit.

        If there is no room for another cut, wait for the previous commit first.

        The commit begins even if some frames of the last read are not processed yet. These frames may contain the
        commits of many transactions whose rows have waited. If the cut stayed open for them, it could become much
        larger than the limit.
        """
        if self.committing is not None and (self.full or self.committing.done()):
            await self.settle()
        if self.committing is None:
            self._close(time.monotonic())

    def join(self) -> None:
        """Add the pending records, which are complete, to the open cut."""
        if self._open.is_empty:
            self._opened_at = time.monotonic()
        self._open.add_records(self.pending.records, self.pending.size, self.pending.events)
        self.pending.clear()

    def join_message(self, message: LogicalMessage) -> None:
        """Add the pending ``message``, which belongs to no transaction, to the open cut."""
        self.join()
        self._open.add_message(message)

    async def join_load(
        self, loads: Sequence[Load], load_position: LoadPosition, marks: Sequence[LoadMark], loaded: Sequence[Loaded]
    ) -> None:
        """Add the pending rows of tables to the open cut, and record the progress of their loads.

        The caller has made sure that no transaction is in progress.
        """
        self.join()
        self._open.add_load(loads, load_position, marks, loaded)
        if _held(self._open) >= self._limits.cut_bytes:
            await self._close_large()

    def note_loads(self, loads: Sequence[Load]) -> None:
        """Record the progress of loads in the same cut as the transaction that is about to be committed."""
        (self._own or self._open).loads = loads

    def note_commands(
        self, commands: CommandState, answers: Sequence[Answer], loads: Sequence[Load], loaded: Sequence[Loaded]
    ) -> None:
        """Add the effects of commands to the open cut, with ``answers`` and the state of loads.

        The caller has made sure that no transaction is in progress.
        """
        if self._open.is_empty:
            self._opened_at = time.monotonic()
        self._open.add_commands(commands, answers, loads, loaded)
        self._open.opens_commands |= commands.topic_id != self.checkpoint.commands.topic_id

    def note_assumed(self, assumed: Sequence[Loaded]) -> None:
        """Record in the open cut that these tables count as loaded. Call it while the session's work is paused."""
        if self._open.is_empty:
            self._opened_at = time.monotonic()
        self._open.add_assumed(assumed)

    async def _commit_own(self, transaction: Transaction, end_lsn: int) -> None:
        await self.overflow(transaction)
        cut = self._own
        assert cut is not None, "overflow() has made it"
        cut.add(transaction, end_lsn)
        cut.end_lsn = end_lsn
        started = self._closed_at = time.monotonic()
        checkpoint = self._next_checkpoint(cut)
        await self._wait(self._sink.commit(cut, checkpoint))
        self._own = self.own_transaction = None
        self.pending.limit = self._limits.cut_bytes
        self._delivered(cut, checkpoint, time.monotonic() - started)

    def close_if_due(self, *, idle: bool, at_once: bool = False) -> None:
        """Begin to commit the open cut, or a heartbeat, if it is due.

        ``idle`` says that there is nothing more to read now. If ``at_once`` is set and the position has changed, a
        heartbeat is due now.
        """
        if self.committing is not None or self._own is not None:
            return
        now = time.monotonic()
        if not self._open.is_empty:
            waited = now - self._opened_at >= self._limits.cut_interval_s
            if idle or waited or _held(self._open) >= self._limits.cut_bytes:
                self._close(now)
        elif (self._progress.undelivered and at_once) or now - self._closed_at >= self._heartbeat_s:
            self._close(now)

    def seconds_until_due(self) -> float:
        """Return in how many seconds the next cut becomes due, if nothing arrives and no commit ends before then."""
        now = time.monotonic()
        if self.committing is None and self._own is None:
            if not self._open.is_empty:
                return max(0.0, self._opened_at + self._limits.cut_interval_s - now)
            return max(0.0, self._closed_at + self._heartbeat_s - now)
        return math.inf

    @property
    def _heartbeat_s(self) -> float:
        if self._progress.undelivered:
            return self._limits.heartbeat_s
        return math.inf if self._progress.awaits_resent else QUIET_S

    async def drain(self) -> None:
        """Deliver all transactions that have been received completely.

        Records of a transaction that is being received are not delivered.
        """
        await self.settle()
        if self._own is None and not self._open.is_empty:
            self._close(time.monotonic())
            await self.settle()

    async def settle(self) -> None:
        """Wait for the cut that is being committed. Raise its error."""
        if self.committing is not None:
            with self._vitals.waiting():
                await self.committing
            self.committing = None

    def _close(self, now: float) -> None:
        cut, self._open = self._open, Cut()
        cut.end_lsn = max(self._progress.received, self.checkpoint.end_lsn)
        self._closed_at = now
        self._closing = cut
        self.committing = asyncio.create_task(self._deliver(cut), name="cut")

    async def _deliver(self, cut: Cut) -> None:
        started = time.monotonic()
        checkpoint = self._next_checkpoint(cut)
        await self._busy(self._sink.deliver(cut, checkpoint))
        self._closing = None
        self._delivered(cut, checkpoint, time.monotonic() - started)

    async def _wait(self, call: Awaitable[None]) -> None:
        """Wait for the sink while the session does nothing else.

        This wait does not count as silence (see :meth:`Vitals.waiting`).
        """
        with self._vitals.waiting():
            await self._busy(call)

    async def _busy(self, call: Awaitable[None]) -> None:
        """Wait for the sink, and note when the call began."""
        self._busy_since = time.monotonic()
        await call
        self._busy_since = None

    def _next_checkpoint(self, cut: Cut) -> Checkpoint:
        held_lsn = self._progress.held_at(cut.end_lsn)
        self.attempted = self.checkpoint.advanced(cut, self.checkpoint.cut + 1, held_lsn)
        return self.attempted

    def _delivered(self, cut: Cut, checkpoint: Checkpoint, seconds: float) -> None:
        self.checkpoint = checkpoint
        self._progress.on_delivered(checkpoint.end_lsn, checkpoint.held_lsn)
        self._on_delivered(cut, seconds)


def _held(cut: Cut) -> int:
    return held_bytes(cut.size, len(cut.records))
