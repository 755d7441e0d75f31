"""One session: from START_REPLICATION to the end of the connection, or of the producer.

Everything here dies with the session: decoder, relation cache, encoders, records not yet delivered. What
survives stands in Kafka, and the next session reads it from there.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass

import structlog

from pgsluice.cut import Cut
from pgsluice.envelope import Stamp
from pgsluice.metrics import Metrics
from pgsluice.pgoutput.decoder import Decoder
from pgsluice.pgoutput.framing import Keepalive, XLogData
from pgsluice.pipeline.encoders import Encoders
from pgsluice.pipeline.ends import Sink, Stream
from pgsluice.pipeline.outbox import Limits, Outbox
from pgsluice.progress import Checkpoint, Progress, check_resent
from pgsluice.transaction import Change, Committed, Event, Resent, Transaction, Transactions

log = structlog.get_logger(__name__)

FULL_BATCH = 256
"""A read that gives fewer frames has emptied the socket: the stream is idle, and a cut need not wait."""

SHUTDOWN_SIGN_S = 0.1
SHUTDOWN_PATIENCE_S = 1.0
"""A server that shuts down asks again at once for a reply. We have a second to write a checkpoint of its last
position; then it is let go without one, because it would wait for us for ever."""

MICROSECONDS = 1_000_000
_POSTGRES_EPOCH_S = 946_684_800


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """``commit_timestamps``: records carry the commit time instead of the time of producing."""

    limits: Limits
    commit_timestamps: bool = False


class Session:
    """Changes out of ``stream``, through the encoders, into ``sink``, until one ends or stop is asked for."""

    def __init__(
        self,
        stream: Stream,
        sink: Sink,
        encoders: Encoders,
        checkpoint: Checkpoint,
        options: SessionOptions,
        metrics: Metrics,
    ) -> None:
        self.progress = Progress(checkpoint.end_lsn)
        self.server_lsn = checkpoint.end_lsn
        self.last_commit_ts = checkpoint.last_commit_ts
        self._stream = stream
        self._encoders = encoders
        self._resumed_from = checkpoint
        self._metrics = metrics
        self._commit_timestamps = options.commit_timestamps
        self._decoder = Decoder()
        self._transactions = Transactions(checkpoint.end_lsn)
        self._outbox = Outbox(sink, checkpoint, self.progress, options.limits, self._on_delivered)
        self._stamp: Stamp | None = None
        self._idle = True
        self._shutdown = _ShutdownWatch()

    @property
    def checkpoint(self) -> Checkpoint:
        """The last checkpoint committed."""
        return self._outbox.checkpoint

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set, then deliver what is complete; raises whatever ends the session before."""
        reading: asyncio.Task[list[XLogData | Keepalive]] | None = None
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            while not stop.is_set():
                if reading is None and not self._outbox.full:
                    reading = asyncio.create_task(self._stream.read(), name="read")
                tasks = [task for task in (reading, self._outbox.committing, stopping) if task is not None]
                await asyncio.wait(tasks, timeout=self._patience(), return_when=asyncio.FIRST_COMPLETED)
                if self._outbox.committing is not None and self._outbox.committing.done():
                    await self._outbox.settle()
                if reading is not None and reading.done():
                    frames, reading = reading.result(), None
                    await self._take(frames)
                self._close_cut_if_due()
            await self._outbox.drain()
            self._report()
        finally:
            await _cancel(reading, stopping, self._outbox.committing)

    def _patience(self) -> float:
        return min(self._outbox.seconds_until_due(), SHUTDOWN_SIGN_S if self._shutdown.suspected else 3600.0)

    async def _take(self, frames: list[XLogData | Keepalive]) -> None:
        """Carry a batch of frames through to the outbox."""
        decode, receive = self._decoder.decode, self._transactions.receive
        size = 0
        for frame in frames:
            if isinstance(frame, XLogData):
                size += len(frame.payload)
                for event in receive(decode(frame.payload)):
                    await self._take_event(event)
            else:
                self._take_keepalive(frame)
        self._idle = len(frames) < FULL_BATCH
        self._metrics.received_bytes.inc(size)
        last = frames[-1]
        self.server_lsn = max(self.server_lsn, last.wal_end, self.progress.received)

    async def _take_event(self, event: Event) -> None:
        if type(event) is Change:
            encoder = self._encoders.ready(event.relation)
            if encoder is None:
                encoder = await self._encoders.prepare(event.relation)
            if encoder is not None and self._outbox.add(encoder.encode(event, self._stamp_of(event.transaction))):
                await self._outbox.overflow()
        elif type(event) is Committed:
            self.progress.on_received(event.end_lsn)
            await self._outbox.commit(event.transaction, event.end_lsn)
        elif type(event) is Resent:
            check_resent(self._resumed_from, event)
            self.progress.on_received(event.end_lsn)
            self._metrics.resent.inc()

    def _stamp_of(self, transaction: Transaction) -> Stamp:
        stamp = self._stamp
        if stamp is None or stamp.transaction is not transaction:
            epoch = self._resumed_from.epoch
            stamp = self._stamp = Stamp(transaction, epoch, commit_timestamps=self._commit_timestamps)
        return stamp

    def _take_keepalive(self, frame: Keepalive) -> None:
        if self._transactions.current is None:
            self.progress.on_received(frame.wal_end)
        if frame.reply_requested:
            self._shutdown.asked(frame.wal_end)

    def _close_cut_if_due(self) -> None:
        self._outbox.close_if_due(idle=self._idle, at_once=self._shutdown.suspected)
        if self._shutdown.overdue and self.progress.confirmable < self._shutdown.wal_end:
            self._stream.answer_shutdown(self._shutdown.wal_end)
        self._report()
        self._metrics.buffered_bytes.set(self._outbox.size)

    def _report(self) -> None:
        confirmable = self.progress.confirmable
        self._stream.report(self.progress.received, confirmable)
        if confirmable >= self._shutdown.wal_end:
            self._shutdown = _ShutdownWatch()

    def _on_delivered(self, cut: Cut, seconds: float) -> None:
        metrics = self._metrics
        for use in cut.topics.values():
            for op, count in use.counts.items():
                metrics.events.labels(op).inc(count)
        metrics.event_bytes.inc(cut.size)
        metrics.transactions.inc(cut.transactions)
        metrics.cuts.labels("data" if cut.transactions else "heartbeat").inc()
        metrics.cut_seconds.observe(seconds)
        if cut.last is not None:
            self.last_commit_ts = cut.last[0].commit_ts
        self._report()

    @property
    def buffered_bytes(self) -> int:
        """Encoded bytes that are not yet durable."""
        return self._outbox.size

    @property
    def lag_bytes(self) -> int:
        """WAL that the server has written and we have not confirmed."""
        return max(0, self.server_lsn - max(self.progress.confirmable, self._resumed_from.end_lsn))

    def lag_seconds(self) -> float:
        """Return the age of the last delivered commit while something is undelivered, else 0."""
        if not self.progress.undelivered and self._outbox.empty:
            return 0.0
        return max(0.0, time.time() - _POSTGRES_EPOCH_S - self.last_commit_ts / MICROSECONDS)

    def positions(self) -> dict[str, int]:
        """Return the positions by the names they have in the metrics."""
        return {
            "server": self.server_lsn,
            "received": self.progress.received,
            "delivered": self.progress.delivered,
            "confirmed": self.progress.confirmable,
        }


class _ShutdownWatch:
    """Recognises a server that shuts down: it asks for a reply again at once, at the same position."""

    def __init__(self) -> None:
        self.wal_end = 0
        self.suspected = False
        self._asked_at = float("-inf")
        self._since = 0.0

    def asked(self, wal_end: int) -> None:
        now = time.monotonic()
        if wal_end == self.wal_end and now - self._asked_at < SHUTDOWN_SIGN_S and not self.suspected:
            self.suspected = True
            self._since = now
        self.wal_end = wal_end
        self._asked_at = now

    @property
    def overdue(self) -> bool:
        return self.suspected and time.monotonic() - self._since > SHUTDOWN_PATIENCE_S


async def _cancel(*tasks: "asyncio.Task[object] | asyncio.Task[list[XLogData | Keepalive]] | None") -> None:
    for task in tasks:
        if task is not None and not task.done():
            task.cancel()
        if task is not None:
            with contextlib.suppress(BaseException):
                await task
