"""Tests that no server outlives its owner, whatever happens to either of them. The servers are shell scripts."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import process, supervisor
from sandbox.account import SHARED_DIRECTORY, can_enter, current_account, server_account
from sandbox.errors import ServerError
from sandbox.process import Server, make_directory
from sandbox.supervisor import descendants

FAMILY = ["/bin/sh", "-c", "trap '' TERM; setsid sleep 1000 & sleep 1000 & echo $! >> family; wait; wait"]
"""A server that ignores SIGTERM, and has two children. One of the children is in a session of its own."""

WAIT_S = 30


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "server"
    path.mkdir()
    return path


@pytest.fixture
def servers(directory: Path) -> Iterator["list[Server]"]:
    running: list[Server] = []
    yield running
    for server in running:
        server.dismiss()
    assert directory.exists(), "an orderly end leaves the directory to the owner"


def start(directory: Path, command: list[str]) -> Server:
    return Server(command, directory, directory / "log", current_account(), signal.SIGKILL)


def wait_for(server: Server, file: Path) -> None:
    server.wait_until(lambda: file.exists() and bool(file.read_text()), WAIT_S)


def wait_until_gone(watched: list[int]) -> None:
    """Wait until the processes behind these descriptors have ended."""
    for descriptor in watched:
        assert select.select([descriptor], [], [], WAIT_S)[0]
        os.close(descriptor)


def test_a_server_runs_in_its_directory_with_its_log(directory: Path, servers: list[Server]) -> None:
    server = start(directory, ["/bin/sh", "-c", "pwd; echo to-stderr >&2; env; umask; sleep 1000"])
    servers.append(server)
    server.wait_until(lambda: "0077" in (directory / "log").read_text(), WAIT_S)
    log = (directory / "log").read_text()
    assert log.startswith(f"{directory}\nto-stderr\n")
    assert "HOME=" not in log
    assert server.alive
    assert Path(f"/proc/{server.pid}").exists()


def test_kill_ends_all_children_in_all_sessions(directory: Path, servers: list[Server]) -> None:
    server = start(directory, FAMILY)
    servers.append(server)
    wait_for(server, directory / "family")
    watched = [os.pidfd_open(pid) for pid in [server.pid, *descendants(server.pid)]]
    assert len(watched) == 3
    server.kill()
    assert not server.alive
    wait_until_gone(watched)


def test_children_do_not_outlive_a_server_that_ends_by_itself(directory: Path, servers: list[Server]) -> None:
    server = start(directory, ["/bin/sh", "-c", "mkfifo gate; setsid sleep 1000 & echo $! > child; read _ < gate"])
    servers.append(server)
    wait_for(server, directory / "child")
    watched = [os.pidfd_open(int((directory / "child").read_text()))]
    (directory / "gate").write_text("end\n")
    server.wait(WAIT_S)
    wait_until_gone(watched)


def test_signals_reach_the_server_until_it_has_ended(directory: Path, servers: list[Server]) -> None:
    server = start(directory, ["/bin/sleep", "1000"])
    servers.append(server)
    server.send(signal.SIGTERM)
    server.wait(WAIT_S)
    server.send(signal.SIGTERM)
    assert not server.alive


BUSY_THREADS = """if True:
    import threading
    def count(name):
        for number in range(10**12):
            with open(name, "w") as file:
                file.write(str(number))
    for name in "abcd":
        threading.Thread(target=count, args=(name,)).start()
