"""The daemon in a container, started with Docker's client as its operator does."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sandbox.containers import Engine
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from sandbox.program import HOST

IMAGE = "pgsluice"
ROOT = Path(__file__).parents[2]
UID = 65532

_CONFIGURATION = "./config.toml:/etc/pgsluice/config.toml:ro"


def documented_run() -> list[str]:
    """Return the words of the ``docker run`` that README.md shows."""
    (line,) = re.findall(r"^docker run .*(?:\\\n.*)*", (ROOT / "README.md").read_text(), re.MULTILINE)
    return shlex.split(line)


class Container(Daemon):
    """The client's process stands for the container: it passes signals on, and ends with the container's exit code."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        database: Database,
        kafka: Kafka,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Choose the pipeline's name; every container that is started has a name and a port of its own."""
        super().__init__(name, database.conninfo(), kafka.bootstrap_servers, settings, at_once=False)
        self._engine = engine
        self._starts = 0
        self.options: Sequence[str] = ()
        """What is added to the options of ``docker run``; a change counts from the next start."""
        self.mount: str | None = _CONFIGURATION
        """How the configuration is mounted, None for not at all; a change counts from the next start."""
        self.secrets: Mapping[str, str] = {}
        """Files in the directory of secrets; a change counts from the next start."""

    @property
    def container(self) -> str:
        """The name of the container that was started last."""
        return f"{self.name}-{self._port.number}-{self._starts}"

    @property
    def listen(self) -> str:
        """The address that it is told to listen on."""
        return f"{HOST}:{self._port.number}"

    def start(self, *arguments: str, wait: bool = True) -> None:
        """Start a new container; ``arguments`` follow the image's name."""
        self.write_configuration()
        self._starts += 1
        own = ("--name", self.container, "--env", f"PGSLUICE_HTTP__LISTEN={self.listen}", *self.options)
        self._launch(own, arguments)
        if wait:
            self.wait_until_ready("active")

    def start_as_documented(self) -> None:
        """Start a container with the line of README.md and a name; it listens on port 8080 of all addresses."""
        self.write_configuration()
        self._starts += 1
        self._launch(("--name", self.container), ())

    def fail(self) -> tuple[int, str]:
        """Start a container that is expected to end by itself; return its exit code and its reason."""
        self.start(wait=False)
        return self.wait(), self.why_it_stopped()

    def exec(self, *command: str) -> str:
        """Return what a command prints in the container."""
        return self._engine.podman("exec", self.container, *command)

    def kill(self) -> None:
        """``kill -9`` the daemon in the container."""
        if self.alive:
            self._engine.podman("kill", "--signal", "KILL", self.container)
        self.wait()

    def write_configuration(self) -> None:
        """Write the files that are mounted. Anybody may read the configuration, and only the daemon the secrets."""
        self.config_file.write_text(self.configuration())
        self.config_file.chmod(0o644)
        directory = self.directory / "secrets"
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)
        for name, secret in self.secrets.items():
            file = directory / name
            file.write_text(secret)
            file.chmod(0o400)
            os.chown(file, UID, UID)

    def _launch(self, options: Sequence[str], arguments: Sequence[str]) -> None:
        docker, run, *words, image = documented_run()
        at = words.index(_CONFIGURATION)
        mounted = [*words[: at - 1], *(("-v", self.mount) if self.mount else ()), *words[at + 1 :]]
        network = ("--network", "host")  # the servers of the tests listen on the loopback address only
        self.launch([docker, run, *network, *mounted, *options, image, *arguments], self._engine.client_variables)

    def _configuration(self) -> dict[str, Any]:
        found = super()._configuration()
        del found["http"], found["buffer"]["spill_dir"]  # the image has its own
        return found
