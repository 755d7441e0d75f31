"""Tests of ``Victim``, the daemon of a storm: it notices if the daemon has ended or has stopped delivering.

A storm is a pipeline under a script of faults (see ``storm``).
"""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from pgsluice.lsn import parse_lsn
from sandbox.daemon import Daemon
from sandbox.errors import ServerError
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.faults.storm import confirmed_lsn
from tests.faults.victim import POLL_S, Victim
from tests.faults.workload import PUBLICATION

STANDSTILL_S = 1.0
ROUNDS = 10
PAUSE_S = 0.2
"""The pause before each delivery. The pauses of all ``ROUNDS`` together are longer than ``STANDSTILL_S``."""


@pytest.fixture
def database(new_database: Callable[[], Database]) -> Database:
    database = new_database()
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (n int PRIMARY KEY)")
        connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t")
    return database


@pytest.fixture
def daemon(database: Database, kafka: Kafka) -> Iterator[Daemon]:
    settings: dict[str, dict[str, Any]] = {
        "postgres": {"publications": [PUBLICATION]},
        "delivery": {"heartbeat": "200ms"},
    }
    with Daemon(f"v{uuid4().hex[:10]}", database.conninfo(), kafka.bootstrap_servers, settings) as daemon:
        yield daemon


@pytest.fixture
def victim(daemon: Daemon) -> Victim:
    return Victim(daemon, Counter(), print)


def write(database: Database, n: int) -> int:
    """Insert a published row, and return the end of the WAL after it."""
    with database.connect() as connection:
        connection.execute("INSERT INTO t VALUES (%s)", [n])
        row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
    assert row is not None, "the query returns one row"
    return int(row[0])


def test_a_daemon_that_delivers_may_take_longer_than_the_standstill_limit(
    database: Database, daemon: Daemon, victim: Victim
) -> None:
    """Keep the slot's position at zero until the end, as if an early prepared transaction held the slot back."""
    asked, end = 0, write(database, 0) + 2**20

    def position() -> int:
        nonlocal asked
        asked += 1
        time.sleep(PAUSE_S)
        lsn = write(database, asked)
        while parse_lsn(daemon.status()["delivered_lsn"]) < lsn:
            time.sleep(POLL_S)
        return end if asked == ROUNDS else 0

    victim.wait_until_confirmed(end, position, STANDSTILL_S)
    assert asked == ROUNDS


def test_a_daemon_that_stands_still_is_noticed(database: Database, daemon: Daemon, victim: Victim) -> None:
    with database.connect() as connection:
        victim.wait_until_confirmed(write(database, 1), lambda: confirmed_lsn(connection, slot_of(daemon)))
        daemon.send(signal.SIGSTOP)
        end = write(database, 2)
        with pytest.raises(TimeoutError, match=f"has to reach {end:X}, but nothing"):
            victim.wait_until_confirmed(end, lambda: confirmed_lsn(connection, slot_of(daemon)), STANDSTILL_S)


def test_a_slot_that_stays_behind_the_deliveries_is_noticed(database: Database, victim: Victim) -> None:
    with pytest.raises(TimeoutError):
        victim.wait_until_confirmed(write(database, 1), lambda: None, STANDSTILL_S)


def test_a_daemon_that_has_ended_is_noticed_at_once(database: Database, daemon: Daemon, victim: Victim) -> None:
    daemon.send(signal.SIGTERM)
    with pytest.raises(ServerError, match="ended with exit code 0"):
        victim.wait_until_confirmed(write(database, 1), lambda: None)


def test_the_account_has_status_and_log(victim: Victim) -> None:
    account = victim.account()
    assert '"state": "streaming"' in account
    assert '"event": "streaming"' in account


def slot_of(daemon: Daemon) -> str:
    return f"pgsluice_{daemon.name}"