"""


def test_all_threads_of_a_stopped_server_stand_still(directory: Path, servers: list[Server]) -> None:
    server = start(directory, [sys.executable, "-c", BUSY_THREADS])
    servers.append(server)
    files = [directory / name for name in "abcd"]
    for file in files:
        wait_for(server, file)
    server.send(signal.SIGSTOP)
    written = [file.stat().st_mtime_ns for file in files]
    time.sleep(0.2)
    assert [file.stat().st_mtime_ns for file in files] == written
    server.send(signal.SIGCONT)
    server.wait_until(
        lambda: all(file.stat().st_mtime_ns > then for file, then in zip(files, written, strict=True)), WAIT_S
    )


def test_a_pause_accepts_a_server_that_ends_meanwhile(directory: Path, servers: list[Server]) -> None:
    server = start(directory, ["/bin/true"])
    servers.append(server)
    server.send(signal.SIGSTOP)
    server.send(signal.SIGKILL)
    server.wait(WAIT_S)
    server.send(signal.SIGSTOP)
    assert not server.alive


def test_a_server_that_does_not_stop_is_reported_with_its_log(directory: Path, servers: list[Server]) -> None:
    server = start(
        directory, ["/bin/sh", "-c", "trap '' TERM; echo last words; echo > ready; while :; do sleep 1; done"]
    )
    servers.append(server)
    wait_for(server, directory / "log")
    server.send(signal.SIGTERM)
    with pytest.raises(ServerError, match=r"(?s)still runs after 0 s.*last words"):
        server.wait(0)


def test_a_server_that_ends_while_starting_is_reported_with_its_log(directory: Path, servers: list[Server]) -> None:
    servers.append(start(directory, ["/bin/sh", "-c", "echo no such database; exit 1"]))
    with pytest.raises(ServerError, match=r"(?s)ended while starting.*no such database"):
        servers[0].wait_until(lambda: False, WAIT_S)


def test_a_server_that_never_gets_ready_is_reported(directory: Path, servers: list[Server]) -> None:
    servers.append(start(directory, ["/bin/sleep", "1000"]))
    with pytest.raises(ServerError, match="not ready after 0 s"):
        servers[0].wait_until(lambda: False, 0)


def test_a_missing_program_is_reported(directory: Path) -> None:
    with pytest.raises(ServerError, match=r"(?s)could not be started.*No such file"):
        start(directory, ["/no/such/program"])


OWNER = f"""if True:
    import os, signal, sys, time
    from pathlib import Path
    from sandbox.account import current_account
    from sandbox.process import Server
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore SIGINT
    directory = Path(sys.argv[1])
    server = Server({FAMILY!r}, directory, directory / "log", current_account(), signal.SIGKILL)
    server.wait_until((directory / "family").exists, {WAIT_S})
    print("started", flush=True)
    sys.stdin.readline()
    if child := os.fork():
        print(child, flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def owner(directory: Path) -> Iterator["subprocess.Popen[str]"]:
    """Provide another process that owns a server with children."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, directory],
        cwd=Path(process.__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        yield owner
        owner.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_an_owner_that_is_killed(
    owner: "subprocess.Popen[str]", directory: Path, number: signal.Signals
) -> None:
    watched = [os.pidfd_open(pid) for pid in descendants(owner.pid)]
    assert len(watched) == 4
    owner.send_signal(number)
    wait_until_gone(watched)
    assert not directory.exists()


def test_nothing_outlives_an_owner_whose_own_child_still_has_its_descriptors(
    owner: "subprocess.Popen[str]", directory: Path
) -> None:
    assert owner.stdin is not None
    assert owner.stdout is not None
    watched = [os.pidfd_open(pid) for pid in descendants(owner.pid)]
    owner.stdin.write("fork\n")
    owner.stdin.flush()
    child = int(owner.stdout.readline())
    owner.kill()
    wait_until_gone(watched)
    assert not directory.exists()
    os.kill(child, signal.SIGKILL)


def test_the_server_dies_with_its_supervisor(owner: "subprocess.Popen[str]") -> None:
    supervisor_pid, server_pid, *children = descendants(owner.pid)
    watched = [os.pidfd_open(server_pid)]
    os.kill(supervisor_pid, signal.SIGKILL)
    wait_until_gone(watched)
    for child in children:  # the children of a shell survive the shell, whereas PostgreSQL's children end with it
        os.kill(child, signal.SIGKILL)


def test_a_supervisor_whose_owner_has_ended_starts_nothing(directory: Path) -> None:
    task = supervisor.Task(
        owner=1,
        command=["/bin/sh", "-c", "echo > started"],
        directory=str(directory),
        log=str(directory / "log"),
        uid=os.geteuid(),
        gid=os.getegid(),
        death_signal=signal.SIGKILL,
        environment={},
    )
    subprocess.run([sys.executable, "-I", "-S", supervisor.__file__, task.to_json()], check=True)
    assert not list(directory.iterdir())


def test_directories_are_private_and_separate() -> None:
    first, second = make_directory(current_account()), make_directory(current_account())
    assert first != second
    assert first.stat().st_mode & 0o777 == 0o700
    first.rmdir()
    second.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as another user")
def test_directories_for_another_account_can_be_entered_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    directory = make_directory(server_account())
    assert can_enter(server_account(), directory)
    assert directory.parent == SHARED_DIRECTORY
    directory.rmdir()
