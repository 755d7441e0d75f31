"""The supervisor of a server. It starts the server, and kills it when the process that owns the server has ended.

There are two ways to start a supervisor. ``process.py`` runs this file as a script, so the file imports only the
standard library. ``fork_server.py`` forks a process that becomes the supervisor. The supervisor is the server's parent
and adopts orphaned children of the server, so it can kill every process that the server has forked. If the supervisor
itself is killed, the kernel signals the server.

When the owner has ended, the supervisor also removes the server's directory, because nobody will read its data.

The supervisor writes the server's pid to its standard output, and later the server's exit status. It waits for
``DISMISS`` on its standard input. If the input is closed without ``DISMISS``, the supervisor concludes that the owner
has ended.

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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

DISMISS = b"d"

LINE_BYTES = 16
"""In the output, the pid and the exit status are each padded to ``LINE_BYTES``, so that the owner can separate them."""

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
IPC_RMID = 0

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Task:
    """Describes a server. ``death_signal`` is the signal that the kernel sends to the server if the supervisor dies."""

    owner: int
    command: list[str]
    directory: str
    log: str
    uid: int
    gid: int
    death_signal: int
    environment: dict[str, str]

    def to_json(self) -> str:
        """Return the text that ``main`` takes as its argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Task":
        """Return the task that ``to_json`` has written."""
        return cls(**json.loads(text))


def main(argument: str) -> None:
    """Supervise one server. ``argument`` is a task as JSON. The parent of this process is the owner."""
    task = Task.from_json(argument)
    owner = os.pidfd_open(task.owner)
    if os.getppid() == task.owner:
        supervise(task, owner, _execute)


def supervise(task: Task, owner: int, start: Callable[[Task], int]) -> None:
    """Start the server, and wait until its owner dismisses the supervisor or ends. Then kill the server.

    ``owner`` is a pidfd. ``start`` returns the pid of the server, which is a child of this process.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    server = start(task)
    _say(server)
    dismissed = _wait_until_dismissed(server, owner)
    _end_descendants(server)
    if not dismissed:
        shutil.rmtree(task.directory, ignore_errors=True)


def die_with(supervisor: int, task: Task) -> None:
    """Have the kernel signal this process when its parent, the supervisor, ends."""
    _prctl(PR_SET_PDEATHSIG, task.death_signal)
    if os.getppid() != supervisor:
        os._exit(1)


def _execute(task: Task) -> int:
    supervisor = os.getpid()
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
            # A change of user clears the death signal. ``preexec_fn`` runs after this change, so it can set the signal.
            # It is safe here, because this process has only one thread.
            preexec_fn=lambda: die_with(supervisor, task),  # noqa: PLW1509
        ).pid


def _wait_until_dismissed(server: int, owner: int) -> bool:
    """Wait until the owner dismisses the supervisor or ends. Return whether the owner has dismissed it."""
    running = os.pidfd_open(server)
    waiting = select.poll()
    for descriptor in (running, owner, sys.stdin.fileno()):
        waiting.register(descriptor, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in waiting.poll()}
        if running in ready:
            waiting.unregister(running)
            _, status = os.waitpid(server, 0)
            _end_descendants(server)
            _say(os.waitstatus_to_exitcode(status))
        if sys.stdin.fileno() in ready:
            return _dismissed()
        if owner in ready:
            return False


def _dismissed() -> bool:
    try:
        return os.read(sys.stdin.fileno(), 1) == DISMISS
    except ConnectionResetError:  # the owner ended without reading all of our output
        return False


def _end_descendants(server: int) -> None:
    """Kill and reap all remaining descendants of this process, and remove the server's shared memory."""
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
    """Return the pids of all descendants of ``ancestor``."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                # The name of the program, in parentheses, may contain any character.
                parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = list(children.get(ancestor, ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def _abandoned_segments(creator: int) -> list[int]:
    """Return the System V shared memory segments of ``creator`` to which no process is attached.

    PostgreSQL holds a small segment as a lock on its data directory. If it is killed, it cannot remove the segment.
    """
    names, *rows = (line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines())
    segments = [dict(zip(names, map(int, row), strict=True)) for row in rows]
    return [segment["shmid"] for segment in segments if segment["cpid"] == creator and segment["nattch"] == 0]


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def _say(number: int) -> None:
    # If the owner has ended, nobody reads the output, so a closed pipe is not an error.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        os.write(sys.stdout.fileno(), str(number).encode().ljust(LINE_BYTES))


if __name__ == "__main__":
    main(sys.argv[1])
