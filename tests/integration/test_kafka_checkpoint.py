"""Tests that the last committed checkpoint is found, no matter which other records the topic has."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from threading import Event
from uuid import uuid4

import pytest
import structlog
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation

from pgsluice.checkpoint import Checkpoint, last_checkpoint
from pgsluice.errors import HistoryError, PermissionDenied, SinkUnavailable, UnavailableError
from pgsluice.kafka import probe as probes
from pgsluice.kafka import tail as tails
from pgsluice.kafka.checkpoint import read_checkpoints
from pgsluice.kafka.client import ClientOptions
from pgsluice.kafka.probe import Probe
from pgsluice.kafka.tail import FIRST_WINDOW, WINDOW_FACTOR, Tail
from pgsluice.kafka.topics import Topics
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

PATIENCE_S = 180


def checkpoint(cut: int) -> Checkpoint:
    return Checkpoint("shop", "pgsluice_shop", "7000000000000000001", 1, 1, cut, end_lsn=cut * 256)


def record(cut: int) -> bytes:
    return checkpoint(cut).to_json()


def read(
    options: ClientOptions,
    topic: str,
    patience_s: float = PATIENCE_S,
    given_up: Event | None = None,
    *,
    is_atomic: bool = True,
) -> Checkpoint | None:
    given_up = given_up or Event()
    with Tail(options, Topics(options, given_up), topic, patience_s=patience_s, given_up=given_up) as tail:
        return last_checkpoint(read_checkpoints(tail, "shop", is_atomic=is_atomic))


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = f"shop-{uuid4().hex[:8]}.checkpoint"
    create_topic(kafka, name, cleanup_policy="compact")
    return name


class TestWhatIsThere:
    def test_an_empty_topic_has_no_checkpoint(self, kafka: Kafka, topic: str) -> None:
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

    def test_a_late_record_of_a_former_owner_does_not_count(self, kafka: Kafka, topic: str) -> None:
        """In at-least-once mode, a former owner is not fenced."""
        commit(kafka, topic, record(1), record(2), record(3), record(2))
        assert read(client_options(kafka), topic, is_atomic=False) == checkpoint(3)
        new_epoch = replace(checkpoint(3), epoch=2, end_lsn=0)
        commit(kafka, topic, new_epoch.to_json(), record(3))
        assert read(client_options(kafka), topic, is_atomic=False) == new_epoch

    def test_a_late_record_of_a_former_owner_does_not_hide_a_refusal(self, kafka: Kafka, topic: str) -> None:
        """The refusal is a checkpoint with a text in ``refused``. The late record can have a later position."""
        refused = replace(checkpoint(3), refused="The server was restored.")
        commit(kafka, topic, record(2), record(3), refused.to_json(), record(4))
        assert read(client_options(kafka), topic, is_atomic=False) == refused
        adopted = replace(checkpoint(5), epoch=2)
        commit(kafka, topic, adopted.to_json())
        assert read(client_options(kafka), topic, is_atomic=False) == adopted

    def test_a_record_with_a_later_position_does_not_hide_the_following_ones(self, kafka: Kafka, topic: str) -> None:
        """With transactions, the last record is always the newest, so positions are not compared."""
        forged = replace(checkpoint(40), epoch=7)
        commit(kafka, topic, record(1), forged.to_json(), record(2), record(3))
        assert read(client_options(kafka), topic) == checkpoint(3)

    @pytest.mark.parametrize("is_atomic", [True, False])
    @pytest.mark.parametrize("key", [b"other", b"\xff", b""])
    def test_records_under_another_key_change_nothing(
        self, kafka: Kafka, topic: str, key: bytes, *, is_atomic: bool
    ) -> None:
        commit(kafka, topic, record(1), record(2))
        others = replace(checkpoint(40), pipeline="other", epoch=7)
        for value in (others.to_json(), record(41), b"no checkpoint", None):
            commit(kafka, topic, *[value] * FIRST_WINDOW, key=key)
            with structlog.testing.capture_logs() as logs:
                assert read(client_options(kafka), topic, is_atomic=is_atomic) == checkpoint(2)
            (line,) = logs
            assert (line["log_level"], line["topic"]) == ("warning", topic)
            assert "its records are ignored" in line["event"]

    def test_a_new_pipeline_finds_the_checkpoint_of_another_one(self, kafka: Kafka, topic: str) -> None:
        """The pipeline must not start to write to the topics of another pipeline."""
        others = replace(checkpoint(9), pipeline="other")
        commit(kafka, topic, others.to_json(), b"no checkpoint", record(3), key=b"other")
        assert read(client_options(kafka), topic) == others
        commit(kafka, topic, record(1))
        assert read(client_options(kafka), topic) == checkpoint(1)

    def test_aborted_records_are_not_checkpoints(self, kafka: Kafka, topic: str) -> None:
        abort(kafka, topic, *[record(1)] * (3 * FIRST_WINDOW))
        assert read(client_options(kafka), topic) is None

    def test_the_last_record_without_a_transaction_is_found(self, kafka: Kafka, topic: str) -> None:
        """In at-least-once mode, the topic does not end with a marker."""
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for cut in range(1, 3 * FIRST_WINDOW):
            producer.produce(topic, record(cut), b"shop")
        assert producer.flush(PATIENCE_S) == 0
        assert read(client_options(kafka), topic) == checkpoint(3 * FIRST_WINDOW - 1)

    @pytest.mark.parametrize("behind", [FIRST_WINDOW - 2, FIRST_WINDOW - 1, FIRST_WINDOW, FIRST_WINDOW * WINDOW_FACTOR])
    def test_the_checkpoint_is_found_before_many_aborted_records(self, kafka: Kafka, topic: str, behind: int) -> None:
        """The reader first reads the last ``FIRST_WINDOW`` offsets, and then larger windows. Test their boundaries.

        The marker of a transaction also takes an offset.
        """
        commit(kafka, topic, record(1))
        commit(kafka, topic, record(2))
        abort(kafka, topic, *[record(3)] * (behind - 1))
        wait_for_end(kafka, topic, 4 + behind)
        assert read(client_options(kafka), topic) == checkpoint(2)

    def test_the_checkpoint_is_found_after_compaction(self, own_kafka: Kafka) -> None:
        name = f"shop-{uuid4().hex[:8]}.checkpoint"
        create_topic(own_kafka, name, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.001")
        cut = 0
        while cut < 5 or read_committed(own_kafka, name)[0].offset() == 0:
            cut += 1
            commit(own_kafka, name, record(cut))
            time.sleep(0.2)  # a segment ends when a record arrives after segment.ms
        assert read(client_options(own_kafka), name) == checkpoint(cut)

    @pytest.mark.parametrize("value", [b"\x00\x00\x00\x00\x05", b"{}", b"", None])
    def test_a_record_that_is_not_a_checkpoint_is_refused(self, kafka: Kafka, topic: str, value: bytes | None) -> None:
        """The record must not be skipped, because starting at an older checkpoint would repeat changes."""
        commit(kafka, topic, record(1), value)
        sentence = f"^Record 1 of topic {topic} is not one that this version of pgsluice can read"
        with pytest.raises(HistoryError, match=sentence):
            read(client_options(kafka), topic)


class TestOpenTransactions:
    """An open transaction hides the committed records after it from read_committed readers."""

    def test_the_reader_waits_for_hidden_records(self, kafka: Kafka, topic: str) -> None:
        commit(kafka, topic, record(1))
        with transaction(kafka, topic, [b"foreign"]) as foreign, ThreadPoolExecutor() as threads:
            with transaction(kafka, topic, [record(2)], f"beside-{topic}") as beside:
                beside.commit_transaction(PATIENCE_S)
            reading = threads.submit(read, client_options(kafka), topic)
            time.sleep(1)  # long enough to read all visible records
            assert not reading.done()
            foreign.abort_transaction()
            assert reading.result() == checkpoint(2)

    def test_the_reader_does_not_wait_for_ever(self, kafka: Kafka, topic: str) -> None:
        commit(kafka, topic, record(1))
        with transaction(kafka, topic, [b"foreign"]) as foreign:
            with transaction(kafka, topic, [record(2)], f"beside-{topic}") as beside:
                beside.commit_transaction(PATIENCE_S)
            with pytest.raises(UnavailableError, match=f"{topic} cannot be read beyond offset 2 .* another producer"):
                read(client_options(kafka), topic, patience_s=0.5)
            foreign.abort_transaction()

    def test_the_end_of_the_session_ends_the_wait(self, kafka: Kafka, topic: str) -> None:
        given_up = Event()
        with transaction(kafka, topic, [b"foreign"]) as foreign, ThreadPoolExecutor() as threads:
            reading: Future[object] = threads.submit(
                read, client_options(kafka), topic, patience_s=3600, given_up=given_up
            )
            time.sleep(1)
            given_up.set()
            with pytest.raises(SinkUnavailable, match="abandoned because the session ends"):
                reading.result()
            foreign.abort_transaction()


class PausesAfterwards(Topics):
    """A client whose broker reports the bounds of the topic, and then stops answering."""

    def __init__(self, kafka: Kafka, stack: ExitStack) -> None:
        super().__init__(client_options(kafka), Event())
        self._kafka = kafka
        self._stack = stack

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        found = super().bounds(topic, partition)
        self._stack.enter_context(paused(self._kafka))
        return found


class Outdated(Topics):
    """A client whose broker reports an outdated end of the topic."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        super().__init__(client_options(kafka), Event())
        self._bounds = super().bounds(topic, 0)

    def bounds(self, _topic: str, _partition: int) -> tuple[int, int]:
        return self._bounds


