"""PostgreSQL stops, restarts and crashes. We never delay it, and nothing is lost or repeated."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from psycopg import OperationalError

from sandbox.kafka import Kafka
from sandbox.postgres import Postgres, StopMode
from tests.support.weather import Start

MODES: Sequence[StopMode] = ("fast", "immediate")

UNREAD = {10: [500] * 8, 18: [4000]}
"""The sizes of the waiting transactions, by server version: whole ones, or the rest of a partly received one."""

TIGHT: dict[str, dict[str, Any]] = {"delivery": {"cut_bytes": "64KiB", "inflight_max": "256KiB"}}
"""Small limits, so that the rest of the stream is not read while Kafka accepts nothing."""


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """Provide a server that a test may stop. It uses fsync, because it will crash."""
    with Postgres(request.param, {"fsync": "on"}) as server:
        yield server


@pytest.mark.parametrize("server", [10, 14, 18], indirect=True)
def test_while_it_streams(server: Postgres, start: Start) -> None:
    pipeline = start(server=server)
    pipeline.write()
    pipeline.wait_until_confirmed()
    for mode in MODES:
        pipeline.wait_for(state="streaming")
        with pipeline.busy():
            pipeline.wait_until_confirmed()
            server.stop(mode)
        server.start()
    pipeline.write()
    pipeline.assert_complete()


@pytest.mark.parametrize("server", [18], indirect=True)
def test_while_a_prepared_transaction_holds_the_slot(server: Postgres, start: Start) -> None:
    pipeline = start({"postgres": {"two_phase": True}}, server=server)
    with pipeline.database.connect() as connection:
        connection.execute("BEGIN")
        pipeline.write_in(connection, 1)
        connection.execute(f"PREPARE TRANSACTION '{pipeline.slot}'")
    pipeline.write(2)
    assert pipeline.read(2) == [2, 3]
    server.restart("fast")
    pipeline.wait_for(state="streaming")
    with pipeline.database.connect() as connection:
        connection.execute(f"COMMIT PREPARED '{pipeline.slot}'")
    assert pipeline.read(3) == [2, 3, 1]
    pipeline.wait_until_confirmed()


@pytest.mark.long
@pytest.mark.parametrize("server", UNREAD, indirect=True)
def test_while_kafka_takes_nothing_and_more_is_waiting_than_is_read(
    server: Postgres, own_kafka: Kafka, start: Start
) -> None:
    pipeline = start(TIGHT, server=server, broker=own_kafka)
    pipeline.write()
    pipeline.wait_until_confirmed()
    own_kafka.pause()
    for rows in UNREAD[server.version]:
        pipeline.write_at_once(rows, width=2000)
    server.stop("fast")
    own_kafka.resume()
    server.start()
    pipeline.write()
    pipeline.assert_complete()


@pytest.mark.parametrize("server", [14, 18], indirect=True)
def test_a_crash_in_the_middle_of_large_transactions(server: Postgres, start: Start) -> None:
    """The server may forget what was confirmed since its last checkpoint, and send those transactions again."""
    pipeline = start(TIGHT, server=server)
    pipeline.write()
    pipeline.wait_until_confirmed()
    with suppress(OperationalError), server.connect(pipeline.database.name, autocommit=False) as lost:
        pipeline.write_in(lost, 1000, width=2000)
        pipeline.write_at_once(4000, width=2000)
        server.kill()
    server.start()
    pipeline.write()
    pipeline.assert_complete()
