"""How fast the daemon is, beside a client that only drains the same WAL: ``python -m bench``.

One slot's WAL is copied for each contender, and all run one after the other on one machine. Absolute figures say
something about the machine; the ratio to the bare drain says something about pgsluice.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from select import select

import psycopg
from psycopg import pq

from pgsluice.lsn import parse_lsn
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Postgres

SLOT = "origin"
OPTIONS = "(proto_version '4', publication_names 'pgsluice')"

TABLE = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer int, amount numeric(10,2), status text, note text,
    quantity int, placed timestamptz, day date, paid boolean, tag uuid
)"""
ROWS = """
INSERT INTO orders SELECT g, g % 1000, g % 10000 / 100.0, 'status ' || g % 5, repeat('note ', 8),
    g % 50, now(), current_date, g % 2 = 0, md5(g::text)::uuid
FROM generate_series({first}, {last}) g"""


@dataclass(frozen=True, slots=True)
class Load:
    """``rows`` row changes in transactions of ``per_transaction`` rows."""

    name: str
    rows: int
    per_transaction: int

    def run(self, connection: psycopg.Connection) -> None:
        """Write the rows into the WAL."""
        per = self.per_transaction
        script = "DO $$ BEGIN FOR i IN 0..{last} LOOP {insert}; COMMIT; END LOOP; END $$"
        insert = ROWS.format(first=f"i * {per} + 1", last=f"(i + 1) * {per}")
        connection.execute(script.format(last=self.rows // per - 1, insert=insert))


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds from the first byte to the last, and the CPU seconds of the processes that took part."""

    seconds: float
    cpu: dict[str, float]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, all its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def copied_slot(connection: psycopg.Connection, name: str) -> Iterator[str]:
    """Give a slot that stands where the original stands."""
    connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", [SLOT, name])
    try:
        yield name
    finally:
        connection.execute("SELECT pg_drop_replication_slot(%s)", [name])


def walsender_pid(connection: psycopg.Connection, slot: str) -> int:
    """Return the server's process that streams from ``slot``."""
    while True:
        row = connection.execute(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s AND active_pid IS NOT NULL", [slot]
        ).fetchone()
        if row is not None:
            return int(row[0])
        time.sleep(0.005)


def drain(postgres: Postgres, connection: psycopg.Connection, end_lsn: int) -> Result:
    """Read everything and look at nothing but the end of the transactions."""
    with copied_slot(connection, "drain") as slot:
        wire = pq.PGconn.connect(postgres.conninfo(replication="database").encode())
        wire.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 {OPTIONS}".encode())
        sender = walsender_pid(connection, slot)
        before, started = (time.process_time(), cpu_seconds(sender)), time.perf_counter()
        _read_until(wire, end_lsn)
        seconds = time.perf_counter() - started
        cpu = {"client": time.process_time() - before[0], "walsender": cpu_seconds(sender) - before[1]}
        wire.finish()
        _wait_until(lambda: _is_free(connection, slot))
    return Result(seconds, cpu)


def _read_until(wire: pq.abc.PGconn, end_lsn: int) -> None:
    get_copy_data = wire.get_copy_data
    while True:
        size, data = get_copy_data(1)
        if size == 0:
            select([wire.socket], [], [])
            wire.consume_input()
        elif data[0] == 0x77 and data[25] == 0x43 and int.from_bytes(data[35:43], "big") >= end_lsn:
            return


def daemon(postgres: Postgres, connection: psycopg.Connection, kafka: Kafka, end_lsn: int, name: str) -> Result:
    """Deliver everything exactly once; from the slot's first byte to the last cut's commit."""
    with copied_slot(connection, f"pgsluice_{name}") as slot:
        process = Daemon(name, postgres.conninfo(), kafka.bootstrap_servers, wait_for=None)
        with process:
            process.stop()
            process.start("--adopt-slot")
            sender = walsender_pid(connection, slot)
            started = time.perf_counter()
            pids = {"daemon": process.pid, "walsender": sender, "broker": kafka.pid()}
            before = {role: cpu_seconds(pid) for role, pid in pids.items()}
            _wait_until(lambda: _delivered(process) >= end_lsn)
            seconds = time.perf_counter() - started
            cpu = {role: cpu_seconds(pid) - before[role] for role, pid in pids.items()}
            process.stop()
        _wait_until(lambda: _is_free(connection, slot))
    return Result(seconds, cpu)


def _delivered(process: Daemon) -> int:
    status = process.status() if process.alive else {}
    return parse_lsn(str(status.get("delivered_lsn", "0/0")))


def _is_free(connection: psycopg.Connection, slot: str) -> bool:
    found = connection.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", [slot]).fetchone()
    return found == (False,)


def _wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)


def report(load: Load, contender: str, results: Sequence[Result], drained: float) -> None:
    """Print one line: median (min, max) of events per second, the ratio, CPU per event."""
    rates = sorted(load.rows / result.seconds for result in results)
    median = statistics.median(rates)
    cpu = {role: statistics.median(result.cpu[role] for result in results) / load.rows * 1e6 for role in results[0].cpu}
    shares = "  ".join(f"{role} {value:.1f} µs" for role, value in cpu.items())
    print(
        f"{load.name:<22} {contender:<12} {median:>9,.0f}/s ({rates[0]:,.0f} to {rates[-1]:,.0f})"
        f"  x{median / drained:.2f} of drain   CPU per event: {shares}"
    )


def main() -> None:
    """Run every load and print a table."""
    parser = argparse.ArgumentParser(description="Events per second of a bare drain and of the daemon.")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    loads = [Load("20-row transactions", options.rows, 20), Load("1-row transactions", options.rows // 4, 1)]
    with Postgres(17, {"max_wal_size": "8GB"}) as postgres, Kafka() as kafka, postgres.connect() as connection:
        connection.execute(TABLE)
        connection.execute("CREATE PUBLICATION pgsluice FOR TABLE orders")
        for number, load in enumerate(loads):
            connection.execute("TRUNCATE orders")
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
            load.run(connection)
            end_lsn = _last_commit(connection)
            drained = [drain(postgres, connection, end_lsn) for _ in range(options.runs)]
            delivered = [
                daemon(postgres, connection, kafka, end_lsn, f"bench{number}_{run}") for run in range(options.runs)
            ]
            base = statistics.median(load.rows / result.seconds for result in drained)
            report(load, "bare drain", drained, base)
            report(load, "exactly once", delivered, base)
            connection.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])


def _last_commit(connection: psycopg.Connection) -> int:
    """Write one more row and return a position at or before the end of its commit."""
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    connection.execute(ROWS.format(first=-1, last=-1))
    return parse_lsn(row[0])


if __name__ == "__main__":
    main()
