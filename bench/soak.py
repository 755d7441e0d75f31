"""``python -m bench.soak --minutes 60``: tests whether a busy daemon leaks memory or other resources.

The work is mixed. There are transactions of different sizes, and a table that is altered, dropped and created again.
``pgsluice snapshot start`` loads another table. Connections are terminated, and the broker restarts. Meanwhile the
daemon's memory, threads, file descriptors and asyncio tasks are sampled. The run fails if one of these resources has
grown from the first third of the samples to the last third.
"""

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from sandbox.daemon import Daemon
from sandbox.errors import SandboxError
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres

WARM_UP_SHARE = 0.2
"""The share of the run at its beginning in which samples are ignored, because buffers and caches are still filling."""

ALLOWED: Mapping[str, tuple[float, float]] = {
    "resident_kib": (1.10, 8 * 1024),
    "threads": (1.0, 2),
    "descriptors": (1.0, 8),
    "tasks": (1.0, 3),
}
"""The allowed growth of each resource: a factor and a number to add. The median of the last third may be at most the
median of the first third, multiplied by the factor, plus the number. Some growth is allowed because sessions begin and
end."""

CUT_EVERY, RESTART_EVERY, LOAD_EVERY, ALTER_EVERY = 40, 400, 100, 10
"""The number of rounds of work between two disturbances of the same kind. CUT: the daemon's connection is terminated.
RESTART: the broker restarts. LOAD: a table is loaded. ALTER: a table is altered."""

DELIVERY_TIMEOUT_S = 600
SAMPLES_MIN = 9
COLUMNS_MAX = 30
"""After ``COLUMNS_MAX`` alterations, the table is dropped and created again, because the daemon remembers all columns
that a table has ever had."""

SETTINGS: dict[str, dict[str, Any]] = {
    "postgres": {"status_interval": "1s"},
    "delivery": {"heartbeat": "1s"},
    "snapshot": {"mode": "initial"},
    "kafka": {"topics": {"partitions": 1}},
}


@dataclass(frozen=True, slots=True)
class Sample:
    """The daemon's resources at one moment."""

    resident_kib: int
    threads: int
    descriptors: int
    tasks: int


def sample(pid: int, tasks: Path) -> Sample | None:
    """Return the resources of the process, or None if the number of its tasks is not available."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    counted = tasks.read_text() if tasks.exists() else ""
    if not counted:  # the daemon has not written the file yet, or is writing it
        return None
    resident, threads = (int(fields[name].split()[0]) for name in ("VmRSS", "Threads"))
    return Sample(resident, threads, len(list(Path(f"/proc/{pid}/fd").iterdir())), int(counted))


def growth(samples: Sequence[Sample]) -> list[str]:
    """Return a line for each resource that has grown from the first third of ``samples`` to the last third."""
    third = len(samples) // 3
    first, last = samples[:third], samples[-third:]
    found = []
    for name, (factor, more) in ALLOWED.items():
        before, after = (median(asdict(one)[name] for one in some) for some in (first, last))
        print(f"{name}: {before:.0f} in the first third, {after:.0f} in the last", flush=True)
        if after > before * factor + more:
            found.append(f"{name} has grown from {before:.0f} to {after:.0f}")
    return found


def _prepare(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, note text)")
        connection.execute("CREATE TABLE altered (id bigserial PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES")


def _work(connection: psycopg.Connection, number: int) -> None:
    """Run a round of transactions: several small ones, one of 2000 rows, and one that is rolled back."""
    for _ in range(20):
        connection.execute("INSERT INTO orders (note) VALUES (repeat('x', 200))")
    with connection.transaction():
        connection.execute("INSERT INTO orders (note) SELECT md5(n::text) FROM generate_series(1, 2000) n")
    with connection.transaction(force_rollback=True):
        connection.execute("UPDATE orders SET note = 'never'")
    connection.execute("INSERT INTO altered DEFAULT VALUES")
    connection.execute("DELETE FROM orders WHERE id < (SELECT max(id) - 20000 FROM orders)")
    if number % ALTER_EVERY == 0:
        _alter(connection, number // ALTER_EVERY)


def _alter(connection: psycopg.Connection, number: int) -> None:
    connection.execute(f"ALTER TABLE altered ADD c{number % COLUMNS_MAX} int DEFAULT 1")
    if number % COLUMNS_MAX == COLUMNS_MAX - 1:
        connection.execute("DROP TABLE altered")
        connection.execute("CREATE TABLE altered (id bigserial PRIMARY KEY)")


def _disturb(connection: psycopg.Connection, kafka: Kafka, daemon: Daemon, number: int) -> None:
    if number % CUT_EVERY == 0:
        connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
    if number % RESTART_EVERY == 0:
        kafka.stop()
        kafka.start()
    if number % LOAD_EVERY == 0:
        command = [
            sys.executable,
            "-m",
            "pgsluice",
            "snapshot",
            "start",
            "-c",
            str(daemon.config_file),
            "public.orders",
        ]
        with suppress(subprocess.TimeoutExpired):  # the command waits for the daemon's answer, which may come too late
            subprocess.run(command, timeout=60, capture_output=True, check=False)


def _soak(minutes: float) -> list[Sample]:
    with ExitStack() as stack:
        postgres, kafka = stack.enter_context(Postgres()), stack.enter_context(Kafka())
        database = stack.enter_context(postgres.database())
        _prepare(database)
        daemon = Daemon("soak", database.conninfo(), kafka.bootstrap_servers, SETTINGS, at_once=False)
        stack.enter_context(daemon)
        tasks = daemon.directory / "tasks"
        daemon.program, daemon.variables = (str(Path(__file__).with_name("soaked.py")),), {"SOAK_TASKS": str(tasks)}
        daemon.start()
        connection = stack.enter_context(database.connect())
        found = list(_samples(connection, kafka, daemon, tasks, minutes * 60))
        _wait_until_delivered(connection, daemon)
        daemon.stop_well()
        return found


def _samples(
    connection: psycopg.Connection, kafka: Kafka, daemon: Daemon, tasks: Path, seconds: float
) -> Iterator[Sample]:
    """Run rounds of work for ``seconds`` seconds, and yield a sample after each round that follows the warm-up."""
    begin = time.monotonic()
    for number in itertools.count(1):
        _work(connection, number)
        _disturb(connection, kafka, daemon, number)
        found = sample(daemon.pid, tasks)
        if found is not None and time.monotonic() > begin + seconds * WARM_UP_SHARE:
            yield found
        if time.monotonic() > begin + seconds:
            print(f"{number} rounds", flush=True)
            return


def _wait_until_delivered(connection: psycopg.Connection, daemon: Daemon) -> None:
    (end,) = connection.execute("SELECT pg_current_wal_lsn()").fetchone() or ("0/0",)
    query = "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = %s"
    slot = f"pgsluice_{daemon.name}"
    daemon.wait_until(lambda: connection.execute(query, [end, slot]).fetchone() == (True,), DELIVERY_TIMEOUT_S)


def main() -> int:
    """Run the soak test. Return exit code 1 if a resource has grown, a program has failed, or samples are missing."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak", description="Find out whether a busy daemon leaks memory or other resources."
    )
    parser.add_argument("--minutes", type=float, default=60)
    options = parser.parse_args()
    try:
        samples = _soak(options.minutes)
    except SandboxError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    if len(samples) < SAMPLES_MIN:
        print(f"only {len(samples)} samples: run the test for longer", file=sys.stderr)
        return 1
    grown = growth(samples)
    print(*(grown or [f"nothing has grown in {len(samples)} samples"]), sep="\n")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
