"""The daemon in a container. It is started with Docker's client, as an operator would start it."""

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
    """Return the words of the ``docker run`` command in README.md."""
    (line,) = re.findall(r"^docker run .*(?:\\\n.*)*", (ROOT / "README.md").read_text(), re.MULTILINE)
    return shlex.split(line)


class Container(Daemon):
    """A daemon in a container. Docker's client passes signals to the daemon, and exits with the daemon's exit code."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        database: Database,
        kafka: Kafka,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Prepare a pipeline with its own port. Each start creates a container with a new name."""
        super().__init__(name, database.conninfo(), kafka.bootstrap_servers, settings, at_once=False)
        self._engine = engine
        self._starts = 0
        self.options: Sequence[str] = ()
        """Additional options of ``docker run``. A change takes effect at the next start."""
        self.mount: str | None = _CONFIGURATION
        """The mount of the configuration, or None if there is none. A change takes effect at the next start."""
        self.secrets: Mapping[str, str] = {}
        """The files in the directory of secrets. A change takes effect at the next start."""

    @property
    def container(self) -> str:
        """The name of the most recently started container."""
        return f"{self.name}-{self._port.number}-{self._starts}"

    @property
    def listen(self) -> str:
        """The address on which the daemon listens."""
        return f"{HOST}:{self._port.number}"

    def start(self, *arguments: str, wait: bool = True) -> None:
        """Start a new container. ``arguments`` follow the image's name on the command line."""
        self.write_configuration()
        self._starts += 1
        own = ("--name", self.container, "--env", f"PGSLUICE_HTTP__LISTEN={self.listen}", *self.options)
        self._launch(own, arguments)
        if wait:
            self.wait_until_ready("active")

    def start_as_documented(self) -> None:
        """Start a container with the command in README.md, and add only a name and the network of the host.

        The daemon listens on port 8080 of all addresses.
        """
        self.write_configuration()
        self._starts += 1
        self._launch(("--name", self.container), ())

    def fail(self) -> tuple[int, str]:
        """Start a container that should end by itself. Return its exit code, and the reason from its log."""
        self.start(wait=False)
        return self.wait(), self.why_it_stopped()

    def exec(self, *command: str) -> str:
        """Run a command in the container, and return its output."""
        return self._engine.podman("exec", self.container, *command)

    def kill(self) -> None:
        """Kill the daemon in the container with SIGKILL."""
        if self.alive:
            self._engine.podman("kill", "--signal", "KILL", self.container)
        self.wait()

    def write_configuration(self) -> None:
        """Write the files that are mounted into the container.

        All users may read the configuration. Only the daemon may read the secrets.
        """
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
        network = ("--network", "host")  # the servers of the tests listen only on the loopback address
        self.launch([docker, run, *network, *mounted, *options, image, *arguments], self._engine.client_variables)

    def _configuration(self) -> dict[str, Any]:
        found = super()._configuration()
        del found["http"], found["buffer"]["spill_dir"]  # the image sets these
        return found
