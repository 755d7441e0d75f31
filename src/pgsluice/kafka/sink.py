"""Delivers the changes of one session: writes each cut together with its cut record and the checkpoint.

``KafkaSink`` implements the protocol ``pipeline.ends.Sink``. Only the records in Kafka outlive the session. State in
memory does not.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

import structlog

from pgsluice.checkpoint import Checkpoint, last_checkpoint
from pgsluice.cut import Cut, Recorded, cut_records
from pgsluice.errors import ConfigError, PgsluiceError, SinkUnavailable
from pgsluice.kafka.account import LastCuts, Partition
from pgsluice.kafka.checkpoint import checkpoint_key, read_checkpoints, read_loaded
from pgsluice.kafka.commands import TopicCommandReader
from pgsluice.kafka.idempotent import IdempotentProducer
from pgsluice.kafka.ledger import AGAIN_S, CONFIRM_S, Ledger, lost_cuts, read_last_cuts
from pgsluice.kafka.options import CutFormat, Mode, SinkOptions
from pgsluice.kafka.partitioner import partition_for
from pgsluice.kafka.probe import OUTDATED_S, Probe
from pgsluice.kafka.producer import CutProducer
from pgsluice.kafka.refusals import RecordInspector, Refusals
from pgsluice.kafka.runs import TRUNCATE
from pgsluice.kafka.table_topics import TableTopics
from pgsluice.kafka.tail import Tail
from pgsluice.kafka.topic_spec import TopicSpec, check_compacted
from pgsluice.kafka.topics import Topics
from pgsluice.kafka.transactional import TransactionalProducer
from pgsluice.loads import Loaded
from pgsluice.record import Record
from pgsluice.tables import TablePolicy

log = structlog.get_logger(__name__)

T = TypeVar("T")

_PRODUCERS: Mapping[Mode, type[CutProducer]] = {
    "exactly_once": TransactionalProducer,
    "at_least_once": IdempotentProducer,
}


class KafkaSink:
    """Delivers changes in one session. Call its coroutines one at a time. They block only a worker thread.

    Any PgsluiceError that a coroutine raises ends the session. After the error, close the sink, and create a new one.
    """

    def __init__(self, options: SinkOptions, cut_format: CutFormat) -> None:
        self._options = options
        self._format = cut_format
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="pgsluice-kafka")
        self._given_up = threading.Event()
        self._producer_options = options.producer
        self._probe = Probe(options.producer.client, self._given_up)
        self._admin: Topics | None = None
        self._producer: CutProducer | None = None
        self._topic_ledger: Ledger | None = None
        self._tables: TableTopics | None = None
        self._last_cuts = LastCuts()
        self._cuts_begin = 0
        """The first offset of the topic of cut records, at the time when the cut records were read."""

    async def prepare(self) -> None:
        """Create the service topics if they do not exist.

        Do not create a producer yet, because a standby must not disturb the owner.
        """
        await self._run(self._prepare)

    async def present_checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint, without waiting for open transactions and without disturbing other processes."""
        return await self._run(self._present_checkpoint)

    @property
    def is_atomic(self) -> bool:
        """Whether the records of a cut are committed together with its cut record and its checkpoint."""
        return _PRODUCERS[self._options.mode].is_atomic

    async def checkpoints(self) -> Sequence[Checkpoint]:
        """Return the last committed checkpoints, oldest first. They are complete only after :meth:`fence`."""
        return await self._run(self._checkpoints)

    async def fence(self) -> None:
        """If transactions are used, prevent earlier producers of this pipeline from committing anything more."""
        await self._run(self._fence)

    async def announce(self, checkpoint: Checkpoint) -> None:
        """Commit ``checkpoint`` alone. It is durable when this returns."""
        await self._run(lambda: self._announce(checkpoint))

    async def refuse(self, checkpoint: Checkpoint) -> None:
        """Abort the open transaction, and commit ``checkpoint`` alone. It is durable when this returns."""
        await self._run(lambda: self._refuse(checkpoint))

    async def recorded(self) -> Recorded:
        """Return the information about earlier sessions from the cut records."""
        return await self._run(self._recorded)

    async def loaded(self) -> Mapping[tuple[str, str], Loaded]:
        """Return the tables whose rows have been read completely, by schema and name. Call it after :meth:`fence`."""
        return await self._run(self._loaded)

    def commands(self) -> TopicCommandReader | None:
        """Return a reader of commands, with its own clients, or None if the pipeline accepts no commands."""
        topic = self._options.commands_topic
        return None if topic is None else TopicCommandReader(self._options.producer.client, topic.name)

    async def open_topics(self, cut: int, topics: Sequence[str], described: Collection[str]) -> None:
        """Add topics to the account of this session: those of earlier sessions, and those of ``topics`` that exist.

        Full cuts list all topics of the account. Call this after :meth:`recorded`. ``cut`` is the last committed cut.
        ``described`` are the topics whose schemas are registered. Raise HistoryError if somebody else has changed a
        topic, if a topic has lost its schema, or if the topic of cut records lacks a cut up to ``cut``.
        """
        await self._run(lambda: self._open_topics(cut, topics, described))

    async def open_topic(self, policy: TablePolicy, *, keyed: bool) -> None:
        """Create the topic of a table if it does not exist, and fix its number of partitions for the session."""
        spec = TopicSpec.of(policy, keyed=keyed)
        await self._run(lambda: self._table_topics.open(spec))

    async def prepare_topics(self, policies: Sequence[TablePolicy]) -> None:
        """Create topics for several tables that have keys. If this fails, :meth:`open_topic` raises the error later."""
        specs = [TopicSpec.of(policy, keyed=True) for policy in policies]
        await self._run(lambda: self._table_topics.prepare(specs))

    async def begin(self) -> None:
        """Start a Kafka transaction."""
        await self._run(self._live.begin)

    async def produce(self, cut: Cut, records: list[Record]) -> None:
        """Pass ``records`` to the producer, within the current transaction, and count them in ``cut``."""
        await self._run(lambda: self._produce(cut, records))

    async def commit(self, cut: Cut, checkpoint: Checkpoint) -> None:
        """Commit the transaction with the record of ``cut`` and with ``checkpoint``.

        Both are durable when this returns.
        """
        await self._run(lambda: self._commit(cut, checkpoint))

    async def deliver(self, cut: Cut, checkpoint: Checkpoint) -> None:
        """Begin a transaction, produce all of ``cut`` and commit it. All of it is durable when this returns."""
        await self._run(lambda: self._deliver(cut, checkpoint))

    async def close(self) -> None:
        """Wait until the call in progress has ended. Then abort the open transaction, and close the clients."""
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
            self._topic_ledger = Ledger(
                self._topics,
                self._given_up,
                accept=self._options.accept_changed_topics,
                is_atomic=self.is_atomic,
                prediction=self._options.prediction,
            )
        return self._topic_ledger

    @property
    def _table_topics(self) -> TableTopics:
        if self._tables is None:
            self._tables = TableTopics(self._options, self._topics, self._ledger)
        return self._tables

    def _prepare(self) -> None:
        options = self._options
        compacted = [one for one in (options.snapshots_topic, options.checkpoint_topic) if one is not None]
        specs = [options.transactions_topic, *compacted]
        if options.commands_topic is not None:
            specs.insert(0, options.commands_topic)
        others = [] if options.dead_letters_topic is None else [options.dead_letters_topic]
        states = self._topics.ensure(*specs, *others)[: len(specs)]
        settings = self._topics.settings_of(*(spec.name for spec in specs))
        for spec, state, one in zip(specs, states, settings, strict=True):
            if state.partitions != 1:
                raise ConfigError(
                    f"Topic {spec.name} has {state.partitions} partitions, but it is one of pgsluice's own topics, "
                    "which have one. Choose another kafka.topic_prefix if somebody else uses the topic. Otherwise "
                    "delete it, and pgsluice creates it again."
                )
            self._topics.check(spec, one)
        for spec, state in zip(specs, states, strict=True):
            self._ledger.watch(spec.name, state)
        self._ledger.rely_on(options.checkpoint_topic.name, states[-1])
        for spec, one in zip(specs, settings, strict=True):
            if spec in compacted:
                check_compacted(spec.name, one)
        allowed_ms, timeout_s = self._topics.max_transaction_timeout_ms(), options.producer.timeout_s
        if allowed_ms is not None and allowed_ms < timeout_s * 1000:
            timeout_s = allowed_ms / 1000
            log.info("transaction.max.timeout.ms of the brokers shortens transactions", timeout_s=timeout_s)
        request_bytes = self._topics.max_request_bytes()
        self._producer_options = replace(options.producer, timeout_s=timeout_s, request_bytes=request_bytes)

    def _present_checkpoint(self) -> Checkpoint | None:
        with self._tail(self._options.checkpoint_topic, complete=False) as tail:
            return last_checkpoint(self._read_checkpoints(tail))

    def _checkpoints(self) -> Sequence[Checkpoint]:
        with self._tail(self._options.checkpoint_topic) as tail:
            return self._read_checkpoints(tail)

    def _read_checkpoints(self, tail: Tail) -> Sequence[Checkpoint]:
        return read_checkpoints(tail, self._options.pipeline, is_atomic=self.is_atomic)

    def _tail(self, spec: TopicSpec, *, complete: bool = True, topics: Topics | None = None) -> Tail:
        options = self._producer_options
        return Tail(
            options.client,
            topics or self._topics,
            spec.name,
            patience_s=options.timeout_s,
            given_up=self._given_up,
            complete=complete,
            reach=self._probe.end(spec.name),
        )

    def _fence(self) -> None:
        if self._producer is None:
            self._producer = self._fencing_producer()
            self._write_probe()

    def _fencing_producer(self) -> CutProducer:
        dead_letters = self._options.dead_letters_topic
        inspector = RecordInspector(self._format.origin_of, self._limit_of, dead_letters.name if dead_letters else None)
        kind = _PRODUCERS[self._options.mode]
        producer = kind(self._producer_options, self._given_up, Refusals(inspector), self._ledger.examine)
        try:
            producer.fence(self._options.checkpoint_topic.name)
        except BaseException:
            producer.close()
            raise
        return producer

    def _write_probe(self) -> None:
        """Write the probe after all records of former sessions, and wait until the brokers show it."""
        topics = [self._options.checkpoint_topic.name]
        if self.is_atomic:
            # In the mode at_least_once, consumers may read uncommitted records. They would see a probe in this topic.
            topics.append(self._options.transactions_topic.name)
        value = self._live.write_probe(topics, self._format.key)
        if value is not None:
            if self.is_atomic:
                self._replace_producer()
            self._probe.find(value, topics, self._topics)

    def _replace_producer(self) -> None:
        """Replace a producer that has aborted a transaction with a new one.

        Kafka may append a second copy of the abort marker late. That copy would hide the records that the same producer
        has written since. Once a producer with a newer epoch has written to the partition, Kafka accepts no such copy.
        """
        former, self._producer = self._live, None
        former.close()
        self._producer = self._fencing_producer()

    def _limit_of(self, topic: str) -> int | None:
        try:
            return self._topics.max_message_bytes(topic)
        except PgsluiceError:
            return None

    def _recorded(self) -> Recorded:
        last = self._read_last_cuts(self._topics)
        return Recorded(last.epoch, last.number, last.end_lsn, frozenset(last.account.topics), last.positions)

    def _read_last_cuts(self, topics: Topics, committed: int | None = None) -> LastCuts:
        with self._tail(self._options.transactions_topic, topics=topics) as tail:
            self._last_cuts, self._cuts_begin = read_last_cuts(tail, self._format.decode, committed), tail.low
        return self._last_cuts

    def _lost_cuts(self, committed: int) -> str | None:
        """Return a sentence about cut records that were lost, or None if none were lost.

        Without a probe, we cannot know whether the broker is outdated. In that case, we ask again with new clients
        before we treat the records as lost.
        """
        topic, end = self._options.transactions_topic.name, time.monotonic() + OUTDATED_S
        while lost := lost_cuts(topic, self._last_cuts, self._cuts_begin, committed):
            if self._probe.end(topic) or time.monotonic() > end:
                break
            if self._given_up.wait(AGAIN_S):
                raise SinkUnavailable("Reading the cut records was abandoned because the session ends.")
            with closing(self._topics.another()) as topics:
                self._read_last_cuts(topics)
        return lost

    def _loaded(self) -> Mapping[tuple[str, str], Loaded]:
        spec = self._options.snapshots_topic
        if spec is None:
            return {}
        with self._tail(spec) as tail:
            return read_loaded(tail)

    def _open_topics(self, cut: int, topics: Sequence[str], described: Collection[str]) -> None:
        dead_letters = self._options.dead_letters_topic
        others = [*topics, *([dead_letters.name] if dead_letters else [])]
        if self._last_cuts.number == cut + 1:
            # A transaction marker that arrived late has made the cut record of an aborted cut visible. The offsets in
            # this cut record count records that may not exist, so read the cut records again without it.
            self._read_last_cuts(self._topics, cut)
        lost = self._lost_cuts(cut)
        self._ledger.recall(self._last_cuts, lost, others, described)

    def _produce(self, cut: Cut, records: list[Record]) -> None:
        at = 0
        while at < len(records):
            at = self._live.send_run(records, at, self._ledger.partitions, cut)
            if at < len(records):
                self._send(cut, records[at])
                at += 1
        self._live.check()

    def _send(self, cut: Cut, record: Record) -> None:
        """Queue one record of any kind."""
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
        cut.records.clear()  # librdkafka has copied them
        self._commit(cut, checkpoint)

    def _commit(self, cut: Cut, checkpoint: Checkpoint) -> None:
        """Commit the transaction with the cut record and the checkpoint.

        The cut record lists the offsets at which partitions end after the cut. Kafka knows them only when it has all
        records, so asking Kafka first would cost another round trip. We therefore predict the offsets, send everything
        together, and compare the prediction with Kafka's offsets before the commit. A wrong cut record would mislead
        its readers, so we abort it together with its cut. Without transactions, a wrong record could not be aborted, so
        we ask for the offsets before we send it. We also ask first if the cut is full, because its offsets are compared
        with the cluster anyway.
        """
        full = self._ledger.full_is_due
        following = self._ledger.predict(cut) if self._live.is_atomic and not full else None
        if following is not None:
            self._send_cut(cut, checkpoint, following, full=False)
            self._send_checkpoint(checkpoint)
            self._live.flush()
            if (wrong := self._ledger.mismatch(following)) is not None and not self._is_shown(checkpoint):
                self._live.abort()  # if another owner has written, this raises Fenced
                raise wrong
        else:
            self._live.flush()
            following = self._ledger.following(cut, full=full)
            self._send_cut(cut, checkpoint, following, full=full)
            if not self._live.is_atomic:
                self._live.flush()  # the checkpoint must not become visible before the cut record
            self._send_checkpoint(checkpoint)
        self._live.commit()
        self._ledger.committed(cut, following, full=full)

    def _send_cut(self, cut: Cut, checkpoint: Checkpoint, following: Mapping[Partition, int], *, full: bool) -> None:
        offsets = {partition: (self._ledger.end(partition), end) for partition, end in following.items()}
        identity = {"pipeline": checkpoint.pipeline, "cut": checkpoint.cut, "epoch": checkpoint.epoch}
        for part in cut_records(cut, identity, offsets, self._ledger.ids(), full=full):
            self._live.send(self._options.transactions_topic.name, 0, self._format.key, self._format.encode(part))
        for one in cut.loaded:
            assert self._options.snapshots_topic is not None, "without this topic, no tables are loaded"
            value = replace(one, cut=checkpoint.cut).to_json()
            self._live.send(self._options.snapshots_topic.name, 0, one.key, value)
        for answer in cut.answers:
            assert self._options.commands_topic is not None, "without this topic, there are no commands"
            self._live.send(self._options.commands_topic.name, 0, answer.key, answer.to_json())

    def _send_checkpoint(self, checkpoint: Checkpoint) -> None:
        key = checkpoint_key(self._options.pipeline)
        self._live.send(self._options.checkpoint_topic.name, 0, key, checkpoint.to_json())

    def _is_shown(self, checkpoint: Checkpoint) -> bool:
        """Return whether a late marker has made ``checkpoint``, which was just sent, visible to readers.

        A late copy of the previous transaction's commit marker ends our transaction in one partition, and makes our
        records in this partition visible. If the copy has made the checkpoint visible, the next session continues after
        this cut. If we aborted the cut in this case, readers would never see its remaining records. We therefore commit
        the cut, even though the offsets in its record may be slightly too low.

        If the broker lacks the checkpoint, we ask again with new clients for up to CONFIRM_S.
        """
        partition = (self._options.checkpoint_topic.name, 0)
        end = time.monotonic() + CONFIRM_S
        while time.monotonic() < end and not self._given_up.is_set():
            with closing(self._topics.another()) as topics:
                offset = self._probe.offset_after(checkpoint.to_json(), partition[0], topics)
                stable, following = topics.stable_offsets([partition]), topics.next_offsets([partition])
            if offset is not None and following[partition] >= offset:
                return stable[partition] >= offset
            self._given_up.wait(AGAIN_S)
        return False

    def _announce(self, checkpoint: Checkpoint) -> None:
        self._live.begin()
        self._send_checkpoint(checkpoint)
        self._live.commit()
        self._write_probe()  # the checkpoint will be read again, and an outdated broker must not hide it

    def _refuse(self, checkpoint: Checkpoint) -> None:
        self._replace_producer()
        last = last_checkpoint(self._checkpoints())
        # Another process may have begun a new epoch meanwhile. In that case, write nothing. Only a session of the new
        # epoch can judge whether the server has that epoch's history, and each session does so when it starts.
        if last is None or last.epoch <= checkpoint.epoch:
            self._announce(checkpoint)

    def _close(self) -> None:
        if self._producer is not None:
            self._producer.close()
        if self._admin is not None:
            self._admin.close()
        self._producer = self._admin = None
