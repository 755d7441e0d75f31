"""Who reads a load: the bare drain, pg_recvlogical, and the daemon in its variants, each from a copy of one slot.

The clock starts when the walsender does, and stops when the last commit has been delivered.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import psycopg
from confluent_kafka.admin import AdminClient

from bench.loads import PUBLICATION
from bench.processes import ROOT, Child, Meter, cpu_seconds, peak_mib
from bench.results import DRAIN, Part, Run
from pgsluice.lsn import parse_lsn
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database

SLOT = "origin"
OPTIONS = {"proto_version": "4", "publication_names": PUBLICATION, "streaming": "on"}
"""What the daemon asks of pgoutput when nothing else is configured."""

TIMEOUT_S = 600
POLL_S = 0.005
LEAST_PAUSE_S, GREATEST_PAUSE_S = 0.01, 0.25

QUIET_SHARE = 0.1
QUIET_WINDOW_S = 0.3
QUIET_TIMEOUT_S = 15.0

_numbers = itertools.count(1)

Mode = Literal["exactly_once", "at_least_once"]


@dataclass(frozen=True, slots=True)
class Course:
    """A load that stands in the WAL, behind its opening: positions, and how many row changes there are.

    ``opening_lsn`` and ``end_lsn`` are passed by one commit each: that of the opening, and that of the mark.
    """

    database: Database
    connection: psycopg.Connection
    kafka: Kafka
    rows: int
    extra_rows: int
    """The opening, and the mark behind the end."""
    start_lsn: int
    opening_lsn: int
    opened_lsn: int
    """Where the opening ends."""
    end_lsn: int

    def rows_at(self, lsn: int) -> float:
        """Return how many of the rows lie before ``lsn``; their bytes are spread evenly."""
        share = (lsn - self.opened_lsn) / (self.end_lsn - self.opened_lsn)
        return self.rows * min(max(share, 0.0), 1.0)


class Contender(Protocol):
    """One that runs the course."""

    @property
    def name(self) -> str:
        """What the report calls it."""

    def run(self, course: Course) -> Run:
        """Read it all, once."""


@dataclass(frozen=True, slots=True)
class Drain:
    """A client of libpq that does nothing with what it receives."""

    name: str = DRAIN

    def run(self, course: Course) -> Run:
        """Read it all, once."""
        return self.measure(course)[0]

    def measure(self, course: Course) -> tuple[Run, int]:
        """Read it all, and count the bytes of pgoutput's messages from the opening on."""
        with copied_slot(course.connection) as slot:
            arguments = {
                "conninfo": course.database.conninfo(replication="database"),
                "command": _start_replication(slot),
                "end_lsns": [course.opening_lsn, course.end_lsn],
            }
            with Child("bench.drain", arguments) as child:
                sender, started = walsender(course.connection, slot)
                meter = Meter({"client": child.pid, "walsender": sender})
                opening = Part(child.read()["at"] - started, 0, meter.read())
                ended = child.read()
                whole = Part(ended["at"] - started, course.rows, meter.read())
                peak = peak_mib(child.pid)
        return Run(whole, opening, peak), ended["size"]


