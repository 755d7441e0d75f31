"""One session of delivery: cuts into Kafka transactions, the account of their offsets, the checkpoint.

The pipeline's lower end (``pipeline.ends.Sink``). Nothing survives the session but what is in Kafka.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import structlog

from pgsluice.cut import Cut, Recorded, cut_records
from pgsluice.dead_letter import Origin
from pgsluice.errors import ConfigError, PgsluiceError, SinkUnavailable
from pgsluice.kafka.account import LastCuts, Place
from pgsluice.kafka.checkpoint import read_checkpoint
from pgsluice.kafka.idempotent import IdempotentProducer
from pgsluice.kafka.ledger import Foresight, Ledger, read_last_cuts
from pgsluice.kafka.partitioner import partition_for
from pgsluice.kafka.producer import CutProducer, ProducerOptions, TransactionalProducer
from pgsluice.kafka.refusals import Eyes, Refusals
from pgsluice.kafka.runs import TRUNCATE
from pgsluice.kafka.tail import Tail
from pgsluice.kafka.topics import Topics, TopicSettings, TopicSpec, check_compacted
from pgsluice.progress import Checkpoint
from pgsluice.record import Record
from pgsluice.tables import TablePolicy

log = structlog.get_logger(__name__)

T = TypeVar("T")

Mode = Literal["exactly_once", "at_least_once"]

_PRODUCERS: Mapping[Mode, type[CutProducer]] = {
    "exactly_once": TransactionalProducer,
    "at_least_once": IdempotentProducer,
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The producer, the two service topics, how often a change may be seen, and what else there is to decide.

    ``accept_changed_topics``: go on with topics that changed behind our back. ``foresight`` outlives the session.
    """

    producer: ProducerOptions
    transactions_topic: TopicSpec
    checkpoint_topic: TopicSpec
    mode: Mode = "exactly_once"
    dead_letters_topic: TopicSpec | None = None
    accept_changed_topics: bool = False
    foresight: Foresight = field(default_factory=Foresight)


@dataclass(frozen=True, slots=True)
class CutFormat:
    """How the cut record is framed: its key, its encoder, and what reads it back (ValueError if it is none).

    ``origin_of`` says which change another record is about, if that is known.
    """

    key: bytes
    encode: Callable[[dict[str, Any]], bytes]
    decode: Callable[[bytes], Mapping[str, Any]]
    origin_of: Callable[[bytes | None, bytes], Origin | None] = lambda _key, _value: None


