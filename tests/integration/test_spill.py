"""Tests transactions that do not fit into memory: where their rows are kept, and what happens if there is no room.

The server streams every transaction while it is in progress. The daemon can hold 1 MiB of uncommitted changes.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from tests.support.weather import Pipeline, Start, wait_until

VERSION = 17
WIDTH = 1000
MIB_OF_ROWS = 1024
"""The number of rows of WIDTH characters in one MiB."""


def settings(directory: Path, **buffer: str) -> dict[str, dict[str, Any]]:
    return {"buffer": {"memory_max": "1MiB", "spill_dir": str(directory), **buffer}}


@pytest.fixture
def begin(start: Start) -> Callable[..., Pipeline]:
    """Provide a function that starts a pipeline. Its server streams every transaction while it is in progress."""

    def begin(directory: Path, **buffer: str) -> Pipeline:
        pipeline = start(settings(directory, **buffer), version=VERSION, wait=False)
        name = pipeline.database.name
        with pipeline.database.connect() as connection:
            connection.execute(f"ALTER DATABASE {name} SET debug_logical_replication_streaming = immediate")
        # the setting applies only to walsenders that start after the change
        pipeline.wait_for(state="streaming")
        pipeline.daemon.restart()
        pipeline.wait_for(state="streaming")
        return pipeline

    return begin


@contextmanager
def open_transaction(pipeline: Pipeline, mebibytes: int) -> Iterator[psycopg.Connection]:
    """Provide a connection that has an open transaction with ``mebibytes`` MiB of rows."""
    with pipeline.database.connect() as connection:
        connection.execute("BEGIN")
        pipeline.write_in(connection, mebibytes * MIB_OF_ROWS, WIDTH)
        yield connection


def waiting(pipeline: Pipeline) -> dict[str, int]:
    found: dict[str, int] = pipeline.daemon.status().get("waiting_bytes", {})
    return found


def wait_until_spilled(pipeline: Pipeline, mebibytes: int) -> None:
    wait_until(lambda: waiting(pipeline).get("disk", 0) > mebibytes << 20, "rows on disk")


def files_in(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob("*") if path.is_file() and path.name != "lock"]


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[None]:
    """Mount a file system of this size until the block ends. Skip the test if mounting is not allowed."""
    directory.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", directory], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


def test_a_transaction_larger_than_memory_is_delivered_and_its_files_removed(
    begin: Callable[..., Pipeline], tmp_path: Path
) -> None:
    pipeline = begin(tmp_path)
    with open_transaction(pipeline, 8) as connection:
        wait_until_spilled(pipeline, 6)
        assert waiting(pipeline)["memory"] <= 1 << 20
        wait_until(lambda: pipeline.daemon.metric("pgsluice_waiting_bytes", place="disk"), "the metric")
        assert pipeline.daemon.status()["waiting_transactions"] == 1
        connection.execute("COMMIT")
    pipeline.assert_complete()
    wait_until(lambda: files_in(tmp_path) == [], "an empty directory")


def test_a_rollback_frees_the_disk(begin: Callable[..., Pipeline], tmp_path: Path) -> None:
    pipeline = begin(tmp_path)
    with ExitStack() as stack:
        first, second = (stack.enter_context(open_transaction(pipeline, 4)) for _ in range(2))
        wait_until_spilled(pipeline, 5)
        first.execute("ROLLBACK")
        wait_until(lambda: waiting(pipeline)["disk"] < 5 << 20, "the disk to be freed")
        second.execute("COMMIT")
    assert pipeline.read(4 * MIB_OF_ROWS) == list(range(4 * MIB_OF_ROWS + 1, 8 * MIB_OF_ROWS + 1))


def test_files_of_a_killed_daemon_are_removed_by_the_next_one(begin: Callable[..., Pipeline], tmp_path: Path) -> None:
    pipeline = begin(tmp_path)
    with open_transaction(pipeline, 4) as connection:
        wait_until_spilled(pipeline, 2)
        pipeline.daemon.kill()
        (left,) = {path.parent for path in tmp_path.rglob("*") if path.is_file() and path.parent != tmp_path}
        pipeline.daemon.start()
        wait_until(lambda: not left.exists(), "the directory of the killed daemon to be removed")
        connection.execute("COMMIT")
    pipeline.assert_complete()


def test_uncommitted_changes_are_discarded_when_the_session_ends(
    begin: Callable[..., Pipeline], tmp_path: Path
) -> None:
    pipeline = begin(tmp_path)
    with open_transaction(pipeline, 4) as connection:
        wait_until_spilled(pipeline, 2)
        sql = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s"
        with pipeline.database.connect() as admin:
            admin.execute(sql, [pipeline.slot])
        wait_until(lambda: '"event": "waiting"' in pipeline.daemon.log_text(), "the session to end")
        connection.execute("COMMIT")
    pipeline.assert_complete()


def test_two_daemons_can_share_a_directory(begin: Callable[..., Pipeline], kafka: Kafka, tmp_path: Path) -> None:
    pipeline = begin(tmp_path)
    standby = Daemon(
        pipeline.daemon.name,
        pipeline.database.conninfo(),
        kafka.bootstrap_servers,
        pipeline.daemon.settings,
        wait_for="any",
    )
    with open_transaction(pipeline, 4) as connection:
        wait_until_spilled(pipeline, 2)
        with standby:
            assert files_in(tmp_path)
            pipeline.daemon.kill()
            connection.execute("COMMIT")
            Pipeline(pipeline.database, kafka, standby).expect(pipeline)


def test_the_allowed_bytes_on_disk_are_not_exceeded(begin: Callable[..., Pipeline], tmp_path: Path) -> None:
    pipeline = begin(tmp_path, spill_max="2MiB")
    pipeline.write(3)
    pipeline.wait_until_confirmed()
    with open_transaction(pipeline, 8) as connection:
        assert pipeline.daemon.wait() == 69
        assert "need more than buffer.spill_max (2097152 bytes)" in pipeline.daemon.log_text()
        pipeline.daemon.settings["buffer"]["spill_max"] = "64MiB"
        pipeline.daemon.start()
        connection.execute("COMMIT")
    pipeline.assert_complete()


def test_a_full_disk_stops_the_daemon_and_loses_nothing(begin: Callable[..., Pipeline], tmp_path: Path) -> None:
    directory = tmp_path / "small"
    with small_disk(directory, "2m"):
        pipeline = begin(directory)
        with open_transaction(pipeline, 8) as connection:
            assert pipeline.daemon.wait() == 69
            assert "Rows of a transaction that has not committed yet could not be kept" in pipeline.daemon.log_text()
            assert "No space left on device. Make room under buffer.spill_dir" in pipeline.daemon.log_text()
            pipeline.daemon.settings["buffer"]["spill_dir"] = str(tmp_path)
            pipeline.daemon.start()
            connection.execute("COMMIT")
        pipeline.assert_complete()


def test_a_truncated_file_stops_the_daemon_and_loses_nothing(begin: Callable[..., Pipeline], tmp_path: Path) -> None:
    pipeline = begin(tmp_path)
    with open_transaction(pipeline, 4) as connection:
        wait_until_spilled(pipeline, 2)
        (file,) = (path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock")
        os.truncate(file, file.stat().st_size // 2)
        connection.execute("COMMIT")
    assert pipeline.daemon.wait() == 69
    assert f"{file}, which holds rows of a transaction" in pipeline.daemon.log_text()
    pipeline.daemon.start()
    pipeline.assert_complete()


def test_a_directory_that_cannot_be_created_is_reported_at_the_start(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    pipeline = start(settings(tmp_path / "file" / "spill"), version=VERSION, wait=False)
    assert pipeline.daemon.wait() == 78
    assert "Set buffer.spill_dir" in pipeline.daemon.log_text()


def test_prepared_transactions_are_kept_on_disk(begin: Callable[..., Pipeline], tmp_path: Path) -> None:
    pipeline = begin(tmp_path)
    pipeline.daemon.settings["postgres"] = {"two_phase": True}
    pipeline.daemon.restart()
    pipeline.wait_for(state="streaming")
    gid = uuid4().hex
    with open_transaction(pipeline, 4) as connection:
        connection.execute(f"PREPARE TRANSACTION '{gid}'")
        wait_until_spilled(pipeline, 2)
        wait_until(lambda: pipeline.daemon.status()["prepared"], "the prepared transaction")
        connection.execute(f"COMMIT PREPARED '{gid}'")
    pipeline.assert_complete()


@pytest.mark.long
def test_a_stop_during_a_large_commit_commits_nothing_of_it(begin: Callable[..., Pipeline], tmp_path: Path) -> None:
    pipeline = begin(tmp_path)
    pipeline.daemon.settings["delivery"] = {"cut_bytes": "64KiB", "heartbeat": "500ms"}
    pipeline.daemon.restart()
    pipeline.wait_for(state="streaming")
    with open_transaction(pipeline, 32) as connection:
        wait_until_spilled(pipeline, 28)
        connection.execute("COMMIT")
    wait_until(lambda: waiting(pipeline)["disk"] > 0, "the commit")
    assert pipeline.daemon.stop() == 0
    pipeline.daemon.start()
    pipeline.assert_complete()
