"""Measures the latency of one-row transactions that are committed at a fixed rate, and how long a restart takes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.debezium.contenders import Make, Process
from bench.debezium.results import Delay, Restart
from bench.debezium.visible import Topics
from bench.figures import percentile
from bench.latency import ORDERS, milliseconds, reader, writer
from bench.processes import Meter
from bench.servers import delete_topics, drop_slot, new_name, wait_until, walsender
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres

RATE = 1_000
WARM_UP_S = 10
"""Rows of the first seconds are not measured, because Debezium's JVM is still compiling."""
SECONDS = 30

PATIENCE_S = 300.0


@contextmanager
def streaming(postgres: Postgres, kafka: Kafka, make: Make) -> Iterator[tuple[Database, Process, str]]:
    """Yield a database, a process that has delivered its first row, and the slot."""
    name = new_name()
    slot = f"slot_{name}"
    with postgres.database() as database, database.connect() as connection:
        for statement in ORDERS.setup():
            connection.execute(statement)
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        with make(name, database, kafka, slot) as (process, _):
            connection.execute(ORDERS.mark())
            process.first_start()
            topics = Topics(kafka.bootstrap_servers, [f"{name}.public.orders"])
            wait_until(lambda: sum(topics.ends().values()) > 0)
            yield database, process, slot
        drop_slot(connection, slot)
    delete_topics(kafka, name)


def delay(postgres: Postgres, kafka: Kafka, make: Make, scale: float) -> Delay:
    """Return the latency at ``RATE``. Raise RuntimeError if rows are missing or come twice."""
    seconds = max(1, round(SECONDS * scale))
    count = RATE * (WARM_UP_S + seconds)
    with streaming(postgres, kafka, make) as (database, process, slot), database.connect() as connection:
        pids = {"client": process.pid, "walsender": walsender(connection, slot)[0], "broker": kafka.pid()}
        with (
            reader(kafka, process.name, 1, count, PATIENCE_S) as reading,
            writer(database, RATE, 1, count) as writing,
        ):
            meter = Meter(pids)
            writing.tell()
            written, seen = writing.read(), reading.read()
            taken = milliseconds("exactly_once", 1, written["times"], seen)[RATE * WARM_UP_S :]
            lasted = max(seen["times"]) - written["begin"]
            cores = {role: used / lasted for role, used in meter.read().items()}
        process.stop()
    return Delay(RATE, written["rate"], percentile(taken, 50), percentile(taken, 95), percentile(taken, 99), cores)


def restart(postgres: Postgres, kafka: Kafka, make: Make) -> Restart:
    """Write a row while the process is down. Return the seconds until a consumer sees this row.

    There are two measurements. The first is made after an orderly end, and its time begins when the process is started
    again. The second is made after a kill, and its time begins with the kill. The process is then started immediately.
    """
    with streaming(postgres, kafka, make) as (database, process, _):
        process.stop()
        again = _start(kafka, database, process, 1)
        with reader(kafka, process.name, 2, 1, PATIENCE_S) as reading, database.connect() as connection:
            killed = time.monotonic()
            process.kill()
            connection.execute(ORDERS.row(2))
            process.start()
            after_kill = float(reading.read()["times"][0]) - killed
        process.stop()
    return Restart(again, after_kill)


def _start(kafka: Kafka, database: Database, process: Process, row: int) -> float:
    with reader(kafka, process.name, row, 1, PATIENCE_S) as reading, database.connect() as connection:
        connection.execute(ORDERS.row(row))
        started = time.monotonic()
        process.start()
        return float(reading.read()["times"][0]) - started
