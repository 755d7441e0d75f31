"""The programs that the bench compares: the drain, pg_recvlogical, and variants of the daemon.

All programs read the same load, which is a workload of ``bench.loads``. Each program except :class:`Loading` has its
own copy of one slot.

The time of a run starts when its walsender is first seen, and ends when the last commit has been delivered.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import psycopg

from bench.loads import PUBLICATION
from bench.processes import ROOT, Child, Meter, cpu_seconds, peak_mib
from bench.results import DRAIN, LOADING, Part, Run
from bench.servers import TIMEOUT_S, Mode, backends, copied_slot, daemon, delete_topics, drop_slot, new_name, walsender
from pgsluice.lsn import format_lsn, parse_lsn
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database

OPTIONS = {"proto_version": "4", "publication_names": PUBLICATION, "streaming": "on"}
"""The options of pgoutput that the daemon uses by default."""

PATIENT_DRAIN, PATIENCE_S = "patient drain", 0.001
"""A drain that pauses for ``PATIENCE_S`` when there is nothing to read, so that it does not wake up for every message.
A wake-up also costs the walsender CPU time."""

RECV_LOGICAL = "pg_recvlogical"

LEAST_PAUSE_S, GREATEST_PAUSE_S = 0.01, 0.25
WATCH_S = 0.01


@dataclass(frozen=True, slots=True)
class Course:
    """A load in the WAL: its positions and its number of row changes.

    One transaction, the opening, comes before the load. One more row, the end marker, comes after the load. The first
    commit at or after ``opening_lsn`` is the commit of the opening. The first commit at or after ``end_lsn`` is the
    commit of the end marker.
    """

    database: Database
    connection: psycopg.Connection
    kafka: Kafka
    rows: int
    extra_rows: int
    """The number of rows in the opening, plus one for the end marker."""
    start_lsn: int
    opening_lsn: int
    opened_lsn: int
    """The position at which the opening ends."""
    end_lsn: int
    pipeline: str | None = None
    """The name of the pipeline. All daemons share this name, so each daemon finds the topics of the previous one. If
    the name is None, each daemon gets a new name."""
    partitions: int | None = None
    """The number of partitions of each table's topic, or None for pgsluice's default."""

    def rows_at(self, lsn: int) -> float:
        """Return how many of the rows come before ``lsn``. This assumes that all rows have the same size."""
        share = (lsn - self.opened_lsn) / (self.end_lsn - self.opened_lsn)
        return self.rows * min(max(share, 0.0), 1.0)


class Contender(Protocol):
    """A program that reads the load."""

    @property
    def name(self) -> str:
        """The contender's name in the report."""

    def run(self, course: Course) -> Run:
        """Read the whole load once."""


@dataclass(frozen=True, slots=True)
class Drain:
    """A libpq client that discards what it receives.

    When there is nothing to receive, the client waits for data, and then for another ``pause_s`` seconds.
    """

    name: str = DRAIN
    pause_s: float = 0.0

    def run(self, course: Course) -> Run:
        """Read the whole load once."""
        return self.measure(course)[0]

    def measure(self, course: Course) -> tuple[Run, int]:
        """Read the whole load. Return the run and the number of bytes in pgoutput's messages after the opening."""
        with copied_slot(course.connection) as slot:
            arguments = {
                "conninfo": course.database.conninfo(replication="database"),
                "command": _start_replication(slot),
                "end_lsns": [course.opening_lsn, course.end_lsn],
                "pause_s": self.pause_s,
            }
            with Child("bench.drain", arguments) as child:
                sender, started = walsender(course.connection, slot)
                meter = Meter({"client": child.pid, "walsender": sender})
                opening = Part(child.read()["at"] - started, 0, meter.read())
                ended = child.read()
                whole = Part(ended["at"] - started, course.rows, meter.read())
                peak = peak_mib(child.pid)
        return Run(whole, opening, peak), ended["size"]


def _start_replication(slot: str) -> str:
    options = ", ".join(f"{name} '{value}'" for name, value in OPTIONS.items())
    return f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({options})"


