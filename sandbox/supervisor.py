"""A supervisor stands beside each server: it starts it, and ends it when the process that wanted it is gone.

Run as a script of its own, standard library only, by ``process.py``. It is the server's parent and adopts
what the server leaves behind, so nothing that a server forks can escape it. Should the supervisor itself be
killed, the kernel signals the server.

An unwanted server is killed, and its directory removed: nobody will read its data.

Over its standard output it says the server's pid, and later its exit status. It waits for
``DISMISS`` on its standard input; end of file there, or the owner's end, means that the owner is gone.

https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html
https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

DISMISS = b"d"

LINE_BYTES = 16
"""Both answers have this length, so that they stay apart in the stream."""

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
IPC_RMID = 0

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Task:
    """What to run, for whom, and what the kernel signals to it if the supervisor dies."""

    owner: int
    command: list[str]
    directory: str
    log: str
    uid: int
    gid: int
    death_signal: int
    environment: dict[str, str]

    def to_json(self) -> str:
        """Return what ``main`` takes as its argument."""
        return json.dumps(asdict(self))


def main(argument: str) -> None:
    """Start the server, then wait until it is not wanted any more."""
    task = Task(**json.loads(argument))
    owner = os.pidfd_open(task.owner)
    if os.getppid() != task.owner:
        return
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    server = _start(task)
    _say(server.pid)
    dismissed = _wait_until_dismissed(server, owner)
    _end_descendants(server.pid)
    if not dismissed:
        shutil.rmtree(task.directory, ignore_errors=True)


def _start(task: Task) -> subprocess.Popen[bytes]:
    supervisor = os.getpid()

    def die_with_supervisor() -> None:
        # after the change of user, which would clear it
        _prctl(PR_SET_PDEATHSIG, task.death_signal)
        if os.getppid() != supervisor:
            os._exit(1)

    change_user = os.geteuid() != task.uid
    with Path(task.log).open("ab") as log:
        return subprocess.Popen(
            task.command,
            cwd=task.directory,
            env=task.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            user=task.uid if change_user else None,
            group=task.gid if change_user else None,
            extra_groups=() if change_user else None,
            umask=0o077,
            preexec_fn=die_with_supervisor,  # noqa: PLW1509 - this process has one thread
        )


def _wait_until_dismissed(server: subprocess.Popen[bytes], owner: int) -> bool:
    """Return True when the owner says so, False when the owner is gone."""
    running = os.pidfd_open(server.pid)
    waiting = select.poll()
    for descriptor in (running, owner, sys.stdin.fileno()):
        waiting.register(descriptor, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in waiting.poll()}
        if running in ready:
            waiting.unregister(running)
            status = server.wait()
            _end_descendants(server.pid)
            _say(status)
        if sys.stdin.fileno() in ready:
            return _dismissed()
        if owner in ready:
            return False


def _dismissed() -> bool:
    try:
        return os.read(sys.stdin.fileno(), 1) == DISMISS
    except ConnectionResetError:  # the owner ended before it read all that we said
        return False


def _end_descendants(server: int) -> None:
    """Kill and reap all that still runs below this process, then remove the server's shared memory."""
    while True:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    for segment in _abandoned_segments(server):
        _libc.shmctl(segment, IPC_RMID, None)


def descendants(ancestor: int) -> list[int]:
    """Return the pids of all processes below ``ancestor``."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                # the name of the program, in brackets, may hold anything
                parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = list(children.get(ancestor, ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def _abandoned_segments(creator: int) -> list[int]:
    """Return the System V segments that ``creator`` made and nobody is attached to.

    PostgreSQL holds a small one as a lock on its data directory, and cannot remove it when it is killed.
    """
    names, *rows = (line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines())
    segments = [dict(zip(names, map(int, row), strict=True)) for row in rows]
    return [segment["shmid"] for segment in segments if segment["cpid"] == creator and segment["nattch"] == 0]


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def _say(number: int) -> None:
    # nobody reads once the owner is gone
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        os.write(sys.stdout.fileno(), str(number).encode().ljust(LINE_BYTES))


if __name__ == "__main__":
    main(sys.argv[1])
