"""How much memory the daemon takes while transactions wait for their commit: ``python -m bench.memory``.

One transaction of some gigabytes, which is streamed, waits on disk, and becomes one Kafka transaction; and many of
some megabytes that are open at once. The resident set is sampled from /proc; the daemon has its default settings.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Self

import psycopg

from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Postgres

MIB = 1024 * 1024
BOUND_MIB = 200
"""What the daemon may take, with default settings."""

ROW_BYTES = 1000
SAMPLE_S = 0.1
TIMEOUT_S = 3600

SERVER = {"logical_decoding_work_mem": "64kB", "max_connections": "300", "max_wal_size": "4GB"}
BROKER = {"log.retention.ms": "-1", "log.segment.bytes": str(256 * MIB)}

FILL = "INSERT INTO wide SELECT g, repeat(md5(g::text), {times}) FROM generate_series({first}, {last}) g"


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds until the last commit, and until all of it was in Kafka; MiB at most."""

    written_s: float
    delivered_s: float
    resident_mib: float
    spilled_mib: float


class Sampler:
    """Watches the daemon in a thread of its own."""

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
    """Write one transaction of this size."""
    rows = int(gigabytes * 1024 * MIB / ROW_BYTES)
    with postgres.connect() as connection:
        connection.execute(_fill(1, rows))


def many_open(postgres: Postgres, transactions: int, megabytes: float) -> None:
    """Write transactions of this size side by side, and commit them when all of them are open."""
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


def measure(name: str, work: Callable[[Postgres], None]) -> Figures:
    """Run ``work`` on servers of its own, and watch the daemon until everything is delivered."""
    with Postgres(settings=SERVER) as postgres, Kafka(settings=BROKER) as kafka, postgres.connect() as connection:
        connection.execute("CREATE TABLE wide (id bigint PRIMARY KEY, v text)")
        connection.execute("ALTER TABLE wide ALTER v SET STORAGE PLAIN")
        connection.execute("CREATE PUBLICATION pgsluice FOR TABLE wide")
        with Daemon(name, postgres.conninfo(), kafka.bootstrap_servers) as daemon, Sampler(daemon) as sampler:
            started = time.perf_counter()
            work(postgres)
            written = time.perf_counter() - started
            _wait_until_confirmed(connection, f"pgsluice_{name}")
            delivered = time.perf_counter() - started
    return Figures(written, delivered, sampler.resident_kib / 1024, sampler.spilled / MIB)


def _wait_until_confirmed(connection: psycopg.Connection, slot: str) -> None:
    row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    assert row is not None
    sql = "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = %s"
    end = time.monotonic() + TIMEOUT_S
    while connection.execute(sql, [row[0], slot]).fetchone() != (True,):
        if time.monotonic() > end:
            raise TimeoutError("not everything was delivered")
        time.sleep(SAMPLE_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both loads and print what was seen; 1 when the bound was not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=5.0, help="size of the large transaction")
    parser.add_argument("--transactions", type=int, default=200, help="how many are open at once")
    parser.add_argument("--megabytes", type=float, default=20.0, help="size of each of them")
    options = parser.parse_args(arguments)
    loads = {
        f"one of {options.gigabytes:g} GB": lambda server: one_large(server, options.gigabytes),
        f"{options.transactions} of {options.megabytes:g} MB": lambda server: many_open(
            server, options.transactions, options.megabytes
        ),
    }
    print(f"{'load':<20}{'written s':>10}{'delivered s':>13}{'RSS MiB':>9}{'spilled MiB':>13}")
    kept = True
    for number, (load, work) in enumerate(loads.items()):
        found = measure(f"memory{number}", work)
        kept &= found.resident_mib <= BOUND_MIB
        print(
            f"{load:<20}{found.written_s:>10.0f}{found.delivered_s:>13.0f}{found.resident_mib:>9.0f}"
            f"{found.spilled_mib:>13.0f}",
            flush=True,
        )
    print(f"bound: {BOUND_MIB} MiB, {'kept' if kept else 'NOT kept'}")
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
