"""The common parts of all producers if no broker runs. tests/integration/test_kafka_sink.py tests everything else."""

from threading import Event

import pytest
from confluent_kafka import KafkaError, Message

from pgsluice.errors import ConfigError, DeadlineMissed, PermissionDenied, PgsluiceError, PoisonError, SinkUnavailable
from pgsluice.kafka.client import ClientOptions
from pgsluice.kafka.producer import ProducerOptions
from pgsluice.kafka.refusals import RecordInspector, Refusals
from pgsluice.kafka.transactional import TransactionalProducer

NOBODY = {"bootstrap.servers": "127.0.0.1:9"}
TOPIC = "shop.public.orders"
ROW_DATA = "row data"

TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large")
DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "denied")
PURGED = KafkaError(KafkaError._PURGE_QUEUE, "purged")


def producer(given_up: Event | None = None, **properties: str) -> TransactionalProducer:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    options = ProducerOptions(ClientOptions({**NOBODY, **named}, "pgsluice-test"), "pgsluice-shop", 64 * 1024, 60.0)
    return TransactionalProducer(
        options, given_up or Event(), Refusals(RecordInspector(lambda _key, _value: None, lambda _: None))
    )


def message(size: int) -> Message:
    return Message(topic=TOPIC, partition=2, key=ROW_DATA.encode(), value=bytes(size))


def refusal(*reports: tuple[KafkaError | None, Message]) -> PgsluiceError:
    """Return the error that these delivery reports cause."""
    one = producer()
    for error, refused in reports:
        one._on_delivery(error, refused)
    with pytest.raises(PgsluiceError) as caught:
        one.check()
    return caught.value


def test_a_wrong_property_of_the_user_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"librdkafka refuses a property: .*compression.codec"):
        producer(compression_type="best")


def test_fencing_ends_with_the_session_and_says_what_was_wrong() -> None:
    given_up = Event()
    given_up.set()
    with pytest.raises(SinkUnavailable, match=r"^Registering the transactional producer: .*Connection refused"):
        producer(given_up).fence("shop.checkpoint")


def test_calls_in_the_wrong_order_fail() -> None:
    with pytest.raises(SinkUnavailable, match=r"^Beginning a Kafka transaction: .*\(_STATE\)"):
        producer().begin()
    with pytest.raises(SinkUnavailable, match=rf"^Producing to {TOPIC}: .*\(_STATE\)"):
        producer().send(TOPIC, 0, b"key", b"value")
    with pytest.raises(SinkUnavailable, match=r"^Committing a Kafka transaction: .*\(_STATE\)"):
        producer().commit()
    producer().close()


def test_a_record_that_was_refused_is_named_without_its_content() -> None:
    found = refusal((TOO_LARGE, message(2000)))
    assert type(found) is PoisonError
    record = f"a record for {TOPIC} [2] (key 8 bytes, value 2000 bytes)"
    assert str(found).startswith(f"Writing {record}: too large (MSG_SIZE_TOO_LARGE). Raise the topic's")
    assert ROW_DATA not in str(found)


def test_the_largest_record_of_a_batch_that_is_too_large_is_named() -> None:
    found = refusal(*((TOO_LARGE, message(size)) for size in (10, 2000, 30)), (PURGED, message(5000)))
    assert "value 2000 bytes" in str(found)


def test_the_first_refusal_is_reported() -> None:
    found = refusal((None, message(1)), (DENIED, message(2)), (PURGED, message(3)))
    assert type(found) is PermissionDenied
    assert f"Writing a record to {TOPIC} [2]: denied" in str(found)


def test_purged_records_do_not_explain_a_failure() -> None:
    """Ask librdkafka for the error of the transaction. Without a transaction, it only says that the call is invalid."""
    assert str(refusal((PURGED, message(3)))).startswith("Writing to Kafka: Operation not valid in state")


def test_the_session_may_end_at_any_time() -> None:
    given_up = Event()
    given_up.set()
    with pytest.raises(SinkUnavailable, match="abandoned because the session ends"):
        producer(given_up).check()


def test_without_a_transaction_the_deadline_counts_as_missed() -> None:
    with pytest.raises(DeadlineMissed):
        producer().check()
