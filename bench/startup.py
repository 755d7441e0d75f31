"""Measures the time from a daemon's start to its first event, and from ``kill -9`` to the first event after the kill.

The measured time ends when a read_committed consumer sees the event.
"""

import time
from collections.abc import Mapping

from bench.latency import ORDERS, first_seen, reader, writer
from bench.results import Starts
from bench.servers import pipeline
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres

RATE = 100
BEFORE_S, AFTER_S = 2, 6
"""The seconds for which rows are written before the kill and after it."""


def measure(postgres: Postgres, kafka: Kafka, variables: Mapping[str, str], runs: int) -> Starts:
    """Return the times of ``runs`` runs in exactly-once mode."""
    found = Starts([], [], [])
    for _ in range(runs):
        with pipeline(postgres, kafka, ORDERS, "exactly_once", variables) as (database, daemon):
            with database.connect() as connection:
                connection.execute(
                    "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [f"pgsluice_{daemon.name}"]
                )
            found.first.append(_start(kafka, database, daemon, 1, "--adopt-slot"))
            daemon.stop_well()
            found.again.append(_start(kafka, database, daemon, 2))
            found.killed.append(_kill(kafka, database, daemon, 3))
    return found


def _start(kafka: Kafka, database: Database, daemon: Daemon, row: int, *arguments: str) -> float:
    """Return the seconds from the daemon's start until a consumer sees a row that was written before the start."""
    with database.connect() as connection, reader(kafka, daemon.name, row, 1) as reading:
        connection.execute(ORDERS.row(row))
        daemon.start(*arguments)
        started = time.monotonic()
        return float(reading.read()["times"][0]) - started


def _kill(kafka: Kafka, database: Database, daemon: Daemon, first: int) -> float:
    """Kill the daemon and immediately start it again.

    Return the seconds from the kill until a consumer sees a row that was committed after the kill.
    """
    count = RATE * (BEFORE_S + AFTER_S)
    with reader(kafka, daemon.name, first, count) as reading, writer(database, RATE, first, count) as writing:
        writing.tell()
        time.sleep(BEFORE_S)
        killed = time.monotonic()
        daemon.kill()
        daemon.start()
        committed = writing.read()["times"]
        seen = reading.read()
    found = first_seen("exactly_once", seen["ids"], seen["times"])
    if len(found) != count:
        raise RuntimeError(f"{count - len(found)} of {count} rows were not seen")
    return min(found[number] for number, at in enumerate(committed, first) if at > killed) - killed
