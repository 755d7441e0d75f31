"""One session of delivery: one transactional producer, from fencing to its end.

A producer instance is never used again after an error: a commit whose answer was lost could otherwise commit
half of the next cut. The next session makes a new one and reads from Kafka what became of the last cut.

https://kafka.apache.org/documentation/#semantics and KIP-98.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pgsluice.cut import Cut, cut_records
from pgsluice.envelope import Record
from pgsluice.errors import HistoryError, PgsluiceError, PoisonError, SinkUnavailable
from pgsluice.kafka.checkpoint import read_checkpoint
from pgsluice.kafka.client import ClientOptions, failure
from pgsluice.kafka.partitioner import partition_for
from pgsluice.kafka.topics import Topics, TopicSpec
from pgsluice.progress import Checkpoint
from pgsluice.tables import TablePolicy

T = TypeVar("T")

_FENCED = KafkaError._FENCED  # noqa: SLF001 - librdkafka's local errors are named with an underscore

_SLICE_S = 0.5
"""Longest single blocking call, so that giving up is noticed soon."""

_RETRY_S = 0.05
"""Between two tries of a call that failed at once, as while a coordinator loads."""

_INIT_S = 30.0
"""How long a session waits for the transaction coordinator before it ends and is tried again."""

_FULL_CUT_S = 60.0
"""A cut that lists every partition of every topic, at least this often."""

_DEADLINE_MARGIN = 0.9
"""The part of the transaction timeout that we use: the broker's clock starts with the first partition."""

