"""pgsluice as its operator has it: a configuration file, ``check``, ``run``. Used by story.

Not ``sandbox.daemon``, which writes a configuration and runs it at once: here people read it, and check it first.
"""

import signal
import subprocess
import sys
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Self

from sandbox.account import current_account, environment
from sandbox.demo.shop import DATABASE, PUBLICATION, ROLE
from sandbox.errors import ServerError
from sandbox.ports import ReservedPort
from sandbox.process import Server

HOST = "127.0.0.1"
PREFIX = DATABASE

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
HTTP_TIMEOUT_S = 5
HTTP_OK = 200

PROGRAM = Path(sys.executable).with_name("pgsluice")


def configuration(postgres_port: int, bootstrap_servers: str, http_port: int) -> str:
    """Return the configuration file: what has no default, and the ports."""
    return f"""\
version = 1
name = "{PREFIX}"

[postgres]
host = "{HOST}"
port = {postgres_port}
user = "{ROLE}"
dbname = "{DATABASE}"
publications = ["{PUBLICATION}"]

[kafka]
bootstrap_servers = "{bootstrap_servers}"
topic_prefix = "{PREFIX}"

[http]
listen = "{HOST}:{http_port}"
"""


class Pgsluice:
    """One pipeline, with its files in ``directory``; a running process ends with the context."""

    def __init__(self, directory: Path, postgres_port: int, bootstrap_servers: str) -> None:
        """Take a port for HTTP and write the configuration file."""
        self._directory = directory
        self._port = ReservedPort.any()
        self._server: Server | None = None
        self.config_file = directory / "shop.toml"
        self.config_file.write_text(configuration(postgres_port, bootstrap_servers, self._port.number))
        self.log = directory / "pgsluice.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self.kill()
        self._port.release()

    @property
    def url(self) -> str:
        """Where status, metrics and the schema registry are served."""
        return f"http://{HOST}:{self._port.number}"

    @property
    def pid(self) -> int:
        """The process's pid; ServerError while it is down."""
        return self._running().pid

    def command(self, name: str) -> list[str]:
        """Return a command as one would type it."""
        return [str(PROGRAM), name, "-c", str(self.config_file)]

    def check(self) -> str:
        """Return what ``check`` prints; ServerError if it finds something that is in the way."""
        ended = subprocess.run(self.command("check"), env=environment(), capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise ServerError(f"pgsluice check ends with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        return ended.stdout

    def start(self) -> None:
        """``pgsluice run``; it streams when this returns."""
        self._server = Server(self.command("run"), self._directory, self.log, current_account(), signal.SIGKILL)
        self._server.wait_until(self._is_ready, START_TIMEOUT_S)

    def kill(self) -> None:
        """``kill -9``."""
        self._running().kill()
        self._forget()

    def stop(self) -> None:
        """SIGTERM; ServerError unless it ends in good order."""
        self._running().send(signal.SIGTERM)
        exit_code = self._running().wait(STOP_TIMEOUT_S)
        self._forget()
        if exit_code != 0:
            raise ServerError(f"pgsluice ended with exit code {exit_code}")

    def require_alive(self) -> None:
        """Raise ServerError if the process has ended by itself."""
        if not self._running().alive:
            raise ServerError("pgsluice has ended")

    def _is_ready(self) -> bool:
        connection = HTTPConnection(HOST, self._port.number, timeout=HTTP_TIMEOUT_S)
        try:
            connection.request("GET", "/readyz?role=active")
            return connection.getresponse().status == HTTP_OK
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def _running(self) -> Server:
        if self._server is None:
            raise ServerError("pgsluice is not running")
        return self._server

    def _forget(self) -> None:
        self._running().dismiss()
        self._server = None