@dataclass(frozen=True, slots=True)
class Pgsluice:
    """The daemon, as its operator starts it; ``discard``: with a sink that forgets everything."""

    name: str
    mode: Mode = "exactly_once"
    variables: Mapping[str, str] = field(default_factory=dict)
    discard: bool = False

    def run(self, course: Course) -> Run:
        """Read it all, once; RuntimeError if it delivered something else than what was written."""
        name = f"bench{next(_numbers)}"
        with copied_slot(course.connection) as slot, self._daemon(course, name, slot) as process:
            process.start("--adopt-slot")
            run = self._measure(course, process, slot)
            _check_events(process, course.rows + course.extra_rows)
            process.stop_well()
        delete_topics(course.kafka, f"{name}.")
        wait_until_quiet(course.kafka.pid())
        return run

    def _daemon(self, course: Course, name: str, slot: str) -> Daemon:
        settings: dict[str, dict[str, Any]] = {
            "postgres": {"slot": slot, "publications": [PUBLICATION]},
            "delivery": {"mode": self.mode},
        }
        servers = course.kafka.bootstrap_servers
        daemon = Daemon(name, course.database.conninfo(), servers, settings, wait_for=None, at_once=False)
        daemon.variables = self.variables
        if self.discard:
            daemon.program = ("-m", "bench.discard")
            daemon.variables = {**self.variables, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        return daemon

    def _measure(self, course: Course, process: Daemon, slot: str) -> Run:
        sender, started = walsender(course.connection, slot)
        pids = {"client": process.pid, "walsender": sender, "broker": course.kafka.pid()}
        meter = Meter(pids)
        opening = self._until(course, process, started, meter, course.opened_lsn)
        whole = self._until(course, process, started, meter, course.end_lsn)
        return Run(whole, opening, peak_mib(process.pid))

    def _until(self, course: Course, process: Daemon, started: float, meter: Meter, lsn: int) -> Part:
        """Wait until the daemon has delivered up to ``lsn``; what was delivered by then."""
        now, reached = _wait_delivered(process, started, course.start_lsn, lsn)
        return Part(now - started, course.rows_at(reached), meter.read())


def _start_replication(slot: str) -> str:
    options = ", ".join(f"{name} '{value}'" for name, value in OPTIONS.items())
    return f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({options})"


@contextmanager
def copied_slot(connection: psycopg.Connection) -> Iterator[str]:
    """Give a slot that stands where the original stands."""
    name = f"copy_{next(_numbers)}"
    connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", [SLOT, name])
    try:
        yield name
    finally:
        wait_until(lambda: _is_free(connection, name))
        connection.execute("SELECT pg_drop_replication_slot(%s)", [name])


def _is_free(connection: psycopg.Connection, slot: str) -> bool:
    found = connection.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", [slot]).fetchone()
    return found == (False,)


def walsender(connection: psycopg.Connection, slot: str) -> tuple[int, float]:
    """Return the server's process that streams from ``slot``, and when it was first seen."""
    sql = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s AND active_pid IS NOT NULL"
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        row = connection.execute(sql, [slot]).fetchone()
        if row is not None:
            return int(row[0]), time.monotonic()
        time.sleep(POLL_S)
    raise TimeoutError(f"nobody streams from slot {slot}")


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for ``condition``."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("what the bench waits for does not happen")
        time.sleep(POLL_S)


def _wait_delivered(process: Daemon, started: float, start_lsn: int, lsn: int) -> tuple[float, int]:
    """Return when the daemon said that it has delivered up to ``lsn``, and how far it had come by then."""
    while True:
        found = _delivered(process)
        now = time.monotonic()
        if found >= lsn:
            return now, found
        if now - started > TIMEOUT_S:
            raise TimeoutError(f"the daemon does not get there:\n{process.log_text()[-2000:]}")
        time.sleep(pause_s(now - started, found - start_lsn, lsn - start_lsn))


def pause_s(elapsed_s: float, done: int, total: int) -> float:
    """Return how long not to ask: questions cost the daemon, so half of what is left, as far as that can be told."""
    left_s = elapsed_s * (total - done) / done if done > 0 else elapsed_s / 50 + 0.1
    return min(max(left_s / 2, LEAST_PAUSE_S), GREATEST_PAUSE_S)


def _delivered(process: Daemon) -> int:
    if not process.alive:
        raise RuntimeError(f"the daemon has ended:\n{process.log_text()[-2000:]}")
    return parse_lsn(str(process.status().get("delivered_lsn", "0/0")))


def _check_events(process: Daemon, expected: int) -> None:
    lines = [line for line in process.metrics().splitlines() if line.startswith("pgsluice_events_total{")]
    found = round(sum(float(line.rpartition(" ")[2]) for line in lines))
    if found != expected:
        raise RuntimeError(f"{expected} events were expected, and the daemon counts {found}")


def delete_topics(kafka: Kafka, prefix: str) -> None:
    """Delete the topics of a pipeline, and return when no client sees them any more."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def left() -> list[str]:
        return [name for name in admin.list_topics(timeout=10).topics if name.startswith(prefix)]

    for deleted in admin.delete_topics(left(), operation_timeout=60).values():
        deleted.result()
    wait_until(lambda: not left())


def wait_until_quiet(pid: int) -> None:
    """Wait until a process has little to do, such as a broker that removes files; not for ever."""
    deadline = time.monotonic() + QUIET_TIMEOUT_S
    while time.monotonic() < deadline:
        before = cpu_seconds(pid)
        time.sleep(QUIET_WINDOW_S)
        if cpu_seconds(pid) - before < QUIET_SHARE * QUIET_WINDOW_S:
            return
