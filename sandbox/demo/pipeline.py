"""pgsluice as an operator runs it: with a configuration file, ``check`` and ``run``. ``story`` uses this module.

This module does not use ``sandbox.daemon``, because that module writes a configuration and starts the daemon
immediately. In the demo, users first see the configuration, and ``check`` checks it.
"""

import subprocess
import sys
from pathlib import Path
from typing import Self

from sandbox.account import environment
from sandbox.demo.shop import DATABASE, PUBLICATION, ROLE
from sandbox.errors import ServerError
from sandbox.ports import ReservedPort
from sandbox.program import HOST, Program

PREFIX = DATABASE

PROGRAM = Path(sys.executable).with_name("pgsluice")


def configuration(postgres_port: int, bootstrap_servers: str, http_port: int) -> str:
    """Return the configuration file. It has the settings that have no default, and the ports."""
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


class Pgsluice(Program):
    """One pipeline, with its files in ``directory``. A running process ends with the context."""

    def __init__(self, directory: Path, postgres_port: int, bootstrap_servers: str) -> None:
        """Reserve a port for HTTP, and write the configuration file."""
        self.place(directory, ReservedPort.any())
        self.config_file = directory / "shop.toml"
        self.config_file.write_text(configuration(postgres_port, bootstrap_servers, self._port.number))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._port.release()

    def command(self, name: str) -> list[str]:
        """Return the command line for a command of pgsluice, as a user would type it."""
        return [str(PROGRAM), name, "-c", str(self.config_file)]

    def check(self) -> str:
        """Return the output of ``check``. Raise ServerError if a check fails."""
        ended = subprocess.run(self.command("check"), env=environment(), capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise ServerError(f"pgsluice check ends with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        return ended.stdout

    def start(self) -> None:
        """Start ``pgsluice run``, and wait until it streams."""
        self.launch(self.command("run"))
        self.wait_until_ready()

    def require_alive(self) -> None:
        """Raise ServerError if the process has ended by itself."""
        if not self.alive:
            raise ServerError("pgsluice has ended")
