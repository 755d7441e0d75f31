"""Runs one session after the other. Each session continues without a gap where the previous one ended.

The error that ends a session decides what happens next: another try, waiting as a standby, or the end of the process.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import StrEnum
from typing import TypeVar

import structlog

from pgsluice.checkpoint import Checkpoint, last_checkpoint
from pgsluice.dead_letter import DeadLetter, Refused
from pgsluice.envelope import DeadLetters
from pgsluice.errors import (
    DeadlineMissed,
    Diverged,
    DrainTimeout,
    Fenced,
    NotInBinary,
    RetryableError,
    SlotInUse,
    SourceUnavailable,
    TooManyDescriptions,
    TypeChanged,
    UnavailableError,
)
from pgsluice.history import LOAD_AGAIN
from pgsluice.lsn import format_lsn
from pgsluice.metrics import Metrics
from pgsluice.pipeline.encoders import Encoders, refusals
from pgsluice.pipeline.ends import Registry, Sink, Source, Spool
from pgsluice.pipeline.options import PipelineOptions
from pgsluice.pipeline.quarantine import Quarantine, open_dead_letters
from pgsluice.pipeline.session import Ends, Session
from pgsluice.pipeline.startup import Start, Startup
from pgsluice.pipeline.tasks import NOTHING_LOST, close_when_lost, drained_within, while_served
from pgsluice.pipeline.vitals import Vitals
from pgsluice.printable import quoted
from pgsluice.progress import Progress
from pgsluice.resending import to_be_resent

log = structlog.get_logger(__name__)

T = TypeVar("T")

BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 30.0

CHECK_TYPES_S = 15.0
"""A start spends at most this long on checking the types of columns."""

_DOUBLINGS = 6
"""After this many doublings, the pause exceeds BACKOFF_MAX_S."""

MIB = 1024 * 1024

DESCRIBED_ANEW_MAX = 10
"""After more than this many sessions have ended because a type was changed, pgsluice switches to text format. Without
this limit, everybody who may alter a type could end sessions again and again."""

SAY_AGAIN_S = 300.0
"""If nothing can be streamed, the log repeats the reason at this interval."""

RELEASE_S = 0.2
"""A walsender needs this long to notice that we have closed the connection. Until then, the slot is still in use."""

STANDBY_S = 1.0
"""A standby checks at least this often whether the slot is free, so it takes over within this time."""


class State(StrEnum):
    """The present activity of a pipeline."""

    STARTING = "starting"
    STANDBY = "standby"
    STREAMING = "streaming"
    WAITING = "waiting"
    STOPPED = "stopped"


_LEVELS = {State.STANDBY: logging.INFO, State.WAITING: logging.WARNING}


class Pipeline:
    """Runs sessions until :meth:`stop`. Raises a StopError if it would be wrong to continue."""

    def __init__(
        self,
        options: PipelineOptions,
        open_source: Callable[[], Awaitable[Source]],
        make_sink: Callable[[], Awaitable[Sink]],
        registry: Registry,
        make_spool: Callable[[], Spool],
        metrics: Metrics,
    ) -> None:
        self._options = options
        self._make_spool = make_spool
        self._open_source = open_source
        self._make_sink = make_sink
        self._registry = registry
        self._metrics = metrics
        self._stop = asyncio.Event()
        self._adopt = options.adopt_slot
        self._failures = 0
        self._missed: int | None = None
        self._types = options.types
        self._unread: tuple[str, int] | None = None
        self._described_anew = 0
        self._crowded: int | None = None
        self._types_checked = not options.tables.choose_types
        self._dead_letters: DeadLetters | None = None
        self.quarantine = Quarantine(metrics) if options.quarantine else None
        self._said: str | None = None
        self._said_at = 0.0
        self.vitals = Vitals()
        """The signs of life of all sessions."""
        self._startup = Startup(options, registry, self.vitals, self._open_dead_letters)
        self.state = State.STARTING
        self.session: Session | None = None
        self.last_error: str | None = None

    @property
    def binary(self) -> bool:
        """Return whether the next session asks for values in binary format."""
        return self._types.binary

    def stop(self) -> None:
        """Request an orderly end, in which all complete transactions are first delivered and confirmed."""
        self._stop.set()

    async def stopped(self) -> None:
        """Wait for :meth:`stop`."""
        await self._stop.wait()

    async def run(self) -> None:
        """Run sessions until stopped. Raise DrainTimeout if the changes in flight could not be delivered in time."""
        while not self._stop.is_set():
            self.vitals.beat()
            try:
                await self._run_session()
            except _Stopped:
                break
            except SlotInUse as error:
                self._wait_because(error, State.STANDBY)
                await self._pause(STANDBY_S)
            except RetryableError as error:
                await self._try_again(error)
            except Refused as error:
                self._replace(error)
                await self._pause(RELEASE_S)
        self.state = State.STOPPED

    async def _try_again(self, error: RetryableError) -> None:
        session, self.session = self.session, None
        if session is not None and self._stop.is_set():
            raise DrainTimeout(f"{error} {NOTHING_LOST}") from error
        if session is not None and session.has_delivered:
            self._failures, self._said = 0, None
        if isinstance(error, DeadlineMissed) and session is not None:
            self._give_up_if_missed_before(error, session)
        if isinstance(error, NotInBinary):
            self._go_on_in_text(error)
        if isinstance(error, TypeChanged) and session is not None:
            self._go_on_in_text_if_described_since(error, session)
        if isinstance(error, TooManyDescriptions) and session is not None:
            self._give_up_if_no_further(error, session)
        self._metrics.session_errors.labels(type(error).__name__).inc()
        self._wait_because(error, State.WAITING)
        await self._pause(min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(self._failures, _DOUBLINGS)))
        self._failures += 1

    def _replace(self, error: Refused) -> None:
        """Make the next session write dead letters for the refused records. Raise the error if that is not possible."""
        dead_letters, self.session = self._dead_letters, None
        if dead_letters is None or not dead_letters.expect(error.letters):
            raise error
        if self._stop.is_set():
            raise DrainTimeout(f"{error} {NOTHING_LOST}") from error
        self._metrics.session_errors.labels(type(error).__name__).inc()
        self.last_error = str(error)

    def _give_up_if_missed_before(self, error: DeadlineMissed, session: Session) -> None:
        """Raise UnavailableError if the same transaction has missed the deadline of its Kafka transaction before."""
        transaction, (size, seconds) = session.own_transaction, session.own_written
        if transaction is None:
            return
        if transaction.commit_lsn == self._missed:
            mib = size / MIB
            raise UnavailableError(
                f"{error} This happened twice in a row with transaction {transaction.xid} of PostgreSQL. {mib:.1f} "
                f"MiB of it were written, at {mib / max(seconds, 1):.2f} MiB/s. Raise delivery.transaction_timeout, "
                "and transaction.max.timeout.ms on the brokers."
            ) from error
        self._missed = transaction.commit_lsn

    def _go_on_in_text_if_described_since(self, error: TypeChanged, session: Session) -> None:
        """Continue in text format if reading the type's description again did not help, or was necessary too often."""
        self._described_anew += 1
        place = str(error), session.checkpoint.end_lsn
        if place == self._unread or self._described_anew > DESCRIBED_ANEW_MAX:
            self._go_on_in_text(error)
        self._unread = place

    def _go_on_in_text(self, error: RetryableError) -> None:
        """Request values in text format from the next session on, because every value has a text format.

        Both formats lead to the same records. So a value without a binary format makes the pipeline slower, but cannot
        stop it.
        """
        log.warning(
            "values come in text format until the next start, although postgres.binary is set: the published records "
            "are the same, but encoding them takes longer. If the table keeps this type, set postgres.binary = false",
            reason=str(error),
        )
        self._types = replace(self._types, binary=False)

    def _give_up_if_no_further(self, error: TooManyDescriptions, session: Session) -> None:
        """Raise UnavailableError if two sessions in a row have failed at the same position.

        A third session would fail at this position as well.
        """
        delivered = session.checkpoint.end_lsn
        if delivered == self._crowded:
            raise UnavailableError(
                f"{error} But it happened twice in a row, and nothing after {format_lsn(delivered)} was delivered in "
                "between. Either a single transaction there writes to so many tables, or a prepared transaction has "
                "not ended, and the transactions after it write to so many tables. End old prepared transactions "
                "(pg_prepared_xacts). If there are none, drop the slot, start a new history with --adopt-slot, then "
                f"{LOAD_AGAIN}"
            ) from error
        self._crowded = delivered

    def _wait_because(self, error: RetryableError, state: State) -> None:
        """Log why nothing is streamed, and repeat the message from time to time while the reason lasts."""
        self._metrics.active.set(0)
        now, sentence = time.monotonic(), str(error)
        if (state, sentence) != (self.state, self._said) or now - self._said_at > SAY_AGAIN_S:
            log.log(_LEVELS[state], state.value, reason=sentence)
            self._said, self._said_at = sentence, now
        self.state, self.last_error = state, sentence

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            # The jitter keeps many daemons from trying at the same moment.
            await asyncio.wait_for(self._stop.wait(), seconds * random.uniform(0.5, 1.0))  # noqa: S311
        self.vitals.beat()

    async def _run_session(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            source = await self._unless_stopped(self._open_source())
            stack.push_async_callback(source.close)
            self.vitals.beat()
            await self._unless_stopped(self._check_types(source))
            sink = await self._unless_stopped(self.vitals.wait(self._make_sink()))
            stack.push_async_callback(sink.close)
            stream, start = await self._unless_stopped(self._startup.start(source, sink, adopt=self._adopt))
            self.vitals.beat()
            spool = self._make_spool()
            stack.callback(spool.close)
            options = self._options
            encoders = Encoders(
                source,
                sink,
                self._registry,
                options.tables,
                self._types,
                dead_letters=self._dead_letters,
                quarantine=self.quarantine,
            )
            try:
                await self._stream(Ends(source, stream, sink, encoders, spool, self.vitals), start)
            except Diverged as error:
                assert self.session is not None, "the session has raised this error"
                last = _later(start.found, self.session.checkpoint)
                await close_when_lost(source, stream, self.vitals.wait(self._startup.refuse(sink, last, error)))
                raise
            except Fenced as error:
                await self._unless_stopped(
                    while_served(source, stream, self.vitals.wait(self._stop_if_owner(source, sink, error)))
                )
                raise

    async def _check_types(self, source: Source) -> None:
        """Raise TableRefused if a column cannot have the type chosen for it.

        Check this once, before anything is created.

        If tables can go into quarantine, only log the error, because the quarantine of a table begins with its first
        change.

        If the check takes too long, the pipeline starts without it. In this case, the first change of the table raises
        the same error.
        """
        if self._types_checked:
            return
        options = self._options
        try:
            async with asyncio.timeout(CHECK_TYPES_S):
                names = await source.published_names()
                asking = source.published_relations, source.describe_types
                found = await refusals(options.tables, options.types, names, *asking)
        except (SourceUnavailable, TimeoutError) as error:
            reason = str(error) or f"There are so many columns that the check takes more than {CHECK_TYPES_S:.0f} s."
            log.warning("the types of the published columns were not checked", reason=reason)
            return
        for refused in found:
            if self.quarantine is None:
                raise refused
            log.error("a table cannot be published", reason=str(refused))
        self._types_checked = True

    async def _stop_if_owner(self, source: Source, sink: Sink, error: Fenced) -> None:
        """Raise UnavailableError if we still have our slot, but a process that streams from another slot fenced us.

        A process that lost our slot while it was starting may also have fenced us, but it writes no checkpoint of its
        own. In this case, raise nothing, because a new session may continue.
        """
        try:
            await source.slot_position()
        except RetryableError:
            return
        if self.session is not None and self.session.may_have_written(last_checkpoint(await sink.checkpoints())):
            return
        raise UnavailableError(
            f"{error} It does not stream from our slot: another pipeline with the same name and kafka.topic_prefix "
            "follows a copy of this database, or another server. Stop one of the two, or give it another "
            "topic_prefix."
        ) from error

    async def _unless_stopped(self, step: Awaitable[T]) -> T:
        """Wait for ``step``, or raise _Stopped if the pipeline is stopped meanwhile.

        Use it only while the session streams nothing, so that nothing can be lost.
        """
        task = asyncio.ensure_future(step)
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, RetryableError):
                    await task
        if task.cancelled() or (self._stop.is_set() and task.exception() is not None):
            raise _Stopped
        return task.result()

    async def _open_dead_letters(self) -> None:
        if not self._options.dead_letters or self._dead_letters is not None:
            return
        self._dead_letters = await open_dead_letters(self._registry, self._options.tables.prefix, _say)

    async def _stream(self, ends: Ends, start: Start) -> None:
        options, checkpoint = self._options, start.checkpoint
        if self._dead_letters is not None:
            self._dead_letters.forget(checkpoint.end_lsn)
        progress = Progress(
            checkpoint.end_lsn, to_be_resent(checkpoint, start.slot_lsn), checkpoint.held_lsn, start.slot_lsn
        )
        self.session = Session(
            ends, checkpoint, options.session, self._metrics, progress, found=start.found, loaded=start.loaded
        )
        self.state, self.last_error = State.STREAMING, None
        self._adopt = False
        self._metrics.active.set(1)
        self._metrics.sessions.inc()
        log.info(
            "streaming",
            slot=options.slot,
            epoch=checkpoint.epoch,
            cut=checkpoint.cut,
            delivered_lsn=checkpoint.end_lsn,
        )
        began = time.monotonic()
        try:
            async with drained_within(options.drain_timeout_s, self._stop):
                await self.session.run(self._stop)
                await ends.stream.stop()
        finally:
            self._metrics.span(
                "session", time.monotonic() - began, {"slot": options.slot or "", "epoch": checkpoint.epoch}
            )
        log.info("stopped", delivered_lsn=self.session.progress.delivered)


def _later(found: Checkpoint | None, reached: Checkpoint) -> Checkpoint:
    """Return the later of two checkpoints: the one that a session ``found`` in Kafka, and the one it has ``reached``.

    The session may have continued from the checkpoint before ``found``. In this case, ``found`` is the last checkpoint
    in Kafka until the session commits one.
    """
    return found if found is not None and found.cut > reached.cut else reached


def _say(letter: DeadLetter) -> None:
    """Log a dead letter. The log leaves out a line that has the same texts as a line of the last ten seconds."""
    origin = letter.origin
    log.warning(
        "dead letter",
        table=quoted(origin.schema, origin.table),
        topic=letter.topic,
        reason=letter.reason.value,
        detail=letter.detail,
        size=letter.size,
        limit=letter.limit,
        epoch=origin.epoch,
        lsn=origin.lsn,
        seq=origin.seq,
    )


class _Stopped(Exception):
    """The pipeline was stopped before the session streamed."""
