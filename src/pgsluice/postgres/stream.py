"""The stream of one slot: batches of frames out of COPY BOTH, status updates back into it.

Used by ``pipeline``. Reading and reporting are independent: whoever does not read holds the server back,
and the status timer goes on telling it that we live.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import pq

from pgsluice.errors import PgsluiceError, SourceUnavailable
from pgsluice.lsn import INVALID_LSN
from pgsluice.pgoutput.framing import (
    MESSAGE_AT,
    XLOG_DATA,
    Frame,
    Keepalive,
    PrimaryStatus,
    XLogData,
    parse_frame,
    standby_status_update,
)
from pgsluice.postgres import failures
from pgsluice.postgres.failures import ServerError
from pgsluice.postgres.wire import ANSWER_TIMEOUT_S, Wire, answered_within

BATCH_MESSAGES = 1024
"""Frames per read, at most: decoding and encoding them takes some 10 ms, and the event loop waits for it."""

BATCH_BYTES = 1024 * 1024
"""A batch ends with the frame that reaches this: large rows must not pile up by the thousand."""

BUSY_MESSAGES = 32
"""Frames in a read that show a busy stream: tens of thousands a second."""

GATHER_S = 0.001
"""How long a busy stream is left alone when it has been emptied. To be woken for every few frames costs more than they
do, here and in the walsender, which has to wake us."""

MIN_STATUS_GAP_S = 0.2
"""Between two status updates: a server that shuts down asks for 25,000 a second; five are enough for it."""

STOP_TIMEOUT_S = 5.0
"""To wait for the server's end of the COPY: it may first have to send what it is busy decoding."""

# A consume_input that completes no frame may have left the rest of a TLS record inside OpenSSL, where the
# socket's readability does not show it. libpq reads at least 8 KiB at a time and a record has at most 16, so
# the second one finds it.
_FRUITLESS_READS = 2

_POSTGRES_EPOCH_S = 946_684_800

_DEFAULT_WAL_SENDER_TIMEOUT_S = 60.0

Judge = Callable[[ServerError], Awaitable[Exception]]

Inquiry = Callable[[], Awaitable[bool]]
"""Asks on another connection whether the server still streams to us; a PgsluiceError if there is no answer."""


@dataclass(frozen=True, slots=True)
class Timing:
    """When a stream reports, when it asks for a sign of life, when it takes the peer for dead.

    ``alone_after_s``: when it does so if nothing answers on another connection either.
    """

    status_interval_s: float
    probe_after_s: float
    alone_after_s: float
    give_up_after_s: float

    @classmethod
    def of(cls, wal_sender_timeout_s: float, status_interval_s: float) -> "Timing":
        """Derive the times from the session's wal_sender_timeout (0: switched off).

        The server ends the session when it hears nothing for wal_sender_timeout: three reports fit into it.
        Giving up is far slower: a server that decodes a large unpublished transaction can be silent for
        minutes, and would start anew after each reconnect. A host that is gone is TCP's to notice, sooner.
        """
        timeout_s = wal_sender_timeout_s or _DEFAULT_WAL_SENDER_TIMEOUT_S
        return cls(min(status_interval_s, timeout_s / 3), timeout_s, 4 * timeout_s, 20 * timeout_s)


