"""Encoded records on their way into cuts: what is open, what is being committed, what must wait.

One cut commits while the next is filled. A transaction larger than ``cut_bytes`` gets a Kafka transaction
of its own and is produced as it arrives; nothing else is ever in that one, so aborting it tears nothing.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pgsluice.checkpoint import Checkpoint
from pgsluice.commands import Answer, CommandState
from pgsluice.cut import Cut
from pgsluice.loads import Load, Loaded, Mark, Place
from pgsluice.pgoutput.messages import LogicalMessage
from pgsluice.pipeline.ends import Sink
from pgsluice.pipeline.vitals import Vitals
from pgsluice.progress import Progress
from pgsluice.record import Pending, held_bytes
from pgsluice.transaction import Transaction

CHUNK_BYTES = 1024 * 1024
"""A large transaction is handed to the producer in pieces of this size: one switch of threads each."""

MANY_EVENTS = 1000
"""A cut with fewer is committed nearly as quickly as one with a single event."""

CLOSING_S = 0.001
"""The time that the session gets to begin with the next cut."""

QUIET_S = 60.0
"""How often a cut is written though nothing happens: with every cut Kafka is asked what became of the topics."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a cut closes, and how much may be on its way."""

    cut_interval_s: float
    cut_bytes: int
    inflight_max: int
    heartbeat_s: float


