"""A daemon whose schemas are kept by a registry server, and consumers that ask it."""

from collections.abc import Iterator

import pytest

from sandbox.apicurio import Apicurio
from tests.support.weather import Start


@pytest.fixture(scope="module")
def apicurio() -> Iterator[Apicurio]:
    with Apicurio() as server:
        yield server


def test_a_consumer_reads_with_the_schemas_of_the_server(start: Start, apicurio: Apicurio) -> None:
    pipeline = start({"schema_registry": {"type": "confluent", "url": apicurio.url}})
    pipeline.write()
    pipeline.assert_complete()
    pipeline.daemon.restart()
    pipeline.write()
    pipeline.assert_complete()
