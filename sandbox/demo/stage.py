"""The servers of the demo, which are fetched, started and stopped together. ``story`` uses this module."""

import re
import shutil
import signal
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

import pyspark

from sandbox.account import current_account, server_account
from sandbox.artifacts import fetch
from sandbox.demo.pipeline import Pgsluice
from sandbox.demo.screen import DIM, Screen
from sandbox.demo.shop import DATABASE
from sandbox.installation import prepare
from sandbox.kafka import Kafka
from sandbox.postgres import DEFAULT_VERSION, Postgres
from sandbox.process import make_directory
from sandbox.spark import jars

LOG_LINES, LOG_WIDTH = 10, 300
"""The number of lines of each log that are shown after a failure, and the length to which they are shortened."""


class Stage:
    """PostgreSQL and Kafka, which run until the context ends, and pgsluice, which is configured but not started."""

    def __init__(self, screen: Screen) -> None:
        """Use ``screen`` for messages. Entering the context starts the servers."""
        self._screen = screen
        self._context = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as context:
            self._fetch()
            self.directory = make_directory(current_account())
            context.callback(shutil.rmtree, self.directory)
            with self._screen.working(f"starting PostgreSQL {DEFAULT_VERSION}"):
                self.postgres = context.enter_context(Postgres(DEFAULT_VERSION))
            with self._screen.working("starting Kafka"):
                self.kafka = context.enter_context(Kafka())
            self.postgres.create_database(DATABASE)
            pgsluice = Pgsluice(self.directory, self.postgres.port, self.kafka.bootstrap_servers)
            self.pgsluice = context.enter_context(pgsluice)
            self._context = context.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the clean-up
        if kind is not None:
            self._print_logs()
        print()
        with self._screen.working("stopping and removing everything"):
            self._context.close()

    def _fetch(self) -> None:
        self._screen.say("Everything that is not in the cache yet is downloaded once.")
        downloads: dict[str, Callable[[], object]] = {
            f"PostgreSQL {DEFAULT_VERSION}, 14 MB": lambda: prepare(DEFAULT_VERSION, server_account()),
            "Kafka, 54 MB": lambda: fetch("kafka"),
            f"jars for Spark {pyspark.__version__}, 23 MB": lambda: jars(pyspark.__version__),
        }
        for name, download in downloads.items():
            with self._screen.working(name):
                download()

    def _print_logs(self) -> None:
        """Print the last lines of the logs before the logs are removed."""
        logs = {"PostgreSQL": self.postgres.log_text(), "Kafka": _problems(self.kafka.log_text())}
        logs |= {file.stem: file.read_text(errors="replace") for file in self.directory.rglob("*.log")}
        for name, text in logs.items():
            self._screen.say(f"\nThe end of the log of {name}:\n\n{_end(text)}", DIM)


def _problems(text: str) -> str:
    """Return only the warnings and errors of Kafka's log."""
    return "\n".join(line for line in text.splitlines() if re.search(r"\] (WARN|ERROR|FATAL) ", line))


def _end(text: str) -> str:
    return "\n".join(line[:LOG_WIDTH] for line in text.splitlines()[-LOG_LINES:])