class KafkaSink:
    """Delivery in one session. Coroutines run one at a time; each blocks a worker thread, never the loop.

    Any PgsluiceError out of it ends the session: close it and make a new one.
    """

    def __init__(self, options: SinkOptions, cut_format: CutFormat) -> None:
        self._options = options
        self._format = cut_format
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="pgsluice-kafka")
        self._given_up = threading.Event()
        self._producer_options = options.producer
        self._admin: Topics | None = None
        self._producer: CutProducer | None = None
        self._topic_ledger: Ledger | None = None
        self._last: Checkpoint | None = None
        self._last_cuts: tuple[LastCuts, str | None] = LastCuts(), None

    async def prepare(self) -> None:
        """Make the service topics exist. No producer yet: a standby must not disturb the owner."""
        await self._run(self._prepare)

    async def present_checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint that can be read at once, without disturbing anybody."""
        return await self._run(self._present_checkpoint)

    async def last_checkpoint(self) -> Checkpoint | None:
        """Return the last committed checkpoint; complete only after :meth:`fence`."""
        return await self._run(self._last_checkpoint)

    async def fence(self) -> None:
        """From here on no earlier producer of this pipeline can commit anything, if transactions are used."""
        await self._run(self._fence)

    async def announce(self, checkpoint: Checkpoint) -> None:
        """Commit ``checkpoint`` alone: durable when this returns."""
        await self._run(lambda: self._announce(checkpoint))

    async def recorded(self) -> Recorded:
        """Return what the cut records tell of earlier sessions; after :meth:`last_checkpoint`."""
        return await self._run(self._recorded)

    async def open_topics(self, topics: Sequence[str], described: Collection[str]) -> None:
        """Account for what earlier sessions wrote to, and for ``topics`` if they exist: full cuts name them.

        After :meth:`recorded`. HistoryError when something happened to a topic meanwhile, or to its schema:
        ``described`` have one.
        """
        await self._run(lambda: self._open_topics(topics, described))

    async def open_topic(self, policy: TablePolicy, *, keyed: bool) -> None:
        """Make the topic of a table exist and pin its partitions for the session."""
        spec = TopicSpec(
            policy.topic,
            policy.partitions,
            policy.replication_factor,
            policy.config,
            compactable=keyed and not policy.truncate,
        )
        await self._run(lambda: self._open_topic(spec))

    async def begin(self) -> None:
        """Start a Kafka transaction."""
        await self._run(self._live.begin)

    async def produce(self, cut: Cut, records: list[Record]) -> None:
        """Hand ``records`` to the producer, within the transaction begun, and count them in ``cut``."""
        await self._run(lambda: self._produce(cut, records))

    async def commit(self, cut: Cut, checkpoint: Checkpoint) -> None:
        """Commit the transaction with ``cut``'s record and ``checkpoint``: durable when this returns."""
        await self._run(lambda: self._commit(cut, checkpoint))

    async def deliver(self, cut: Cut, checkpoint: Checkpoint) -> None:
        """Begin, produce all of ``cut`` and commit: durable when this returns."""
        await self._run(lambda: self._deliver(cut, checkpoint))

    async def close(self) -> None:
        """Give up what is not committed and free the producer; waits for the call in progress to notice."""
        self._given_up.set()
        if self._producer is not None:
            self._producer.abandon()
        await self._run(self._close)
        self._worker.shutdown(wait=False)

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, call)

    # Everything below runs in the worker thread.

    @property
    def _live(self) -> CutProducer:
        assert self._producer is not None, "fence() comes first"
        return self._producer

    @property
    def _topics(self) -> Topics:
        if self._admin is None:
            self._admin = Topics(self._options.producer.client, self._given_up)
        return self._admin

    @property
    def _ledger(self) -> Ledger:
        if self._topic_ledger is None:
            accept, foresight = self._options.accept_changed_topics, self._options.foresight
            self._topic_ledger = Ledger(self._topics, self._given_up, accept=accept, foresight=foresight)
        return self._topic_ledger

    def _prepare(self) -> None:
        options = self._options
        specs = [options.transactions_topic, options.checkpoint_topic]
        others = [] if options.dead_letters_topic is None else [options.dead_letters_topic]
        states = self._topics.ensure(*specs, *others)[: len(specs)]
        settings = self._topics.settings_of(*(spec.name for spec in specs))
        for spec, state, one in zip(specs, states, settings, strict=True):
            if state.partitions != 1:
                raise ConfigError(f"Topic {spec.name} must have exactly one partition, as pgsluice creates it.")
            self._topics.check(spec, one)
        for pin, spec, state in zip((self._ledger.watch, self._ledger.rely_on), specs, states, strict=True):
            pin(spec.name, state)
        check_compacted(options.checkpoint_topic.name, settings[-1])
        allowed_ms, timeout_s = self._topics.max_transaction_timeout_ms(), options.producer.timeout_s
        if allowed_ms is not None and allowed_ms < timeout_s * 1000:
            timeout_s = allowed_ms / 1000
            log.info("transaction.max.timeout.ms of the brokers shortens transactions", timeout_s=timeout_s)
        request_bytes = self._topics.max_request_bytes()
        self._producer_options = replace(options.producer, timeout_s=timeout_s, request_bytes=request_bytes)

    def _present_checkpoint(self) -> Checkpoint | None:
        with self._tail(self._options.checkpoint_topic, complete=False) as tail:
            return read_checkpoint(tail)

    def _last_checkpoint(self) -> Checkpoint | None:
        with self._tail(self._options.checkpoint_topic) as tail:
            self._last = read_checkpoint(tail)
        return self._last

    def _tail(self, spec: TopicSpec, *, complete: bool = True) -> Tail:
        options = self._producer_options
        return Tail(
            options.client,
            self._topics,
            spec.name,
            patience_s=options.timeout_s,
            given_up=self._given_up,
            complete=complete,
        )

    def _fence(self) -> None:
        if self._producer is None:
            dead_letters = self._options.dead_letters_topic
            eyes = Eyes(self._format.origin_of, self._limit_of, dead_letters.name if dead_letters else None)
            kind = _PRODUCERS[self._options.mode]
            self._producer = kind(self._producer_options, self._given_up, Refusals(eyes), self._ledger.examine)
            self._producer.fence(self._options.checkpoint_topic.name)

    def _limit_of(self, topic: str) -> int | None:
        try:
            return self._topics.max_message_bytes(topic)
        except PgsluiceError:
            return None

    def _recorded(self) -> Recorded:
        committed = self._last.cut if self._last is not None else 0
        with self._tail(self._options.transactions_topic) as tail:
            self._last_cuts = read_last_cuts(tail, self._format.decode, committed)
        last, _ = self._last_cuts
        return Recorded(last.epoch, last.number, frozenset(last.account.topics))

    def _open_topics(self, topics: Sequence[str], described: Collection[str]) -> None:
        dead_letters = self._options.dead_letters_topic
        others = [*topics, *([dead_letters.name] if dead_letters else [])]
        self._ledger.recall(*self._last_cuts, others, described)

    def _open_topic(self, spec: TopicSpec) -> None:
        if spec.name not in self._ledger:
            (state,) = self._topics.ensure(spec)
            self._ledger.pin({spec.name: state})
        self._topics.check(spec, self._settings_of(spec.name))

    def _settings_of(self, topic: str) -> TopicSettings:
        try:
            (settings,) = self._topics.settings_of(topic)
        except SinkUnavailable:
            self._ledger.examine()  # it may be gone
            raise
        return settings

    def _produce(self, cut: Cut, records: list[Record]) -> None:
        at = 0
        while at < len(records):
            at = self._live.send_run(records, at, self._ledger.partitions, cut)
            if at < len(records):
                self._send(cut, records[at])
                at += 1
        self._live.check()

    def _send(self, cut: Cut, record: Record) -> None:
        """Queue a record, whatever it is."""
        target, op, key, value, timestamp_ms = record
        count = self._ledger.partitions(target.topic)
        if op == TRUNCATE:
            partitions: Iterable[int] = range(count)
        else:
            partitions = (partition_for(key, count) if key is not None else 0,)
        for partition in partitions:
            self._live.send(target.topic, partition, key, value, timestamp_ms)
        cut.count(target, {} if op is None else {op: 1}, dict.fromkeys(partitions, 1))

    def _deliver(self, cut: Cut, checkpoint: Checkpoint) -> None:
        self._live.begin()
        self._produce(cut, cut.records)
        cut.records.clear()  # librdkafka has copies
        self._commit(cut, checkpoint)

    def _commit(self, cut: Cut, checkpoint: Checkpoint) -> None:
        full = self._ledger.full_is_due
        following = self._ledger.foretell(cut) if self._live.is_atomic and not full else None
        if following is not None:
            # Everything goes out together, which takes one round of requests less.
            self._send_cut(cut, checkpoint, following, full=False)
            self._send_checkpoint(checkpoint)
            self._live.flush()
            if (wrong := self._ledger.unlike(following)) is not None and not self._is_shown():
                self._live.abort()  # says so if it is another owner who wrote
                raise wrong
        else:
            self._live.flush()
            following = self._ledger.following(cut, full=full)
            self._send_cut(cut, checkpoint, following, full=full)
            if not self._live.is_atomic:
                self._live.flush()  # the checkpoint must not be seen without the cut
            self._send_checkpoint(checkpoint)
        self._live.commit()
        self._ledger.committed(cut, following, full=full)

    def _send_cut(self, cut: Cut, checkpoint: Checkpoint, following: Mapping[Place, int], *, full: bool) -> None:
        offsets = {place: (self._ledger.end(place), end) for place, end in following.items()}
        identity = {"pipeline": checkpoint.pipeline, "cut": checkpoint.cut, "epoch": checkpoint.epoch}
        for part in cut_records(cut, identity, offsets, self._ledger.ids(), full=full):
            self._live.send(self._options.transactions_topic.name, 0, self._format.key, self._format.encode(part))

    def _send_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._live.send(self._options.checkpoint_topic.name, 0, checkpoint.pipeline.encode(), checkpoint.to_json())

    def _is_shown(self) -> bool:
        """Whether the checkpoint that was sent can be read already: a late marker of the former transaction does that.

        Who gave the cut up would lose what is not shown of it, so its offsets had better be somewhat low.
        """
        place = (self._options.checkpoint_topic.name, 0)
        return self._topics.stable_offsets([place]) == self._topics.next_offsets([place])

    def _announce(self, checkpoint: Checkpoint) -> None:
        self._live.begin()
        self._send_checkpoint(checkpoint)
        self._live.commit()

    def _close(self) -> None:
        if self._producer is not None:
            self._producer.close()
        self._producer = self._admin = None
