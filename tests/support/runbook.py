"""The messages that docs/runbook.md and docs/dead-letters.md quote, and scenarios in which real servers produce them.

A scenario makes a pipeline log the message of one row of the runbook. Then it follows the advice of that row. After
that, the pipeline must stream, and an independent reader must find every table row once.
"""

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from threading import Timer
from typing import Any
from unittest.mock import patch

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from pgsluice.app import cli
from tests.support.kafka import TIMEOUT_S, admin, read_committed
from tests.support.weather import PATIENCE_S, Pipeline, Start, wait_until

ROOT = Path(__file__).parents[2]
PAGES = tuple(ROOT / "docs" / name for name in ("runbook.md", "dead-letters.md"))
ANYTHING = "…"
"""In the quoted messages, this stands for a part that depends on the situation."""


@dataclass(frozen=True, slots=True)
class Row:
    """A message that a page quotes, and the exit codes that the page gives for it."""

    message: str
    codes: tuple[int, ...]

    def is_in(self, text: str) -> bool:
        """Return whether a text contains the message. ``…`` in the message matches any text."""
        return re.search(".*".join(map(re.escape, self.message.split(ANYTHING))), text) is not None


@cache
def rows() -> Mapping[str, Row]:
    """Return the messages that the pages quote, in headings and in the first column of tables of messages."""
    found: dict[str, Row] = {}
    for page in PAGES:
        in_messages = False
        for line in page.read_text().splitlines():
            in_messages = line.startswith("| message |") or (in_messages and line.startswith("|"))
            if line.startswith("### ") or in_messages:
                cell = line.split(" | ")[0] if in_messages else line
                codes = tuple(int(code) for code in re.findall(r"\b\d\d\b", cell.rpartition("`")[2]))
                found |= {one: Row(one, codes) for one in re.findall(r"`(.+?)`", cell)}
    return found


