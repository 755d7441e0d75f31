"""Runs sessions of a sink without a pipeline: passes cuts to the sink, and reads the resulting records."""

import json
from collections.abc import Sequence
from typing import Any, Self

from pgsluice.checkpoint import Checkpoint, last_checkpoint
from pgsluice.cut import Cut, Recorded
from pgsluice.kafka.client import ClientOptions
from pgsluice.kafka.ledger import OffsetPrediction
from pgsluice.kafka.options import CutFormat, SinkOptions
from pgsluice.kafka.producer import ProducerOptions
from pgsluice.kafka.sink import KafkaSink
from pgsluice.kafka.topic_spec import TopicSpec
from pgsluice.record import Record, Target
from pgsluice.tables import TablePolicy
from pgsluice.transaction import Transaction
from sandbox.kafka import Kafka
from tests.support.kafka import client_options, read_committed

KEY = b"the pipeline's key"
MIB = 1024 * 1024

Partition = tuple[str, int]


def insert(target: Target, number: int, size: int = 0) -> Record:
    key = b"key %d" % number if target.key_schema_id is not None else None
    return Record(target, "c", key, b"value %d" % number + bytes(size))


def policy(target: Target, partitions: int = 1, **config: str) -> TablePolicy:
    named = {name.replace("_", "."): value for name, value in config.items()}
    return TablePolicy(target.topic, partitions, -1, named, keys=None, tombstones=True, truncate=True)


class Session:
    """One session of a sink, from its preparation to its end, and the latest checkpoint."""

    def __init__(  # noqa: PLR0913 - each test needs other values
        self,
        kafka: Kafka,
        prefix: str,
        *,
        timeout_s: float = 60.0,
        queue_bytes: int = 8 * MIB,
        client: ClientOptions | None = None,
        accept: bool = False,
        prediction: OffsetPrediction | None = None,
        topics_max: int = 100,
        reserved_topics: frozenset[str] = frozenset(),
    ) -> None:
        self.prediction = prediction or OffsetPrediction()
        options = SinkOptions(
            ProducerOptions(client or client_options(kafka), f"pgsluice-{prefix}", queue_bytes, timeout_s),
            TopicSpec(f"{prefix}.transactions", 1),
            TopicSpec(f"{prefix}.checkpoint", 1, config={"cleanup.policy": "compact"}),
            "shop",
            accept_changed_topics=accept,
            topics_max=topics_max,
            reserved_topics=reserved_topics,
            prediction=self.prediction,
        )
        self.sink = KafkaSink(options, CutFormat(KEY, lambda record: json.dumps(record).encode(), json.loads))
        self._recorded = Recorded()
        self.checkpoint = Checkpoint("shop", "pgsluice_shop", "7000000000000000001", 1, 1, cut=0, end_lsn=0)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.sink.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.sink.close()

    async def start(self) -> None:
        await self.sink.prepare()
        await self.sink.fence()
        self.checkpoint = last_checkpoint(await self.sink.checkpoints()) or self.checkpoint
        self._recorded = await self.sink.recorded()
        await self.open_topics()

    async def open_topics(self, *topics: str) -> None:
        """Open ``topics``, and all topics to which earlier cuts have written, so that cut records list them.

        Tell the sink that all these topics have registered schemas.
        """
        await self.sink.open_topics(self.checkpoint.cut, topics, {*topics, *self._recorded.topics})

    async def deliver(self, *records: Record) -> None:
        """Deliver a cut of one transaction with these records, or a heartbeat if there are no records."""
        cut, checkpoint = self.next_cut(records)
        await self.sink.deliver(cut, checkpoint)
        self.checkpoint = checkpoint

    async def produce(self, *records: Record) -> tuple[Cut, Checkpoint]:
        """Write records in an open transaction, and wait until they are in Kafka."""
        await self.sink.begin()
        cut, checkpoint = self.next_cut(())
        await self.sink.produce(cut, list(records))
        await self.sink._run(self.sink._live.flush)
        return cut, checkpoint

    def next_cut(self, records: Sequence[Record]) -> tuple[Cut, Checkpoint]:
        number = self.checkpoint.cut + 1
        cut = Cut(end_lsn=number * 256)
        if records:
            cut.add_records(records, 0, len(records))
            cut.add(Transaction(700 + number, number * 256 - 8, number), number * 256)
        return cut, self.checkpoint.advanced(cut, number)


def cut_records(kafka: Kafka, prefix: str) -> list[dict[str, Any]]:
    messages = read_committed(kafka, f"{prefix}.transactions")
    assert {message.key() for message in messages} == {KEY}
    return [json.loads(message.value()) for message in messages]


def offsets(cut: dict[str, Any]) -> dict[Partition, tuple[int, int]]:
    return {
        (topic["topic"], at["partition"]): (at["first"], at["next"])
        for topic in cut["topics"]
        for at in topic["offsets"]
    }
