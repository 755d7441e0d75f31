"""The start of a session, which takes over the slot and the topics, and finds out where to continue.

PostgreSQL lets only one process stream from the slot, so replication starts first. Then the sink fences other
processes, so that they cannot write to the topics any more. Only now does this process read the last checkpoint,
because no other process can write a later one. A pure function, :func:`pgsluice.history.resume`, decides where to
continue.

``tests/unit/pipeline/test_pipeline.py`` covers this module.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from pgsluice.checkpoint import Checkpoint, last_checkpoint
from pgsluice.cut import Cut, Recorded
from pgsluice.errors import ConfigError, Diverged, Fenced, HistoryError, SlotInUse, SourceUnavailable
from pgsluice.history import (
    LOAD_AGAIN,
    Facts,
    Identity,
    ServerIdentity,
    TimelineSwitch,
    announcement,
    check_pipeline,
    check_slot_name,
    is_contradicted,
    is_outrun,
    resume,
)
from pgsluice.loads import Loaded
from pgsluice.lsn import format_lsn
from pgsluice.pipeline.ends import Registry, Sink, Source, Stream
from pgsluice.pipeline.options import PipelineOptions
from pgsluice.pipeline.tasks import while_served
from pgsluice.pipeline.vitals import Vitals

log = structlog.get_logger(__name__)

_VALUE: Final = "-value"
"""The suffix of the subjects of a topic's values."""

_DATA: Final = ("Envelope", "Message")
"""The names of the records in data topics."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a session begins.

    ``found`` is the last checkpoint in Kafka. ``checkpoint`` is the one from which the session continues. ``slot_lsn``
    is the slot's position. ``loaded`` are the tables that need not be loaded any more.
    """

    found: Checkpoint | None
    checkpoint: Checkpoint
    slot_lsn: int
    loaded: Mapping[tuple[str, str], Loaded]


@dataclass(frozen=True, slots=True)
class Past:
    """The records of earlier sessions in Kafka, as far as they can be read without fencing other processes.

    ``is_atomic`` says whether the records and the checkpoint of a cut are committed together (exactly once).
    """

    checkpoints: Sequence[Checkpoint]
    recorded: Recorded
    is_atomic: bool


