"""The stream of one slot. It reads batches of frames from a COPY BOTH, and writes status updates to it.

The session of ``pipeline`` uses this module. Reading frames and sending status updates are independent. If nobody
reads, the server has to wait, but it still gets status updates, so it does not end the connection.

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
from pgsluice.postgres.async_libpq import ANSWER_TIMEOUT_S, Wire, answered_within
from pgsluice.postgres.failures import ServerError

BATCH_MESSAGES = 1024
"""The maximum number of frames in one read. Decoding and encoding them takes about 10 ms, during which other tasks on
the event loop have to wait."""

BATCH_BYTES = 1024 * 1024
"""The size at which a batch ends. The frame that reaches this size is the last one. Without this limit, a batch could
contain a thousand large rows."""

BUSY_MESSAGES = 32
"""A stream counts as busy if a read returns at least this many frames, which means tens of thousands of frames per
second."""

GATHER_S = 0.001
"""How long to wait before the next read of a busy stream if the last read emptied the socket. Meanwhile, more frames
arrive. Waking up for a few frames at a time would cost more than processing them, both here and in the walsender."""

MIN_STATUS_GAP_S = 0.2
"""The minimum time between two status updates. A server that shuts down requests 25,000 updates per second, but five
are enough."""

STOP_TIMEOUT_S = 5.0
"""How long to wait until the server ends the COPY. The server may first have to send the changes that it is
decoding."""

# If consume_input completes no frame, OpenSSL may still hold the rest of a TLS record, and then the socket does not
# become readable. libpq reads at least 8 KiB at a time, and a record has at most 16 KiB. So a second call reads the
# rest.
_FRUITLESS_READS = 2

_POSTGRES_EPOCH_S = 946_684_800

_DEFAULT_WAL_SENDER_TIMEOUT_S = 60.0

Judge = Callable[[ServerError], Awaitable[Exception]]

Inquiry = Callable[[], Awaitable[bool]]
"""A function that asks on another connection whether the server still streams to us. It raises a PgsluiceError if there
is no answer."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The times after which a stream reports, requests a reply from a silent server, and gives up waiting.

    After ``alone_after_s``, the stream gives up if the server does not answer on another connection either. After
    ``give_up_after_s``, it gives up in any case.
    """

    status_interval_s: float
    probe_after_s: float
    alone_after_s: float
    give_up_after_s: float

    @classmethod
    def of(cls, wal_sender_timeout_s: float, status_interval_s: float) -> "Timing":
        """Derive the times from the session's wal_sender_timeout. 0 means that the time-out is switched off.

        The server ends the session if it receives nothing for wal_sender_timeout, so we report three times in that
        period. We wait much longer before we give up, because a server that decodes a large unpublished transaction can
        be silent for minutes. If we reconnected, the server would have to decode it again. If the host is down, TCP
        notices this earlier.
        """
        timeout_s = wal_sender_timeout_s or _DEFAULT_WAL_SENDER_TIMEOUT_S
        return cls(min(status_interval_s, timeout_s / 3), timeout_s, 4 * timeout_s, 20 * timeout_s)


class ReplicationStream:
    """A stream that START_REPLICATION has started. One task reads, and any task may report."""

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
        """A function to call while the server is silent, because a broken network may hide that the stream has
        ended."""
        self.check_received: Callable[[], Awaitable[None]] | None = None
        """A function to call when frames have been received. If it raises an error, the frames are not returned."""
        self._held: list[XLogData | Keepalive] = []
        self._is_emptied = self._is_busy = False
        self._inquiry: asyncio.Task[None] | None = None
        self.failure: Exception | None = None
        """The error that ended the stream. None while the stream runs."""
        self.ended = asyncio.Event()
        self._reporter = asyncio.create_task(self._report_regularly(), name="standby-status")
        self._reporter.add_done_callback(self._on_reporter_done)

    async def read(self) -> list[XLogData | Keepalive]:
        """Return the next frames, at least one and at most BATCH_MESSAGES.

        The frame with which the batch reaches BATCH_BYTES is the last one.

        Wait only if there is no frame. If the wait is cancelled, no frame is lost. When all frames before the end of
        the stream have been returned, raise the error that ended it.
        """
        # If there is always data, nothing below waits. So let other tasks, such as the reporter, run here.
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
        """Return the frames that libpq and the socket have, without waiting."""
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
                return  # the server has sent a notice that a publication is missing, which has ended the stream
            if size > 0:
                frame = bytes(data)  # a copy, because libpq frees its buffer after the next read
                if size >= MESSAGE_AT and frame[0] == XLOG_DATA:
                    take(frame)  # nearly all frames are of this kind
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
            return  # a status that we did not request
        if isinstance(frame, Keepalive) and frame.reply_requested:
            self._reply_due.set()
        take(frame)

    async def _learn_why(self) -> None:
        """Read the reason why the server ended the COPY."""
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
        """End the stream. The current read and all later reads raise the first error that was passed to this method."""
        self.failure = self.failure or error
        self.ended.set()
        self._wire.interrupt(error)

    async def wait_ended(self) -> None:
        """Wait for the end of the stream, even if nobody reads it. Then raise the error that ended the stream."""
        await self.ended.wait()
        assert self.failure is not None, "fail() sets the failure before the event"
        raise self.failure

    def report(self, received: int, flushed: int) -> None:
        """Set the positions that status updates report from now on. A position never decreases.

        Everything before ``flushed`` is durable in Kafka, so the slot need not keep it.
        """
        self._received = max(self._received, received, flushed)
        self._flushed = max(self._flushed, flushed)

    def ask_position(self) -> None:
        """Ask the server for its position. The server answers with a keepalive."""
        self._send_report(reply_requested=True)

    def answer_shutdown(self, wal_end: int) -> None:
        """Let a server shut down, although Kafka does not have all changes yet. This does not move the slot.

        A server that shuts down waits until our flush position equals the end of the WAL that it has sent. If our flush
        position is 0/0, the server compares our write position instead. So send 0/0 and ``wal_end``.
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
                self.fail(_silent(silence_s, f", and does not answer on another connection: {error}"))
            return
        if not is_streaming and (silence_s := self._silence_s()) > 0:
            self.fail(_silent(silence_s, ": it has ended the stream, but the network has not told us"))

    def _on_reporter_done(self, reporter: asyncio.Task[None]) -> None:
        if not reporter.cancelled() and (error := reporter.exception()) is not None:
            self.fail(error if isinstance(error, Exception) else SourceUnavailable("interrupted"))

    def _silence_s(self) -> float:
        """Return for how many seconds the reader has been waiting for data, or 0 if nobody reads."""
        since = self._listening_since
        return 0.0 if since is None else asyncio.get_running_loop().time() - since

    def _send_report(self, *, reply_requested: bool = False) -> None:
        self._send(self._received, self._flushed, reply_requested=reply_requested)

    def _send(self, write: int, flush: int, *, reply_requested: bool) -> None:
        if self._copy_ended:
            return  # sending would fail, and this failure would hide the reason why the server has ended the COPY
        pgconn, now = self._wire.pgconn, int((time.time() - _POSTGRES_EPOCH_S) * 1_000_000)
        try:
            if pgconn.flush():
                return  # the server has not read earlier updates, so a further update would only fill the buffer
            pgconn.put_copy_data(standby_status_update(write, flush, flush, now, reply_requested=reply_requested))
            pgconn.flush()
        except psycopg.OperationalError as error:
            self.fail(failures.connection_lost(error))

    async def stop(self) -> None:
        """Send a last status update, and end the COPY properly. After that, the connection accepts other commands."""
        await self._end_tasks()
        if not self._is_open():
            return
        self._send_report()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._end_copy()
        except (psycopg.OperationalError, TimeoutError) as error:
            self.fail(SourceUnavailable(f"the replication stream did not end properly: {error}"))

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
        """Stop reporting. Call this before you close the connection."""
        for task in (self._reporter, self._inquiry):
            if task is not None:
                task.cancel()
        self.fail(SourceUnavailable("the replication connection was closed"))


def _silent(seconds: float, more: str = "") -> SourceUnavailable:
    return SourceUnavailable(f"PostgreSQL sent nothing for {seconds:.0f} s{more}")
