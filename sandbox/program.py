"""Starts a process of pgsluice, queries it over HTTP, signals it, and waits for it.

``daemon`` and the demo use this module. The caller chooses the directory, the configuration file and the command.
"""

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Literal

from prometheus_client.parser import text_string_to_metric_families

from sandbox.account import current_account
from sandbox.errors import ServerError
from sandbox.ports import ReservedPort
from sandbox.process import Server, StartSupervisor, start_script

HOST = "127.0.0.1"

START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 60
HTTP_TIMEOUT_S = 10
HTTP_OK = 200

LOG_SHOWN = 2000

Role = Literal["active", "any"]
"""The readiness for which a start waits. ``active``: the process owns the slot. ``any``: it may also be a standby."""


class Program:
    """One process, which can be started repeatedly. It is pgsluice, unless a subclass runs another program."""

    what = "pgsluice"
    http_timeout_s = HTTP_TIMEOUT_S
    _server: Server | None = None

    def place(self, directory: Path, port: ReservedPort) -> None:
        """Set the directory of the process's files, and its HTTP port. Call this method before all others."""
        self.directory = directory
        self._port = port
        self._log = directory / "pgsluice.log"

    @property
    def url(self) -> str:
        """The base URL of health, metrics, status and the schema registry."""
        return f"http://{HOST}:{self._port.number}"

    @property
    def pid(self) -> int:
        """The pid of the process. Raises ServerError if it is not running."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._server is not None and self._server.alive

    def launch(
        self,
        command: Sequence[str],
        variables: Mapping[str, str] | None = None,
        start: StartSupervisor = start_script,
    ) -> None:
        """Start the process with ``variables`` in its environment. Do not wait until it is ready.

        Raise ServerError if the process already runs. With a second process, this object would forget the first one,
        and the supervisor of the first process would remove the directory that both processes use.
        """
        if self.alive:
            raise ServerError(f"{self.what} is already running")
        if self._server is not None:
            self._forget()  # the previous process has ended by itself
        account = current_account()
        self._server = Server(command, self.directory, self._log, account, signal.SIGKILL, variables, start)

    def stop(self) -> int:
        """Send SIGTERM, wait until the process has ended, and return its exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def stop_well(self) -> None:
        """Stop the process. Raise ServerError with the end of the log unless the exit code is 0."""
        status = self.stop()
        if status != 0:
            raise ServerError(f"pgsluice ended with exit code {status}:\n{self.log_text()[-LOG_SHOWN:]}")

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._running().kill()
        self._forget()

    def end(self) -> None:
        """Kill the process with SIGKILL if it runs."""
        if self._server is not None:
            self.kill()

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait until the process has ended, and return its exit code, or the negative number of a fatal signal."""
        status = self._running().wait(timeout_s)
        self._forget()
        return status

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, such as SIGSTOP to freeze it."""
        self._running().send(number)

    def wait_until_ready(self, role: Role = "active", timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until ``/readyz`` reports readiness. Raise ServerError with the log if the process ends before that."""
        self.wait_until(lambda: self.readiness(role) == HTTP_OK, timeout_s)

    def wait_until(self, reached: Callable[[], bool], timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until ``reached()`` is true. Raise ServerError with the log if the process ends before that."""
        self._running().wait_until(reached, timeout_s)

    def readiness(self, role: Role = "any") -> int:
        """Return the status code of ``/readyz``, or 0 if there is no answer."""
        return self._get(f"/readyz?role={role}")[0]

    def status(self) -> dict[str, Any]:
        """Return the content of ``/status``."""
        code, body = self._get("/status")
        if code != HTTP_OK:
            raise ServerError(f"the daemon answers {code} to a request for its status")
        found: dict[str, Any] = json.loads(body)
        return found

    def status_text(self) -> str:
        """Return the content of ``/status`` for an error message. If there is none, return the reason."""
        try:
            return json.dumps(self.status())
        except ServerError as error:
            return str(error)

    def metrics(self) -> str:
        """Return the content of ``/metrics``, or an empty string if there is no answer."""
        return self._get("/metrics")[1]

    def metric(self, name: str, **labels: str) -> float | None:
        """Return the value of a metric's first sample with these labels, or None if there is no such sample."""
        text = "\n".join(line for line in self.metrics().splitlines() if line.startswith(name))
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and sample.labels.items() >= labels.items():
                    return float(sample.value)
        return None

    def log_text(self) -> str:
        """Return the log of the process, which includes its earlier runs."""
        return self._log.read_text(errors="replace")

    def why_it_stopped(self) -> str:
        """Return the reason in the last line of the log. The process writes this line when an error ends it."""
        found: dict[str, Any] = json.loads(self.log_text().splitlines()[-1])
        return "\n".join([found["reason"], *found.get("problems", [])])

    def _get(self, path: str) -> tuple[int, str]:
        return self._ask("GET", path)

    def _ask(
        self, method: str, path: str, body: str | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Send a request. Return the status code and the body of the answer, or 0 and "" if there is no answer."""
        connection = HTTPConnection(HOST, self._port.number, timeout=self.http_timeout_s)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read().decode()
        except (OSError, HTTPException):
            return 0, ""
        finally:
            connection.close()

    def _running(self) -> Server:
        if self._server is None:
            raise ServerError(f"{self.what} is not running")
        return self._server

    def _forget(self) -> None:
        self._running().dismiss()
        self._server = None
