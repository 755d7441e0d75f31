"""The daemon as an operator runs it: ``pgsluice run``, a separate process with a configuration file.

    with Daemon("shop", database.conninfo(), kafka.bootstrap_servers) as daemon: print(daemon.status())

All suites that need the whole path use it.
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
    """One pipeline; its directory is gone when the context ends, slot and topics stay."""

    forks: ClassVar = False
    """Whether daemons are forked by ``fork_server.py``, unless their environment or their program is a special one."""

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

        Rows that were there before are not read unless they say so, so that exactly what is written comes out. A key
        that is None is left out, for the default to hold.
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
        self.interpreter = sys.executable
        """The Python that runs it, for an installation of its own; a change counts from the next ``start``."""
        self.variables: Mapping[str, str] = {}
        """What is added to its environment; a change counts from the next ``start``."""
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
        """Start the process; it is ready when this returns, unless it is not to be waited for.

        ``arguments`` follow ``pgsluice run``.
        """
        self.config_file.write_text(self.configuration())
        command = [self.interpreter, *self.program, "run", "-c", str(self.config_file), *arguments]
        ordinary = self.program == PROGRAM and self.interpreter == sys.executable and not self.variables
        self.launch(command, self.variables, fork_server().start if self.forks and ordinary else start_script)
        if wait and self._wait_for is not None:
            self.wait_until_ready(self._wait_for)

    def restart(self) -> None:
        """Stop in good order, then start."""
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
    return [f"{names[name]} = {_inline(value)}" for name, value in table.items() if value is not None]


def _inline(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_pairs(value)) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value, ensure_ascii=False)  # the scalars of both languages look the same