class Startup:
    """Starts one session after the other."""

    def __init__(
        self,
        options: PipelineOptions,
        registry: Registry,
        vitals: Vitals,
        open_dead_letters: Callable[[], Awaitable[None]],
    ) -> None:
        """``open_dead_letters`` is called as soon as schemas can be registered and nobody else writes to the topics."""
        self._options = options
        self._registry = registry
        self._vitals = vitals
        self._open_dead_letters = open_dead_letters
        self._adopt = False

    async def start(self, source: Source, sink: Sink, *, adopt: bool) -> tuple[Stream, Start]:
        """Take over the slot, then the topics, and find out where to continue.

        If ``adopt`` is set, continue at the slot's position.
        """
        self._adopt = adopt
        await source.slot_position()  # a standby gets no further, because this raises SlotInUse
        await self._vitals.wait(sink.prepare())
        server = await source.identify()
        switches = await source.timeline_history(server.timeline) if server.timeline > 1 else ()
        if await source.slot_position() is None:
            await self._vitals.wait(self._create_slot(source, sink, server))
        self._vitals.beat()
        stream = await source.start()
        # Do not count this step as silence (see Vitals.wait): its requests to PostgreSQL have their own time-outs.
        finding = self._vitals.wait(self._find_start(source, sink, server, switches))
        return stream, await while_served(source, stream, finding)

    async def _find_start(
        self, source: Source, sink: Sink, server: ServerIdentity, switches: Sequence[TimelineSwitch]
    ) -> Start:
        """Keep other processes from writing to the topics, and return where the session begins."""
        await sink.fence()
        # Read the schemas only after the fence, because another owner could register schemas before it.
        await self._registry.start()
        await self._open_dead_letters()
        facts = await self._gather(source, sink, server, switches)
        found = facts.checkpoint
        try:
            resumption = resume(facts, self._identity(sink))
        except Diverged as error:
            assert found is not None, "without a checkpoint there is nothing to compare the server with"
            await self.refuse(sink, found, error)
            raise
        checkpoint = resumption.checkpoint
        if resumption.reason is not None:
            log.warning(
                "a new history begins",
                reason=resumption.reason,
                epoch=checkpoint.epoch,
                position_lsn=checkpoint.end_lsn,
            )
        elif found is not None and checkpoint.cut < found.cut:
            log.warning("the last checkpoint has no cut record, so it was not committed", cut=found.cut)
        if not facts.recorded.topics.issubset(self._described_topics()):
            await self._registry.start()
        await sink.open_topics(resumption.committed, await self._known_topics(), self._described_topics())
        if resumption.begins_epoch:
            await sink.deliver(Cut(end_lsn=checkpoint.end_lsn), checkpoint)
        return Start(found, checkpoint, facts.slot_lsn, await sink.loaded())

    async def _gather(
        self, source: Source, sink: Sink, server: ServerIdentity, switches: Sequence[TimelineSwitch]
    ) -> Facts:
        """Return the facts that decide where to continue."""
        checkpoints = await sink.checkpoints()
        slot_lsn = await source.slot_position()
        if slot_lsn is None:
            raise ConfigError(f"Slot {self._options.slot!r} was dropped while it was being started.")
        is_standby = await source.is_standby()
        server = replace(server, xlogpos=await source.flushed_lsn())
        recorded = await sink.recorded()
        facts = Facts(checkpoints, recorded, slot_lsn, server, switches, is_standby)
        # If the facts contradict each other, the reason may be that another process has just fenced us and written new
        # records.
        fits = not (is_outrun(facts.checkpoint, recorded) or is_contradicted(facts.checkpoint, recorded))
        if not fits and last_checkpoint(await sink.checkpoints()) != facts.checkpoint:
            raise Fenced("Another process has taken over while this one was starting.")
        return facts

    def _identity(self, sink: Sink) -> Identity:
        options = self._options
        return Identity(options.name, options.slot, options.selection, is_atomic=sink.is_atomic, adopt=self._adopt)

    async def refuse(self, sink: Sink, last: Checkpoint, error: Diverged) -> None:
        """Record in the last checkpoint that the server has another history, so that every later start knows it."""
        await sink.refuse(replace(last, refused=str(error)))

    async def _create_slot(self, source: Source, sink: Sink, server: ServerIdentity) -> None:
        """Announce the slot in Kafka, then create it.

        Without the announcement, a crash after the creation would leave a slot whose checkpoint seems to be lost.
        """
        slot = self._options.slot
        if not self._options.create_slot:
            raise ConfigError(
                f"Slot {slot!r} does not exist and postgres.create_slot is false: create it with `pgsluice slot "
                "create`, or set postgres.create_slot = true."
            )
        # We may be connected to the wrong server, which does not have our slot, while the owner streams from the right
        # one. So make this check before we fence the owner.
        await self._check_delivered_from(await sink.present_checkpoint(), source)
        await sink.fence()
        last = last_checkpoint(await sink.checkpoints())
        await self._check_delivered_from(last, source)
        await sink.announce(announcement(last, await sink.recorded(), self._identity(sink), server))
        log.info("creating slot", slot=slot)
        point = await source.create_slot()
        log.info("slot created", slot=slot, consistent_point_lsn=point)

    async def _check_delivered_from(self, last: Checkpoint | None, source: Source) -> None:
        """Raise an error unless the slot may be created. ``last`` is the last checkpoint."""
        if await source.slot_position() is not None:
            raise SlotInUse(f"Slot {self._options.slot!r} was created by another process just now.")
        await _check_may_create(self._options, last, source, adopt=self._adopt)

    async def _known_topics(self) -> list[str]:
        """Return the data topics written so far."""
        known = []
        for topic in self._described_topics():
            if self._registry.record_name(topic + _VALUE) in _DATA:
                known.append(topic)
            await asyncio.sleep(0)  # there may be thousands of topics, with large schemas
        return known

    def _described_topics(self) -> list[str]:
        """Return the topics whose values have a registered schema."""
        return [one.removesuffix(_VALUE) for one in self._registry.subjects() if one.endswith(_VALUE)]


async def examine(options: PipelineOptions, source: Source, past: Past) -> Checkpoint | None:
    """Return the checkpoint from which a start would continue, or None if it would create the slot.

    If a start would stop or wait because of the history, raise the error that the start would raise. This function
    changes nothing, and does not disturb a running owner.
    """
    server = await source.identify()
    switches = await source.timeline_history(server.timeline) if server.timeline > 1 else ()
    slot_lsn, is_standby = await source.slot_position(), await source.is_standby()
    if slot_lsn is None:
        await _check_may_create(options, last_checkpoint(past.checkpoints), source, adopt=False)
        return None
    server = replace(server, xlogpos=await source.flushed_lsn())
    identity = Identity(options.name, options.slot, options.selection, is_atomic=past.is_atomic, adopt=False)
    return resume(Facts(past.checkpoints, past.recorded, slot_lsn, server, switches, is_standby), identity).checkpoint


async def _check_may_create(options: PipelineOptions, last: Checkpoint | None, source: Source, *, adopt: bool) -> None:
    """Raise an error unless a missing slot may be created. ``last`` is the last checkpoint."""
    slot = options.slot
    if last is not None:
        check_pipeline(last, options.name)
    if last is None or last.is_announcement or adopt:
        return
    check_slot_name(last, slot)
    if await source.is_standby():  # a standby may lag behind, or an address may lead to the wrong server for a moment
        raise SourceUnavailable(
            "The server is a standby, and it does not have the slot. pgsluice waits for the standby, or for the "
            "primary."
        )
    raise HistoryError(
        f"Slot {slot!r} does not exist on this server, but changes before {format_lsn(last.end_lsn)} were "
        "delivered from it. If this is the wrong server, connect to the right one. If the slot was dropped, the "
        "changes after that position are lost to this pipeline: start a new history with --adopt-slot, then "
        f"{LOAD_AGAIN}"
    )
