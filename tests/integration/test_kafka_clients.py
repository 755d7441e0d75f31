"""Tests that the threads of Kafka clients end with the session, no matter why it ends."""

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsluice.errors import PgsluiceError
from pgsluice.record import Target
from pgsluice.registry.builtin import BuiltinRegistry
from pgsluice.registry.client import RegistryOptions
from sandbox.kafka import Kafka
from tests.support.kafka import client_options, paused
from tests.support.sink import Session, insert, policy

SESSIONS = 3

PATIENCE_S = 180.0
"""How long the threads of a session may take to end."""


@pytest.fixture
def _uncollected() -> Iterator[None]:
    """Turn off the garbage collector, because threads must end without it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def threads_of_clients() -> int:
    """Return the number of threads in this process that Python has not started."""
    return len([*Path("/proc/self/task").iterdir()]) - threading.active_count()


def assert_ended(before: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (now := threads_of_clients()) > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert now <= before


@pytest.mark.usefixtures("_uncollected")
class TestThreadsEndWithTheSession:
    async def test_threads_end_after_an_orderly_end(self, kafka: Kafka, prefix: str, orders: Target) -> None:
        before = threads_of_clients()
        for number in range(SESSIONS):
            async with Session(kafka, prefix) as session:
                await session.sink.open_topic(policy(orders), keyed=True)
                await session.deliver(insert(orders, number))
                assert threads_of_clients() > before
            assert_ended(before)

    async def test_threads_end_in_the_middle_of_a_transaction(self, kafka: Kafka, prefix: str, orders: Target) -> None:
        before = threads_of_clients()
        for number in range(SESSIONS):
            async with Session(kafka, prefix) as session:
                await session.sink.open_topic(policy(orders), keyed=True)
                await session.produce(insert(orders, number))
            assert_ended(before)

    async def test_threads_end_after_a_fatal_error(self, kafka: Kafka, prefix: str) -> None:
        """The session is fenced. The test still holds a reference to its error, and so to the error's cause."""
        before, errors = threads_of_clients(), []
        for _ in range(SESSIONS):
            async with Session(kafka, prefix) as first:
                async with Session(kafka, prefix) as second:
                    await second.deliver()
                with pytest.raises(PgsluiceError) as caught:
                    await first.deliver()
                errors.append(caught.value)
            assert_ended(before)
        assert len(errors) == SESSIONS

    async def test_threads_end_while_kafka_does_not_answer(self, own_kafka: Kafka, prefix: str, orders: Target) -> None:
        """The transaction has records that have not been sent yet. The session must not wait for them."""
        before = threads_of_clients()
        session = Session(own_kafka, prefix)
        await session.start()
        await session.sink.open_topic(policy(orders), keyed=True)
        cut, _ = await session.produce(insert(orders, 1))
        with paused(own_kafka):
            await session.sink.produce(cut, [insert(orders, number) for number in range(100)])
            await asyncio.wait_for(session.sink.close(), 30)
            assert_ended(before)

    async def test_threads_of_the_registry_end(self, kafka: Kafka, prefix: str) -> None:
        before = threads_of_clients()
        for number in range(SESSIONS):
            registry = BuiltinRegistry(RegistryOptions(client_options(kafka)), f"{prefix}.schemas")
            await registry.start()
            await registry.register(f"{prefix}-{number}", "string")
            await registry.close()
            assert_ended(before)
