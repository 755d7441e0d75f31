"""Where a start may go on, and where it stops because slot, checkpoint and server are not of one history."""

import shutil
from collections.abc import Iterator

import pytest

from sandbox.installation import copy_data
from sandbox.postgres import Postgres
from tests.support.weather import Pipeline, Start, fails


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """Give a server that a test may take away."""
    with Postgres() as server:
        yield server


class TestStartRules:
    """Where slot, checkpoint and server are not of one history, nothing is passed over in silence."""

    def test_a_server_restored_to_before_what_was_delivered(self, own_postgres: Postgres, start: Start) -> None:
        pipeline = start(server=own_postgres)
        backup = Backup(own_postgres)
        write_and_stop(pipeline)
        backup.restore()
        code, log = fails(pipeline)
        assert (code, "the server's WAL ends at" in log) == (65, True), log

    def test_a_server_restored_that_went_on_with_other_changes(self, own_postgres: Postgres, start: Start) -> None:
        pipeline = start(server=own_postgres)
        backup = Backup(own_postgres)
        write_and_stop(pipeline)
        backup.restore()
        for _ in range(50):
            pipeline.write_at_once(7)  # no commit record where one was before
        code, log = fails(pipeline)
        assert (code, "restored from a backup" in log) == (65, True), log

    def test_a_server_promoted_from_before_what_was_delivered(self, own_postgres: Postgres, start: Start) -> None:
        pipeline = start(server=own_postgres)
        backup = Backup(own_postgres)
        write_and_stop(pipeline)
        backup.restore(promote=True)
        pipeline.write(100)
        code, log = fails(pipeline)
        assert (code, "the server lost changes that were published" in log) == (65, True), log

    def test_a_server_promoted_from_behind_it_goes_on(self, own_postgres: Postgres, start: Start) -> None:
        pipeline = start(server=own_postgres)
        write_and_stop(pipeline)
        pipeline.write()
        Backup(own_postgres).restore(promote=True)
        pipeline.daemon.start()
        pipeline.write()
        pipeline.assert_complete()

    def test_a_slot_advanced_past_a_prepared_transaction(self, start: Start) -> None:
        pipeline = start({"postgres": {"two_phase": True}})
        with pipeline.database.connect() as connection:
            connection.execute("BEGIN")
            pipeline.write_in(connection, 1)
            connection.execute(f"PREPARE TRANSACTION '{pipeline.slot}'")
        pipeline.write()
        assert pipeline.read(10) == list(range(2, 12))
        pipeline.daemon.stop()
        with pipeline.database.connect() as connection:
            sql = "SELECT pg_replication_slot_advance(%s, confirmed_flush_lsn + 1000) FROM pg_replication_slots"
            connection.execute(f"{sql} WHERE slot_name = %s", [pipeline.slot, pipeline.slot])
        code, log = fails(pipeline)
        assert (code, "behind a PREPARE TRANSACTION at" in log) == (65, True), log

    def test_another_cluster(self, start: Start) -> None:
        pipeline = start()
        pipeline.daemon.stop()
        with Postgres(17, own_identifier=True) as other:
            pipeline.daemon.settings["postgres"] = {"dsn": other.conninfo()}
            with other.connect() as connection:
                connection.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES")
                connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [pipeline.slot])
            code, log = fails(pipeline)
        assert (code, "belongs to the PostgreSQL cluster with system identifier" in log) == (65, True), log


def write_and_stop(pipeline: Pipeline) -> None:
    pipeline.write()
    pipeline.wait_until_confirmed()
    pipeline.daemon.stop()


class Backup:
    """A copy of a server's files, made while it is down for a moment."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._files = server.data_directory.with_name("backup")
        server.stop()
        copy_data(server.data_directory, self._files)
        server.start()

    def restore(self, *, promote: bool = False) -> None:
        """Let the server go back to it; ``promote``: as a standby would that takes over, on a new timeline."""
        self._server.stop()
        shutil.rmtree(self._server.data_directory)
        copy_data(self._files, self._server.data_directory)
        if promote:
            self._server.write_file("standby.signal", "")
        self._server.start()
        if promote:
            with self._server.connect() as connection:
                connection.execute("SELECT pg_promote()")
