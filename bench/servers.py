"""The bench's servers and daemons: their settings, slots, walsenders and topics.

``contenders``, ``latency`` and ``startup`` use this module.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import psycopg
from confluent_kafka.admin import AdminClient

from bench.loads import PUBLICATION, Load
from bench.processes import cpu_seconds
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres

Mode = Literal["exactly_once", "at_least_once"]

SERVER = {
    "max_wal_size": "32GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
    "wal_sender_timeout": "0",  # the drain sends no status updates
}
"""Settings of PostgreSQL that prevent background work during a measurement."""

BROKER = {"log.segment.delete.delay.ms": "1000", "log.index.size.max.bytes": "262144"}
"""Settings of the broker. By default, the index files of a partition are 10 MB long. They are sparse, but some file
systems allocate all of their bytes at the first entry. This would take 12 ms and 7 MB of memory for each partition, and
the bench has thousands of partitions."""

BROKER_JAVA = ("-Xms1g", "-Xmx1g", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4")
"""Java's options for the broker, which override those of ``sandbox.broker``. They are the heap, the collector and the
compiler that Kafka's own scripts choose. The sandbox's options make brokers start fast and small, but serve slowly."""

SLOT = "origin"
"""The slot that is copied for each contender."""

TIMEOUT_S = 600
POLL_S = 0.005

QUIET_SHARE = 0.1
QUIET_WINDOW_S = 0.3
QUIET_TIMEOUT_S = 15.0

_numbers = itertools.count(1)


def broker(settings: Mapping[str, str] = BROKER) -> Kafka:
    """Return the broker of the measurements, which has not been started."""
    return Kafka(settings=settings, java_options=BROKER_JAVA)


def new_name() -> str:
    """Return a pipeline name that has not been used yet."""
    return f"bench{next(_numbers)}"


def daemon(
    name: str, database: Database, kafka: Kafka, mode: Mode, variables: Mapping[str, str], slot: str | None = None
) -> Daemon:
    """Return a daemon that has not been started."""
    settings: dict[str, dict[str, Any]] = {
        "postgres": {"publications": [PUBLICATION], **({"slot": slot} if slot else {})},
        "delivery": {"mode": mode},
        "snapshot": {"mode": "never"},
    }
    servers = kafka.bootstrap_servers
    made = Daemon(name, database.conninfo(), servers, settings, wait_for=None, at_once=False)
    made.variables = variables
    return made


@contextmanager
def pipeline(
    postgres: Postgres, kafka: Kafka, load: Load, mode: Mode, variables: Mapping[str, str]
) -> Iterator[tuple[Database, Daemon]]:
    """Yield a database with the load's tables, and a daemon that has not been started."""
    with postgres.database() as database:
        with database.connect() as connection:
            for statement in load.setup():
                connection.execute(statement)
        with daemon(new_name(), database, kafka, mode, variables) as made:
            yield database, made
            made.end()
        delete_topics(kafka, made.name)


@contextmanager
def copied_slot(connection: psycopg.Connection) -> Iterator[str]:
    """Yield a copy of the original slot, at the same position."""
    name = f"copy_{next(_numbers)}"
    connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", [SLOT, name])
    try:
        yield name
    finally:
        drop_slot(connection, name)


def drop_slot(connection: psycopg.Connection, slot: str) -> None:
    """Drop a slot as soon as no process streams from it."""
    wait_until(lambda: _is_free(connection, slot))
    connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])


def _is_free(connection: psycopg.Connection, slot: str) -> bool:
    found = connection.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", [slot]).fetchone()
    return found == (False,)


def walsender(connection: psycopg.Connection, slot: str) -> tuple[int, float]:
    """Wait for the walsender of ``slot``. Return its pid, and the time at which it was first seen."""
    sql = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s AND active_pid IS NOT NULL"
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        row = connection.execute(sql, [slot]).fetchone()
        if row is not None:
            return int(row[0]), time.monotonic()
        time.sleep(POLL_S)
    raise TimeoutError(f"no process streams from slot {slot}")


def backends(connection: psycopg.Connection) -> list[int]:
    """Return the pids of the backends of all other clients of this database, except walsenders."""
    sql = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' "
        "AND pid <> pg_backend_pid()"
    )
    return [int(pid) for (pid,) in connection.execute(sql)]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` is true."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the bench has waited too long for a condition")
        time.sleep(POLL_S)


def delete_topics(kafka: Kafka, name: str) -> None:
    """Delete the topics of a pipeline, and wait until the broker has removed them."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def left() -> list[str]:
        return [topic for topic in admin.list_topics(timeout=10).topics if topic.startswith(f"{name}.")]

    for deleted in admin.delete_topics(left(), operation_timeout=60).values():
        deleted.result()
    wait_until(lambda: not left())
    _wait_until_quiet(kafka.pid())


def _wait_until_quiet(pid: int) -> None:
    """Wait for a limited time until a process is nearly idle. For example, a broker may still be removing files."""
    deadline = time.monotonic() + QUIET_TIMEOUT_S
    while time.monotonic() < deadline:
        before = cpu_seconds(pid)
        time.sleep(QUIET_WINDOW_S)
        if cpu_seconds(pid) - before < QUIET_SHARE * QUIET_WINDOW_S:
            return
