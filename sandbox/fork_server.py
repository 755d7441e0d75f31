"""A process that has imported pgsluice, and forks a daemon for each request.

The imports of a daemon take a second of CPU time. A forked daemon saves this second, and tests start more than a
thousand daemons. In all other respects, a forked daemon behaves like a daemon that was started as a command.

The fork server forks a supervisor, which forks the daemon, so all guarantees of ``supervisor.py`` hold. The process
that starts the fork server is its owner. The fork server ends together with its owner. It has only one thread. It has
no connection, Kafka client, event loop or anything else that a fork must not copy.
"""

import atexit
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

from sandbox import supervisor
from sandbox.account import environment

REQUEST_BYTES = 65536

MAX_DESCRIPTORS = 65536


class ForkServer:
    """The owner's interface to a fork server."""

    def __init__(self) -> None:
        """Start the process. It imports pgsluice while the owner continues."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sandbox.fork_server", str(os.getpid())],
                stdin=theirs.fileno(),
                cwd=Path(__file__).parents[1],
                env=environment(),
            )

    def close(self) -> None:
        """End the process. The daemons that it has forked continue."""
        self._channel.close()
        self._process.wait()

    def start(self, task: supervisor.Task, channel: int, errors: int) -> Callable[[], object]:
        """Fork a supervisor. This method has the type ``process.StartSupervisor``."""
        ended, theirs = os.pipe()
        socket.send_fds(self._channel, [task.to_json().encode()], [channel, errors, theirs])
        os.close(theirs)

        def wait() -> None:
            os.read(ended, 1)  # returns when the supervisor ends, because only the supervisor can write to the pipe
            os.close(ended)

        return wait


_starting = threading.Lock()


def fork_server() -> ForkServer:
    """Return the only fork server of this process, and start it if necessary. This function is thread-safe."""
    with _starting:
        return _the_only_one()


@cache
def _the_only_one() -> ForkServer:
    server = ForkServer()
    atexit.register(server.close)
    return server


def main(owner_pid: int) -> None:
    """Fork a supervisor for each request until the owner has ended."""
    owner = os.pidfd_open(owner_pid)
    if os.getppid() != owner_pid:
        return
    from pgsluice.app import cli, daemon  # noqa: F401, PLC0415 - loads modules that the daemons need

    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that the kernel reaps the supervisors
    requests = socket.socket(fileno=sys.stdin.fileno())
    waiting = select.poll()
    waiting.register(requests, select.POLLIN)
    waiting.register(owner, select.POLLIN)
    while (owner, select.POLLIN) not in waiting.poll():
        request, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES, maxfds=3)
        if not request:
            return
        if os.fork() == 0:
            _supervise(supervisor.Task.from_json(request.decode()), owner, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _supervise(task: supervisor.Task, owner: int, descriptors: list[int]) -> None:
    """Become the supervisor of one daemon. This function does not return."""
    channel, errors, _ = descriptors
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for descriptor, stream in ((channel, sys.stdin), (channel, sys.stdout), (errors, sys.stderr)):
        os.dup2(descriptor, stream.fileno())
    supervisor.supervise(task, owner, _fork_daemon)
    os._exit(0)


def _fork_daemon(task: supervisor.Task) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid != 0:
        return pid
    supervisor.die_with(parent, task)
    with Path(os.devnull).open("rb") as nothing, Path(task.log).open("ab") as log:
        for file, stream in ((nothing, sys.stdin), (log, sys.stdout), (log, sys.stderr)):
            os.dup2(file.fileno(), stream.fileno())
    os.closerange(sys.stderr.fileno() + 1, MAX_DESCRIPTORS)
    os.chdir(task.directory)
    os.umask(0o077)
    sys.argv = task.command[task.command.index("pgsluice") :]
    from pgsluice.app import cli  # noqa: PLC0415 - already loaded at this point

    sys.exit(cli.main())


if __name__ == "__main__":
    main(int(sys.argv[1]))
