"""Runs scenarios with PostgreSQL, the daemon and a reader, for one server version.

All scenarios of a database share one daemon, which is restarted and stopped while they run. Afterwards, all events are
read and replayed once, and the tables of each scenario are checked.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import psycopg

from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.support.compatibility import Pair, pairs
from tests.support.reader import Reader
from tests.support.replay import Replay, contents, differences
from tests.support.scenario import Found, Scenario

TIMEOUT_S = 180
POLL_S = 0.1

LOG_CHARACTERS = 5000
"""The number of characters at the end of a log that are shown."""

PARTITIONS = 2
"""The default number of partitions. Two are enough to show that only events with the same key are in order."""

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "postgres": {"status_interval": "200ms"},
    "buffer": {"memory_max": "1MiB"},
    "kafka": {"topics": {"partitions": PARTITIONS}},
    "delivery": {"heartbeat": "500ms", "cut_bytes": "256KiB"},
}

ODD_SETTINGS = (
    "DateStyle = 'SQL, DMY'",
    "IntervalStyle = sql_standard",
    "TimeZone = 'America/St_Johns'",
    "extra_float_digits = 0",
    "bytea_output = escape",
)
"""Settings of the database. They also apply to walsenders, and must not affect the values in events."""

DECODING: Mapping[int, Sequence[str]] = {
    14: ("logical_decoding_work_mem = '64kB'",),
    15: ("logical_decoding_work_mem = '64kB'",),
    16: ("debug_logical_replication_streaming = immediate",),
    18: ("debug_logical_replication_streaming = immediate",),
}
"""Settings of the database by server version.

They make servers 14 and 15 stream large transactions, and servers 16 and 18 all transactions. Version 17 runs with its
defaults.
"""

END = Scenario("the end", "The row of this scenario is the last one written.", "CREATE TABLE t (id serial PRIMARY KEY)")


@dataclass
class Verdict:
    """The result of one scenario."""

    problems: list[str] = field(default_factory=list)
    failure: BaseException | None = None
    """The error of the scenario's own check."""

    def confirm(self) -> None:
        """Raise an error if anything is wrong."""
        assert not self.problems, "\n".join(self.problems[:10])
        if self.failure is not None:
            raise self.failure