@dataclass(frozen=True, slots=True)
class RecvLogical:
    """PostgreSQL's own client, which writes to /dev/null.

    https://www.postgresql.org/docs/current/app-pgrecvlogical.html
    """

    name: str = RECV_LOGICAL

    @staticmethod
    def version() -> str | None:
        """Return the version of the program on the PATH, or None if it is not installed."""
        if shutil.which(RECV_LOGICAL) is None:
            return None
        answer = subprocess.run([RECV_LOGICAL, "--version"], capture_output=True, text=True, check=True).stdout
        return answer.partition(")")[2].strip()

    def run(self, course: Course) -> Run:
        """Read the whole load once."""
        with copied_slot(course.connection) as slot, subprocess.Popen(self._command(course, slot)) as process:
            sender, started = walsender(course.connection, slot)
            meter = Meter({"client": process.pid, "walsender": sender})
            cpu = meter.read()
            # The client and the walsender both end by themselves. With WNOWAIT, the client remains in /proc as a
            # zombie, so that its CPU time can still be read.
            while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                with suppress(FileNotFoundError):
                    cpu = meter.read()
                time.sleep(WATCH_S)
            seconds = time.monotonic() - started
        if process.returncode != 0:
            raise RuntimeError(f"{RECV_LOGICAL} ended with exit code {process.returncode}")
        return Run(Part(seconds, course.rows, cpu), None, None)

    def _command(self, course: Course, slot: str) -> list[str]:
        options = [word for name, value in OPTIONS.items() for word in ("-o", f"{name}={value}")]
        where = ["--dbname", course.database.conninfo(), "--slot", slot, "--endpos", format_lsn(course.end_lsn)]
        return [RECV_LOGICAL, "--start", "--no-loop", "--file", "/dev/null", *where, *options]


@dataclass(frozen=True, slots=True)
class Pgsluice:
    """The daemon, started as an operator starts it. If ``discard`` is true, its sink drops all records."""

    name: str
    mode: Mode = "exactly_once"
    variables: Mapping[str, str] = field(default_factory=dict)
    discard: bool = False

    def run(self, course: Course) -> Run:
        """Read the whole load once. Raise RuntimeError if the number of delivered events is wrong."""
        name = course.pipeline or new_name()
        with copied_slot(course.connection) as slot, self._daemon(course, name, slot) as process:
            process.start("--adopt-slot")
            run = self._measure(course, process, slot)
            _check_events(process, course.rows + course.extra_rows)
            process.stop_well()
        if course.pipeline is None:
            delete_topics(course.kafka, name)
        return run

    def _daemon(self, course: Course, name: str, slot: str) -> Daemon:
        variables = {**self.variables, "PYTHONPATH": str(ROOT)} if self.discard else self.variables
        made = daemon(name, course.database, course.kafka, self.mode, variables, slot)
        if self.discard:
            made.program = ("-m", "bench.discard")
        if course.partitions is not None:
            made.settings["kafka"] = {"topics": {"partitions": course.partitions}}
        return made

    def _measure(self, course: Course, process: Daemon, slot: str) -> Run:
        sender, started = walsender(course.connection, slot)
        meter = Meter({"client": process.pid, "walsender": sender, "broker": course.kafka.pid()})
        opening = self._until(course, process, started, meter, course.opened_lsn)
        whole = self._until(course, process, started, meter, course.end_lsn)
        return Run(whole, opening, peak_mib(process.pid))

    def _until(self, course: Course, process: Daemon, started: float, meter: Meter, lsn: int) -> Part:
        """Wait until the daemon has delivered everything up to ``lsn``. Return the part that was delivered by then."""
        now, reached = wait_delivered(process, started, course.start_lsn, lsn)
        return Part(now - started, course.rows_at(reached), meter.read())


@dataclass(frozen=True, slots=True)
class Loading:
    """The daemon with a slot that is created after all rows were written. So the daemon reads the rows from tables."""

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(self, course: Course) -> Run:
        """Load all tables once. Raise RuntimeError if the daemon delivered more rows than the tables have."""
        made = daemon(new_name(), course.database, course.kafka, "exactly_once", self.variables)
        made.settings["snapshot"] = {"mode": "initial"}
        with made as process:
            process.start()
            run = self._measure(course, process)
            process.stop_well()
        drop_slot(course.connection, f"pgsluice_{made.name}")
        delete_topics(course.kafka, made.name)
        return run

    def _measure(self, course: Course, process: Daemon) -> Run:
        sender, started = walsender(course.connection, f"pgsluice_{process.name}")
        meter = Meter({"client": process.pid, "walsender": sender, "broker": course.kafka.pid()})
        opening = self._until(course, process, started, meter, 1)
        whole = self._until(course, process, started, meter, course.rows + course.extra_rows)
        return Run(whole, opening, peak_mib(process.pid))

    def _until(self, course: Course, process: Daemon, started: float, meter: Meter, rows: int) -> Part:
        """Wait until the daemon has delivered ``rows`` rows. Return the part that was delivered by then."""
        while True:
            found = _read(process)
            if found >= rows:  # request the metrics only now, because the metrics of a thousand topics are costly
                found = count_events(process.metrics())
            now = time.monotonic()
            if found >= rows:
                break
            if not process.alive or now - started > TIMEOUT_S:
                raise RuntimeError(f"the daemon has not loaded all rows:\n{process.log_text()[-2000:]}")
            time.sleep(pause_s(now - started, found, rows))
        if found > course.rows + course.extra_rows:
            raise RuntimeError(f"the tables have {course.rows + course.extra_rows} rows, and the daemon counts {found}")
        cpu = meter.read()
        # The backends that read the tables are counted as walsenders. They started with the daemon, so all of their CPU
        # time belongs to this run.
        used = sum(map(cpu_seconds, backends(course.connection)))
        cpu["walsender"] += used
        cpu["others"] -= used
        return Part(now - started, min(found, course.rows), cpu)


