"""Tests when a start may continue, and when it must stop because slot, checkpoint and server do not match."""

import json
import shutil
from collections.abc import Iterator, Mapping

import pytest

from pgsluice.app import cli
from sandbox.installation import copy_data
from sandbox.postgres import Postgres
from tests.support.kafka import commit, read_committed
from tests.support.log import restored_logging  # noqa: F401 - a fixture
from tests.support.weather import Pipeline, Start, fails


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """Provide a server that the test can stop."""
    with Postgres() as server:
        yield server


class TestStartRules:
    """If slot, checkpoint and server have different histories, nothing must be skipped silently."""

    def test_a_server_restored_to_before_delivered_changes_is_refused(
        self, own_postgres: Postgres, start: Start
    ) -> None:
        pipeline = start(server=own_postgres)
        backup = Backup(own_postgres)
        write_and_stop(pipeline)
        backup.restore()
        code, log = fails(pipeline)
        assert (code, "the server's WAL ends at" in log) == (65, True), log

    @pytest.mark.long
    def test_a_restored_server_that_has_other_changes_is_refused(self, own_postgres: Postgres, start: Start) -> None:
        pipeline = start(server=own_postgres)
        backup = Backup(own_postgres)
        write_and_stop(pipeline)
        backup.restore()
        for _ in range(50):
            pipeline.write_at_once(7)  # with 7 rows, no new commit record has the LSN of a lost one
        code, log = fails(pipeline)
        assert (code, "restored from a backup" in log) == (65, True), log

    @pytest.mark.long
    def test_a_server_restored_to_before_heartbeats_is_refused(self, own_postgres: Postgres, start: Start) -> None:
        """Check that new transactions whose LSNs are before the delivered position are not mistaken for repetitions."""
        pipeline = start(server=own_postgres)
        backup = back_up_before_heartbeats(pipeline, own_postgres)
        backup.restore()
        pipeline.write()
        code, log = fails(pipeline)
        assert (code, "the server's WAL ends at" in log) == (65, True), log
        write_elsewhere(pipeline, 4)
        for _ in range(2):
            code, log = fails(pipeline)
            assert (code, "An earlier run found this" in log) == (65, True), log
        pipeline.daemon.start("--adopt-slot")
        pipeline.write()
        pipeline.assert_complete()

    @pytest.mark.long
    def test_a_restored_server_is_refused_even_if_its_wal_has_grown_before_the_start(
        self, own_postgres: Postgres, start: Start
    ) -> None:
        pipeline = start(server=own_postgres)
        backup = back_up_before_heartbeats(pipeline, own_postgres)
        backup.restore()
        pipeline.write()
        write_elsewhere(pipeline, 4)
        code, log = fails(pipeline)
        assert (code, "the server had nothing to send when this pipeline followed it" in log) == (65, True), log
        assert "was restored from a backup or a disk snapshot, or it is a copy of the server that was followed" in log
        code, log = fails(pipeline)
        assert (code, "An earlier run found this" in log) == (65, True), log
        pipeline.daemon.start("--adopt-slot")
        pipeline.write()
        pipeline.assert_complete()

    @pytest.mark.long
    def test_a_server_promoted_from_before_heartbeats_continues(self, own_postgres: Postgres, start: Start) -> None:
        """Check that the pipeline continues, because the new timeline contains everything that was published."""
        pipeline = start(server=own_postgres)
        backup = back_up_before_heartbeats(pipeline, own_postgres)
        backup.restore(promote=True)
        pipeline.write()
        pipeline.daemon.start()
        pipeline.write()
        pipeline.assert_complete()
        pipeline.daemon.restart()
        pipeline.write()
        pipeline.assert_complete()
        assert pipeline.daemon.status()["epoch"] == 1

    @pytest.mark.long
    def test_a_server_promoted_from_before_a_published_message_is_refused(
        self, own_postgres: Postgres, start: Start
    ) -> None:
        pipeline = start({"postgres": {"messages": True}}, server=own_postgres)
        write_and_stop(pipeline)
        backup = Backup(own_postgres)
        pipeline.daemon.start()
        with pipeline.database.connect() as connection:
            connection.execute("SELECT pg_logical_emit_message(false, 'p', 'x')")
        pipeline.wait_until_confirmed()
        pipeline.daemon.stop()
        backup.restore(promote=True)
        pipeline.write()
        code, log = fails(pipeline)
        assert (code, "the server lost changes that were published" in log) == (65, True), log

    def test_a_server_promoted_from_before_delivered_changes_is_refused(
        self, own_postgres: Postgres, start: Start
    ) -> None:
        pipeline = start(server=own_postgres)
        backup = Backup(own_postgres)
        write_and_stop(pipeline)
        backup.restore(promote=True)
        pipeline.write(100)
        code, log = fails(pipeline)
        assert (code, "are in Kafka. The server is on timeline" in log) == (65, True), log
        assert "the server lost changes that were published" in log
        pipeline.daemon.start("--adopt-slot")
        pipeline.write()
        pipeline.wait_until_confirmed()
        in_new_epoch = [one["after"]["n"] for one in pipeline.changes(120) if one["epoch"] == 2]
        assert in_new_epoch == pipeline.committed(), "the new epoch must have all changes since the backup"

    def test_a_server_promoted_from_after_delivered_changes_continues(
        self, own_postgres: Postgres, start: Start
    ) -> None:
        pipeline = start(server=own_postgres)
        write_and_stop(pipeline)
        pipeline.write()
        Backup(own_postgres).restore(promote=True)
        pipeline.daemon.start()
        pipeline.write()
        pipeline.assert_complete()

    @pytest.mark.usefixtures("restored_logging")
    def test_a_slot_advanced_past_a_prepared_transaction_is_refused(self, start: Start) -> None:
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
        assert (code, "after a PREPARE TRANSACTION at" in log) == (65, True), log
        with pipeline.database.connect() as connection:
            connection.execute(f"COMMIT PREPARED '{pipeline.slot}'")
        pipeline.daemon.start("--adopt-slot")
        assert cli.main(["snapshot", "start", "-c", str(pipeline.daemon.config_file), "public.numbers"]) == 0
        assert set(pipeline.read(21)) == set(pipeline.committed())

    def test_another_cluster_is_refused(self, start: Start) -> None:
        pipeline = start()
        pipeline.daemon.stop()
        with Postgres(17, own_identifier=True) as other:
            pipeline.daemon.settings["postgres"] = {"dsn": other.conninfo()}
            with other.connect() as connection:
                connection.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES")
                connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [pipeline.slot])
            code, log = fails(pipeline)
        assert (code, "belongs to the PostgreSQL cluster with system identifier" in log) == (65, True), log
        del pipeline.daemon.settings["postgres"]
        pipeline.daemon.start()
        pipeline.write()
        pipeline.assert_complete()


