"""A table of numbers, and the daemon that streams it, for tests of faults that must not change what consumers read.

Every test writes numbered rows, and reads the topic with an ordinary read_committed consumer. Every number must arrive
once and in order.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event
from typing import Any, Protocol
from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from psycopg import Connection, OperationalError

from sandbox.daemon import Daemon
from sandbox.errors import ServerError
from sandbox.kafka import Kafka
from sandbox.postgres import DEFAULT_VERSION, Database, Postgres
from tests.support.kafka import properties

SETTINGS: dict[str, dict[str, Any]] = {
    # Tests wait until the slot moves, which happens with the next status update.
    "postgres": {"status_interval": "200ms"},
    "delivery": {"heartbeat": "500ms"},
    "kafka": {"topics": {"partitions": 1}},
}
PATIENCE_S = 180
"""A time that is much longer than any step takes, even on a busy machine. Only a failing test waits this long."""

BUSY_INTERVAL_S = 0.003
"""The pause between two transactions of a busy server. It limits how much a test has to read and compare."""


class Pipeline:
    """One table of numbers, the daemon that streams it, and the events in its topic."""

    def __init__(self, database: Database, kafka: Kafka, daemon: Daemon) -> None:
        self.database = database
        self.kafka = kafka
        self.daemon = daemon
        self._written = 0

    def write(self, count: int = 10) -> None:
        """Insert the next numbers, each in its own transaction."""
        with self.database.connect() as connection:
            for _ in range(count):
                self._written += 1
                connection.execute("INSERT INTO numbers VALUES (%s)", [self._written])

    def write_at_once(self, count: int, width: int = 0) -> None:
        """Insert the next numbers in one transaction, with ``width`` characters in each row."""
        with self.database.connect() as connection:
            self.write_in(connection, count, width)

    def write_in(self, connection: Connection, count: int, width: int = 0) -> None:
        """Insert the next numbers in one statement. The caller ends the transaction."""
        first, self._written = self._written + 1, self._written + count
        connection.execute(
            "INSERT INTO numbers SELECT n, repeat('x', %s) FROM generate_series(%s::int, %s) AS n",
            [width, first, self._written],
        )

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Insert numbers, each in its own transaction, until the block ends or the server fails."""
        stop = Event()
        with ThreadPoolExecutor(1) as beside:
            writing = beside.submit(self._write_until, stop)
            try:
                yield
            finally:
                stop.set()
            writing.result()

    def _write_until(self, stop: Event) -> None:
        with suppress(OperationalError), self.database.connect() as connection:
            while not stop.wait(BUSY_INTERVAL_S):
                self.write_in(connection, 1)

    def committed(self) -> list[int]:
        """Return the numbers in the table."""
        with self.database.connect() as connection:
            return [n for (n,) in connection.execute("SELECT n FROM numbers ORDER BY n")]

    def expect(self, other: "Pipeline") -> None:
        """Continue after the numbers that ``other``, the pipeline of another daemon on the same table, has written."""
        self._written = other._written

    def assert_complete(self) -> None:
        """Check that every number in the table arrives once and in order, and that nothing else arrives."""
        expected = self.committed()
        assert self.read(len(expected)) == expected

    def read(self, count: int) -> list[int]:
        """Return the numbers in the topic.

        Wait until there are ``count`` numbers, and slightly longer to detect surplus numbers.
        """
        return [change["after"]["n"] for change in self.changes(count)]

    def changes(self, count: int) -> list[dict[str, Any]]:
        topic = f"{self.daemon.name}.public.numbers"
        context = SerializationContext(topic, MessageField.VALUE)
        found: list[dict[str, Any]] = []
        url = self.daemon.settings.get("schema_registry", {}).get("url", self.daemon.url)
        assert url != self.daemon.url or self.daemon.alive, self.daemon.log_text()
        # Some registry servers occasionally do not answer a request. After the timeout, the client retries.
        with SchemaRegistryClient({"url": url, "timeout": 10}) as registry, reading(self.kafka, topic) as consumer:
            deserialize = AvroDeserializer(registry)
            end = time.monotonic() + PATIENCE_S
            while time.monotonic() < end:
                message = consumer.poll(0.2 if len(found) < count else 1.0)
                if message is not None and message.error() is None:
                    found.append(deserialize(message.value(), context))
                elif len(found) >= count:
                    break
        return found

    def wait_for(self, **expected: object) -> None:
        """Wait until the status has the expected values."""

        def reached() -> bool:
            assert self.daemon.alive, self.daemon.log_text()
            return status_if(self.daemon, expected) is not None

        wait_until(reached, f"status {expected}")

    def wait_until_confirmed(self) -> None:
        """Wait until PostgreSQL's slot has confirmed everything that was written so far."""
        with self.database.connect() as connection:
            row = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
            assert row is not None
            sql = "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = %s"
            wait_until(
                lambda: connection.execute(sql, [row[0], self.slot]).fetchone() == (True,), "the slot to move on"
            )

    @property
    def slot(self) -> str:
        return f"pgsluice_{self.daemon.name}"


@contextmanager
def reading(kafka: Kafka, topic: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            **properties(kafka),
            "group.id": uuid4().hex,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        yield consumer
    finally:
        consumer.close()


def status_if(daemon: Daemon, expected: dict[str, object]) -> dict[str, Any] | None:
    try:
        status = daemon.status()
    except ServerError:
        return None
    return status if status.items() >= expected.items() else None


def wait_until(condition: Callable[[], Any], what: str) -> Any:  # noqa: ANN401 - what the condition returned
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {PATIENCE_S} s for {what}"
        time.sleep(0.05)
    return found


class Start(Protocol):
    """Starts a pipeline. This is the type of the ``start`` fixture."""

    def __call__(  # noqa: PLR0913 - each test sets a few of them
        self,
        settings: dict[str, dict[str, Any]] | None = None,
        *,
        broker: Kafka | None = None,
        version: int = DEFAULT_VERSION,
        server: Postgres | None = None,
        database: Database | None = None,
        conninfo: Callable[[Database], str] = Database.conninfo,
        wait: bool = True,
    ) -> Pipeline:
        """Start a pipeline on the shared servers, or on the given broker, server or database.

        The caller must drop ``database`` itself. ``conninfo`` returns the connection string for the daemon.
        """


def configured(settings: Mapping[str, Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """Return ``SETTINGS``, updated with ``settings`` key by key."""
    given = settings or {}
    return {section: {**SETTINGS.get(section, {}), **given.get(section, {})} for section in {**SETTINGS, **given}}


def prepare(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TABLE numbers (n int PRIMARY KEY, filler text)")
        connection.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES")


def fails(pipeline: Pipeline) -> tuple[int, str]:
    """Start a daemon that should stop by itself. Return its exit code, and its log since the start."""
    before = len(pipeline.daemon.log_text())
    pipeline.daemon.start(wait=False)
    return pipeline.daemon.wait(), pipeline.daemon.log_text()[before:]