class Outbox:
    """Cuts of one session; ``on_delivered`` gets each cut that was committed, and the seconds it took."""

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
        """The last one committed, and the one that was last tried: its outcome may be unknown."""
        self.committing: asyncio.Task[None] | None = None
        self._sink = sink
        self._progress = progress
        self._limits = limits
        self._on_delivered = on_delivered
        self._vitals = vitals
        self.pending = Pending(limits.cut_bytes)
        """What there is of the transaction in progress; when it is full: :meth:`overflow`."""
        self._open = Cut()
        self._opened_at = 0.0
        self._closed_at = time.monotonic()
        self._closing: Cut | None = None
        self._own: Cut | None = None
        self._own_since = 0.0
        self._busy_since: float | None = None
        self.own_transaction: Transaction | None = None
        """The transaction that has a Kafka transaction of its own, while it is being written."""

    @property
    def size(self) -> int:
        """Bytes in memory that are not yet durable."""
        return self.pending.held + _held(self._open) + (_held(self._closing) if self._closing else 0)

    @property
    def busy_s(self) -> float:
        """How long Kafka has been busy with what it was last given; 0 when it has nothing to do."""
        return 0.0 if self._busy_since is None else time.monotonic() - self._busy_since

    @property
    def own_written(self) -> tuple[int, float]:
        """Bytes that the producer has taken of the transaction that has its own, and the seconds since its begin."""
        return (0, 0.0) if self._own is None else (self._own.size, time.monotonic() - self._own_since)

    @property
    def oldest(self) -> Transaction | None:
        """The first transaction that is complete, and not yet durable."""
        closing = self._closing.first if self._closing is not None else None
        return closing or self._open.first

    @property
    def is_empty(self) -> bool:
        """Whether everything that was received is durable, or is nothing to deliver."""
        closing = self._closing.events if self._closing is not None else 0
        return self._own is None and not (closing or self._open.events or self.pending.events)

    @property
    def full(self) -> bool:
        """Whether nothing more may be read until something is delivered."""
        return self.size >= self._limits.inflight_max and self.committing is not None

    async def until_closed(self) -> None:
        """Return when the records of the open cut do not wait for the end of another commit any more, or are few.

        Whoever adds records that nobody waits for waits here before: a cut that has grown while another was committed
        takes long, and changes wait with it.
        """
        cut = self._open
        while self.committing is not None and self._open is cut and cut.events >= MANY_EVENTS:
            await asyncio.wait([self.committing])
            await asyncio.sleep(CLOSING_S)

    async def overflow(self, transaction: Transaction) -> None:
        """Give the transaction in progress a Kafka transaction of its own, and produce what is there of it."""
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
        """End the transaction in progress: its records join the open cut, or its own cut is committed."""
        if self._own is not None:
            await self._commit_own(transaction, end_lsn)
        elif self.pending.records:
            self.join()
            self._open.add(transaction, end_lsn)
            if _held(self._open) >= self._limits.cut_bytes:
                await self._close_large()

    async def _close_large(self) -> None:
        """Begin to commit the open cut; where there is no room for another beside the one before it, wait for that.

        A single read can bring the commits of many transactions whose rows have waited.
        """
        if self.committing is not None and (self.full or self.committing.done()):
            await self.settle()
        if self.committing is None:
            self._close(time.monotonic())

    def join(self) -> None:
        """Let what was added join the open cut: it is complete."""
        if self._open.is_empty:
            self._opened_at = time.monotonic()
        self._open.add_records(self.pending.records, self.pending.size, self.pending.events)
        self.pending.clear()

    def join_message(self, message: LogicalMessage) -> None:
        """Let the ``message`` outside transactions that was added join the open cut."""
        self.join()
        self._open.add_message(message)

    async def join_load(
        self, loads: Sequence[Load], place: Place, marks: Sequence[Mark], loaded: Sequence[Loaded]
    ) -> None:
        """Let rows of tables that were added join the open cut, with how far they have come after that.

        The caller has seen to it that no transaction is in progress.
        """
        self.join()
        self._open.add_load(loads, place, marks, loaded)
        if _held(self._open) >= self._limits.cut_bytes:
            await self._close_large()

    def note_loads(self, loads: Sequence[Load]) -> None:
        """Record with the transaction that is about to be committed how far the loads have come."""
        (self._own or self._open).loads = loads

    def note_commands(
        self, commands: CommandState, answers: Sequence[Answer], loads: Sequence[Load], loaded: Sequence[Loaded]
    ) -> None:
        """Let what commands have left behind join the open cut, with ``answers`` to them and what became of loads.

        The caller has seen to it that no transaction is in progress.
        """
        if self._open.is_empty:
            self._opened_at = time.monotonic()
        self._open.add_commands(commands, answers, loads, loaded)
        self._open.opens_commands |= commands.topic_id != self.checkpoint.commands.topic_id

    def note_assumed(self, assumed: Sequence[Loaded]) -> None:
        """Let it join the open cut that these tables count as loaded; the caller is in a pause."""
        if self._open.is_empty:
            self._opened_at = time.monotonic()
        self._open.add_assumed(assumed)

    async def _commit_own(self, transaction: Transaction, end_lsn: int) -> None:
        await self.overflow(transaction)
        cut = self._own
        assert cut is not None, "overflow() has begun it"
        cut.add(transaction, end_lsn)
        cut.end_lsn = end_lsn
        started = self._closed_at = time.monotonic()
        checkpoint = self._next_checkpoint(cut)
        await self._wait(self._sink.commit(cut, checkpoint))
        self._own = self.own_transaction = None
        self.pending.limit = self._limits.cut_bytes
        self._delivered(cut, checkpoint, time.monotonic() - started)

    def close_if_due(self, *, idle: bool, at_once: bool = False) -> None:
        """Begin to commit the open cut, or a heartbeat, when it is time for it.

        ``idle``: there is nothing more to read now. ``at_once``: do not wait for the heartbeat either.
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
        """Return how long nothing will have to be closed, if nothing arrives and no commit ends."""
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
        """Deliver everything that is committed in PostgreSQL so far.

        What lies behind a transaction that is given up in the middle is given up with it.
        """
        await self.settle()
        if self._own is None and not self._open.is_empty:
            self._close(time.monotonic())
            await self.settle()

    async def settle(self) -> None:
        """Wait for the cut that is being committed, and raise what went wrong with it."""
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
        """Wait for the sink while nothing else is done: it is no silence of ours."""
        with self._vitals.waiting():
            await self._busy(call)

    async def _busy(self, call: Awaitable[None]) -> None:
        """Wait for the sink, and know since when."""
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
