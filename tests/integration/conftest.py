"""Brokers of a special kind; like all servers, each starts when the first test asks for it."""

from collections.abc import Iterator

import pytest

from sandbox.kafka import Kafka
from tests.support.kafka import SecuredKafka


@pytest.fixture(scope="session")
def own_kafka() -> Iterator[Kafka]:
    """Give a broker that a test may stop, kill and pause; afterwards it runs. What it does in time, it does soon."""
    intervals = ("log.cleaner.backoff.ms", "transaction.abort.timed.out.transaction.cleanup.interval.ms")
    with Kafka(settings=dict.fromkeys(intervals, "100")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def secured_kafka() -> Iterator[SecuredKafka]:
    """Give a broker with users and rights."""
    with SecuredKafka() as cluster:
        yield cluster
