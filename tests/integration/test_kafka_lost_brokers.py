"""Tests what happens to a Kafka client that has forgotten all brokers, and would never connect again.

A broker that shuts down answers for some milliseconds that the cluster has no brokers. If such an answer is the last
that a client gets, librdkafka forgets all brokers (https://github.com/confluentinc/librdkafka/issues/5301). The tests
produce this with many requests while the only broker restarts.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from pgsluice.commands import CommandState
from pgsluice.errors import ConfigError, SinkUnavailable
from pgsluice.kafka import commands
from pgsluice.kafka import producer as producer_module
from pgsluice.kafka.client import ClientOptions, has_lost_brokers
from pgsluice.registry.client import RegistryOptions
from pgsluice.registry.follower import SchemaFollower
from pgsluice.registry.store import SchemaStore
from sandbox.kafka import Kafka
from tests.support.kafka import create_topic, paused, properties
from tests.support.sink import Session

RESTARTS_MAX = 10
CLIENTS = 8
ANSWER_S = 1.0


@pytest.fixture
def topic(own_kafka: Kafka) -> str:
    name = f"lost-{uuid4().hex[:8]}.schemas"
    create_topic(own_kafka, name, cleanup_policy="compact")
    return name


def options(kafka: Kafka) -> ClientOptions:
    # With this strategy, librdkafka never connects again, so the clients lose all brokers more often.
    return ClientOptions({**properties(kafka), "metadata.recovery.strategy": "none"}, "pgsluice-test")


@contextmanager
def asking(*clients: Producer | Consumer | AdminClient) -> Iterator[None]:
    """Ask the brokers for metadata all the time, with each of these clients, until the block ends."""
    ended = threading.Event()

    def ask(client: Producer | Consumer | AdminClient) -> None:
        while not ended.is_set():
            try:
                client.list_topics("lost", ANSWER_S)
            except KafkaException:
                ended.wait(0.01)

    threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def write(kafka: Kafka, topic: str, value: bytes) -> None:
    producer = Producer(properties(kafka))
    producer.produce(topic, value, b"key")
    assert producer.flush(60) == 0


def restart(kafka: Kafka) -> None:
    kafka.stop()
    kafka.start()


async def lose(kafka: Kafka, client: Producer | Consumer | AdminClient) -> None:
    """Make ``client`` ask for metadata while the broker restarts. It usually loses the broker."""
    with asking(client):
        await asyncio.to_thread(restart, kafka)


def test_a_client_that_has_lost_all_brokers_is_noticed(own_kafka: Kafka, topic: str) -> None:
    producers = [options(own_kafka).make(Producer) for _ in range(CLIENTS)]
    for _ in range(RESTARTS_MAX):
        with asking(*producers):
            restart(own_kafka)
        if lost := [one for one in producers if has_lost_brokers(one, topic, options(own_kafka))]:
            break
    assert lost
    assert not has_lost_brokers(options(own_kafka).make(Producer), topic, options(own_kafka))


def test_an_outage_is_not_mistaken_for_lost_brokers(own_kafka: Kafka, topic: str) -> None:
    client = ClientOptions(properties(own_kafka), "pgsluice-test")
    producer = client.make(Producer)
    producer.list_topics(topic, 10)
    with paused(own_kafka):
        assert not has_lost_brokers(producer, topic, client)
    own_kafka.stop()
    assert not has_lost_brokers(producer, topic, client)
    own_kafka.start()
    assert not has_lost_brokers(producer, topic, client)


def test_without_new_clients_nothing_is_known(own_kafka: Kafka, topic: str) -> None:
    """The source of the password may be away as well. Then the present client has to wait."""

    def refuse() -> dict[str, str]:
        raise ConfigError("kafka.password_file cannot be read")

    client = options(own_kafka)
    producer = client.make(Producer)
    own_kafka.stop()
    assert not has_lost_brokers(producer, topic, replace(client, credentials=refuse))
    own_kafka.start()


async def test_a_session_ends_if_its_producer_has_lost_all_brokers(
    own_kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the session would wait for delivery.transaction_timeout, which is 15 minutes by default."""
    monkeypatch.setattr(producer_module, "STALL_S", 1.0)
    monkeypatch.setattr(producer_module, "LOST_S", 1.0)
    client = options(own_kafka)
    for _ in range(RESTARTS_MAX):
        async with Session(own_kafka, f"lost-{uuid4().hex[:8]}", timeout_s=600, client=client) as session:
            await session.deliver()
            await lose(own_kafka, session.sink._live._producer)
            if not has_lost_brokers(session.sink._live._producer, topic, client):
                continue
            with pytest.raises(SinkUnavailable, match="the Kafka client finds no broker any more"):
                async with asyncio.timeout(60):
                    await session.deliver()
            return
    pytest.fail(f"the producer still finds its broker after {RESTARTS_MAX} restarts")


async def test_the_reader_of_commands_continues_with_a_new_consumer(
    own_kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "LOOK_EVERY_S", 1.0)
    reader = commands.TopicCommandReader(options(own_kafka), topic)
    await reader.open(CommandState())
    try:
        for number in range(RESTARTS_MAX):
            lost = reader._consumer
            assert lost is not None
            await lose(own_kafka, lost)
            value = f"command {number}".encode()
            write(own_kafka, topic, value)
            found: list[tuple[int, bytes | None]] = []
            async with asyncio.timeout(60):
                while not found:
                    found += await reader.read()
            assert found == [(number, value)]
            if reader._consumer is not lost:
                return
    finally:
        await reader.close()
    pytest.fail(f"the consumer still finds its broker after {RESTARTS_MAX} restarts")


async def test_a_registry_replaces_clients_that_have_lost_all_brokers(own_kafka: Kafka, topic: str) -> None:
    registry_options = RegistryOptions(options(own_kafka), timeout_s=10.0)
    follower = SchemaFollower(registry_options, [topic], SchemaStore())
    try:
        await follower.start()
        for _ in range(RESTARTS_MAX):
            await lose(own_kafka, follower.admin._admin)
            if has_lost_brokers(follower.admin._admin, topic, registry_options.client):
                break
        else:
            pytest.fail(f"the client still finds its broker after {RESTARTS_MAX} restarts")
        with pytest.raises(SinkUnavailable):
            await follower.start()
        assert follower.is_outdated
        await follower.renew()
        assert not follower.is_outdated
        await follower.start()
    finally:
        await follower.close()


async def test_a_registry_that_waits_for_a_topic_replaces_its_clients_as_well(own_kafka: Kafka) -> None:
    missing = f"lost-{uuid4().hex[:8]}.schemas"
    follower = SchemaFollower(RegistryOptions(options(own_kafka), timeout_s=2.0), [missing], SchemaStore())
    try:
        await follower.start()
        assert not follower.is_outdated
        with paused(own_kafka):
            async with asyncio.timeout(60):
                while not follower.is_outdated:  # noqa: ASYNC110 - no event announces it
                    await asyncio.sleep(0.1)
    finally:
        await follower.close()
