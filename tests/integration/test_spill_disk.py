"""Tests a hanging disk under buffer.spill_dir: a real file system is frozen while the daemon uses it.

The kernel does not end a process during a system call, so exit codes can be read only after the file system has been
thawed. Until then, the log and the slot show whether the daemon has stopped its work.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from tests.support.weather import Pipeline, Start, wait_until

VERSION = 17
WIDTH = 1000
ROWS_PER_MIB = 1024
TOOLS = ("losetup", "mkfs.ext4", "mount", "umount", "fsfreeze")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or any(shutil.which(tool) is None for tool in TOOLS),
    reason=f"freezing a file system needs the user root and {', '.join(TOOLS)}",
)


class FileSystem:
    """A small file system that can be frozen."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._is_frozen = False

    def freeze(self) -> None:
        subprocess.run(["fsfreeze", "-f", self.directory], check=True)
        self._is_frozen = True

    def thaw(self) -> None:
        if self._is_frozen:
            subprocess.run(["fsfreeze", "-u", self.directory], check=True)
            self._is_frozen = False


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FileSystem]:
    """Mount a file system until the test ends. Skip the test if mounting is not allowed."""
    image, directory = tmp_path / "image", tmp_path / "mounted"
    directory.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, directory], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"mounting a loop device is not allowed here: {mounted.stderr.decode()}")
    found = FileSystem(directory)
    try:
        yield found
    finally:
        found.thaw()
        subprocess.run(["umount", "-l", directory], check=True)


@pytest.fixture
def begin(disk: FileSystem, start: Start) -> Iterator[Callable[..., Pipeline]]:
    """Provide a function that starts a pipeline. Its daemon holds 1 MiB of uncommitted changes in memory.

    The limit is 2 MiB, of which about 1 MiB is reserved for the next read. Transactions below 1 MiB need no disk. The
    file system is thawed before the pipeline ends, because otherwise the daemon could not be killed.
    """

    def begin(**shutdown: str) -> Pipeline:
        buffer = {"memory_max": "2MiB", "spill_dir": str(disk.directory / "spill")}
        pipeline = start({"buffer": buffer, "shutdown": shutdown}, version=VERSION, wait=False)
        pipeline.wait_for(state="streaming")
        with pipeline.database.connect() as connection:
            name = pipeline.database.name
            connection.execute(f"ALTER DATABASE {name} SET debug_logical_replication_streaming = immediate")
        pipeline.daemon.restart()  # the setting applies only to walsenders that start after the change
        pipeline.wait_for(state="streaming")
        return pipeline

    yield begin
    disk.thaw()


@contextmanager
def spilled(pipeline: Pipeline) -> Iterator[psycopg.Connection]:
    """Provide a connection with a transaction in progress whose rows have been written to disk."""
    with pipeline.database.connect() as connection:
        connection.execute("BEGIN")
        write_mebibytes(pipeline, connection, 4)
        wait_until(lambda: is_on_disk(pipeline, 3), "rows on disk")
        yield connection


def write_mebibytes(pipeline: Pipeline, connection: psycopg.Connection, mebibytes: int) -> None:
    pipeline.write_in(connection, mebibytes * ROWS_PER_MIB, WIDTH)


def is_on_disk(pipeline: Pipeline, mebibytes: int) -> bool:
    """Return whether more than ``mebibytes`` MiB are on disk, and no more changes arrive within a second."""
    before = pipeline.daemon.status()["waiting_bytes"]
    time.sleep(1)
    after = pipeline.daemon.status()["waiting_bytes"]
    return bool(before == after and after["disk"] > mebibytes << 20)


def is_active(pipeline: Pipeline) -> Any:  # noqa: ANN401 - whatever PostgreSQL returns
    with pipeline.database.connect() as connection:
        sql = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        row = connection.execute(sql, [pipeline.slot]).fetchone()
    return row is not None and row[0]


def liveness(daemon: Daemon) -> int:
    return daemon._get("/livez")[0]


def wait_until_the_slot_is_free(pipeline: Pipeline) -> None:
    wait_until(lambda: not is_active(pipeline), "the slot to be free")


