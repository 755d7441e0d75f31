"""Tests the rules of exactly-once delivery: commits of unknown outcome, deadlines, unfinished transactions.

A proxy in front of the broker drops answers, and delivers requests after their sender has abandoned them.
"""

import json
import signal
from collections.abc import Callable, Iterator
from threading import Event
from time import sleep
from typing import Any

import pytest
from confluent_kafka import Producer

from sandbox.broker import Listener
from sandbox.kafka import Kafka
from sandbox.postgres import Postgres
from tests.support.kafka import end_of, read_committed, transaction
from tests.support.kafka_proxy import ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID, PRODUCE, KafkaProxy, Request
from tests.support.weather import PATIENCE_S, Pipeline, Start, fails, wait_until

SEEN = "SEEN"
"""The broker's listener that clients reach through the proxy."""

TIMEOUT_S = 2
"""The timeout of a Kafka transaction. pgsluice stops waiting for the answer to a commit before the timeout."""

SMALL_BYTES = 1000
"""The maximum size of a small request, such as one with a probe. Requests with many rows are larger."""

SETTINGS: dict[str, Any] = {
    "heartbeat": "1min",  # so that every commit that the tests intercept is a commit of rows
    "cut_bytes": "64KiB",
}

LARGE = 20_000
"""The number of rows of a transaction that gets its own Kafka transaction."""


class Seen:
    """A broker behind a proxy, and a function that starts pipelines with the proxy's address."""

    def __init__(self, kafka: Kafka, proxy: KafkaProxy, start: Start) -> None:
        self.kafka = kafka
        self.proxy = proxy
        self._start = start

    def start(self, *, timeout: str = f"{TIMEOUT_S}s", **options: Any) -> Pipeline:  # noqa: ANN401 - as in the fixture
        delivery = {**SETTINGS, "transaction_timeout": timeout}
        settings = {"kafka": {"bootstrap_servers": self.proxy.address}, "delivery": delivery}
        return self._start(settings, broker=self.kafka, **options)


@pytest.fixture(scope="module")
def proxied_kafka() -> Iterator[tuple[Kafka, KafkaProxy]]:
    with KafkaProxy() as proxy:
        soon = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
        with Kafka(settings=soon, listeners=[Listener(SEEN, advertised={1: proxy.address})]) as kafka:
            proxy.target = kafka.addresses(SEEN)
            yield kafka, proxy


@pytest.fixture
def seen(proxied_kafka: tuple[Kafka, KafkaProxy], start: Start) -> Iterator[Seen]:
    kafka, proxy = proxied_kafka
    yield Seen(kafka, proxy, start)
    proxy.forward()


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """Provide a server that a test can stop. It uses fsync, because tests make it crash."""
    with Postgres(17, {"fsync": "on"}) as server:
        yield server


class Once:
    """Passes the first request to ``first``. Disconnects the client at every later request, without an answer."""

    def __init__(self, first: Callable[[Request], None]) -> None:
        self._first = first
        self._came = False

    def __call__(self, request: Request) -> None:
        came, self._came = self._came, True
        (Request.cut if came else self._first)(request)


class Late:
    """Keeps the first request until ``before`` delivers it. Disconnects the client at every request."""

    def __init__(self) -> None:
        self._kept: list[Request] = []
        self._came = False

    def __call__(self, request: Request) -> None:
        if not self._came:
            self._came = True
            self._kept.append(request)
        request.cut()

    @property
    def waiting(self) -> bool:
        return bool(self._kept)

    def before(self, request: Request) -> None:
        """Deliver the late request, and then forward ``request``."""
        while self._kept:
            self._kept.pop().send_late()
        request.forward()


