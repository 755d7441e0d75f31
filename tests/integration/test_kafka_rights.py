"""Tests that users without the rights of pgsluice can neither write to the service topics nor fence pgsluice."""

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AclOperation, ResourcePatternType, ResourceType

from pgsluice.errors import PermissionDenied
from pgsluice.kafka.checkpoint import checkpoint_key
from pgsluice.kafka.client import ClientOptions
from tests.support.kafka import TIMEOUT_S, SecuredKafka, allow, create_topic, end_of, grant
from tests.support.sink import Session

SERVICE_TOPICS = ("checkpoint", "transactions", "schemas")


def allow_all(kafka: SecuredKafka, prefix: str) -> ClientOptions:
    """Grant the user "pgsluice" all rights to the prefix. Return the options with which this user connects."""
    operations = (AclOperation.CREATE, AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE_CONFIGS)
    allow(kafka, "pgsluice", ResourceType.TOPIC, f"{prefix}.", *operations, pattern=ResourcePatternType.PREFIXED)
    allow(kafka, "pgsluice", ResourceType.TRANSACTIONAL_ID, f"pgsluice-{prefix}", AclOperation.WRITE)
    return ClientOptions(kafka.properties("pgsluice"), "pgsluice-test")


def refused(producer: Producer, topic: str) -> int | None:
    """Write a forged record. Return the error code, or None if Kafka accepted it."""
    codes: list[int | None] = []

    def report(error: KafkaError | None, _message: Message) -> None:
        codes.append(None if error is None else error.code())

    produce: Callable[..., None] = producer.produce
    produce(topic, b"forged", checkpoint_key("shop"), on_delivery=report)
    assert producer.flush(TIMEOUT_S) == 0
    (code,) = codes
    return code


async def test_nobody_else_may_write(secured_kafka: SecuredKafka, prefix: str) -> None:
    """Other users have the right to read everything."""
    client = allow_all(secured_kafka, prefix)
    async with Session(secured_kafka, prefix, client=client) as session:
        await session.deliver()
    create_topic(secured_kafka, f"{prefix}.schemas")
    other = Producer({**secured_kafka.properties("reader"), "message.timeout.ms": 30_000})
    for name in SERVICE_TOPICS:
        topic = f"{prefix}.{name}"
        grant(secured_kafka, topic, AclOperation.READ)
        before = end_of(secured_kafka, topic)
        assert refused(other, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert end_of(secured_kafka, topic) == before
    async with Session(secured_kafka, prefix, client=client) as session:
        assert session.checkpoint.cut == 1


async def test_nobody_else_may_fence_pgsluice(secured_kafka: SecuredKafka, prefix: str) -> None:
    client = allow_all(secured_kafka, prefix)
    async with Session(secured_kafka, prefix, client=client) as session:
        other = Producer({**secured_kafka.properties("reader"), "transactional.id": f"pgsluice-{prefix}"})
        with pytest.raises(KafkaException) as caught:
            other.init_transactions(TIMEOUT_S)
        assert caught.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        await session.deliver()
    assert session.checkpoint.cut == 1


async def test_rights_to_one_pipeline_do_not_cover_another(secured_kafka: SecuredKafka, prefix: str) -> None:
    client = allow_all(secured_kafka, prefix)
    with pytest.raises(PermissionDenied, match=f"other-{prefix}"):
        async with Session(secured_kafka, f"other-{prefix}", client=client):
            pass
