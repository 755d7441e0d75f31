"""Fixtures for all suites that need real servers. A server starts when the first test needs it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres

settings.register_profile(  # on a busy machine, a slow test is not a defect
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")

# Forking saves the time to start Python. Tests in test_cli.py and tests/platform also start pgsluice as users do.
Daemon.forks = True

PLATFORM = "tests/platform/"


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist ships no types
    """Distributes tests like ``--dist loadfile``, except that one process runs all of tests/platform.

    So pgsluice's container image is built only once.
    """

    def _split_scope(self, nodeid: str) -> str:
        return PLATFORM if nodeid.startswith(PLATFORM) else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Scheduling | None:
    return _Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Callable[..., Postgres]]:
    """Provide a function that returns a running server of the given version. There is one server of each version.

    Tests use their own databases.
    """
    servers: dict[int, Postgres] = {}
    with ExitStack() as running:

        def server(version: int = 17) -> Postgres:
            if version not in servers:
                servers[version] = running.enter_context(Postgres(version))
            return servers[version]

        yield server


@pytest.fixture
def new_database(postgres_server: Callable[..., Postgres]) -> Iterator[Callable[..., Database]]:
    """Provide a function that creates an empty database on a server of the given version.

    The databases are dropped after the test.
    """
    with ExitStack() as databases:
        yield lambda version=17: databases.enter_context(postgres_server(version).database())


@pytest.fixture
def database(new_database: Callable[..., Database]) -> Database:
    """Provide an empty database on a server of the default version."""
    return new_database()


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """Provide the broker that all tests share. Tests use their own topics."""
    with Kafka() as cluster:
        yield cluster