MAX_RECORD_BYTES = 1_000_000_000
"""librdkafka's highest ``message.max.bytes``: the limits that count are the topic's and the broker's."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """``queue_bytes``: what librdkafka may hold; ``transaction_timeout_s``: wanted, the broker may allow less."""

    client: ClientOptions
    transactional_id: str
    transactions_topic: TopicSpec
    checkpoint_topic: TopicSpec
    queue_bytes: int
    transaction_timeout_s: float


@dataclass(frozen=True, slots=True)
class CutFormat:
    """How the cut record is framed: its key, and its encoder."""

    key: bytes
    encode: Callable[[dict[str, Any]], bytes]


class KafkaSink:
    """Delivery in one session. Coroutines run one at a time; each blocks a worker thread, never the loop.

    Any PgsluiceError out of :meth:`produce` or :meth:`commit` ends the session: close and make a new one.
    """

    def __init__(self, options: SinkOptions, cut_format: CutFormat) -> None:
        self._options = options
        self._format = cut_format
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="pgsluice-kafka")
        self._given_up = threading.Event()
        self._producer: Producer | None = None
        self._topics: Topics | None = None
        self._partitions: dict[str, int] = {}
        self._next: dict[tuple[str, int], int] = {}
        self._refused: PgsluiceError | None = None
        self._deadline = 0.0
        self._last_full = float("-inf")
        self.transaction_timeout_s = options.transaction_timeout_s

    async def prepare(self) -> None:
        """Make the service topics exist. No producer yet: a standby must not disturb the owner."""
        await self._run(self._prepare)

    async def last_checkpoint(self) -> Checkpoint | None:
        """Return the last committed checkpoint; complete only after :meth:`fence`."""
        return await self._run(
            lambda: read_checkpoint(
                self._options.client,
                self._options.checkpoint_topic.name,
                patience_s=self.transaction_timeout_s,
                cancelled=self._given_up.is_set,
            )
        )

    async def fence(self) -> None:
        """From here on no earlier producer of this pipeline can commit anything."""
        await self._run(self._fence)

    async def announce(self, checkpoint: Checkpoint) -> None:
        """Commit ``checkpoint`` alone: durable when this returns."""
        await self._run(lambda: self._announce(checkpoint))

    async def open_topics(self, topics: Sequence[str]) -> None:
        """Account for topics that were written in earlier sessions, so that full cuts name them."""
        await self._run(lambda: self._open_topics(topics))

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
        await self._run(self._begin)

    async def produce(self, cut: Cut, records: Sequence[Record]) -> None:
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
        await asyncio.to_thread(self._worker.shutdown)
        self._producer = None

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, call)

    # Everything below runs in the worker thread.

    @property
    def _admin(self) -> Topics:
        if self._topics is None:
            self._topics = Topics(self._options.client, self._given_up)
        return self._topics

    def _prepare(self) -> None:
        for spec in (self._options.transactions_topic, self._options.checkpoint_topic):
            if self._admin.ensure(spec) != 1:
                raise HistoryError(f"Topic {spec.name} must have exactly one partition, as pgsluice creates it.")
        allowed = self._admin.max_transaction_timeout_ms()
        if allowed is not None:
            self.transaction_timeout_s = min(self.transaction_timeout_s, allowed / 1000)

    def _fence(self) -> None:
        if self._producer is not None:
            return
        timeout_ms = int(self.transaction_timeout_s * 1000)
        config = self._options.client.config(
            {
                "transactional.id": self._options.transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "message.max.bytes": MAX_RECORD_BYTES,
                "queue.buffering.max.messages": 0,
                "queue.buffering.max.kbytes": max(1, self._options.queue_bytes // 1024),
                "delivery.report.only.error": True,
                "on_delivery": self._on_delivery,
                "allow.auto.create.topics": False,
            }
        )
        try:
            self._producer = Producer(config)
            self._until(lambda producer, slice_s: producer.init_transactions(slice_s), _INIT_S)
        except KafkaException as error:
            raise failure(error, "Registering the transactional producer", self._options.client.errors) from error

    def _open_topics(self, topics: Sequence[str]) -> None:
        self._pin({topic: count for topic, count in self._admin.partitions(topics).items() if count})

    def _open_topic(self, spec: TopicSpec) -> None:
        count = self._admin.ensure(spec)
        if spec.name not in self._partitions:
            self._pin({spec.name: count})

    def _pin(self, counts: Mapping[str, int]) -> None:
        self._partitions |= counts
        places = [(topic, partition) for topic, count in counts.items() for partition in range(count)]
        self._next |= self._admin.next_offsets(places)

    def _begin(self) -> None:
        self._deadline = time.monotonic() + self.transaction_timeout_s * _DEADLINE_MARGIN
        try:
            self._live().begin_transaction()
        except KafkaException as error:
            raise self._broken(error, "Beginning a Kafka transaction") from error

    def _produce(self, cut: Cut, records: Iterable[Record]) -> None:
        for record in records:
            topic, key = record.target.topic, record.key
            count = self._partitions[topic]
            if record.op == "t":
                partitions: Iterable[int] = range(count)
            else:
                partitions = (partition_for(key, count) if key is not None else 0,)
            for partition in partitions:
                self._send(topic, partition, key, record.value, record.timestamp_ms)
            cut.count(record, partitions)
        self._live().poll(0)
        self._check()

    def _deliver(self, cut: Cut, checkpoint: Checkpoint) -> None:
        self._begin()
        self._produce(cut, cut.records)
        self._commit(cut, checkpoint)

    def _commit(self, cut: Cut, checkpoint: Checkpoint) -> None:
        self._flush()
        full = time.monotonic() - self._last_full > _FULL_CUT_S
        following = self._following(cut, full=full)
        offsets = {place: (self._next.get(place, 0), end) for place, end in following.items()}
        identity = {"pipeline": checkpoint.pipeline, "cut": checkpoint.cut, "epoch": checkpoint.epoch}
        for part in cut_records(cut, identity, offsets, full=full):
            self._send(self._options.transactions_topic.name, 0, self._format.key, self._format.encode(part))
        self._commit_checkpoint(checkpoint)
        self._next |= following
        if full:
            self._last_full = time.monotonic()

    def _announce(self, checkpoint: Checkpoint) -> None:
        self._begin()
        self._commit_checkpoint(checkpoint)

    def _commit_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._send(self._options.checkpoint_topic.name, 0, checkpoint.pipeline.encode(), checkpoint.to_json())
        try:
            self._until(lambda producer, slice_s: producer.commit_transaction(slice_s), self._remaining())
        except KafkaException as error:
            raise self._broken(error, "Committing a Kafka transaction") from error

    def _following(self, cut: Cut, *, full: bool) -> dict[tuple[str, int], int]:
        """Return the next offset of every partition touched (``full``: of every partition known)."""
        produced = {(topic, p): n for topic, use in cut.topics.items() for p, n in use.produced.items()}
        everywhere = [(topic, p) for topic, count in self._partitions.items() for p in range(count)]
        found = self._admin.next_offsets(everywhere if full else list(produced))
        for place, end in found.items():
            if end < self._next.get(place, 0) + produced.get(place, 0):
                topic, partition = place
                raise HistoryError(
                    f"Partition {partition} of topic {topic} ends at offset {end}, before what was written "
                    "to it: the topic was "
                    "truncated or deleted and created again. Its consumers miss changes: reload the table."
                )
        return found

    def _send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: int = 0) -> None:
        producer = self._live()
        while True:
            try:
                producer.produce(topic, value, key, partition, None, timestamp_ms)
            except BufferError:
                producer.poll(_SLICE_S)
                self._check()
            except KafkaException as error:
                raise self._broken(error, f"Producing to {topic}") from error
            else:
                return

    def _flush(self) -> None:
        while self._live().flush(_SLICE_S):
            self._check()
        self._check()

    def _check(self) -> None:
        """Raise when a record was refused, the session was given up, or the transaction took too long."""
        if self._refused is not None:
            raise self._refused
        if self._given_up.is_set():
            raise SinkUnavailable("The Kafka transaction was given up because the session ends.")
        if time.monotonic() > self._deadline:
            raise SinkUnavailable(
                f"A Kafka transaction did not finish within {self.transaction_timeout_s:.0f} s, so it is "
                "given up "
                "(delivery.transaction_timeout, or the broker's transaction.max.timeout.ms)."
            )

    def _remaining(self) -> float:
        return self._deadline - time.monotonic()

    def _until(self, call: Callable[[Producer, float], None], limit_s: float) -> None:
        """Repeat a resumable call in slices until it succeeds; KafkaException when it fails or time is up."""
        end = time.monotonic() + limit_s
        while True:
            try:
                call(self._live(), _SLICE_S)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > end or self._given_up.is_set():
                    raise
                self._given_up.wait(_RETRY_S)
            else:
                return

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Keep the first refusal: it says which record, where the transaction's error only says that one failed."""
        if error is None or self._refused is not None:
            return
        doing = f"Writing a record to {message.topic()} [{message.partition()}]"
        found = failure(error, doing, self._options.client.errors)
        if isinstance(found, PoisonError):
            key, value = message.key() or b"", message.value() or b""
            found = PoisonError(
                f"{found} Key {len(key)} bytes, value {len(value)} bytes: raise the topic's "
                "max.message.bytes "
                "(`config` in [kafka.topics] or [[tables.rules]]) or the broker's message.max.bytes."
            )
        self._refused = found

    def _broken(self, error: KafkaException, doing: str) -> PgsluiceError:
        if self._refused is not None:
            return self._refused
        cause = error.args[0]
        if cause.code() in (
            _FENCED,
            KafkaError.PRODUCER_FENCED,
            KafkaError.INVALID_PRODUCER_EPOCH,
        ):
            return SinkUnavailable(
                f"{doing}: another producer with transactional.id {self._options.transactional_id} has "
                "taken over, "
                "or the broker's transaction timeout struck."
            )
        return failure(error, doing, self._options.client.errors)

    def _live(self) -> Producer:
        assert self._producer is not None, "fence() comes first"
        return self._producer
