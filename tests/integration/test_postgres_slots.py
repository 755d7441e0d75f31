"""Tests slots that are invalidated, dropped or replaced by somebody else.

The daemon must never retry forever, and never skip changes silently.
"""

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import Connection

from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from tests.support.versions import covered, long
from tests.support.weather import Pipeline, Start, fails, wait_until

TIGHT: dict[str, dict[str, Any]] = {"delivery": {"cut_bytes": "64KiB", "inflight_max": "256KiB"}}


@pytest.fixture(scope="module", params=covered((13, 14, 18), usual=(18,)))
def limited(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """Provide a server that keeps little WAL for slots, which is possible from PostgreSQL 13 on."""
    with Postgres(request.param, {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB"}) as server:
        yield server


def remove_wal(connection: Connection) -> None:
    """Fill several WAL segments, and make the server remove the segments that it keeps only for slots."""
    for _ in range(4):
        connection.execute("CREATE TABLE filler (); DROP TABLE filler")
        connection.execute("SELECT pg_switch_wal()")
    connection.execute("CHECKPOINT")


def assert_stops_until_adopted(pipeline: Pipeline, reason: str) -> None:
    """Check that the daemon stops with this reason, and that it streams after the remedy in its message."""
    code, log = fails(pipeline)
    assert code == 65, log
    assert re.search(rf"PostgreSQL has invalidated replication slot '{pipeline.slot}' \({reason}\)", log), log
    with pipeline.database.connect() as admin:
        admin.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.slot])
    pipeline.daemon.start("--adopt-slot")
    pipeline.wait_for(state="streaming", epoch=2)


def test_a_slot_invalidated_while_the_daemon_was_stopped_is_refused(limited: Postgres, start: Start) -> None:
    pipeline = start(server=limited)
    pipeline.write(5)
    pipeline.wait_until_confirmed()
    pipeline.daemon.stop()
    with pipeline.database.connect() as admin:
        remove_wal(admin)
    assert_stops_until_adopted(pipeline, "wal_removed")
    pipeline.write(5)
    assert [change["epoch"] for change in pipeline.changes(10)] == [1] * 5 + [2] * 5


def test_a_slot_invalidated_while_the_daemon_lags_is_refused(limited: Postgres, own_kafka: Kafka, start: Start) -> None:
    """The server ends the session without giving the reason. The next session must report the reason."""
    pipeline = start(TIGHT, server=limited, broker=own_kafka)
    pipeline.write()
    pipeline.wait_until_confirmed()
    own_kafka.pause()
    pipeline.write_at_once(4000, width=2000)
    with pipeline.database.connect() as admin:
        remove_wal(admin)
        wait_until(lambda: state_of(admin, pipeline.slot) == "lost", "the slot to be invalidated")
    own_kafka.resume()
    assert pipeline.daemon.wait() == 65, pipeline.daemon.log_text()
    assert "PostgreSQL has invalidated replication slot" in pipeline.daemon.log_text()
    assert_stops_until_adopted(pipeline, "wal_removed")


def state_of(connection: Connection, slot: str) -> str:
    ((state,),) = connection.execute("SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", [slot])
    return str(state)


def test_a_slot_invalidated_because_it_was_idle_is_refused(start: Start) -> None:
    with Postgres(18, {"idle_replication_slot_timeout": "1s"}) as server:
        server.create_database("shop")
        pipeline = start(database=Database(server, "shop"))
        pipeline.write(5)
        pipeline.wait_until_confirmed()
        pipeline.daemon.stop()
        with pipeline.database.connect() as admin:
            time.sleep(1.5)
            admin.execute("CHECKPOINT")
        assert_stops_until_adopted(pipeline, "idle_timeout")


@pytest.mark.parametrize("version", [10, *long(14), 18])
class TestReplaced:
    """A new slot with the same name begins at the position of its creation. Earlier changes would be lost silently."""

    def test_a_slot_replaced_while_the_daemon_is_stopped_is_refused(self, version: int, start: Start) -> None:
        pipeline = start(version=version)
        pipeline.write()
        pipeline.wait_until_confirmed()
        pipeline.daemon.stop()
        with pipeline.database.connect() as admin:
            admin.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.slot])
            pipeline.write()
            admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [pipeline.slot])
        code, log = fails(pipeline)
        assert (code, "Somebody else advanced or re-created the slot" in log) == (65, True), log

    def test_a_slot_replaced_while_the_daemon_runs_is_refused(self, version: int, start: Start) -> None:
        pipeline = start(version=version)
        pipeline.write()
        pipeline.wait_until_confirmed()
        with pipeline.database.connect() as admin:
            replace_slot(admin, pipeline)
        assert pipeline.daemon.wait() == 65, pipeline.daemon.log_text()
        assert re.search("re-created the slot|does not exist on this server", pipeline.daemon.log_text())


def replace_slot(admin: Connection, pipeline: Pipeline) -> None:
    """End the session, and replace the slot before the daemon reconnects, if possible."""
    admin.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", [pipeline.slot]
    )
    wait_until(lambda: is_free(admin, pipeline.slot), "the walsender to end")
    admin.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.slot])
    pipeline.write()
    admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [pipeline.slot])


def is_free(connection: Connection, slot: str) -> bool:
    ((pid,),) = connection.execute("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", [slot])
    return pid is None
