"""Reading the last committed checkpoint back, whatever else stands in the topic."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from threading import Event
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation

from pgsluice.errors import HistoryError, PermissionDenied, SinkUnavailable, UnavailableError
from pgsluice.kafka.checkpoint import read_checkpoint
from pgsluice.kafka.tail import FIRST_WINDOW, WINDOW_FACTOR, Tail
from pgsluice.kafka.topics import Topics
from pgsluice.librdkafka import ClientOptions
from pgsluice.progress import Checkpoint
from sandbox.kafka import Kafka
from tests.support.kafka import (
    SecuredKafka,
    abort,
    client_options,
    commit,
    create_topic,
    grant,
    paused,
    read_committed,
    transaction,
    wait_for_end,
)

PATIENCE_S = 60


def checkpoint(cut: int) -> Checkpoint:
    return Checkpoint("shop", "pgsluice_shop", "7000000000000000001", 1, 1, cut, end_lsn=cut * 256)


def record(cut: int) -> bytes:
    return checkpoint(cut).to_json()


def read(
    options: ClientOptions, topic: str, patience_s: float = PATIENCE_S, given_up: Event | None = None
) -> Checkpoint | None:
    given_up = given_up or Event()
    with Tail(options, Topics(options, given_up), topic, patience_s=patience_s, given_up=given_up) as tail:
        return read_checkpoint(tail)


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = f"shop-{uuid4().hex[:8]}.checkpoint"
    create_topic(kafka, name, cleanup_policy="compact")
    return name


class TestWhatIsThere:
    def test_nothing(self, kafka: Kafka, topic: str) -> None:
        assert read(client_options(kafka), topic) is None

    def test_the_last_committed_record_counts(self, kafka: Kafka, topic: str) -> None:
        for cut in (1, 2, 3):
            commit(kafka, topic, record(cut))
            assert read(client_options(kafka), topic) == checkpoint(cut)
        commit(kafka, topic, record(4), record(5))
        assert read(client_options(kafka), topic) == checkpoint(5)
        abort(kafka, topic, record(6))
        abort(kafka, topic, record(7))
        assert read(client_options(kafka), topic) == checkpoint(5)

    def test_one_that_a_former_owner_wrote_late_does_not(self, kafka: Kafka, topic: str) -> None:
        """Nothing fences it, where delivery is at least once."""
        commit(kafka, topic, record(1), record(2), record(3), record(2))
        assert read(client_options(kafka), topic) == checkpoint(3)
        new_epoch = replace(checkpoint(3), epoch=2, end_lsn=0)
        commit(kafka, topic, new_epoch.to_json(), record(3))
        assert read(client_options(kafka), topic) == new_epoch
        others = replace(checkpoint(1), pipeline="other")
        commit(kafka, topic, others.to_json())
        assert read(client_options(kafka), topic) == others

    def test_only_aborted_records(self, kafka: Kafka, topic: str) -> None:
        abort(kafka, topic, *[record(1)] * (3 * FIRST_WINDOW))
        assert read(client_options(kafka), topic) is None

    def test_records_without_transactions(self, kafka: Kafka, topic: str) -> None:
        """As with delivery at least once: no marker stands at the end."""
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for cut in range(1, 3 * FIRST_WINDOW):
            producer.produce(topic, record(cut), b"shop")
        assert producer.flush(PATIENCE_S) == 0
        assert read(client_options(kafka), topic) == checkpoint(3 * FIRST_WINDOW - 1)

    @pytest.mark.parametrize("behind", [FIRST_WINDOW - 2, FIRST_WINDOW - 1, FIRST_WINDOW, FIRST_WINDOW * WINDOW_FACTOR])
    def test_it_is_found_behind_many_aborted_records(self, kafka: Kafka, topic: str, behind: int) -> None:
        """At the windows' borders: a transaction's marker takes an offset too."""
        commit(kafka, topic, record(1))
        commit(kafka, topic, record(2))
        abort(kafka, topic, *[record(3)] * (behind - 1))
        wait_for_end(kafka, topic, 4 + behind)
        assert read(client_options(kafka), topic) == checkpoint(2)

    def test_what_compaction_left(self, own_kafka: Kafka) -> None:
        name = f"shop-{uuid4().hex[:8]}.checkpoint"
        create_topic(own_kafka, name, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.001")
        cut = 0
        while cut < 5 or read_committed(own_kafka, name)[0].offset() == 0:
            cut += 1
            commit(own_kafka, name, record(cut))
            time.sleep(0.2)  # a segment ends when a record comes after segment.ms
        assert read(client_options(own_kafka), name) == checkpoint(cut)

    @pytest.mark.parametrize("value", [b"\x00\x00\x00\x00\x05", b"{}", b"", None])
    def test_a_record_that_is_no_checkpoint(self, kafka: Kafka, topic: str, value: bytes | None) -> None:
        """Never to be passed over: an older checkpoint would send what was delivered once more."""
        commit(kafka, topic, record(1), value)
        with pytest.raises(HistoryError, match="not one that this version of pgsluice can read"):
            read(client_options(kafka), topic)


class TestOpenTransactions:
    """An open transaction hides the committed records behind it from whoever reads committed ones."""

    def test_what_is_hidden_is_waited_for(self, kafka: Kafka, topic: str) -> None:
        commit(kafka, topic, record(1))
        with transaction(kafka, topic, [b"foreign"]) as foreign, ThreadPoolExecutor() as threads:
            with transaction(kafka, topic, [record(2)], f"beside-{topic}") as beside:
                beside.commit_transaction(PATIENCE_S)
            reading = threads.submit(read, client_options(kafka), topic)
            time.sleep(1)  # long enough to have read what can be read
            assert not reading.done()
            foreign.abort_transaction()
            assert reading.result() == checkpoint(2)

    def test_not_for_ever(self, kafka: Kafka, topic: str) -> None:
        commit(kafka, topic, record(1))
        with transaction(kafka, topic, [b"foreign"]) as foreign:
            with transaction(kafka, topic, [record(2)], f"beside-{topic}") as beside:
                beside.commit_transaction(PATIENCE_S)
            with pytest.raises(UnavailableError, match=f"{topic} cannot be read beyond offset 2 .* another producer"):
                read(client_options(kafka), topic, patience_s=0.5)
            foreign.abort_transaction()

    def test_the_session_may_end_meanwhile(self, kafka: Kafka, topic: str) -> None:
        given_up = Event()
        with transaction(kafka, topic, [b"foreign"]) as foreign, ThreadPoolExecutor() as threads:
            reading: Future[object] = threads.submit(
                read, client_options(kafka), topic, patience_s=3600, given_up=given_up
            )
            time.sleep(1)
            given_up.set()
            with pytest.raises(SinkUnavailable, match="given up because the session ends"):
                reading.result()
            foreign.abort_transaction()


class PausesAfterwards(Topics):
    """A broker that answers where the topic ends, and then nothing more."""

    def __init__(self, kafka: Kafka, stack: ExitStack) -> None:
        super().__init__(client_options(kafka), Event())
        self._kafka = kafka
        self._stack = stack

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        found = super().bounds(topic, partition)
        self._stack.enter_context(paused(self._kafka))
        return found


class TestOutages:
    def test_kafka_does_not_answer(self, own_kafka: Kafka) -> None:
        """Kafka being away is no reason to stop for good."""
        name = f"shop-{uuid4().hex[:8]}.checkpoint"
        create_topic(own_kafka, name)
        commit(own_kafka, name, record(1))
        options = client_options(own_kafka)
        with ExitStack() as stack:
            topics = PausesAfterwards(own_kafka, stack)
            with (
                pytest.raises(SinkUnavailable, match=f"Reading {name}: nothing came beyond offset 0 of 2"),
                Tail(options, topics, name, patience_s=1, given_up=Event()) as tail,
            ):
                read_checkpoint(tail)
        assert read(options, name) == checkpoint(1)

    def test_it_may_not_be_read(self, secured_kafka: SecuredKafka) -> None:
        name = f"shop-{uuid4().hex[:8]}.checkpoint"
        reader = ClientOptions(secured_kafka.properties("reader"), "pgsluice-test")
        create_topic(secured_kafka, name)
        commit(secured_kafka, name, record(1))
        grant(secured_kafka, name, AclOperation.DESCRIBE)
        with pytest.raises(PermissionDenied, match=f"Reading {name}"):
            read(reader, name)
        grant(secured_kafka, name, AclOperation.READ)  # of the topic; there is no right to any group
        assert read(reader, name) == checkpoint(1)
