"""Tests that forked daemons behave like daemons that are started as commands, and do not outlive their owner."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from pgsluice import __version__
from sandbox import fork_server
from sandbox.account import current_account
from sandbox.process import Server
from sandbox.supervisor import descendants

COMMAND = [sys.executable, "-m", "pgsluice"]

WAIT_S = 30

WAITS = "PostgreSQL cannot be reached"

CONFIGURATION = """
version = 1
name = "shop"
[postgres]
dsn = "host=127.0.0.1 port=1 dbname=shop user=pgsluice"
[kafka]
bootstrap_servers = "127.0.0.1:1"
topic_prefix = "shop"
[buffer]
spill_dir = "spill"
[http]
listen = "127.0.0.1:0"
"""
"""The configuration of a pipeline that waits for PostgreSQL until it is stopped."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "daemon"
    path.mkdir()
    (path / "config.toml").write_text(CONFIGURATION)
    return path


def start(directory: Path, *arguments: str) -> Server:
    starter = fork_server.fork_server().start
    command = [*COMMAND, *arguments]
    return Server(command, directory, directory / "log", current_account(), signal.SIGKILL, start=starter)


def log_of(directory: Path) -> str:
    return (directory / "log").read_text()


def opened_by(process: Path) -> set[str]:
    found = set()
    for file in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # the daemon has just closed it
            found.add(str(file.readlink()))
    return found


@pytest.fixture
def waiting(directory: Path) -> Iterator[Server]:
    """Provide a daemon that waits for PostgreSQL."""
    server = start(directory, "run", "-c", "config.toml")
    server.wait_until(lambda: WAITS in log_of(directory), WAIT_S)
    yield server
    server.dismiss()


def test_a_command_writes_to_the_log_and_ends_with_its_exit_code(directory: Path) -> None:
    for argument, status, said in (("version", 0, __version__), ("nonsense", 2, "invalid choice: 'nonsense'")):
        server = start(directory, argument)
        assert server.wait(WAIT_S) == status
        assert said in log_of(directory)
        server.dismiss()


def test_a_daemon_has_its_own_directory_and_descriptors(waiting: Server, directory: Path) -> None:
    process = Path(f"/proc/{waiting.pid}")
    supervisor = Path("/proc") / (process / "stat").read_text().rpartition(")")[2].split()[1]
    assert (process / "cwd").readlink() == directory
    assert "Umask:\t0077" in (process / "status").read_text()
    assert opened_by(process) & opened_by(supervisor) == {str(directory / "log")}


def test_a_daemon_stops_in_an_orderly_way(waiting: Server) -> None:
    waiting.send(signal.SIGTERM)
    assert waiting.wait(WAIT_S) == 0


def test_a_daemon_that_is_killed_says_by_which_signal(waiting: Server) -> None:
    waiting.send(signal.SIGKILL)
    assert waiting.wait(WAIT_S) == -signal.SIGKILL


def test_daemons_do_not_outlive_their_owner(directory: Path) -> None:
    program = f"""if True:
        import sys, time
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_fork_server import WAITS, log_of, start
        directory = Path({str(directory)!r})
        server = start(directory, "run", "-c", "config.toml")
        server.wait_until(lambda: WAITS in log_of(directory), {WAIT_S})
        print("started", flush=True)
        time.sleep(1000)
    """
    root = Path(fork_server.__file__).parents[1]
    with subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "started\n"
        watched = [os.pidfd_open(pid) for pid in descendants(owner.pid)]
        assert len(watched) == 3, "the fork server, a supervisor and a daemon"
        owner.kill()
    for descriptor in watched:
        assert select.select([descriptor], [], [], WAIT_S)[0]
        os.close(descriptor)
    assert not directory.exists()


def test_concurrent_threads_get_the_same_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start only one fork server, even if several threads need it at the same time."""
    made: list[object] = []

    class Slow:
        def __init__(self) -> None:
            made.append(self)
            time.sleep(0.05)

    monkeypatch.setattr(fork_server, "_the_only_one", cache(Slow))
    with ThreadPoolExecutor(4) as pool:
        found = [asked.result() for asked in [pool.submit(fork_server.fork_server) for _ in range(4)]]
    assert found == made * 4


def test_an_owner_that_ends_leaves_neither_a_process_nor_a_warning() -> None:
    program = "from sandbox.fork_server import fork_server; print(fork_server()._process.pid, flush=True); input()"
    root = Path(fork_server.__file__).parents[1]
    command = [sys.executable, "-X", "dev", "-c", program]
    with subprocess.Popen(command, cwd=root, stdin=-1, stdout=-1, stderr=-1, text=True) as owner:
        assert owner.stdout is not None
        watched = os.pidfd_open(int(owner.stdout.readline()))
        assert owner.communicate("\n", WAIT_S)[1] == ""
    assert select.select([watched], [], [], WAIT_S)[0]
    os.close(watched)
