"""The daemon as an operator runs it: ``pgsluice run``, a separate process with a configuration file.

    with Daemon("shop", database.conninfo(), kafka.bootstrap_servers) as daemon: print(daemon.status())

All test suites that need a complete pipeline use this module.
"""

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Self

from sandbox.account import current_account
from sandbox.fork_server import fork_server
from sandbox.ports import ReservedPort
from sandbox.process import make_directory, start_script
from sandbox.program import HOST, Program, Role

PROGRAM = ("-m", "pgsluice")


class Daemon(Program):
    """One pipeline. Its directory is removed when the context ends. Its slot and its topics are kept."""

    forks: ClassVar = False
    """Whether ``fork_server.py`` forks the daemons. It never forks daemons whose ``program``, ``interpreter`` or
    ``variables`` differ from the default."""

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
        """Prepare a pipeline. ``name`` is also the prefix of its topics.

        ``settings``, by section, override the settings that this class writes. By default, the daemon does not load
        existing rows, so that a test receives exactly the rows that it writes. A key whose value is None is omitted, so
        the product's default applies. If ``wait_for`` is None, ``start`` does not wait, for example because the daemon
        is expected to fail. If ``at_once`` is true, entering the context starts the daemon.
        """
        self.name = name
        self._wait_for = wait_for
        self._at_once = at_once
        self._conninfo = conninfo
        self._bootstrap_servers = bootstrap_servers
        self.settings = {section: dict(keys) for section, keys in (settings or {}).items()}
        """Settings of the configuration file by section. A change takes effect with the next ``start``."""
        self.program: Sequence[str] = PROGRAM
        """The interpreter's arguments before ``run``. Callers set them to start a variant of ``-m pgsluice``. A change
        takes effect with the next ``start``."""
        self.interpreter = sys.executable
        """The Python interpreter. Callers set it to use another installation. A change takes effect with the next
        ``start``."""
        self.variables: Mapping[str, str] = {}
        """Variables that are added to the environment. A change takes effect with the next ``start``."""
        self._context = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as context:
            port = ReservedPort.any()
            context.callback(port.release)
            directory = make_directory(current_account())
            context.callback(shutil.rmtree, directory)
            self.place(directory, port)
            context.callback(self.end)
            if self._at_once:
                self.start()
            self._context = context.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    @property
    def config_file(self) -> Path:
        """The configuration file, for other commands of pgsluice."""
        return self.directory / "config.toml"

    def start(self, *arguments: str, wait: bool = True) -> None:
        """Start ``pgsluice run`` with additional ``arguments``.

        Wait until the process is ready, unless ``wait`` is false or ``wait_for`` is None.
        """
        self.config_file.write_text(self.configuration())
        command = [self.interpreter, *self.program, "run", "-c", str(self.config_file), *arguments]
        ordinary = self.program == PROGRAM and self.interpreter == sys.executable and not self.variables
        self.launch(command, self.variables, fork_server().start if self.forks and ordinary else start_script)
        if wait and self._wait_for is not None:
            self.wait_until_ready(self._wait_for)

    def restart(self) -> None:
        """Stop the process in an orderly way, then start it."""
        self.stop_well()
        self.start()

    def configuration(self) -> str:
        """Return the content of the configuration file."""
        return _toml(self._configuration())

    def _configuration(self) -> dict[str, Any]:
        given = {
            "postgres": {"dsn": self._conninfo},
            "kafka": {"bootstrap_servers": self._bootstrap_servers, "topic_prefix": self.name},
            "buffer": {"spill_dir": str(self.directory / "spill")},
            "snapshot": {"mode": "never"},
            "http": {"listen": f"{HOST}:{self._port.number}"},
        }
        sections = {name: {**given.get(name, {}), **self.settings.get(name, {})} for name in given | self.settings}
        return {"version": 1, "name": self.name, **sections}


def _toml(settings: Mapping[str, Any]) -> str:
    """Return the TOML file with one table for each section. Deeper tables are written as inline tables."""
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
    return [f"{names[name]} = {_inline(value)}" for name, value in table.items() if value is not None]


def _inline(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_pairs(value)) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value, ensure_ascii=False)  # scalars look the same in JSON and TOML
