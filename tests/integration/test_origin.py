"""Tests replication origins on real servers: whose changes are published, and the origin in the envelope.

A session that sets up an origin acts as a subscription does. Its changes are marked as those of another server.

https://www.postgresql.org/docs/current/replication-origins.html
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from sandbox.postgres import Database
from tests.support.weather import Pipeline, Start, fails, reading, wait_until

INSERT = "INSERT INTO numbers SELECT generate_series(%s::int, %s)"
LARGE = 1000
"""With this number of rows, a transaction exceeds the lowest logical_decoding_work_mem."""


@pytest.fixture
def abroad(
    new_database: Callable[..., Database],  # noqa: ARG001 - so that the session ends before its database is dropped
) -> Iterator[Callable[[Database], psycopg.Connection]]:
    """Provide a function that opens a connection with an origin, whose name is the name of the database."""
    with ExitStack() as stack:
        yield lambda database: stack.enter_context(under_origin(database))


@contextmanager
def under_origin(database: Database) -> Iterator[psycopg.Connection]:
    with database.connect() as connection:
        connection.execute("SELECT pg_replication_origin_create(%s)", [database.name])
        connection.execute("SELECT pg_replication_origin_session_setup(%s)", [database.name])
        try:
            yield connection
        finally:
            connection.execute("SELECT pg_replication_origin_session_reset()")
            connection.execute("SELECT pg_replication_origin_drop(%s)", [database.name])


def prepared(connection: psycopg.Connection, gid: str, first: int, last: int) -> None:
    connection.execute("BEGIN")
    connection.execute(INSERT, [first, last])
    connection.execute(f"PREPARE TRANSACTION '{gid}'")


def origins(pipeline: Pipeline, count: int) -> dict[int, str | None]:
    """Return the origin of each number, in order."""
    changes = pipeline.changes(count)
    found = {change["after"]["n"]: change["origin"] for change in changes}
    assert len(found) == len(changes)
    return found


@pytest.mark.parametrize("version", [10, 14, 16, 18])
def test_the_envelope_names_the_origin(
    start: Start, abroad: Callable[[Database], psycopg.Connection], version: int
) -> None:
    pipeline = start(version=version)
    name = pipeline.database.name
    elsewhere = abroad(pipeline.database)
    with pipeline.database.connect() as here:
        here.execute(INSERT, [1, 1])
        elsewhere.execute(INSERT, [2, 2])
        here.execute(INSERT, [3, 3])
    assert origins(pipeline, 3) == {1: None, 2: name, 3: None}


@pytest.mark.parametrize("version", [14, 16, 18])
def test_the_envelope_names_the_origin_of_streamed_transactions(
    start: Start, abroad: Callable[[Database], psycopg.Connection], new_database: Callable[..., Database], version: int
) -> None:
    database = new_database(version)
    with database.connect() as here:
        here.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    pipeline = start(database=database)
    elsewhere = abroad(database)
    with database.connect() as here:
        with elsewhere.transaction():
            elsewhere.execute(INSERT, [1, LARGE])
            here.execute(INSERT, [0, 0])
            elsewhere.execute(INSERT, [LARGE + 1, 2 * LARGE])
        with here.transaction():
            here.execute(INSERT, [2 * LARGE + 1, 3 * LARGE])
        query = "SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = %s"
        expected = {number: database.name if 0 < number <= 2 * LARGE else None for number in range(3 * LARGE + 1)}
        assert origins(pipeline, len(expected)) == expected
        wait_until(lambda: here.execute(query, [pipeline.slot]).fetchone() == (2,), "the slot's statistics")


@pytest.mark.parametrize("version", [16, 18])
def test_the_envelope_names_the_origin_of_prepared_transactions(
    start: Start, abroad: Callable[[Database], psycopg.Connection], version: int
) -> None:
    pipeline = start({"postgres": {"two_phase": True}}, version=version)
    name = pipeline.database.name
    elsewhere = abroad(pipeline.database)
    prepared(elsewhere, name, 1, 2)
    with pipeline.database.connect() as here:
        here.execute(INSERT, [3, 3])
        elsewhere.execute(f"COMMIT PREPARED '{name}'")
        prepared(here, name, 4, 4)
        here.execute(f"COMMIT PREPARED '{name}'")
    assert origins(pipeline, 4) == {3: None, 1: name, 2: name, 4: None}


@pytest.mark.parametrize("streaming", ["off", "on"])
@pytest.mark.parametrize("version", [16, 18])
def test_origin_none_omits_changes_from_other_servers(
    start: Start,
    abroad: Callable[[Database], psycopg.Connection],
    new_database: Callable[..., Database],
    streaming: str,
    version: int,
) -> None:
    database = new_database(version)
    with database.connect() as here:
        here.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    pipeline = start({"postgres": {"origin": "none", "streaming": streaming}}, database=database)
    elsewhere = abroad(database)
    with database.connect() as here:
        here.execute(INSERT, [1, 1])
        elsewhere.execute(INSERT, [2, 2])
        elsewhere.execute(INSERT, [3, LARGE])
        here.execute(INSERT, [LARGE + 1, 2 * LARGE])
        elsewhere.execute("DELETE FROM numbers WHERE n = 1")
        elsewhere.execute("TRUNCATE numbers")
        here.execute(INSERT, [0, 0])
    expected = [1, *range(LARGE + 1, 2 * LARGE + 1), 0]
    assert origins(pipeline, len(expected)) == dict.fromkeys(expected)
    pipeline.wait_until_confirmed()


@pytest.mark.parametrize("origin", ["any", "none"])
def test_origin_none_also_omits_messages(
    start: Start, abroad: Callable[[Database], psycopg.Connection], origin: str
) -> None:
    pipeline = start({"postgres": {"messages": True, "origin": origin}})
    emit = "SELECT pg_logical_emit_message(%s, 'p', %s)"
    elsewhere = abroad(pipeline.database)
    with pipeline.database.connect() as here:
        for transactional in (False, True):
            elsewhere.execute(emit, [transactional, "elsewhere"])
            here.execute(emit, [transactional, "here"])
    pipeline.wait_until_confirmed()
    contents: list[bytes] = []
    with reading(pipeline.kafka, f"{pipeline.daemon.name}.messages") as consumer:
        while message := consumer.poll(2.0):
            assert message.error() is None
            contents.append(message.value() or b"")
    assert [b"elsewhere" in content for content in contents] == (
        [False, False] if origin == "none" else [True, False, True, False]
    )


class TestNoneBesidePreparedTransactions:
    """PostgreSQL can lose track of origins if a PREPARE runs under an origin and its COMMIT PREPARED does not."""

    def test_both_settings_are_refused(self, start: Start) -> None:
        settings: dict[str, dict[str, Any]] = {"postgres": {"two_phase": True, "origin": "none"}}
        pipeline = start(settings, wait=False)
        assert pipeline.daemon.wait() == 78
        assert "PostgreSQL can then lose track of prepared transactions" in pipeline.daemon.log_text()

    @pytest.mark.parametrize("version", [16, 18])
    def test_a_slot_that_was_started_with_them_is_refused(self, start: Start, version: int) -> None:
        pipeline = start({"postgres": {"two_phase": True}}, version=version)
        pipeline.write()
        assert pipeline.read(10)
        pipeline.daemon.stop()
        pipeline.daemon.settings["postgres"] = {"origin": "none"}
        code, log = fails(pipeline)
        assert code == 78
        assert "decodes prepared transactions at PREPARE TRANSACTION" in log
        pipeline.daemon.settings["postgres"] = {}
        pipeline.daemon.start()
        pipeline.write()
        pipeline.assert_complete()


def test_origin_none_needs_postgresql_16(start: Start) -> None:
    pipeline = start({"postgres": {"origin": "none"}}, version=14, wait=False)
    assert pipeline.daemon.wait() == 78
    assert 'postgres.origin = "none" needs PostgreSQL 16 or later' in pipeline.daemon.why_it_stopped()
