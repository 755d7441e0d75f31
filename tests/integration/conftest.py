"""Fixtures for special brokers and for pipelines. Like all servers, each broker starts when the first test needs it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pgsluice.record import Target
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.ports import ReservedPort
from sandbox.postgres import DEFAULT_VERSION, Database, Postgres
from tests.support.kafka import SecuredKafka
from tests.support.order import begin_with
from tests.support.runbook import Stage
from tests.support.weather import Pipeline, Start, configured, prepare

HERE = Path(__file__).parent

LONGEST = (
    *("snapshot_commands", "weather", "kafka_weather", "metrics", "at_least_once", "exactly_once", "sandbox"),
    *("topics_behind_our_back", "replay", "binary", "messages", "spill_disk", "snapshots", "start_rules", "poison"),
    *("minimal_rights", "snapshot_weather", "snapshot_upgrade", "kafka_ledger", "postgres_slots", "postgres_failover"),
    *("kafka_tls", "shared_topics"),
)
"""The test files that take minutes, longest first. If one of them started last, all other workers would have to wait
for it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest test files of this directory first, but after tests/platform, whose tests run in one process."""
    begin_with(items, HERE, LONGEST)


@pytest.fixture(scope="session")
def own_kafka() -> Iterator[Kafka]:
    """Provide a broker that a test can stop, kill and pause.

    Each test has to leave the broker running. The broker does its periodic work at short intervals.
    """
    intervals = ("log.cleaner.backoff.ms", "transaction.abort.timed.out.transaction.cleanup.interval.ms")
    with Kafka(settings=dict.fromkeys(intervals, "100")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def secured_kafka() -> Iterator[SecuredKafka]:
    """Provide a broker with users and access rights."""
    with SecuredKafka() as cluster:
        yield cluster


@contextmanager
def starting(postgres_server: Callable[..., Postgres], kafka: Kafka) -> Iterator[Start]:
    """Provide a function that starts pipelines, by default on the shared servers. Remove all of them at the end."""
    with ExitStack() as stack:

        def begin(  # noqa: PLR0913 - as in Start
            settings: dict[str, dict[str, Any]] | None = None,
            *,
            broker: Kafka | None = None,
            version: int = DEFAULT_VERSION,
            server: Postgres | None = None,
            database: Database | None = None,
            conninfo: Callable[[Database], str] = Database.conninfo,
            wait: bool = True,
        ) -> Pipeline:
            if database is None:
                database = stack.enter_context((server or postgres_server(version)).database())
            prepare(database)
            brokers = broker or kafka
            daemon = Daemon(
                f"w{uuid4().hex[:10]}",
                conninfo(database),
                brokers.bootstrap_servers,
                configured(settings),
                wait_for="active" if wait else None,
            )
            return Pipeline(database, brokers, stack.enter_context(daemon))

        yield begin


@pytest.fixture
def start(postgres_server: Callable[..., Postgres], kafka: Kafka) -> Iterator[Start]:
    """Provide a function that starts pipelines. Stop and remove all of them after the test."""
    with starting(postgres_server, kafka) as begin:
        yield begin


@pytest.fixture(scope="module")
def stage(postgres_server: Callable[..., Postgres], kafka: Kafka) -> Iterator[Stage]:
    """Provide a stage for scenarios of the runbook. The scenarios of a module share a pipeline if possible."""
    with starting(postgres_server, kafka) as begin:
        yield Stage(begin)


@pytest.fixture
def port() -> Iterator[int]:
    """Provide a port that is free."""
    reserved = ReservedPort.any()
    yield reserved.number
    reserved.release()


@pytest.fixture
def prefix() -> str:
    """Provide a prefix of topics that no other test uses."""
    return f"shop-{uuid4().hex[:8]}"


@pytest.fixture
def orders(prefix: str) -> Target:
    """Provide a table with a key, as the sink's ``Target``."""
    return Target(f"{prefix}.public.orders", 11, 12)