def wait_delivered(process: Daemon, started: float, start_lsn: int, lsn: int) -> tuple[float, int]:
    """Return the time at which the daemon reported delivery up to ``lsn``, and the position that it reported."""
    while True:
        found = _delivered(process)
        now = time.monotonic()
        if found >= lsn:
            return now, found
        if now - started > TIMEOUT_S:
            raise TimeoutError(f"the daemon does not reach the position:\n{process.log_text()[-2000:]}")
        time.sleep(pause_s(now - started, found - start_lsn, lsn - start_lsn))


def pause_s(elapsed_s: float, done: int, total: int) -> float:
    """Return how long to wait before the next request: half of the expected remaining time.

    Requests take CPU time from the daemon, so they should be rare.
    """
    left_s = elapsed_s * (total - done) / done if done > 0 else elapsed_s / 50 + 0.1
    return min(max(left_s / 2, LEAST_PAUSE_S), GREATEST_PAUSE_S)


def _read(process: Daemon) -> int:
    """Return how many rows a daemon has read from tables and put into cuts."""
    report = process.status().get("snapshot") or {}
    return int(report.get("rows", 0))


def _delivered(process: Daemon) -> int:
    if not process.alive:
        raise RuntimeError(f"the daemon has ended:\n{process.log_text()[-2000:]}")
    return parse_lsn(str(process.status().get("delivered_lsn", "0/0")))


def _check_events(process: Daemon, expected: int) -> None:
    if (found := count_events(process.metrics())) != expected:
        raise RuntimeError(f"{expected} events were expected, and the daemon counts {found}")


def count_events(metrics: str) -> int:
    """Return how many events the daemon has delivered, according to the text of its metrics."""
    counters = [line for line in metrics.splitlines() if line.startswith("pgsluice_events_total{")]
    return round(sum(float(line.rpartition(" ")[2]) for line in counters))


COMPILED, PURE = {"PGSLUICE_SPEEDUPS": "require"}, {"PGSLUICE_SPEEDUPS": "off"}
"""The environment variables that select each encoder."""


def encoders() -> dict[str, Mapping[str, str]]:
    """Return the environment variables of each available encoder, the fastest encoder first."""
    asked = subprocess.run(
        [sys.executable, "-m", "pgsluice", "version"],
        cwd=ROOT,
        env={**os.environ, **COMPILED},
        capture_output=True,
        text=True,
        check=False,
    )
    compiled = asked.returncode == 0 and "compiled" in asked.stdout
    return {**({"compiled": COMPILED} if compiled else {}), "Python": PURE}


def contenders(kinds: Sequence[str], variants: Mapping[str, Mapping[str, str]]) -> list[Contender]:
    """Return the contenders of these kinds. A kind that runs the daemon has one contender for each encoder."""
    daemons = {
        kind: [Pgsluice(f"{kind}, {name}", mode, chosen, discard) for name, chosen in variants.items()]
        for kind, mode, discard in DAEMONS
    }
    others: dict[str, list[Contender]] = {
        DRAIN: [Drain()],
        PATIENT_DRAIN: [Drain(PATIENT_DRAIN, PATIENCE_S)],
        LOADING: [Loading(f"{LOADING}, {name}", chosen) for name, chosen in variants.items()],
    }
    if RecvLogical.version() is not None:
        others[RECV_LOGICAL] = [RecvLogical()]
    return [one for kind in kinds for one in [*others.get(kind, []), *daemons.get(kind, [])]]


DAEMONS: Sequence[tuple[str, Mode, bool]] = (
    ("exactly once", "exactly_once", False),
    ("at least once", "at_least_once", False),
    ("discard", "exactly_once", True),
)
"""The kinds of contenders that are daemons: the name, the delivery mode, and whether the daemon discards records."""