class ReplicationStream:
    """START_REPLICATION under way. One task reads; any task reports."""

    def __init__(self, wire: Wire, timing: Timing, judge: Judge) -> None:
        self._wire = wire
        self._timing = timing
        self._judge = judge
        self._received = INVALID_LSN
        self._flushed = INVALID_LSN
        self._listening_since: float | None = None
        self._reply_due = asyncio.Event()
        self._copy_ended = False
        self.inquire: Inquiry | None = None
        """Whom to ask while the server is silent: a broken network may hide from us that the stream has ended."""
        self.check_received: Callable[[], Awaitable[None]] | None = None
        """Called when frames have been received. If it raises, they are not handed out."""
        self._held: list[XLogData | Keepalive] = []
        self._is_emptied = self._is_busy = False
        self._inquiry: asyncio.Task[None] | None = None
        self.failure: Exception | None = None
        """Why the stream ended; None while it runs."""
        self.ended = asyncio.Event()
        self._reporter = asyncio.create_task(self._report_regularly(), name="standby-status")
        self._reporter.add_done_callback(self._on_reporter_done)

    async def read(self) -> list[XLogData | Keepalive]:
        """Return the next frames: at least one, at most BATCH_MESSAGES or the one that reaches BATCH_BYTES.

        Waits only while there is nothing; cancelling the wait loses nothing. Raises why the stream ended, after
        what came before that in the same batch: other frames are sent again in the next session.
        """
        # With data always at hand nothing below waits: the reporter must have its turn.
        await asyncio.sleep(GATHER_S if self._is_busy else 0)
        while True:
            self._held = self._held or self._drain()
            if self._held:
                if self.check_received is not None:
                    await self.check_received()
                frames, self._held = self._held, []
                self._is_busy = self._is_emptied and len(frames) >= BUSY_MESSAGES
                return frames
            if self._copy_ended:
                await self._learn_why()
            if self.failure is not None:
                raise self.failure
            await self._listen()

    async def _listen(self) -> None:
        self._listening_since = asyncio.get_running_loop().time()
        try:
            await self._wire.readable()
        finally:
            self._listening_since = None

    def _is_open(self) -> bool:
        return not self._copy_ended and self.failure is None

    def _drain(self) -> list[XLogData | Keepalive]:
        """Take what libpq and the socket have, without waiting."""
        frames: list[XLogData | Keepalive] = []
        if not self._is_open():
            return frames
        try:
            self._fill(frames.append)
        except psycopg.OperationalError as error:
            self.fail(failures.connection_lost(error))
        return frames

    def _fill(self, take: Callable[[XLogData | Keepalive], None]) -> None:
        get_copy_data, consume_input = self._wire.pgconn.get_copy_data, self._wire.pgconn.consume_input
        self._is_emptied = False
        messages, room, fruitless = BATCH_MESSAGES, BATCH_BYTES, 0
        while messages > 0 and room > 0:
            size, data = get_copy_data(1)
            if self.failure is not None:
                return  # of a notice that came before this frame: something is missing between the two
            if size > 0:
                frame = bytes(data)  # a copy: libpq frees its buffer after the next read
                if size >= MESSAGE_AT and frame[0] == XLOG_DATA:
                    take(frame)  # nearly all are, and need no further look
                else:
                    self._take(parse_frame(frame), take)
                messages, room, fruitless = messages - 1, room - size, 0
            elif size < 0:
                self._copy_ended = True
                return
            elif fruitless == _FRUITLESS_READS:
                self._is_emptied = True
                return
            else:
                consume_input()
                fruitless += 1

    def _take(self, frame: Frame, take: Callable[[XLogData | Keepalive], None]) -> None:
        if isinstance(frame, PrimaryStatus):
            return  # nobody asked for it
        if isinstance(frame, Keepalive) and frame.reply_requested:
            self._reply_due.set()
        take(frame)

    async def _learn_why(self) -> None:
        """Collect how the server ended the COPY."""
        try:
            with answered_within(self._wire.pgconn, ANSWER_TIMEOUT_S):
                results = await self._wire.results()
        except psycopg.OperationalError as error:
            self.fail(failures.connection_lost(error))
            return
        errors = [ServerError.of(one) for one in results if one.status == pq.ExecStatus.FATAL_ERROR]
        if not errors:
            self.fail(SourceUnavailable("PostgreSQL ended the stream: it is shutting down"))
            return
        failure = await self._judge(errors[0])
        failure.__cause__ = errors[0]
        self.fail(failure)

    def fail(self, error: Exception) -> None:
        """End the stream: the read under way and all later ones raise ``error``, or what came before it."""
        self.failure = self.failure or error
        self.ended.set()
        self._wire.interrupt(error)

    async def wait_ended(self) -> None:
        """Raise what ended the stream as soon as it is known, also while nobody reads; never returns."""
        await self.ended.wait()
        assert self.failure is not None, "it is set before"
        raise self.failure

    def report(self, received: int, flushed: int) -> None:
        """Set what the status updates say from now on; positions never go back.

        ``flushed`` is what the slot may forget: everything before it is durable elsewhere.
        """
        self._received = max(self._received, received, flushed)
        self._flushed = max(self._flushed, flushed)

    def ask_position(self) -> None:
        """Ask the server how far it has come; the answer is a keepalive."""
        self._send_report(reply_requested=True)

    def answer_shutdown(self, wal_end: int) -> None:
        """Let a server that shuts down go, although not everything is flushed: the slot does not move.

        It waits until flush, or write where flush is 0/0, equals what it has sent.
        """
        self._send(wal_end, INVALID_LSN, reply_requested=False)

    async def _report_regularly(self) -> None:
        while self.failure is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timing.status_interval_s):
                    await self._reply_due.wait()
            self._reply_due.clear()
            silence_s = self._silence_s()
            self._send_report(reply_requested=silence_s >= self._timing.probe_after_s)
            if silence_s >= self._timing.give_up_after_s:
                self.fail(_silent(silence_s))
            elif silence_s >= self._timing.probe_after_s:
                self._begin_inquiry()
            await asyncio.sleep(MIN_STATUS_GAP_S)

    def _begin_inquiry(self) -> None:
        if self.inquire is not None and (self._inquiry is None or self._inquiry.done()):
            self._inquiry = asyncio.create_task(self._inquire(self.inquire), name="inquiry")

    async def _inquire(self, inquire: Inquiry) -> None:
        try:
            is_streaming = await inquire()
        except PgsluiceError as error:
            if (silence_s := self._silence_s()) >= self._timing.alone_after_s:
                self.fail(_silent(silence_s, f", nor can it be asked: {error}"))
            return
        if not is_streaming and (silence_s := self._silence_s()) > 0:
            self.fail(_silent(silence_s, ": it has ended the stream, and the network kept that from us"))

    def _on_reporter_done(self, reporter: asyncio.Task[None]) -> None:
        if not reporter.cancelled() and (error := reporter.exception()) is not None:
            self.fail(error if isinstance(error, Exception) else SourceUnavailable("interrupted"))

    def _silence_s(self) -> float:
        """Return for how long the reader has been waiting; while nobody reads, silence is our own."""
        since = self._listening_since
        return 0.0 if since is None else asyncio.get_running_loop().time() - since

    def _send_report(self, *, reply_requested: bool = False) -> None:
        self._send(self._received, self._flushed, reply_requested=reply_requested)

    def _send(self, write: int, flush: int, *, reply_requested: bool) -> None:
        pgconn, now = self._wire.pgconn, int((time.time() - _POSTGRES_EPOCH_S) * 1_000_000)
        try:
            if pgconn.flush():
                return  # the server does not take what it was sent before: more of it would only pile up
            pgconn.put_copy_data(standby_status_update(write, flush, flush, now, reply_requested=reply_requested))
            pgconn.flush()
        except psycopg.OperationalError as error:
            self.fail(failures.connection_lost(error))

    async def stop(self) -> None:
        """End the COPY in order, the last report included; the connection can then take another command."""
        await self._end_tasks()
        if not self._is_open():
            return
        self._send_report()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._end_copy()
        except (psycopg.OperationalError, TimeoutError) as error:
            self.fail(SourceUnavailable(f"the replication stream did not end in order: {error}"))

    async def _end_tasks(self) -> None:
        tasks = {task for task in (self._reporter, self._inquiry) if task is not None}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _end_copy(self) -> None:
        self._wire.pgconn.put_copy_end()
        self._wire.pgconn.flush()
        while self._is_open():
            if not self._drain() and self._is_open():
                await self._wire.readable()
        await self._wire.results()

    def abandon(self) -> None:
        """Stop reporting; whoever closes the connection under the stream calls this first."""
        for task in (self._reporter, self._inquiry):
            if task is not None:
                task.cancel()
        self.fail(SourceUnavailable("the replication connection was closed"))


def _silent(seconds: float, more: str = "") -> SourceUnavailable:
    return SourceUnavailable(f"PostgreSQL sent nothing for {seconds:.0f} s{more}")
