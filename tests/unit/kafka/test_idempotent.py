"""The idempotent producer if no broker runs. tests/integration/test_at_least_once.py tests everything else."""

import time
from threading import Event

import pytest
from structlog.testing import capture_logs

from pgsluice.errors import SinkUnavailable
from pgsluice.kafka.client import ClientOptions
from pgsluice.kafka.idempotent import IdempotentProducer
from pgsluice.kafka.producer import ProducerOptions
from pgsluice.kafka.refusals import RecordInspector, Refusals


def producer(timeout_s: float = 60.0, given_up: Event | None = None) -> IdempotentProducer:
    client = ClientOptions({"bootstrap.servers": "127.0.0.1:9"}, "pgsluice-test")
    options = ProducerOptions(client, "pgsluice-shop", 64 * 1024, timeout_s)
    return IdempotentProducer(
        options, given_up or Event(), Refusals(RecordInspector(lambda _key, _value: None, lambda _: None))
    )


def test_records_that_were_not_sent_are_purged() -> None:
    one = producer()
    one.begin()
    for number in range(10):
        one.send("shop.public.orders", 0, b"key", b"value %d" % number)
    one.abandon()
    with pytest.raises(SinkUnavailable, match="Records were dropped"):
        one.commit()
    assert len(one._producer) == 0
    one.close()


def test_the_end_of_the_session_ends_the_wait() -> None:
    given_up = Event()
    one = producer(given_up=given_up)
    one.send("shop.public.orders", 0, b"key", b"value")
    given_up.set()
    with pytest.raises(SinkUnavailable, match="abandoned because the session ends"):
        one.flush()


def test_records_do_not_wait_for_ever() -> None:
    one = producer(timeout_s=0.01)
    one.send("shop.public.orders", 0, b"key", b"value")
    with pytest.raises(SinkUnavailable, match=r"Kafka has taken none of 1 records for 0.01 s .*sent again") as caught:
        one.flush()
    assert "Connection refused" in str(caught.value)


def test_records_may_wait_while_others_are_delivered() -> None:
    one = producer(timeout_s=0.01)
    for left in (3, 2, 1):
        one._waited(left)
        time.sleep(0.02)
    with pytest.raises(SinkUnavailable):
        one._waited(1)


def test_only_the_time_spent_waiting_counts() -> None:
    one = producer(timeout_s=0.01)
    one._waited(1)
    one._waited(0)
    time.sleep(0.02)
    one._waited(0)
    one._waited(1)


def test_fencing_former_owners_needs_an_answer() -> None:
    given_up = Event()
    given_up.set()
    with pytest.raises(SinkUnavailable, match=r"^Registering the transactional producer: .*Connection refused"):
        producer(given_up=given_up).fence("shop.checkpoint")


def test_a_cluster_without_working_transactions_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsluice.kafka.transactional.INIT_S", 0.1)
    with capture_logs() as logs:
        producer().fence("shop.checkpoint")
    assert any(entry["event"].startswith("transactions do not work") for entry in logs)