@pytest.mark.long
def test_a_hanging_write_is_reported_and_then_stops_the_daemon(
    begin: Callable[..., Pipeline], disk: FileSystem
) -> None:
    pipeline = begin()
    with spilled(pipeline) as connection:
        disk.freeze()
        write_mebibytes(pipeline, connection, 4)
        wait_until(lambda: pipeline.daemon.readiness() == 503, "the daemon to be unready")
        assert "the disk under buffer.spill_dir has not finished" in pipeline.daemon._get("/readyz")[1]
        assert liveness(pipeline.daemon) == 200
        wait_until(lambda: "nothing moves" in pipeline.daemon.log_text(), "a warning in the log")
        wait_until_the_slot_is_free(pipeline)
        wait_until(lambda: "Nothing is lost" in pipeline.daemon.log_text(), "the error in the log")
        disk.thaw()
        assert pipeline.daemon.wait() == 69
        pipeline.daemon.start()
        connection.execute("COMMIT")
    pipeline.assert_complete()


def test_a_hanging_removal_delays_nothing(begin: Callable[..., Pipeline], disk: FileSystem) -> None:
    pipeline = begin()
    with spilled(pipeline) as connection:
        disk.freeze()
        connection.execute("ROLLBACK")
        wait_until(lambda: pipeline.daemon.status()["waiting_transactions"] == 0, "the rollback")
    end = time.monotonic() + 5
    while time.monotonic() < end:
        pipeline.write(3)
        pipeline.wait_until_confirmed()
        assert (liveness(pipeline.daemon), pipeline.daemon.readiness(), is_active(pipeline)) == (200, 200, True)
    disk.thaw()
    pipeline.assert_complete()
    files = (path for path in disk.directory.rglob("*") if path.is_file() and path.name != "lock")
    wait_until(lambda: not any(files), "an empty directory")


def test_a_commit_does_not_wait_for_the_removal(begin: Callable[..., Pipeline], disk: FileSystem) -> None:
    """The file system is frozen, so its files can be read, but not removed."""
    pipeline = begin()
    with spilled(pipeline) as connection:
        disk.freeze()
        connection.execute("COMMIT")
    pipeline.write(3)
    pipeline.wait_until_confirmed()
    pipeline.assert_complete()
    disk.thaw()
    assert pipeline.daemon.stop() == 0


def test_an_orderly_stop_does_not_wait_for_the_disk(begin: Callable[..., Pipeline], disk: FileSystem) -> None:
    pipeline = begin(drain_timeout="2s")
    with spilled(pipeline) as connection:
        disk.freeze()
        write_mebibytes(pipeline, connection, 4)
        time.sleep(1)
        pipeline.daemon.send(signal.SIGTERM)
        wait_until_the_slot_is_free(pipeline)
        late = "could not be delivered within shutdown.drain_timeout"
        wait_until(lambda: late in pipeline.daemon.log_text(), "the end of the drain")
        disk.thaw()
        assert pipeline.daemon.wait() == 75
        pipeline.daemon.start()
        connection.execute("COMMIT")
    pipeline.assert_complete()


def test_a_start_on_a_hanging_disk_is_alive_and_can_be_stopped(
    begin: Callable[..., Pipeline], disk: FileSystem
) -> None:
    pipeline = begin()
    pipeline.daemon.stop_well()
    disk.freeze()
    pipeline.daemon.start(wait=False)
    wait_until(lambda: liveness(pipeline.daemon) == 200, "/livez to answer")
    assert pipeline.daemon.readiness() == 503
    pipeline.daemon.send(signal.SIGTERM)
    wait_until(lambda: liveness(pipeline.daemon) == 0, "the HTTP server to end")
    disk.thaw()
    assert pipeline.daemon.wait() == 0


@pytest.mark.long
def test_a_start_on_a_hanging_disk_is_given_up(begin: Callable[..., Pipeline], disk: FileSystem) -> None:
    pipeline = begin()
    pipeline.daemon.stop_well()
    disk.freeze()
    pipeline.daemon.start(wait=False)
    wait_until(lambda: "has not finished a job" in pipeline.daemon.log_text(), "the error in the log")
    disk.thaw()
    assert pipeline.daemon.wait() == 69


def test_a_start_does_not_wait_for_a_stopped_process(
    begin: Callable[..., Pipeline], disk: FileSystem, kafka: Kafka
) -> None:
    """Start a daemon while the stopped process locks its own directory, and the test locks the file ``lock``."""
    pipeline = begin()
    with (disk.directory / "spill" / "lock").open("ab") as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)
        conninfo, settings = pipeline.database.conninfo(), pipeline.daemon.settings
        pipeline.daemon.send(signal.SIGSTOP)
        with Daemon(pipeline.daemon.name, conninfo, kafka.bootstrap_servers, settings, wait_for="any"):
            pipeline.daemon.send(signal.SIGCONT)
    pipeline.write(3)
    pipeline.assert_complete()