class TestOutdatedBrokers:
    """A broker that has lost its connection to the cluster still answers, but does not have the last checkpoint."""

    def test_the_reader_reads_up_to_the_probe(self, kafka: Kafka, topic: str) -> None:
        commit(kafka, topic, record(1))
        outdated = Outdated(kafka, topic)
        commit(kafka, topic, record(2))
        abort(kafka, topic, b"a probe")
        probe = Probe(client_options(kafka), Event())
        probe.find(b"a probe", [topic], outdated)
        assert probe.end(topic) == 5
        with Tail(
            client_options(kafka), outdated, topic, patience_s=60, given_up=Event(), reach=probe.end(topic)
        ) as tail:
            assert last_checkpoint(read_checkpoints(tail, "shop", is_atomic=True)) == checkpoint(2)
        outdated.close()

    def test_a_probe_that_no_broker_shows_is_reported(
        self, kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(probes, "OUTDATED_S", 1.0)
        monkeypatch.setattr(probes, "LOOK_S", 0.1)
        commit(kafka, topic, record(1))
        topics = Topics(client_options(kafka), Event())
        with pytest.raises(SinkUnavailable, match=f"answers for topic {topic} has an outdated view of it"):
            Probe(client_options(kafka), Event()).find(b"a probe", [topic], topics)
        topics.close()

    def test_the_search_for_the_probe_ends_with_the_session(self, kafka: Kafka, topic: str) -> None:
        given_up, topics = Event(), Topics(client_options(kafka), Event())
        given_up.set()
        started = time.monotonic()
        with pytest.raises(SinkUnavailable, match="abandoned because the session ends"):
            Probe(client_options(kafka), given_up).find(b"a probe", [topic], topics)
        assert time.monotonic() - started < probes.OUTDATED_S
        topics.close()

    def test_a_reader_without_progress_continues_with_another_consumer(
        self, kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The message must not blame an open transaction, because there is none."""
        monkeypatch.setattr(tails, "RENEW_S", 0.2)
        commit(kafka, topic, record(1))
        topics = Topics(client_options(kafka), Event())
        with (
            Tail(client_options(kafka), topics, topic, patience_s=1, given_up=Event(), reach=10) as tail,
            pytest.raises(SinkUnavailable, match="has an outdated view"),
        ):
            read_checkpoints(tail, "shop", is_atomic=True)
        topics.close()


class TestOutages:
    def test_a_topic_that_kafka_does_not_return_is_retried(self, own_kafka: Kafka) -> None:
        """The error must be one after which pgsluice retries."""
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
                read_checkpoints(tail, "shop", is_atomic=True)
        assert read(options, name) == checkpoint(1)

    def test_a_missing_right_to_read_the_topic_is_reported(self, secured_kafka: SecuredKafka) -> None:
        name = f"shop-{uuid4().hex[:8]}.checkpoint"
        reader = ClientOptions(secured_kafka.properties("reader"), "pgsluice-test")
        create_topic(secured_kafka, name)
        commit(secured_kafka, name, record(1))
        grant(secured_kafka, name, AclOperation.DESCRIBE)
        with pytest.raises(PermissionDenied, match=f"Reading {name}"):
            read(reader, name)
        grant(secured_kafka, name, AclOperation.READ)  # no right to a consumer group is needed
        assert read(reader, name) == checkpoint(1)
