"""Tests the guarantees that readers have with ``delivery.mode = "at_least_once"`` during kills and outages.

Numbers are written in order, and all of them go to one partition. So the numbers that one session delivers have no
gaps. The next session begins at the last checkpoint. Its first number was already delivered, or follows the last
delivered number.
"""

import itertools
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from pgsluice.checkpoint import Checkpoint
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from tests.support.kafka import end_of, paused, read_committed
from tests.support.weather import Pipeline, Start, configured, wait_until

AT_LEAST_ONCE = {"delivery": {"mode": "at_least_once"}}
SMALL_CUTS = {"delivery": {"mode": "at_least_once", "cut_bytes": "8KiB"}}

WRITING_INTERVAL_S = 0.4

LARGE = 100_000
"""The number of rows of a transaction that takes several seconds."""

Position = tuple[int, int, int]


@dataclass(frozen=True)
class Seen:
    """One record in the topic of the table ``numbers``."""

    number: int
    position: Position
    timestamp_ms: int


def seen(pipeline: Pipeline) -> list[Seen]:
    """Wait until the slot has confirmed everything that was written. Return all records in the topic."""
    pipeline.wait_until_confirmed()
    topic = f"{pipeline.daemon.name}.public.numbers"
    found = []
    for message, value in decoded(pipeline, topic):
        position = value["epoch"], value["lsn"], value["seq"]
        found.append(Seen(value["after"]["n"], position, message.timestamp()[1]))
    return found


def decoded(pipeline: Pipeline, topic: str) -> list[tuple[Message, dict[str, Any]]]:
    context = SerializationContext(topic, MessageField.VALUE)
    with SchemaRegistryClient({"url": pipeline.daemon.url}) as registry:
        read = AvroDeserializer(registry)
        return [(one, read(one.value(), context)) for one in read_committed(pipeline.kafka, topic)]


def checkpoints(pipeline: Pipeline) -> list[tuple[int, Checkpoint]]:
    """Return the checkpoints with their timestamps."""
    messages = read_committed(pipeline.kafka, f"{pipeline.daemon.name}.checkpoint")
    return [(one.timestamp()[1], Checkpoint.from_json(one.value())) for one in messages]


def runs(found: list[Seen]) -> list[list[Seen]]:
    """Split the records into parts. A new part begins wherever the position does not increase."""
    parts: list[list[Seen]] = []
    for one in found:
        if not parts or one.position <= parts[-1][-1].position:
            parts.append([])
        parts[-1].append(one)
    return parts


def assert_at_least_once(pipeline: Pipeline, last: int) -> int:
    """Check all guarantees. Return the number of repeated records."""
    found = seen(pipeline)
    assert {one.number for one in found} == set(range(1, last + 1)), "lost"
    assert len({(one.number, one.position) for one in found}) == last, "the same change at two positions"
    parts = runs(found)
    for part in parts:
        numbers = [one.number for one in part]
        assert numbers == list(range(numbers[0], numbers[0] + len(part))), "a gap"
    reached = checkpoints(pipeline)
    for before, after in itertools.pairwise(parts):
        assert after[0].number <= before[-1].number + 1
        delivered = max(one.end_lsn for at, one in reached if at < after[0].timestamp_ms)
        assert after[0].position[1] >= delivered, "a repetition from before the checkpoint"
    cuts = [value["cut"] for _, value in decoded(pipeline, f"{pipeline.daemon.name}.transactions")]
    assert all(following - cut in (0, 1) for cut, following in itertools.pairwise(cuts)), cuts
    return len(found) - last


@contextmanager
def writing(pipeline: Pipeline) -> Iterator[list[int]]:
    """Write small and large transactions in the background. Yield a list with one element, the last written number.

    The pauses between transactions limit the number of rows even if the daemon starts slowly, because the test decodes
    all rows at the end.
    """
    stop, last = threading.Event(), [0]

    def work() -> None:
        while not stop.wait(WRITING_INTERVAL_S):
            pipeline.write(5)
            pipeline.write_at_once(500)
            last[0] += 505

    writer = threading.Thread(target=work)
    writer.start()
    try:
        yield last
    finally:
        stop.set()
        writer.join()


def test_without_faults_everything_arrives_once(start: Start) -> None:
    pipeline = start(AT_LEAST_ONCE)
    assert pipeline.daemon.status()["mode"] == "at_least_once"
    for _ in range(3):
        pipeline.write(20)
        pipeline.write_at_once(500)
        pipeline.daemon.restart()
    assert assert_at_least_once(pipeline, 1560) == 0


def test_a_stop_in_the_middle_of_the_stream_loses_nothing(start: Start) -> None:
    pipeline = start(SMALL_CUTS)
    with writing(pipeline) as last:
        for _ in range(4):
            time.sleep(random.uniform(0.2, 0.8))
            pipeline.daemon.restart()
    assert_at_least_once(pipeline, last[0])


