"""A round takes a database snapshot between two transactions, and waits until the stream has reached the snapshot.

From the snapshot on, :class:`pgsluice.round.Round` decides which transactions pass. The session immediately
processes transactions that pass. All others wait for the end of the round. The rows that were read at the snapshot can
join the open cut when all transactions that the snapshot sees have been received.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Final

from pgsluice.errors import SourceUnavailable, TableUnreadable
from pgsluice.pipeline.ends import Reader, Stream
from pgsluice.pipeline.outbox import Outbox
from pgsluice.progress import Progress
from pgsluice.round import Round
from pgsluice.snapshot import Taken
from pgsluice.transaction import Transaction
from pgsluice.transactions import Transactions

SEEN_S: Final = 0.1
"""Before a snapshot is taken, all transactions that have passed have to be visible to other sessions of PostgreSQL. The
stream waits at most this long for that. With synchronous replication, a transaction becomes visible only when a standby
has answered."""

SEEN_AGAIN_S: Final = 0.002

TAKE_S: Final = 2.0
"""The stream waits at most this long for a snapshot, because the server may not answer."""

PAUSE_S: Final = 5.0
"""We wait at most this long for the end of the transaction that is being received, because the table is locked
meanwhile."""

ASK_S: Final = 0.02
"""The interval at which a round asks the server for its position while the round waits for the stream."""

FLUSH_S: Final = 0.05
"""If a round waits longer than this, it writes a message to the WAL. The message makes the server flush its WAL, so
that the stream advances. Without the message, the WAL of a transaction in progress may stay unflushed."""

FLUSH_AGAIN_S: Final = 1.0

ROUND_S: Final = 20.0
"""A round fails if the stream makes no progress for this long, because transactions may have to wait for the end of the
round."""


@dataclass(slots=True)
class Seams:
    """The parts of the session that the loader uses.

    ``pause`` suspends the session's work at a moment at which no transaction is partly received. ``go_on`` processes
    the transactions that have waited for the round. Call it during such a pause. ``wake`` makes the session check
    whether its cut is due.
    """

    transactions: Transactions
    outbox: Outbox
    progress: Progress
    pause: Callable[[], AbstractAsyncContextManager[None]]
    go_on: Callable[[], Awaitable[None]]
    wake: Callable[[], None]


class Rounds:
    """The rounds of one session, one after the other."""

    def __init__(self, reader: Reader, stream: Stream, seams: Seams, count_held: Callable[[float], None]) -> None:
        """``count_held`` is called with the seconds for which changes have waited for rows to be read."""
        self._reader = reader
        self._stream = stream
        self._seams = seams
        self._count_held = count_held
        self._held_at: float | None = None
        """The time since which a transaction has waited for the end of the round. None if no transaction waits."""
        self.held_s = 0.0
        """How many seconds the first waiting transaction has waited for the end of the last round."""
        self._decided = asyncio.Event()
        """Set as soon as the position of the rows is known, or it is known that no position fits them."""
        self._round: Round | None = None
        self._is_watching = False
        self._unseen: set[int] = set()
        """The ids of transactions that have passed, and that other sessions of PostgreSQL may not see yet. They are
        noted while ``_is_watching`` is set."""

    def watch(self, *, on: bool) -> None:
        """Begin or stop noting which transactions pass. They are noted only while there are tables to load.

        Transactions that passed earlier need not be noted, because before the loader reads a table, it waits for all
        transactions that are changing the table.
        """
        self._is_watching = on
        if not on:
            self._unseen.clear()

    def on_commit(self, transaction: Transaction) -> None:
        """Record that ``transaction`` passes. Every later snapshot has to see this transaction.

        A transaction that the snapshot of the present round sees need not be noted, because every later snapshot sees
        it as well.
        """
        if self._is_watching and not (self._round is not None and self._round.sees(transaction)):
            self._unseen.add(transaction.xid)
        self._note()

    @property
    def ignores_commits(self) -> bool:
        """Return whether :meth:`on_commit` has nothing to note."""
        return not self._is_watching and self._round is None

    def on_held(self) -> None:
        """Record that a transaction waits for the end of the round."""
        if self._held_at is None:
            self._held_at = time.monotonic()
        self._note()

    def on_position(self, lsn: int) -> None:
        """Record that the server reports position ``lsn`` between two transactions."""
        if self._round is not None:
            self._round.reach(lsn)
            self._note()

    def _note(self) -> None:
        if self._round is not None and (self._round.is_complete or self._round.is_void):
            self._decided.set()

    async def prune(self) -> None:
        """Forget the transactions that have become visible."""
        if self._unseen:
            snapshot = await self._reader.look()
            self._unseen = {xid for xid in self._unseen if not snapshot.is_visible(xid)}

    async def take(self) -> Taken:
        """Take the snapshot between two transactions. From now on, the round decides which transactions pass."""
        seams = self._seams
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(PAUSE_S):
                    await stack.enter_async_context(seams.pause())
            except TimeoutError:
                raise TableUnreadable(f"A transaction takes more than {PAUSE_S:g} s to be received.") from None
            stack.callback(self._end_hold, time.monotonic())
            try:
                async with asyncio.timeout(TAKE_S):
                    await self._see_all()
                    taken = await self._reader.take()
            except TimeoutError:
                await self._reader.close()
                raise SourceUnavailable(f"PostgreSQL took no snapshot within {TAKE_S:g} s.") from None
            self._round = seams.transactions.gate = Round(taken.snapshot, taken.end_lsn)
            self._decided.clear()
            seams.progress.limit_received(taken.end_lsn)
            self._stream.ask_position()  # the answer comes while the rows are read
            return taken

    def _end_hold(self, since: float) -> None:
        self._count_held(time.monotonic() - since)

    async def _see_all(self) -> None:
        """Wait until all transactions that have passed are visible to other sessions of PostgreSQL."""
        give_up_at = time.monotonic() + SEEN_S
        await self.prune()
        while self._unseen:
            if time.monotonic() > give_up_at:
                raise TableUnreadable("Transactions that PostgreSQL has sent are not visible to other sessions yet.")
            await asyncio.sleep(SEEN_AGAIN_S)
            await self.prune()

    async def wait_complete(self, *, is_locked: bool = False) -> int | None:
        """Wait until the position where the rows belong is certain, and return that position.

        If the stream does not move by itself, write a message to the WAL. Return None if no position fits the rows,
        because a transaction that the snapshot sees came after one that it does not see. Raise TableUnreadable if the
        stream makes no progress for ROUND_S. If the table ``is_locked``, wait at most ROUND_S in all.
        """
        progress, received = self._seams.progress, -1
        since = time.monotonic()
        flush_at = since + FLUSH_S
        while not (self._current.is_complete or self._current.is_void):
            now = time.monotonic()
            if progress.received > received and not is_locked:
                received, since = progress.received, now
            if now - since > ROUND_S:
                raise TableUnreadable(f"The stream has not reached the snapshot within {ROUND_S:g} s.")
            if now >= flush_at:
                await self._reader.flush()
                flush_at = now + FLUSH_AGAIN_S
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_S):
                    await self._decided.wait()
                    continue
            self._stream.ask_position()
        return None if self._current.is_void else self._current.lsn

    async def end(self) -> None:
        """Release the transactions that have waited. Call it while the session's work is paused."""
        seams = self._seams
        self._round = seams.transactions.gate = None
        beyond = seams.progress.lift_limit()
        await seams.go_on()
        self.held_s = 0.0 if self._held_at is None else time.monotonic() - self._held_at
        if self._held_at is not None:
            self._count_held(self.held_s)
            self._held_at = None
        seams.progress.on_received(beyond)
        seams.wake()

    @property
    def _current(self) -> Round:
        assert self._round is not None, "take() has begun it"
        return self._round