class TestACommitOfUnknownOutcome:
    """Only Kafka knows the outcome. The next session fences the former session's producer, and reads the outcome."""

    @pytest.mark.parametrize("fate", [Request.lose_answer, Request.cut], ids=["done", "not done"])
    def test_a_commit_whose_answer_is_lost_loses_and_repeats_nothing(
        self, seen: Seen, fate: Callable[[Request], None]
    ) -> None:
        pipeline = seen.start()
        pipeline.write()
        assert pipeline.read(10)
        seen.proxy.on(END_TXN, Once(fate))
        pipeline.write_at_once(10)
        pipeline.wait_for(state="waiting")
        seen.proxy.forward()
        pipeline.wait_for(state="streaming")
        pipeline.write()
        pipeline.assert_complete()

    @pytest.mark.parametrize("moment", [INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN], ids=["fencing", "the next cut"])
    def test_a_commit_that_arrives_late_repeats_nothing(self, seen: Seen, moment: int) -> None:
        pipeline = seen.start()
        pipeline.write()
        assert pipeline.read(10)
        late = Late()
        seen.proxy.on(END_TXN, late)
        pipeline.write_at_once(10)
        pipeline.wait_for(state="waiting")
        seen.proxy.on(moment, late.before)
        seen.proxy.forward(END_TXN)
        pipeline.wait_for(state="streaming")
        pipeline.write()
        pipeline.assert_complete()
        assert not late.waiting

    @pytest.mark.parametrize("moment", [INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN], ids=["fencing", "the next cut"])
    def test_a_commit_that_arrives_after_its_daemon_was_killed_repeats_nothing(self, seen: Seen, moment: int) -> None:
        pipeline = seen.start()
        late = Late()
        seen.proxy.on(END_TXN, late)
        pipeline.write_at_once(10)
        wait_until(lambda: late.waiting, "the commit")
        pipeline.daemon.kill()
        seen.proxy.on(moment, late.before)
        seen.proxy.forward(END_TXN)
        pipeline.daemon.start()
        pipeline.write()
        pipeline.assert_complete()
        assert not late.waiting


class TestSomebodyElsesTransaction:
    """An open transaction on the checkpoint topic hides every later checkpoint from read_committed readers."""

    def test_a_start_waits_for_another_programs_transaction(self, seen: Seen) -> None:
        pipeline = seen.start()
        topic = f"{pipeline.daemon.name}.checkpoint"
        with transaction(seen.kafka, topic, [b"not a checkpoint"]) as stranger:
            pipeline.write()
            pipeline.wait_until_confirmed()
            pipeline.daemon.stop()
            pipeline.daemon.start(wait=False)
            pipeline.wait_for(state="starting")
            sleep(1)
            pipeline.wait_for(state="starting")
            stranger.abort_transaction(PATIENCE_S)
        pipeline.daemon.wait_until_ready()
        pipeline.write()
        pipeline.assert_complete()

    def test_a_foreign_transaction_that_does_not_end_is_named(self, seen: Seen) -> None:
        pipeline = seen.start()
        topic = f"{pipeline.daemon.name}.checkpoint"
        with transaction(seen.kafka, topic, [b"not a checkpoint"]) as stranger:
            pipeline.write()
            pipeline.wait_until_confirmed()
            pipeline.daemon.stop()
            code, log = fails(pipeline)
            stranger.abort_transaction(PATIENCE_S)
        assert code == 69
        assert f"{topic} cannot be read beyond offset" in log
        assert "another producer keeps a transaction open on it" in log
        pipeline.daemon.start()
        pipeline.assert_complete()