def test_kill_9_at_any_time_loses_nothing(start: Start) -> None:
    pipeline = start(SMALL_CUTS)
    with writing(pipeline) as last:
        for _ in range(12):
            written = last[0]
            while last[0] == written:
                time.sleep(0.001)
            time.sleep(random.uniform(0.0, 0.02))  # a cut takes several milliseconds
            pipeline.daemon.kill()
            pipeline.daemon.start()
    repeated = assert_at_least_once(pipeline, last[0])
    assert repeated > 0, "no kill came while a cut was in flight"


@pytest.mark.long
@pytest.mark.parametrize("how", ["paused", "killed"])
def test_a_broker_outage_loses_nothing(own_kafka: Kafka, start: Start, how: str) -> None:
    pipeline = start(SMALL_CUTS, broker=own_kafka)
    with writing(pipeline) as last:
        for _ in range(2):
            time.sleep(0.5)
            if how == "paused":
                with paused(own_kafka):
                    time.sleep(8)
            else:
                own_kafka.kill()
                time.sleep(2)
                own_kafka.start()
    assert_at_least_once(pipeline, last[0])


def test_a_broker_outage_longer_than_the_timeout_of_records_loses_nothing(own_kafka: Kafka, start: Start) -> None:
    pipeline = start({"delivery": {**AT_LEAST_ONCE["delivery"], "transaction_timeout": "2s"}}, broker=own_kafka)
    pipeline.write()
    pipeline.wait_until_confirmed()
    with paused(own_kafka):
        pipeline.write()
        wait_until(lambda: "Kafka has taken none of" in pipeline.daemon.log_text(), "the records to time out")
        pipeline.write()
    assert_at_least_once(pipeline, 30)


class TestChangingTheMode:
    @pytest.mark.long
    def test_a_transaction_left_open_blocks_nobody(self, start: Start) -> None:
        pipeline = start({"delivery": {"mode": "exactly_once", "cut_bytes": "16KiB"}})
        pipeline.write()
        pipeline.wait_until_confirmed()
        topic = f"{pipeline.daemon.name}.public.numbers"
        written = 10
        # On a busy machine, the transaction may have finished before the test notices that it has begun.
        while not self._killed_amid(pipeline, topic, LARGE):
            written += LARGE
            pipeline.daemon.start()
            pipeline.wait_until_confirmed()
        pipeline.daemon.settings["delivery"]["mode"] = "at_least_once"
        pipeline.daemon.start()
        pipeline.write()
        assert assert_at_least_once(pipeline, written + LARGE + 10) == 0

    def _killed_amid(self, pipeline: Pipeline, topic: str, rows: int) -> bool:
        """Kill the daemon while it writes a transaction of ``rows`` rows. Return False if the kill came too late."""
        before = end_of(pipeline.kafka, topic)
        pipeline.write_at_once(rows)
        wait_until(lambda: end_of(pipeline.kafka, topic) > before, "the first rows of the transaction")
        pipeline.daemon.kill()
        return end_of(pipeline.kafka, topic) < before + rows

    def test_the_delivery_mode_can_be_switched_back_and_forth(self, start: Start) -> None:
        pipeline = start(SMALL_CUTS)
        with writing(pipeline) as last:
            for mode in ("exactly_once", "at_least_once", "exactly_once"):
                time.sleep(0.5)
                pipeline.daemon.kill()
                pipeline.daemon.settings["delivery"]["mode"] = mode
                pipeline.daemon.start()
        assert_at_least_once(pipeline, last[0])
        before = len(seen(pipeline))
        for _ in range(3):
            pipeline.write(10)
            pipeline.daemon.kill()
            pipeline.daemon.start()
        assert len(seen(pipeline)) == before + 30


def test_a_former_owner_that_wakes_up_loses_nothing(start: Start) -> None:
    """The former owner is not fenced, so it may repeat the records in its queue.

    No change may be lost, and the new owner must not stop.
    """
    former = start({**SMALL_CUTS, "postgres": {"wal_sender_timeout": "2s", "status_interval": "500ms"}})
    former.write()
    former.wait_until_confirmed()
    dsn, brokers = former.database.conninfo(), former.kafka.bootstrap_servers
    with Daemon(former.daemon.name, dsn, brokers, configured(former.daemon.settings), wait_for="any") as daemon:
        owner = Pipeline(former.database, former.kafka, daemon)
        with writing(former) as last:
            time.sleep(0.5)
            former.daemon.send(signal.SIGSTOP)
            owner.wait_for(state="streaming")
            former.daemon.send(signal.SIGCONT)
            former.wait_for(state="standby")
        former.write()
        assert {one.number for one in seen(owner)} == set(range(1, last[0] + 21))
        owner.daemon.stop_well()
        former.wait_for(state="streaming")
