"""Measures the latency from COMMIT to a read_committed consumer, for one-row transactions at a fixed rate.

Writer and reader are separate processes. Both use CLOCK_MONOTONIC, which is the same for all processes of a machine.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bench.contenders import count_events
from bench.figures import percentile
from bench.loads import MARK_ID, ORDERS_COLUMNS, Load, columns
from bench.processes import Child, Meter
from bench.reader import PATIENCE_S
from bench.results import Latency
from bench.servers import Mode, pipeline, walsender
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres

SECONDS_AT = {100: 20, 1_000: 15, 5_000: 15}
"""Maps the number of transactions per second to the duration of the measurement in seconds."""

CONNECTIONS = 4
WARM_UP_S = 2
"""Rows of the first seconds are not measured, because connections are being made, and caches are still filling."""

ORDERS = Load("latency", "", 1, 1, columns(ORDERS_COLUMNS))

LOADING_RATE = 100
BESIDE = replace(ORDERS, tables=2)
LOADED_TABLE = "orders_1"
LOADED_PER_S = 200_000
"""A rate that the daemon does not reach. The table gets enough rows for this rate, so the load of the table outlasts
the measurement."""
START_S = 3
"""An allowance for the seconds between the start of the load and the first row that the writer writes."""


def measure(
    postgres: Postgres, kafka: Kafka, mode: Mode, variables: Mapping[str, str], seconds_at: Mapping[int, int]
) -> Iterator[Latency]:
    """Yield the latency at each rate, one after the other, with one daemon for all rates."""
    with pipeline(postgres, kafka, ORDERS, mode, variables) as (database, daemon):
        pids = _start(kafka, database, daemon)
        begin = 1
        for rate, seconds in seconds_at.items():
            yield _at_rate(kafka, database, daemon, pids, mode, rate, seconds, begin)
            begin += rate * (WARM_UP_S + seconds)


def measure_loading(
    postgres: Postgres, kafka: Kafka, variables: Mapping[str, str], scale: float
) -> tuple[Latency, float]:
    """Return the latency while another table is loaded, and the number of rows loaded from that table per second.

    Raise RuntimeError if the load ended before all latencies were measured.
    """
    seconds = max(1, round(SECONDS_AT[LOADING_RATE] * scale))
    rows = LOADED_PER_S * (START_S + WARM_UP_S + seconds)
    with pipeline(postgres, kafka, BESIDE, "exactly_once", variables) as (database, daemon):
        daemon.settings["snapshot"] = {"mode": "initial"}
        with database.connect() as connection:
            connection.execute(BESIDE.fill(LOADED_TABLE, rows))
        pids = _start(kafka, database, daemon)
        before, started = count_events(daemon.metrics()), time.monotonic()
        found = _at_rate(kafka, database, daemon, pids, "exactly_once", LOADING_RATE, seconds, 1)
        loaded = count_events(daemon.metrics()) - before - found.rows
        lasted = time.monotonic() - started
        if daemon.status()["snapshot"]["tables"]["loaded"] > 1:
            raise RuntimeError(f"{rows:,} rows were loaded before all latencies were measured: raise LOADED_PER_S")
    return found, loaded / lasted


def _start(kafka: Kafka, database: Database, daemon: Daemon) -> Mapping[str, int]:
    """Start the daemon, and wait until it has delivered a row. Return the pids by role."""
    daemon.start()
    daemon.wait_until_ready()
    with database.connect() as connection, reader(kafka, daemon.name, MARK_ID, 1) as first:
        slot = daemon.status()["slot"]
        pids = {"client": daemon.pid, "walsender": walsender(connection, slot)[0], "broker": kafka.pid()}
        connection.execute(ORDERS.mark())
        first.read()  # when the row has arrived, the topic exists
    return pids


def _at_rate(  # noqa: PLR0913, PLR0917 - all are needed
    kafka: Kafka,
    database: Database,
    daemon: Daemon,
    pids: Mapping[str, int],
    mode: Mode,
    rate: int,
    seconds: int,
    begin: int,
) -> Latency:
    """Return the latency at ``rate`` rows per second, measured for ``seconds`` seconds. The first id is ``begin``."""
    count = rate * (WARM_UP_S + seconds)
    with reader(kafka, daemon.name, begin, count) as reading, writer(database, rate, begin, count) as writing:
        meter = Meter(pids)
        writing.tell()
        written, seen = writing.read(), reading.read()
        taken = milliseconds(mode, begin, written["times"], seen)[rate * WARM_UP_S :]
        lasted = max(seen["times"]) - written["begin"]
        cores = {role: used / lasted for role, used in meter.read().items()}
    return Latency(
        mode,
        rate,
        written["rate"],
        len(taken),
        percentile(taken, 50),
        percentile(taken, 95),
        percentile(taken, 99),
        max(taken),
        cores,
    )


def reader(kafka: Kafka, prefix: str, first: int, count: int, patience_s: float = PATIENCE_S) -> Child:
    """Return a child that is ready to read ``count`` rows of orders with ids from ``first`` on.

    The child stops reading if no record has arrived for ``patience_s``.
    """
    arguments = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "topic": f"{prefix}.public.orders",
        "first": first,
        "count": count,
        "patience_s": patience_s,
    }
    child = Child("bench.reader", arguments)
    child.read()
    return child


def writer(database: Database, rate: float, first: int, count: int) -> Child:
    """Return a child that writes ``count`` rows with ids from ``first`` on, as soon as it receives a line."""
    arguments = {"conninfo": database.conninfo(), "rate": rate, "first": first, "count": count}
    child = Child("bench.writer", {**arguments, "connections": CONNECTIONS})
    child.read()
    return child


def first_seen(mode: Mode, ids: Sequence[int], times: Sequence[float]) -> dict[int, float]:
    """Return the time at which each row was first seen.

    In exactly-once mode, raise RuntimeError if a row came twice.
    """
    repeated = [number for number, times_seen in Counter(ids).items() if times_seen > 1]
    if repeated and mode == "exactly_once":
        raise RuntimeError(f"{len(repeated)} rows were seen more than once, among them {repeated[0]}")
    return dict(zip(reversed(ids), reversed(times), strict=True))


def milliseconds(mode: Mode, first: int, committed: Sequence[float], seen: Mapping[str, list[float]]) -> list[float]:
    """Return the latency of each row in the order of the ids. Raise RuntimeError if a row was not seen."""
    found = first_seen(mode, [round(number) for number in seen["ids"]], seen["times"])
    missing = len(committed) - len(found)
    if missing:
        raise RuntimeError(f"{missing} of {len(committed)} rows were not seen")
    return [(found[number] - at) * 1000 for number, at in enumerate(committed, first)]
