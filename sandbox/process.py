"""Starts a server process, sends it signals, and waits for it. ``postgres``, ``broker`` and others use this module.

The process that starts a server is its owner. Each server runs under a supervisor (``supervisor.py``), which ensures
that no server outlives its owner.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sandbox import supervisor
from sandbox.account import SHARED_DIRECTORY, Account, can_enter, current_account, environment
from sandbox.errors import ServerError

POLL_INTERVAL_S = 0.02


StartSupervisor = Callable[[supervisor.Task, int, int], Callable[[], object]]
"""A function that starts a supervisor, and returns a function that waits until the supervisor has ended.

The arguments are the task, the descriptor of the supervisor's end of the channel, and the descriptor of its standard
error.
"""


def start_script(task: supervisor.Task, channel: int, errors: int) -> Callable[[], object]:
    """Start a supervisor as a script."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__, task.to_json()],
        stdin=channel,
        stdout=channel,
        stderr=errors,
        start_new_session=True,
    ).wait


class Server:
    """One running server under its own supervisor."""

    def __init__(  # noqa: PLR0913, PLR0917 - a command and its environment
        self,
        command: Sequence[str],
        directory: Path,
        log: Path,
        account: Account,
        death_signal: signal.Signals,
        variables: Mapping[str, str] | None = None,
        start: StartSupervisor = start_script,
    ) -> None:
        """Start ``command`` in ``directory``. The directory is removed if this process ends without ``dismiss()``.

        ``variables`` are added to those that :func:`sandbox.account.environment` returns.
        """
        self._log = log
        task = supervisor.Task(
            owner=os.getpid(),
            command=list(command),
            directory=str(directory),
            log=str(log),
            uid=account.uid,
            gid=account.gid,
            death_signal=death_signal,
            environment={**environment(), **(variables or {})},
        )
        self._channel, theirs = socket.socketpair()
        with theirs, log.open("ab") as errors:
            self._wait_for_supervisor = start(task, theirs.fileno(), errors.fileno())
        self.pid = self._read_pid()

    def _read_pid(self) -> int:
        line = self._channel.recv(supervisor.LINE_BYTES)
        if not line:
            self.dismiss()
            raise ServerError(self._with_log("the server could not be started"))
        return int(line)

    @property
    def alive(self) -> bool:
        """Whether the server still runs."""
        return not self._said_something(timeout_s=0)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the server. Do nothing if the server has ended.

        After SIGSTOP, wait until all threads have stopped, because the kernel stops threads on other processors a
        little later.
        """
        # The pid is not reused before the supervisor reports that the server has ended.
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
        if number == signal.SIGSTOP:
            while self.alive and not self._stands_still():
                time.sleep(POLL_INTERVAL_S)

    def _stands_still(self) -> bool:
        # The state follows the name in parentheses, and T means stopped. See proc_pid_stat(5).
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            stats = [(task / "stat").read_text() for task in Path(f"/proc/{self.pid}/task").iterdir()]
            return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)
        return False  # a thread has ended during the check

    def wait(self, timeout_s: float) -> int:
        """Wait until the server and all its children have ended, and return the exit status.

        If a signal has ended the server, the status is the negative signal number. Raise ServerError after
        ``timeout_s``.
        """
        if not self._said_something(timeout_s):
            raise ServerError(self._with_log(f"the server still runs after {timeout_s:g} s"))
        # MSG_PEEK leaves the status in the channel, because ``alive`` checks whether it has arrived.
        status = self._channel.recv(supervisor.LINE_BYTES, socket.MSG_PEEK)
        return int(status or -signal.SIGKILL)  # the status is empty if the supervisor was killed

    def kill(self) -> None:
        """Kill the server and all its children with SIGKILL."""
        self.send(signal.SIGKILL)
        self.wait(timeout_s=30)

    def dismiss(self) -> None:
        """End the supervisor, which kills all remaining processes of the server."""
        with contextlib.suppress(BrokenPipeError):
            self._channel.send(supervisor.DISMISS)
        self._wait_for_supervisor()
        self._channel.close()

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until ``ready()`` is true. Raise ServerError if the server ends before that, or takes too long."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.alive:
                raise ServerError(self._with_log("the server ended while starting"))
            if time.monotonic() > deadline:
                raise ServerError(self._with_log(f"the server is not ready after {timeout_s:g} s"))
            time.sleep(POLL_INTERVAL_S)

    def _said_something(self, timeout_s: float) -> bool:
        waiting = select.poll()
        waiting.register(self._channel, select.POLLIN)
        return bool(waiting.poll(timeout_s * 1000))

    def _with_log(self, message: str) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-20:]
        return "\n".join([message, *lines])


def make_directory(account: Account) -> Path:
    """Create an empty directory that ``account`` can enter, and return its path."""
    parent = Path(tempfile.gettempdir())
    if not can_enter(account, parent):
        parent = SHARED_DIRECTORY
    directory = Path(tempfile.mkdtemp(prefix="pgsluice-sandbox-", dir=parent))
    if account != current_account():
        directory.chmod(0o711)
    return directory
