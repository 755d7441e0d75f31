"""The daemon as its operator sees it: ``pgsluice run``, a process of its own with a configuration file.

    with Daemon("shop", database.conninfo(), kafka.bootstrap_servers) as daemon: print(daemon.status())

Used by the demo and by every suite that needs the whole path.
"""

import json
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Literal, Self

from sandbox.account import current_account
from sandbox.errors import ServerError
from sandbox.ports import ReservedPort
from sandbox.process import Server, make_directory

HOST = "127.0.0.1"

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60
HTTP_TIMEOUT_S = 10
HTTP_OK = 200

PROGRAM = ("-m", "pgsluice")

Role = Literal["active", "any"]
"""What a start waits for: the owner of the slot, or any process that does its part, as a standby does."""


class Daemon:
    """One pipeline; its directory is gone when the context ends, slot and topics stay."""

    def __init__(
        self,
        name: str,
        conninfo: str,
        bootstrap_servers: str,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        wait_for: Role | None = "active",
        at_once: bool = True,
    ) -> None:
        """Choose the pipeline's name, which is the topics' prefix too; ``settings``, by section, override.

        ``wait_for`` None: ``start`` does not wait, as for a daemon that is expected to fail. ``at_once``: entering
        the context starts it.
        """
        self.name = name
        self._wait_for = wait_for
        self._at_once = at_once
        self._conninfo = conninfo
        self._bootstrap_servers = bootstrap_servers
        self.settings = {section: dict(keys) for section, keys in (settings or {}).items()}
        """What the configuration file adds to the addresses; a change counts from the next ``start``."""
        self.program: Sequence[str] = PROGRAM
        """What Python runs, for tests that wrap the command line; a change counts from the next ``start``."""
        self._server: Server | None = None
        self._context = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as context:
            self._port = ReservedPort.any()
            context.callback(self._port.release)
            self._directory = make_directory(current_account())
            context.callback(shutil.rmtree, self._directory)
            context.callback(self._end)
            if self._at_once:
                self.start()
            self._context = context.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    @property
    def url(self) -> str:
        """Where health, metrics, status and the schema registry are served."""
        return f"http://{HOST}:{self._port.number}"

    @property
    def config_file(self) -> Path:
        """The configuration file, for other commands of pgsluice."""
        return self._directory / "config.toml"

    @property
    def pid(self) -> int:
        """The process's pid; ServerError while it is down."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._server is not None and self._server.alive

    def start(self, *arguments: str, wait: bool = True) -> None:
        """Start the process; it is ready when this returns, unless it is not to be waited for.

        ``arguments`` follow ``pgsluice run``.
        """
        self.config_file.write_text(_toml(self._configuration()))
        command = [sys.executable, *self.program, "run", "-c", str(self.config_file), *arguments]
        self._server = Server(command, self._directory, self._log, current_account(), signal.SIGKILL)
        if wait and self._wait_for is not None:
            self.wait_until_ready(self._wait_for)

    def stop(self) -> int:
        """SIGTERM: an orderly end; returns the exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """``kill -9``."""
        self._running().kill()
        self._forget()

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Return the exit code once the process has ended by itself; negative: the signal that ended it."""
        status = self._running().wait(timeout_s)
        self._forget()
        return status

    def restart(self) -> None:
        """Stop in good order, then start."""
        status = self.stop()
        if status != 0:
            raise ServerError(f"pgsluice ended with exit code {status}:\n{self.log_text()[-2000:]}")
        self.start()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, such as SIGSTOP and SIGCONT to freeze it."""
        self._running().send(number)

    def wait_until_ready(self, role: Role = "active", timeout_s: float = START_TIMEOUT_S) -> None:
        """Return once ``/readyz`` says so; ServerError, with the log, if the process ends before."""
        self._running().wait_until(lambda: self.readiness(role) == HTTP_OK, timeout_s)

    def readiness(self, role: Role = "any") -> int:
        """Return the status code of ``/readyz``; 0 while nobody answers."""
        return self._get(f"/readyz?role={role}")[0]

    def status(self) -> dict[str, Any]:
        """Return what ``/status`` says."""
        code, body = self._get("/status")
        if code != HTTP_OK:
            raise ServerError(f"the daemon answers {code} to a question for its status")
        found: dict[str, Any] = json.loads(body)
        return found

    def metrics(self) -> str:
        """Return what ``/metrics`` says; nothing while nobody answers."""
        return self._get("/metrics")[1]

    def log_text(self) -> str:
        """Return what the daemon has logged since the context began, over all its starts."""
        return self._log.read_text(errors="replace")

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def _configuration(self) -> dict[str, Any]:
        given = {
            "postgres": {"dsn": self._conninfo},
            "kafka": {"bootstrap_servers": self._bootstrap_servers, "topic_prefix": self.name},
            "buffer": {"spill_dir": str(self._directory / "spill")},
            "http": {"listen": f"{HOST}:{self._port.number}"},
        }
        sections = {name: {**given.get(name, {}), **self.settings.get(name, {})} for name in given | self.settings}
        return {"version": 1, "name": self.name, **sections}

    def _get(self, path: str) -> tuple[int, str]:
        """Return status code and body; 0 while nobody answers."""
        connection = HTTPConnection(HOST, self._port.number, timeout=HTTP_TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except (OSError, HTTPException):
            return 0, ""
        finally:
            connection.close()

    def _running(self) -> Server:
        if self._server is None:
            raise ServerError("pgsluice is not running")
        return self._server

    def _forget(self) -> None:
        self._running().dismiss()
        self._server = None

    def _end(self) -> None:
        if self._server is not None:
            self.kill()


def _toml(settings: Mapping[str, Any]) -> str:
    """Return a file with one table for each section; what is nested deeper stands in line."""
    lines = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            lines += [f"\n[{name}]", *_pairs(value)]
        else:
            lines.append(f"{name} = {_inline(value)}")
    return "\n".join([*lines, ""])


def _pairs(table: Mapping[str, Any]) -> list[str]:
    bare = re.compile("[A-Za-z0-9_-]+")
    names = {name: name if bare.fullmatch(name) else _inline(name) for name in table}
    return [f"{names[name]} = {_inline(value)}" for name, value in table.items()]


def _inline(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_pairs(value)) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value, ensure_ascii=False)  # the scalars of both languages look the same
