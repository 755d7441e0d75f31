"""Measures how much memory the daemon uses while transactions wait for their commit.

There are two loads. One is a single transaction of several gigabytes, which is streamed, waits on disk, and becomes one
Kafka transaction. The other has many transactions of several megabytes each, which are open at the same time. The
resident set is sampled from /proc. The daemon has its default settings.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import Self

import psycopg

from bench.results import Waiting
from bench.servers import broker
from sandbox.daemon import Daemon
from sandbox.postgres import Postgres

MIB = 1024 * 1024

GIGABYTES = 5.0
"""The size of the large transaction."""
TRANSACTIONS, MEGABYTES = 200, 20.0
"""The number of transactions that are open at the same time, and the size of each."""

ROW_BYTES = 1000
SAMPLE_S = 0.1
TIMEOUT_S = 3600

SERVER = {"logical_decoding_work_mem": "64kB", "max_connections": "300", "max_wal_size": "4GB"}
BROKER = {"log.retention.ms": "-1", "log.segment.bytes": str(256 * MIB)}

FILL = "INSERT INTO wide SELECT g, repeat(md5(g::text), {times}) FROM generate_series({first}, {last}) g"


class Sampler:
    """Samples the daemon's memory and its rows on disk in a separate thread, and keeps the greatest values."""

    def __init__(self, daemon: Daemon) -> None:
        self.resident_kib = 0
        self.spilled = 0.0
        self._daemon = daemon
        self._done = Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            status = Path(f"/proc/{self._daemon.pid}/status").read_text()
            (resident,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))
            self.resident_kib = max(self.resident_kib, int(resident))
            self.spilled = max(self.spilled, self._daemon.status().get("waiting_bytes", {}).get("disk", 0))


def one_large(postgres: Postgres, gigabytes: float) -> None:
    """Write one transaction with the size ``gigabytes``."""
    rows = int(gigabytes * 1024 * MIB / ROW_BYTES)
    with postgres.connect() as connection:
        connection.execute(_fill(1, rows))


def many_open(postgres: Postgres, transactions: int, megabytes: float) -> None:
    """Write one piece of each transaction, then the next piece of each, and so on. Commit all transactions at the end.

    In this way, all transactions are open at the same time.
    """
    rows = int(megabytes * MIB / ROW_BYTES)
    pieces = 10
    with ExitStack() as stack:
        connections = [stack.enter_context(postgres.connect()) for _ in range(transactions)]
        for connection in connections:
            connection.execute("BEGIN")
        for piece in range(pieces):
            for number, connection in enumerate(connections):
                first = number * rows + piece * rows // pieces + 1
                connection.execute(_fill(first, number * rows + (piece + 1) * rows // pieces))
        for connection in connections:
            connection.execute("COMMIT")


def _fill(first: int, last: int) -> str:
    return FILL.format(times=ROW_BYTES // 32, first=first, last=last)


def measure(version: int, variables: Mapping[str, str], scale: float) -> Iterator[tuple[str, Waiting]]:
    """Yield the name and the result of each load. The sizes are multiplied by ``scale``."""
    gigabytes, megabytes = GIGABYTES * scale, MEGABYTES * scale
    yield f"one of {gigabytes:g} GB", _watch(version, variables, lambda server: one_large(server, gigabytes))
    yield (
        f"{TRANSACTIONS} of {megabytes:g} MB, open at once",
        _watch(version, variables, lambda server: many_open(server, TRANSACTIONS, megabytes)),
    )


def _watch(version: int, variables: Mapping[str, str], work: Callable[[Postgres], None]) -> Waiting:
    """Run ``work`` on new servers, and sample the daemon until everything has been delivered."""
    with Postgres(version, SERVER) as postgres, broker(BROKER) as kafka, postgres.connect() as connection:
        connection.execute("CREATE TABLE wide (id bigint PRIMARY KEY, v text)")
        connection.execute("ALTER TABLE wide ALTER v SET STORAGE PLAIN")
        connection.execute("CREATE PUBLICATION pgsluice FOR TABLE wide")
        made = Daemon("memory", postgres.conninfo(), kafka.bootstrap_servers, at_once=False)
        made.variables = variables
        with made as daemon:
            daemon.start()
            with Sampler(daemon) as sampler:
                started = time.perf_counter()
                work(postgres)
                written = time.perf_counter() - started
                _wait_until_confirmed(connection, f"pgsluice_{daemon.name}")
                delivered = time.perf_counter() - started
    return Waiting(written, delivered, sampler.resident_kib / 1024, sampler.spilled / MIB)


def _wait_until_confirmed(connection: psycopg.Connection, slot: str) -> None:
    row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    assert row is not None
    sql = "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = %s"
    end = time.monotonic() + TIMEOUT_S
    while connection.execute(sql, [row[0], slot]).fetchone() != (True,):
        if time.monotonic() > end:
            raise TimeoutError("not everything was delivered")
        time.sleep(SAMPLE_S)