class TestDeadlines:
    def test_a_timeout_above_that_of_the_broker_is_lowered(self, seen: Seen) -> None:
        pipeline = seen.start(timeout="20min")
        pipeline.write()
        pipeline.assert_complete()
        assert "transaction.max.timeout.ms" in pipeline.daemon.log_text()

    def test_one_missed_deadline_is_retried(self, seen: Seen) -> None:
        pipeline = seen.start()
        seen.proxy.on(PRODUCE, slowly)
        pipeline.write_at_once(LARGE)
        pipeline.wait_for(state="waiting")
        assert "did not finish within 2 s" in pipeline.daemon.log_text()
        seen.proxy.forward()
        pipeline.write()
        pipeline.assert_complete()

    def test_a_transaction_that_misses_its_deadline_twice_stops_the_daemon(self, seen: Seen) -> None:
        pipeline = seen.start()
        seen.proxy.on(PRODUCE, slowly)
        pipeline.write_at_once(LARGE)
        assert pipeline.daemon.wait() == 69
        log = pipeline.daemon.log_text()
        assert "This happened twice in a row with transaction" in log
        assert "MiB/s" in log
        assert "delivery.transaction_timeout" in log
        seen.proxy.forward()
        pipeline.daemon.start()
        pipeline.assert_complete()

    def test_a_timeout_by_the_brokers_clock_is_not_taken_for_another_owner(self, seen: Seen) -> None:
        pipeline = seen.start()
        gate = Gate()
        seen.proxy.on(PRODUCE, gate)
        pipeline.write_at_once(LARGE)
        gate.wait()
        pipeline.daemon.send(signal.SIGSTOP)
        gate.open()
        sleep(TIMEOUT_S + 1)
        pipeline.daemon.send(signal.SIGCONT)
        pipeline.write()
        pipeline.assert_complete()
        assert pipeline.daemon.alive
        assert "Another producer" not in pipeline.daemon.log_text()

    def test_a_program_that_fences_us_and_writes_nothing_is_not_taken_for_another_owner(self, seen: Seen) -> None:
        # Kafka gives a fenced producer the same answer as a producer whose transaction has timed out. The long timeout
        # excludes the second case.
        pipeline = seen.start(timeout="1min")
        pipeline.write()
        assert pipeline.read(10)
        foreign(seen.kafka, pipeline)
        pipeline.write()
        pipeline.assert_complete()
        assert "Another producer" in pipeline.daemon.log_text()
        assert pipeline.daemon.alive

    def test_another_owner_without_our_slot_stops_the_daemon(self, seen: Seen) -> None:
        pipeline = seen.start()
        pipeline.write()
        assert pipeline.read(10)
        topic, name = f"{pipeline.daemon.name}.checkpoint", pipeline.daemon.name
        last = json.loads(read_committed(seen.kafka, topic)[-1].value() or b"")
        producer = foreign(seen.kafka, pipeline)
        producer.begin_transaction()
        producer.produce(topic, json.dumps({**last, "cut": last["cut"] + 1}), name)
        producer.commit_transaction()
        pipeline.write()
        assert pipeline.daemon.wait() == 69
        assert "It does not stream from our slot" in pipeline.daemon.log_text()


def foreign(kafka: Kafka, pipeline: Pipeline) -> Producer:
    """Return a producer that has fenced the pipeline, as another pipeline of the same name would do."""
    name = pipeline.daemon.name
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"pgsluice-{name}-{name}"})
    producer.init_transactions(PATIENCE_S)
    return producer


class TestHalfATransaction:
    """Rows of an unfinished transaction are already in Kafka, but readers must never see them."""

    def test_rows_of_a_killed_daemons_transaction_are_never_seen(self, seen: Seen) -> None:
        pipeline = seen.start()
        pipeline.write()
        pipeline.wait_until_confirmed()
        topic = f"{pipeline.daemon.name}.public.numbers"
        before = end_of(seen.kafka, topic)
        gate = Gate()
        seen.proxy.on(PRODUCE, gate)
        pipeline.write_at_once(LARGE)
        gate.wait()
        wait_until(lambda: end_of(seen.kafka, topic) > before, "rows")
        pipeline.daemon.kill()
        never_seen = end_of(seen.kafka, topic) - before
        gate.open()
        seen.proxy.forward()
        pipeline.daemon.start()
        pipeline.write()
        pipeline.assert_complete()
        assert end_of(seen.kafka, topic) >= before + never_seen + LARGE + 10

    def test_rows_of_an_unfinished_transaction_are_never_seen_if_postgresql_crashes(
        self, own_postgres: Postgres, seen: Seen
    ) -> None:
        pipeline = seen.start(server=own_postgres)
        gate = Gate()
        seen.proxy.on(PRODUCE, gate)
        pipeline.write_at_once(LARGE)
        gate.wait()
        own_postgres.kill()
        gate.open()
        seen.proxy.forward()
        own_postgres.start()
        pipeline.write()
        pipeline.assert_complete()


class Gate:
    """Forwards the first request, and holds all others until ``open`` is called."""

    def __init__(self) -> None:
        self._came = False
        self._holding = Event()
        self._open = Event()

    def __call__(self, request: Request) -> None:
        if self._came and not self._open.is_set():
            self._holding.set()
            self._open.wait()
        self._came = True
        request.forward()

    def wait(self) -> None:
        """Wait until a request is held."""
        assert self._holding.wait(PATIENCE_S), "no request came"

    def open(self) -> None:
        """Forward all requests."""
        self._open.set()


def slowly(request: Request) -> None:
    """Delay large requests for longer than a Kafka transaction may take.

    The request with the next session's probe is not delayed.
    """
    if request.size > SMALL_BYTES:
        sleep(TIMEOUT_S)
    request.forward()