class Followed:
    """A database, its scenarios, and the daemon that streams the database's changes."""

    def __init__(
        self,
        name: str,
        database: Database,
        kafka: Kafka,
        scenarios: Sequence[Scenario],
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.name = name
        self.database = database
        self.scenarios = scenarios
        self._bootstrap_servers = kafka.bootstrap_servers
        self._settings = settings or {}
        self._context = ExitStack()
        self.read_lsn = 0
        """The LSN up to which all changes have been read."""

    def __enter__(self) -> Self:
        """Prepare the scenarios and start the daemon."""
        with self.database.connect() as connection:
            for setting in (*ODD_SETTINGS, *DECODING.get(self.database.server.version, ())):
                connection.execute(f"ALTER DATABASE {self.database.name} SET {setting}")
        for scenario in (*self.scenarios, END):
            scenario.prepare(self.database)
        daemon = Daemon(self.name, self.database.conninfo(), self._bootstrap_servers, self._configuration())
        with ExitStack() as context:
            self.daemon = context.enter_context(daemon)
            self.reader = Reader(self._bootstrap_servers, self.daemon.url, self.name, self._check_alive)
            context.callback(self.reader.close)
            self._context = context.pop_all()
        self.replay = Replay(tombstones=self._has_tombstones, partitions=self.reader.partitions)
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def work(self) -> None:
        """Run the scenarios. Meanwhile, restart the daemon, then kill and start it, and finally stop and start it."""
        third = len(self.scenarios) // 3
        self._do("work", self.scenarios[:third])
        with ThreadPoolExecutor(1) as beside:
            restarted = beside.submit(self.daemon.restart)
            self._do("work", self.scenarios[third : 2 * third])
            restarted.result()
            self.daemon.kill()
            started = beside.submit(self.daemon.start)
            self._do("work", self.scenarios[2 * third :])
            started.result()
        self.read()
        assert self.daemon.stop() == 0, self.daemon.log_text()[-LOG_CHARACTERS:]
        self._do("while_down", self.scenarios)
        self.daemon.start()
        self._do("after_restart", self.scenarios)
        self.read()

    def work_killed(self) -> None:
        """Run the scenarios. The daemon is killed after their first part, and started after their second part."""
        self._do("work", self.scenarios)
        self.read()
        # Wait for the confirmation before the kill. Without the confirmation, the server would send rows again, with
        # the column names from the time when the rows were written.
        self._wait_until_confirmed(self.read_lsn)
        self.daemon.kill()
        self._do("while_down", self.scenarios)
        self.daemon.start()
        self._do("after_restart", self.scenarios)
        self.read()

    def crash(self) -> None:
        """Kill and start the server.

        It has saved only an old position of the slot, so it sends all later changes again.
        """
        self.database.server.kill()
        self.database.server.start()
        self.read()

    def work_undisturbed(self) -> None:
        """Run the scenarios while the daemon runs without interruption."""
        for part in ("work", "while_down", "after_restart"):
            self._do(part, self.scenarios)
        self.read()

    def idle_until(self, lsn: int) -> list[str]:
        """Wait until the pipeline has confirmed ``lsn``. Return a problem for each cut with events.

        Since the last call, the test has written only to another database, so the pipeline should have no events.
        """
        cuts = self.reader.read_until(lsn)
        self.replay.apply(cuts)
        self._wait_until_confirmed(lsn)
        return [f"cut {cut.record['cut']} has events" for cut in cuts if cut.record["first_lsn"] is not None]

    def read(self) -> None:
        """Wait until everything written so far has arrived, and replay it."""
        with self.database.connect() as connection:
            connection.execute(f'INSERT INTO "{END.name}".t DEFAULT VALUES')
            ((lsn,),) = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchall()
        self.read_lsn = int(lsn)
        self.replay.apply(self.reader.read_until(self.read_lsn))

    def judge(self) -> dict[str, Verdict]:
        """Return the verdict of each scenario."""
        return {scenario.name: self._verdict(scenario) for scenario in self.scenarios}

    def pairs(self) -> list[Pair]:
        """Return all pairs of schemas of the same table."""
        return pairs(self.reader.schemas(), (event for events in self.replay.events.values() for event in events))

    def general_problems(self) -> list[str]:
        """Return the problems of the cuts, and all other problems that belong to no scenario."""
        rest = [f"no cut lists {event}" for event in self.reader.read_rest()]
        known = {table for scenario in (*self.scenarios, END) for table in scenario.known}
        strangers = [f"events of {name}" for name in self.replay.events.keys() - known]
        return [*self.replay.problems, *rest, *strangers]

    def _wait_until_confirmed(self, lsn: int) -> None:
        with self.database.connect() as connection:
            wait_until(lambda: _confirmed_lsn(connection, f"pgsluice_{self.name}") >= lsn, "the slot has not moved")

    def _check_alive(self) -> None:
        assert self.daemon.alive, self.daemon.log_text()[-LOG_CHARACTERS:]

    def _do(self, part: str, scenarios: Iterable[Scenario]) -> None:
        for scenario in scenarios:
            scenario.do(getattr(scenario, part), self.database)

    def _verdict(self, scenario: Scenario) -> Verdict:
        verdict = Verdict()
        found = Found(scenario.name, self.replay, self.reader)
        with self.database.connect() as connection:
            for name, query in scenario.expected().items():
                table = self.replay.table(f"{scenario.name}.{name}")
                held = contents(connection, query)
                verdict.problems += [f"{name}: {what}" for what in (*table.problems, *differences(table, *held))]
        expected = {f"{scenario.name}.{table}": ops for table, ops in scenario.ops.items()} | dict(scenario.elsewhere)
        came = {table: "".join(event["op"] for event in self.replay.events[table]) for table in expected}
        if came != expected:
            verdict.problems.append(f"{came} instead of {expected}")
        try:
            if scenario.check is not None:
                scenario.check(found)
        except Exception as failure:  # noqa: BLE001 - raised again by the scenario's test
            verdict.failure = failure
        return verdict

    def _configuration(self) -> dict[str, dict[str, Any]]:
        rules, exclude = [], []
        for scenario in self.scenarios:
            own_rules, own_exclude = scenario.settings()
            rules += own_rules
            exclude += own_exclude
        publications = [scenario.name for scenario in (*self.scenarios, END)]
        ours: dict[str, dict[str, Any]] = {
            "postgres": {"publications": publications},
            "tables": {"rules": rules, "exclude": exclude},
        }
        sections = {*SETTINGS, *self._settings, *ours}
        return {
            name: {**SETTINGS.get(name, {}), **ours.get(name, {}), **self._settings.get(name, {})} for name in sections
        }

    def _has_tombstones(self, table: str) -> bool:
        everywhere: bool = self._settings.get("tables", {}).get("tombstones", False)
        some = {f"{scenario.name}.{name}" for scenario in self.scenarios for name in scenario.tombstones}
        return everywhere or table in some


def wait_until(done: Callable[[], bool], complaint: str) -> None:
    """Wait until ``done()`` is true. Raise TimeoutError if this takes too long."""
    deadline = time.monotonic() + TIMEOUT_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(complaint)
        time.sleep(POLL_S)


def _confirmed_lsn(connection: psycopg.Connection, slot: str) -> int:
    query = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s"
    ((lsn,),) = connection.execute(query, [slot]).fetchall()
    return int(lsn)
