"""Functions for tests of daemons that load tables. They wait for lines in the log, and read the results."""

import time

from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.support.reader import Cut, Reader
from tests.support.weather import PATIENCE_S


def wait_for(daemon: Daemon, words: str, count: int = 1) -> None:
    """Wait until the daemon's log contains ``words`` at least ``count`` times."""
    end = time.monotonic() + PATIENCE_S
    while (text := daemon.log_text()).count(words) < count:
        assert daemon.alive, text
        assert time.monotonic() < end, text
        time.sleep(0.02)


def wait_until_loaded(daemon: Daemon, count: int = 1) -> None:
    """Wait until the daemon has finished ``count`` loads."""
    wait_for(daemon, '"event": "loaded"', count)


def read_behind(statement: str, daemon: Daemon, kafka: Kafka, database: Database) -> list[Cut]:
    """Run a statement. Return all cuts up to the first one that includes the statement.

    The statement must write something. On an idle server, loaded rows have the position at which the WAL ends. Only a
    new change proves that the returned cuts contain all rows that were loaded before.
    """
    with database.connect() as connection:
        connection.execute(statement)
        row = connection.execute("SELECT pg_current_wal_flush_lsn() - '0/0'").fetchone()
        assert row is not None, "the query returns one row"
    reader = Reader(kafka.bootstrap_servers, daemon.url, daemon.name)
    try:
        return reader.read_until(int(row[0]))
    finally:
        reader.close()