class Scene:
    """A pipeline with a table of numbers, and the actions of the pipeline's operator."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.daemon = pipeline.daemon
        self._mark = 0
        self._code: int | None = None
        self._refusals = ""

    @property
    def prefix(self) -> str:
        """The prefix of the topics, which is the pipeline's name unless a scenario has changed it."""
        given = self.daemon.settings.get("kafka", {}).get("topic_prefix", self.daemon.name)
        return str(given)

    def topic(self, name: str) -> str:
        """Return the full name of a topic."""
        return f"{self.prefix}.{name}"

    def begin(self) -> None:
        """Begin a scenario. Everything that the daemon logs from now on belongs to it."""
        self._mark = len(self.daemon.log_text())
        self._code, self._refusals = None, ""

    def said(self) -> str:
        """Return everything that pgsluice has logged since the scenario began, with unescaped quotes."""
        return (self.daemon.log_text()[self._mark :] + self._refusals).replace('\\"', '"')

    def ended(self) -> int:
        """Return the exit code of the daemon's last run.

        If ``start_in_vain`` was not called in this scenario, wait until the daemon ends by itself.
        """
        return self.daemon.wait() if self._code is None else self._code

    def deliver(self, count: int = 3) -> None:
        """Write rows, and wait until they are delivered and confirmed."""
        self.pipeline.write(count)
        self.pipeline.wait_until_confirmed()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the daemon in an orderly way. When the block ends, try to start it. It should refuse to start."""
        self.daemon.stop_well()
        yield
        self.start_in_vain()

    def start_in_vain(self, *arguments: str) -> None:
        """Run ``pgsluice run`` in this process, which takes a tenth of the time of a separate process.

        The command should end by itself. If it does not, it gets SIGTERM after ``PATIENCE_S``, and its exit code is 0.
        """
        self.daemon.config_file.write_text(self.daemon.configuration())
        giving_up = Timer(PATIENCE_S, os.kill, [os.getpid(), signal.SIGTERM])
        giving_up.start()
        try:
            with redirect_stderr(StringIO()) as log, patch.dict(os.environ, self.daemon.variables):
                self._code = self.command("run", *arguments)
            self._refusals += log.getvalue()
        finally:
            giving_up.cancel()

    @contextmanager
    def restarted(self, **settings: Mapping[str, object]) -> Iterator[None]:
        """Restart the daemon with ``settings``, which replace whole sections. The block should make the daemon stop."""
        self.daemon.stop_well()
        self.daemon.settings |= {section: dict(keys) for section, keys in settings.items()}
        self.daemon.start()
        yield

    def execute(self, *statements: str) -> None:
        """Run statements as the superuser, each in its own transaction."""
        with self.pipeline.database.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def command(self, *arguments: str) -> int:
        """Run ``pgsluice`` with the daemon's configuration file. Return the exit code."""
        return cli.main([*arguments, "-c", str(self.daemon.config_file)])

    def adopt(self) -> None:
        """Do what the runbook calls "start a new epoch", and wait until the pipeline streams."""
        self.daemon.start("--adopt-slot")

    def load(self, *tables: str) -> None:
        """Load tables again with the command in the runbook, and check that it succeeds."""
        assert self.command("snapshot", "start", *(tables or ("public.numbers",))) == 0

    def adopt_and_load(self) -> None:
        """Start a new epoch, then load the table again."""
        self.adopt()
        self.load()

    def accept(self) -> None:
        """Do what the runbook calls "accept topics as they are", and wait until the pipeline streams."""
        self.daemon.end()  # a session that fails is retried first, so the process may still run
        variables = self.daemon.variables
        self.daemon.variables = {**variables, "PGSLUICE_KAFKA__TOPICS__CHANGED": "accept"}
        self.daemon.start()
        self.daemon.variables = variables

    def assert_nothing_is_lost(self, table: str = "numbers", column: str = "n") -> None:
        """Check that consumers have every row of the table, and no change twice within an epoch."""
        with self.pipeline.database.connect() as connection:
            committed = {key for (key,) in connection.execute(f"SELECT {column} FROM {table}".encode())}
        self.pipeline.wait_until_confirmed()
        events = self.events(f"public.{table}")
        missing = committed - {one["after"][column] for one in events if one["after"]}
        assert not missing, f"consumers lack {len(missing)} rows, among them {sorted(missing)[:5]}"
        inserted = [(one["epoch"], one["after"][column]) for one in events if one["op"] == "c"]
        assert len(inserted) == len(set(inserted)), "a change came twice"

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events in all partitions of a topic. ``name`` does not include the prefix."""
        topic = self.topic(name)
        context = SerializationContext(topic, MessageField.VALUE)
        partitions = admin(self.pipeline.kafka).list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        url = self.daemon.settings.get("schema_registry", {}).get("url", self.daemon.url)
        with SchemaRegistryClient({"url": url, "timeout": 10}) as registry:
            decode = AvroDeserializer(registry)
            found = [one for number in partitions for one in read_committed(self.pipeline.kafka, topic, number)]
            return [decode(one.value(), context) for one in found if one.value() is not None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """The cause of the message in a row of the runbook, and the row's advice as a function.

    ``cause`` is called when the pipeline streams. It makes the daemon log the message, and stop with the exit code
    ``code``. If ``code`` is None, the daemon continues. ``advice`` is called after that, and must make the pipeline
    stream again.
    """

    message: str
    code: int | None
    cause: Callable[[Scene], object]
    advice: Callable[[Scene], object]
    also: tuple[str, ...] = ()
    """Other rows of the runbook whose messages are also logged."""

    def play(self, scene: Scene) -> None:
        """Check that the daemon logs the message, that the row has the exit code, and that the advice helps."""
        row = rows()[self.message]
        scene.begin()
        self.cause(scene)
        if self.code is None:
            wait_until(lambda: row.is_in(scene.said()) or not scene.daemon.alive, self.message)
        else:
            assert scene.ended() == self.code, scene.said()
        assert row.is_in(scene.said()), scene.said()
        assert self.code is None or row.codes in {(), (self.code,)}, "the runbook gives a different exit code"
        self.advice(scene)
        scene.pipeline.write(3)
        scene.assert_nothing_is_lost()
        assert [one for one in self.also if not rows()[one].is_in(scene.said())] == []


class Stage:
    """Plays several scenarios on one pipeline where possible, so that few daemons have to be started."""

    def __init__(self, start: Start, settings: dict[str, dict[str, Any]] | None = None) -> None:
        self._start = start
        self._settings = settings
        self._scene: Scene | None = None

    def scene(self) -> Scene:
        """Return a new pipeline that streams."""
        return Scene(self._start(self._settings))

    def play(self, scenario: Scenario) -> None:
        """Play a scenario. If it fails or changes the daemon's settings, the next scenario gets a new pipeline."""
        scene = self._scene or self.scene()
        self._scene = None
        before = repr((scene.daemon.settings, scene.daemon.variables))
        scene.deliver()
        scenario.play(scene)
        if before == repr((scene.daemon.settings, scene.daemon.variables)):
            self._scene = scene
        else:
            scene.daemon.end()