class TestForgedCheckpoints:
    """Checkpoints that another program has written must neither hide changes nor cause repetitions."""

    def test_checkpoints_with_another_key_change_nothing(self, start: Start) -> None:
        pipeline = start()
        write_and_stop(pipeline)
        forged = forge(pipeline, {"end_lsn": 2**40, "epoch": 7, "cut": 1000, "pipeline": "other"})
        for key, value in ((b"other", forged), (b"other", b"no checkpoint"), (b"", forged)):
            commit(pipeline.kafka, checkpoint_topic(pipeline), value, key=key)
        pipeline.write()
        pipeline.daemon.start()
        pipeline.write()
        pipeline.assert_complete()
        assert pipeline.daemon.status()["epoch"] == 1
        assert "its records are ignored" in pipeline.daemon.log_text()

    def test_forged_checkpoints_with_our_key_are_refused(self, start: Start) -> None:
        """Check a forged position that looks valid, because the server has written WAL beyond it."""
        pipeline = start()
        write_and_stop(pipeline)
        with pipeline.database.connect() as connection:
            row = connection.execute("SELECT pg_current_wal_flush_lsn() - '0/0'").fetchone()
        assert row is not None
        pipeline.write()
        forged = forge(pipeline, {"end_lsn": int(row[0]) + 256})
        commit(pipeline.kafka, checkpoint_topic(pipeline), forged, key=pipeline.daemon.name.encode())
        for _ in range(2):
            code, log = fails(pipeline)
            assert (code, "Another program has written this checkpoint under our key" in log) == (65, True), log
            assert "start once with --adopt-slot" in log
        pipeline.daemon.start("--adopt-slot")
        pipeline.write()
        pipeline.assert_complete()
        assert pipeline.daemon.status()["epoch"] == 2

    def test_a_repeated_checkpoint_is_refused(self, start: Start) -> None:
        pipeline = start()
        write_and_stop(pipeline)
        former = read_committed(pipeline.kafka, checkpoint_topic(pipeline))[-2].value()
        commit(pipeline.kafka, checkpoint_topic(pipeline), former, key=pipeline.daemon.name.encode())
        code, log = fails(pipeline)
        assert (code, "start once with --adopt-slot" in log) == (65, True), log
        pipeline.daemon.start("--adopt-slot")
        pipeline.write()
        pipeline.assert_complete()


def checkpoint_topic(pipeline: Pipeline) -> str:
    return f"{pipeline.daemon.name}.checkpoint"


def forge(pipeline: Pipeline, change: Mapping[str, object]) -> bytes:
    """Return the last checkpoint, modified by ``change``."""
    last = read_committed(pipeline.kafka, checkpoint_topic(pipeline))[-1].value()
    assert last is not None
    return json.dumps(json.loads(last) | dict(change)).encode()


def write_and_stop(pipeline: Pipeline) -> None:
    pipeline.write()
    pipeline.wait_until_confirmed()
    pipeline.daemon.stop()


def back_up_before_heartbeats(pipeline: Pipeline, server: Postgres) -> "Backup":
    """Stop a pipeline that has confirmed a position beyond its last transaction.

    Return a backup of the server from before that confirmation.
    """
    write_and_stop(pipeline)
    backup = Backup(server)
    pipeline.daemon.start()
    write_elsewhere(pipeline, 3)
    pipeline.wait_until_confirmed()
    pipeline.daemon.stop()
    return backup


def write_elsewhere(pipeline: Pipeline, segments: int) -> None:
    """Make the server switch to the next WAL segment of 16 MiB, ``segments`` times, without published changes."""
    with pipeline.database.connect() as connection:
        for _ in range(segments):
            connection.execute("SELECT pg_logical_emit_message(false, 'elsewhere', 'x')")
            connection.execute("SELECT pg_switch_wal()")


class Backup:
    """A copy of a server's files. Making the copy briefly stops the server."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._files = server.data_directory.with_name("backup")
        server.stop()
        copy_data(server.data_directory, self._files)
        server.start()

    def restore(self, *, promote: bool = False) -> None:
        """Restore the server from the backup. With ``promote``, begin a new timeline, as a promoted standby does."""
        self._server.stop()
        shutil.rmtree(self._server.data_directory)
        copy_data(self._files, self._server.data_directory)
        if promote:
            self._server.write_file("standby.signal", "")
        self._server.start()
        if promote:
            with self._server.connect() as connection:
                connection.execute("SELECT pg_promote()")
