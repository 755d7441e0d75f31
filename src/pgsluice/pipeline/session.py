"""One session, from START_REPLICATION until the connection to PostgreSQL or the Kafka producer ends.

All state here ends with the session: the decoder, the relations, the encoders, and the records that are not delivered.
The next session reads the last state from Kafka.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pgsluice.checkpoint import Checkpoint
from pgsluice.cut import Cut
from pgsluice.envelope import Stamp
from pgsluice.errors import Diverged, StopError
from pgsluice.loads import Loaded
from pgsluice.metrics import Metrics
from pgsluice.pgoutput import messages
from pgsluice.pgoutput.framing import MESSAGE_AT, Keepalive, XLogData, wal_end
from pgsluice.pipeline import shutdown, watch
from pgsluice.pipeline.ahead import Ahead
from pgsluice.pipeline.commands import Commands
from pgsluice.pipeline.encoders import Encoders, add_run
from pgsluice.pipeline.ends import Sink, Source, Spool, Stream
from pgsluice.pipeline.intake import Intake, Read
from pgsluice.pipeline.load_report import LoadReport
from pgsluice.pipeline.loader import Loader
from pgsluice.pipeline.outbox import Limits, Outbox
from pgsluice.pipeline.reading import LoadOptions
from pgsluice.pipeline.rounds import Seams
from pgsluice.pipeline.session_status import SessionStatus
from pgsluice.pipeline.shortcut import Shortcut
from pgsluice.pipeline.shutdown import ShutdownWatch
from pgsluice.pipeline.tasks import cancel
from pgsluice.pipeline.vitals import Vitals
from pgsluice.pipeline.watch import SessionWatch, warn_of_bare_commit
from pgsluice.progress import Progress
from pgsluice.resending import check_message_resent, check_resent, unexpected
from pgsluice.rows import is_row
from pgsluice.snapshot import FLUSH_PREFIX
from pgsluice.transaction import (
    Change,
    Committed,
    Emitted,
    Event,
    Held,
    MessageResent,
    Paused,
    Prepared,
    Resent,
    RolledBack,
    Transaction,
    Unexpected,
)
from pgsluice.transactions import Transactions

FULL_BATCH = 256
"""If a read returns fewer frames, it has emptied the socket. So no more changes wait, and the cut can be closed."""

FULL_BATCH_BYTES = 512 * 1024
"""The corresponding limit in bytes. Large rows need this limit, because a read also ends at 1 MiB."""

TURN = 1000
"""After this many changes, other tasks on the event loop may run. A single commit may release millions of changes."""

PAUSE_AGAIN_S = 0.005
"""A task that needs a pause of the session's work checks at this interval whether the current transaction has ended."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options of a session. ``loading`` says how tables are loaded. None means that they are not loaded.

    If ``commit_timestamps`` is set, records carry the time of the commit instead of the time of producing.
    """

    limits: Limits
    commit_timestamps: bool = False
    loading: LoadOptions | None = None


@dataclass(frozen=True, slots=True)
class Ends:
    """The objects with which a session reads from PostgreSQL, encodes rows, and writes to Kafka."""

    source: Source
    stream: Stream
    sink: Sink
    encoders: Encoders
    spool: Spool
    vitals: Vitals = field(default_factory=Vitals)


class Session:
    """Delivers the changes of the stream through the encoders to the sink, until an error or a stop."""

    def __init__(  # noqa: PLR0913 - the arguments are the ends, and the state of former sessions
        self,
        ends: Ends,
        checkpoint: Checkpoint,
        options: SessionOptions,
        metrics: Metrics,
        progress: Progress,
        *,
        found: Checkpoint | None = None,
        loaded: Mapping[tuple[str, str], Loaded] | None = None,
    ) -> None:
        """Continue from ``checkpoint``. ``found`` is the last checkpoint in Kafka, or None if Kafka has none.

        ``loaded`` are the tables that need not be loaded any more.
        """
        self.progress = progress
        self._stream = ends.stream
        self._encoders = ends.encoders
        self._resumed_from = checkpoint
        self._found = found
        self._metrics = metrics
        self._commit_timestamps = options.commit_timestamps
        self._spool = ends.spool
        self._transactions = Transactions(checkpoint.delivered, ends.spool)
        self._encoders.keys.partitions = self._transactions.relations.partitions
        self._vitals = ends.vitals
        self._outbox = Outbox(ends.sink, checkpoint, progress, options.limits, self._on_delivered, ends.vitals)
        self.status = SessionStatus(checkpoint, progress, self._transactions, self._outbox, ends.spool, ends.vitals)
        self._watch = SessionWatch(ends.source, self.status, lambda: self.is_paused)
        self._intake = Intake(ends.stream, lambda: self.is_paused)
        self._stamp: Stamp | None = None
        self._ahead = Ahead()
        self._idle = True
        self._shutdown = ShutdownWatch()
        self._changes = 0
        """How many changes have arrived outside of runs of rows."""
        self._stop = asyncio.Event()
        self._turn = asyncio.Lock()
        """Held by the task that processes what was received, or by a task that has paused this work."""
        self._nudge = asyncio.Event()
        self._loader: Loader | None = None
        self._commands: Commands | None = None
        if options.loading is not None:
            seams = Seams(
                self._transactions, self._outbox, progress, self._paused, self._take_released, self._nudge.set
            )
            self._loader = Loader(
                *(ends.source, ends.stream, ends.encoders, seams, options.loading, metrics),
                epoch=checkpoint.epoch,
                commit_timestamps=options.commit_timestamps,
                loads=checkpoint.loads,
                load_position=checkpoint.load_position,
                loaded=loaded or {},
                commands=checkpoint.commands,
                tracks_loads=checkpoint.tracks_loads,
            )
            reader = ends.sink.commands()
            if reader is not None:
                self._commands = Commands(ends.source, reader, ends.encoders, seams, self._loader)
        self._shortcut = Shortcut(
            *(self._transactions, ends.encoders, self._outbox, progress, self._loader),
            epoch=checkpoint.epoch,
            commit_timestamps=options.commit_timestamps,
        )

    @property
    def load_report(self) -> LoadReport | None:
        """Return the progress of the loads, or None if it is not known yet, or if tables are not loaded."""
        return None if self._loader is None else self._loader.report

    @property
    def is_paused(self) -> bool:
        """Return whether a command has paused the pipeline, so that nothing is delivered."""
        return self._loader is not None and self._loader.requests.state.is_pipeline_paused

    @property
    def checkpoint(self) -> Checkpoint:
        """Return the last checkpoint that was committed."""
        return self._outbox.checkpoint

    @property
    def own_transaction(self) -> Transaction | None:
        """Return the transaction that is being written in its own Kafka transaction."""
        return self._outbox.own_transaction

    @property
    def own_written(self) -> tuple[int, float]:
        """Return how many bytes of :attr:`own_transaction` are written, and in how many seconds."""
        return self._outbox.own_written

    def may_have_written(self, checkpoint: Checkpoint | None) -> bool:
        """Return whether ``checkpoint``, just read from Kafka, can be from this session or from an earlier one.

        This is so if the session found the checkpoint, committed it, or tried to commit it. The field ``refused`` is
        not compared, because another process that had the slot for a moment may have set it. If there is no checkpoint,
        or only one that is older than our last one, the broker that answered is outdated. In this case, return True.
        """
        own = self._outbox.checkpoint
        if checkpoint is None or checkpoint.cut < own.cut:
            return True
        return replace(checkpoint, refused="") in (self._found, own, self._outbox.attempted)

    @property
    def has_delivered(self) -> bool:
        """Return whether a cut was committed in this session."""
        return self.checkpoint is not self._resumed_from

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set, then deliver all complete transactions.

        If the session ends before that, raise the error that ended it.
        """
        self._stop = stop
        tasks = [
            asyncio.create_task(self._work(), name="work"),
            asyncio.create_task(self._watch.run(), name="watch"),
            asyncio.create_task(self._intake.wait_lost(), name="stream"),
        ]
        if self._loader is not None:
            tasks.append(asyncio.create_task(self._loader.run(), name="load"))
        if self._commands is not None:
            tasks.append(asyncio.create_task(self._commands.run(), name="commands"))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            next(task for task in tasks if task.done()).result()
        finally:
            await cancel(*tasks)

    async def _work(self) -> None:
        stop = self._stop
        intake = self._intake
        stopping = asyncio.create_task(stop.wait(), name="stop")
        nudged = asyncio.create_task(self._nudge.wait(), name="nudge")
        try:
            while not stop.is_set():
                self._vitals.beat()
                if not self._outbox.full:
                    intake.begin()
                if intake.is_listening:
                    self._watch.on_listening()
                waited = intake.awaited, self._outbox.committing, stopping, nudged
                tasks = [task for task in waited if task is not None]
                await asyncio.wait(tasks, timeout=self._patience(), return_when=asyncio.FIRST_COMPLETED)
                if nudged.done():
                    self._nudge.clear()
                    nudged = asyncio.create_task(self._nudge.wait(), name="nudge")
                async with self._turn:
                    if self._outbox.committing is not None and self._outbox.committing.done():
                        await self._outbox.settle()
                    if (read := intake.take()) is not None:
                        await self._take(await self._received(read))
                    self._close_cut_if_due()
            async with self._turn:
                await self._outbox.drain()
            self._report()
        except Diverged:
            # The pipeline will record this error in the last checkpoint. So first wait for the commit in progress.
            await self._outbox.settle()
            raise
        finally:
            await intake.close()
            await cancel(stopping, nudged, self._outbox.committing)

    @contextlib.asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        """Suspend the session's work for this block, at a moment at which no transaction is partly received."""
        while True:
            async with self._turn:
                if self._transactions.passing is None:
                    yield
                    return
            await asyncio.sleep(PAUSE_AGAIN_S)

    async def _take_released(self) -> None:
        await self._take_events(self._transactions.release())

    async def _received(self, reading: Read) -> list[XLogData | Keepalive]:
        """Return the frames of a read.

        If the read raised a StopError, deliver everything before the error, then raise the error. After such an error,
        operators create a new slot or advance the slot, and both skip everything that is not in Kafka by then.
        """
        try:
            return reading.result()
        except StopError:
            self.progress.lift_limit()
            await self._take_released()
            await self._outbox.drain()
            raise

    def _patience(self) -> float:
        return min(self._outbox.seconds_until_due(), shutdown.LOOK_S if self._shutdown.suspected else watch.WATCH_S)

    async def _take(self, frames: list[XLogData | Keepalive]) -> None:
        """Process a batch of frames, so that their records are in the outbox."""
        transactions, pending = self._transactions, self._outbox.pending
        relations, ready, stop = transactions.relations.by_oid, self._encoders.ready, self._stop
        at = 0
        while at < len(frames):
            frame, transaction, began_at = frames[at], transactions.passing, at
            if transaction is not None and is_row(frame):
                if transactions.relations.described:
                    transactions.end_descriptions(frame[MESSAGE_AT:])
                at = add_run(frames, at, relations, ready, self._stamp_of(transaction), pending)
                if pending.full:
                    await self._outbox.overflow(transaction)
            elif transaction is None:
                at = await self._shortcut.take(frames, at)
            if at == began_at:
                if isinstance(frame, Keepalive):
                    self._take_keepalive(frame)
                else:
                    self._ahead.come_to(frames, at)
                    await self._take_events(transactions.receive(frame[MESSAGE_AT:]))
                at += 1
            if stop.is_set() and self.own_transaction is not None:
                return  # a large transaction is incomplete, and will be aborted
        data = [frame for frame in frames if isinstance(frame, bytes)]
        size = sum(map(len, data)) - MESSAGE_AT * len(data)
        self._idle = len(frames) < FULL_BATCH and size < FULL_BATCH_BYTES
        self._metrics.received_bytes.inc(size)
        last = frames[-1]
        self.status.hear_of(last.wal_end if isinstance(last, Keepalive) else wal_end(last), self.progress.received)
        while await self._spool.relieve():
            self._vitals.beat()

    async def _take_events(self, events: Iterable[Event]) -> None:
        """Process the events of a message that did not come in a run."""
        for event in events:
            if isinstance(event, Change):
                rows = self._encoders.known(event.relation)
                if rows is None:
                    with self._vitals.waiting():  # Kafka creates topics, and the registry registers schemas
                        rows = await self._encoders.of(event.relation, self._ahead.described())
                stamp = self._stamp_of(event.transaction)
                rows.add(event.message, stamp, self._outbox.pending, is_streamed=event.is_streamed)
                if self._outbox.pending.full:
                    await self._outbox.overflow(event.transaction)
                self._changes += 1
                if self._changes % TURN == 0:
                    self._vitals.beat()
                    await asyncio.sleep(0)
            elif isinstance(event, Committed):
                await self._take_commit(event)
            elif isinstance(event, Unexpected):
                self._judge(event.change)
            else:
                await self._take_other(event)
            if self._stop.is_set() and self.own_transaction is not None:
                return  # a large transaction is incomplete, and will be aborted

    def _judge(self, change: Change | Emitted) -> None:
        """Raise Diverged if ``change`` would be delivered, because earlier sessions got no change at this position."""
        if _is_ours(change):
            return
        if isinstance(change, Emitted) or self._encoders.delivers(change):
            raise unexpected(self._resumed_from, change)

    async def _take_commit(self, event: Committed) -> None:
        transaction, end_lsn = event.transaction, event.end_lsn
        if event.is_bare:
            warn_of_bare_commit(transaction)
        self._ended(transaction, end_lsn)
        if self._loader is not None:
            self._loader.on_commit(transaction)
        await self._outbox.commit(transaction, end_lsn)

    async def _take_other(self, event: Event) -> None:
        """Process an event that is neither a change nor a commit."""
        match event:
            case Held(transaction):
                self._hold_back(transaction)
            case Emitted() if _is_ours(event):
                pass
            case Emitted(transaction, message):
                await self._take_message(transaction, message)
            case Resent(transaction, end_lsn):
                check_resent(self._resumed_from, event)
                self.progress.on_resent(end_lsn, "transaction")
                self._ended(transaction, end_lsn)
                self._metrics.resent.inc()
            case MessageResent(message):
                check_message_resent(self._resumed_from, message)
                self.progress.on_resent(message.lsn, "message")
            case Prepared(xid, _, prepare_lsn, end_lsn):
                if event.has_rows:
                    self.progress.on_prepared(xid, prepare_lsn)
                self.progress.on_received(end_lsn)
            case RolledBack(xid, end_lsn):
                self.progress.forget(xid)
                self.progress.on_received(end_lsn)
            case Paused():
                self._vitals.beat()
                await self._spool.load()

    def _hold_back(self, transaction: Transaction) -> None:
        assert self._loader is not None, "transactions wait only while the loader reads rows"
        self.progress.limit_received(transaction.commit_lsn)
        self._loader.on_held()

    def _ended(self, transaction: Transaction, end_lsn: int) -> None:
        self.progress.on_received(end_lsn)
        self.progress.on_prepared_commit(transaction.xid, end_lsn)

    async def _take_message(self, transaction: Transaction | None, message: messages.LogicalMessage) -> None:
        with self._vitals.waiting():  # Kafka creates a topic, and the registry registers schemas
            encoder = await self._encoders.of_messages()
        if transaction is None:
            self._outbox.pending.add(encoder.encode_standalone(message, self._resumed_from.epoch))
            self._outbox.join_message(message)
            self.progress.on_received(message.lsn)
        else:
            self._outbox.pending.add(encoder.encode(message, self._stamp_of(transaction)))
            if self._outbox.pending.full:
                await self._outbox.overflow(transaction)

    def _stamp_of(self, transaction: Transaction) -> Stamp:
        stamp = self._stamp
        if stamp is None or stamp.transaction is not transaction:
            epoch = self._resumed_from.epoch
            stamp = self._stamp = Stamp(transaction, epoch, commit_timestamps=self._commit_timestamps)
        return stamp

    def _take_keepalive(self, frame: Keepalive) -> None:
        if self._transactions.is_between:
            self.progress.on_received(frame.wal_end)
            if self._loader is not None:
                self._loader.on_position(frame.wal_end)
        if frame.reply_requested:
            self._shutdown.asked(frame.wal_end)

    def _close_cut_if_due(self) -> None:
        self._outbox.close_if_due(idle=self._idle, at_once=self._shutdown.suspected)
        if self._shutdown.overdue and self.progress.confirmable < self._shutdown.wal_end:
            self._stream.answer_shutdown(self._shutdown.wal_end)
        self._report()

    def _report(self) -> None:
        confirmable = self.progress.confirmable
        self._stream.report(self.progress.received, confirmable)
        if confirmable >= self._shutdown.wal_end:
            self._shutdown = ShutdownWatch()

    def _on_delivered(self, cut: Cut, seconds: float) -> None:
        self._metrics.count_cut(cut, seconds)
        self._report()


def _is_ours(change: Change | Emitted) -> bool:
    """Return whether this is a message that pgsluice itself wrote to the WAL to make the stream advance."""
    return isinstance(change, Emitted) and change.message.prefix == FLUSH_PREFIX
