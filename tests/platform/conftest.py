"""Fixtures for tests of the image and of its containers. The image is built once."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest

from sandbox.containers import Engine, missing
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from tests.support.container import IMAGE, ROOT, Container
from tests.support.weather import Pipeline, configured, prepare


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Provide a container engine that has the image."""
    reason = missing()
    if reason is not None:
        pytest.skip(f"no containers here: {reason}")
    found = Engine()
    found.start()
    try:
        if reason := found.why_not():
            pytest.skip(f"no containers here: {reason}")
        found.build(ROOT, IMAGE)
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="session")
def guarded() -> Iterator[Postgres]:
    """Provide a server that requires a password from the role ``guest``."""
    with Postgres(17) as server:
        server.write_file(
            "pg_hba.conf", "host all guest 127.0.0.1/32 scram-sha-256\nhost all postgres 127.0.0.1/32 trust\n"
        )
        with server.connect() as admin:
            admin.execute("CREATE ROLE guest LOGIN REPLICATION PASSWORD 'right'")
            admin.execute("SELECT pg_reload_conf()")
        yield server


@pytest.fixture
def make_pipeline(engine: Engine, database: Database, kafka: Kafka) -> Iterator[Callable[[], Pipeline]]:
    """Provide a function that creates pipelines of one table in containers. All these pipelines have the same name."""
    prepare(database)
    name, settings = f"image{uuid4().hex[:8]}", configured(None)
    with ExitStack() as stack:

        def make() -> Pipeline:
            return Pipeline(database, kafka, stack.enter_context(Container(engine, name, database, kafka, settings)))

        yield make


@pytest.fixture
def pipeline(make_pipeline: Callable[[], Pipeline]) -> Pipeline:
    """Provide a pipeline whose container has not been started."""
    return make_pipeline()
