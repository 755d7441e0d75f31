"""The servers of ``python -m sandbox up``. A background process owns them until ``down``.

If the background process ends for any reason, the servers also end. The background process describes the servers to
every client that connects to its abstract Unix socket. There is no file with this description, because such a file
could be out of date.

https://man7.org/linux/man-pages/man7/unix.7.html
"""

import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from sandbox.artifacts import cache_root
from sandbox.errors import SandboxError, ServerError
from sandbox.kafka import Kafka
from sandbox.postgres import Postgres

POLL_INTERVAL_S = 0.1
STOP_TIMEOUT_S = 60
STATE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class State:
    """Describes the running servers. ``postgres`` is a connection string, and ``kafka`` has the brokers' addresses."""

    pid: int
    postgres_version: int
    postgres: str
    brokers: int
    kafka: str

    def __str__(self) -> str:
        return f"PostgreSQL {self.postgres_version}: {self.postgres}\nKafka: {self.kafka}"


def up(postgres_version: int, brokers: int) -> State:
    """Start the servers if they are not running, and wait until they are ready."""
    state = current() or _start_in_background(postgres_version, brokers)
    if (state.postgres_version, state.brokers) != (postgres_version, brokers):
        raise SandboxError(f"another sandbox is running, stop it first with `down`:\n{state}")
    return state


def down() -> bool:
    """Stop the servers, and wait until they have ended. Return False if no servers were running."""
    state = current()
    if state is None:
        return False
    process = os.pidfd_open(state.pid)
    signal.pidfd_send_signal(process, signal.SIGTERM)
    ended, _, _ = select.select([process], [], [], STOP_TIMEOUT_S)
    os.close(process)
    if not ended:
        raise ServerError(f"the sandbox, process {state.pid}, still runs after {STOP_TIMEOUT_S} s")
    return True


def current() -> State | None:
    """Return the description of the running servers, or None if no servers are running."""
    with socket.socket(socket.AF_UNIX) as question:
        try:
            question.connect(_address())
        except ConnectionRefusedError:
            return None
        return State(**json.loads(question.recv(STATE_BYTES)))


def serve(postgres_version: int, brokers: int) -> None:
    """Keep the servers running until SIGTERM."""
    signal.signal(signal.SIGTERM, _exit)
    with _bound_socket() as listener, Postgres(postgres_version) as postgres, Kafka(brokers) as kafka:
        state = State(os.getpid(), postgres_version, postgres.conninfo(), brokers, kafka.bootstrap_servers)
        answer = json.dumps(asdict(state)).encode()
        listener.listen()
        while True:
            with listener.accept()[0] as question:
                question.send(answer)


def _start_in_background(postgres_version: int, brokers: int) -> State:
    options = ["serve", "--postgres", str(postgres_version), "--brokers", str(brokers)]
    log = cache_root() / "session.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "sandbox", *options],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    while (state := current()) is None:
        if process.poll() is not None:
            raise ServerError(f"the sandbox did not start:\n{log.read_text()}")
        time.sleep(POLL_INTERVAL_S)
    return state


def _bound_socket() -> socket.socket:
    """Return a socket that reserves its address, but does not accept connections yet."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(_address())
    except OSError as error:
        listener.close()
        raise SandboxError("a sandbox is running or starting") from error
    return listener


def _address() -> str:
    # The address has a digest of the cache's path, because the path itself may be too long.
    cache = hashlib.sha256(str(cache_root()).encode()).hexdigest()[:32]
    return f"\0pgsluice-sandbox-{os.geteuid()}-{cache}"


def _exit(*_: object) -> NoReturn:
    raise SystemExit(0)
