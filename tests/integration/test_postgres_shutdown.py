"""Tests stops, restarts and crashes of PostgreSQL. pgsluice must not delay them, or lose or repeat changes."""

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
"""The number of rows in each transaction that is written before the server stops, by server version. On version 10,
whole transactions are still unsent at the stop. On version 18, the rest of a large transaction is unsent."""

TIGHT: dict[str, dict[str, Any]] = {"delivery": {"cut_bytes": "64KiB", "inflight_max": "256KiB"}}
"""Small limits, so that pgsluice does not read the rest of the stream while Kafka accepts nothing."""


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """Provide a server that a test can stop. It uses fsync, because tests make it crash."""
    with Postgres(request.param, {"fsync": "on"}) as server:
        yield server


@pytest.mark.parametrize("server", [10, 14, 18], indirect=True)
def test_a_server_can_stop_while_the_daemon_streams(server: Postgres, start: Start) -> None:
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
def test_a_server_can_stop_while_a_prepared_transaction_holds_the_slot(server: Postgres, start: Start) -> None:
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
def test_a_server_can_stop_while_kafka_accepts_nothing_and_changes_are_unread(
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
def test_a_crash_in_the_middle_of_large_transactions_loses_nothing(server: Postgres, start: Start) -> None:
    """The server may lose positions that were confirmed after its last checkpoint, and send transactions again."""
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
