"""Tests loads while writers are active: after a load, the events up to any cut must result in the table's rows.

To know these rows, a second pipeline follows the table from before its first row, so its events include every change.
At each cut after the load, the events of both pipelines must result in the same rows.
"""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Event as Flag
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.support.reader import Cut, Event, Reader
from tests.support.versions import long
from tests.support.weather import PATIENCE_S, Pipeline, wait_until

VERSIONS = (10, *long(14), 18)

ROWS = 5_000
"""The number of rows that exist before the pipeline starts."""

WRITERS = 4

SETTINGS: dict[str, dict[str, Any]] = {
    "snapshot": {"mode": "initial", "chunk_rows": 300},
    "delivery": {"cut_bytes": "64KiB", "heartbeat": "500ms"},
    "kafka": {"topics": {"partitions": 3}},
}

Follow = Callable[[Database, dict[str, dict[str, Any]]], Pipeline]


class Mirror:
    """The rows of one table, as computed from the events."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self._moving: dict[str, Any] = {}
        """The row that was deleted last, or an empty row if it was unknown.

        A change of a key deletes a row and inserts it with its new key. The new row keeps the unchanged values.
        """

    def apply(self, event: Event) -> None:
        """Apply an event. Events must be applied in the order of their positions."""
        op, after = event["op"], event["after"]
        if op == "t":
            self.rows.clear()
        elif op == "d":
            assert event.key is not None
            self._moving = self.rows.pop(event.key["id"], {})
        else:
            key = after["id"]
            former = self._moving if "key_change" in event["flags"] else self.rows.get(key, {})
            self.rows[key] = {**after, **{name: former.get(name) for name in event["unchanged"]}}


class Writers:
    """Several concurrent writers that insert, update, delete, change keys, prepare, and roll back to savepoints."""

    def __init__(self, database: Database, seed: int) -> None:
        self._database = database
        self._seed = seed

    @contextmanager
    def at_work(self) -> Iterator[None]:
        stop = Flag()
        with ThreadPoolExecutor(WRITERS) as pool:
            working = [pool.submit(self._work, number, stop) for number in range(WRITERS)]
            try:
                yield
            finally:
                stop.set()
            for one in working:
                one.result()

    def _work(self, number: int, stop: Flag) -> None:
        dice = random.Random(self._seed * 100 + number)
        new = 1_000_000 * (number + 1)
        with self._database.connect() as connection:
            while not stop.is_set():
                new += 10
                self._transaction(connection, dice, new, number)

    def _transaction(self, connection: psycopg.Connection, dice: random.Random, new: int, number: int) -> None:
        # Each writer changes only rows whose key modulo WRITERS is the number of the writer. So no writer waits for
        # another.
        own = dice.randrange(ROWS // WRITERS) * WRITERS + number
        kind = dice.choice(("insert", "update", "update", "delete", "key", "move", "savepoint", "prepare"))
        with connection.transaction():
            if kind == "insert":
                connection.execute("INSERT INTO items VALUES (%s, %s, 'new')", [new, dice.random()])
            elif kind == "update":
                connection.execute("UPDATE items SET amount = %s WHERE id = %s", [dice.random(), own])
            elif kind == "delete":
                connection.execute("DELETE FROM items WHERE id = %s", [own])
            elif kind == "key":
                connection.execute("UPDATE items SET id = %s WHERE id = %s", [new, own])
            elif kind == "move":
                # The load has already passed the new key. PostgreSQL does not send the row's unchanged large value.
                connection.execute("UPDATE items SET id = %s WHERE id = %s", [-new, own])
            elif kind == "savepoint":
                connection.execute("UPDATE items SET note = 'kept' WHERE id = %s", [own])
                with connection.transaction() as savepoint:
                    connection.execute("INSERT INTO items VALUES (%s, 0, 'undone')", [new])
                    raise psycopg.Rollback(savepoint)
        if kind == "prepare":
            gid = f"{connection.info.backend_pid}-{new}"
            with connection.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("INSERT INTO items VALUES (%s, 1, 'prepared')", [new])
                cursor.execute(f"PREPARE TRANSACTION '{gid}'")
                cursor.execute(f"COMMIT PREPARED '{gid}'")


def prepared(database: Database) -> Database:
    """Create the empty table and its publication. Return the database."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE items (id int8 PRIMARY KEY, amount float8, note text)")
        connection.execute("ALTER TABLE items ALTER COLUMN note SET STORAGE EXTERNAL")
        connection.execute("CREATE PUBLICATION pgsluice FOR TABLE items")
    return database


def filled(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(
            "INSERT INTO items SELECT n, n, repeat('x', n %% 50 * 60) FROM generate_series(0, %s - 1) AS n", [ROWS]
        )


def read_until(pipeline: Pipeline, lsn: int) -> list[Cut]:
    reader = Reader(pipeline.kafka.bootstrap_servers, pipeline.daemon.url, pipeline.daemon.name)
    try:
        return reader.read_until(lsn)
    finally:
        reader.close()


def position(database: Database) -> int:
    """Return a position that follows everything committed so far."""
    with database.connect() as connection:
        connection.execute("INSERT INTO items VALUES (-1, 0, 'last')")
        row = connection.execute("SELECT pg_current_wal_flush_lsn() - '0/0'").fetchone()
        assert row is not None
        return int(row[0])


def events_of(cuts: list[Cut]) -> list[Event]:
    found = [
        event for cut in cuts for event in cut.events if event.value is not None and event.topic.endswith(".items")
    ]
    return sorted({event.position: event for event in found}.values(), key=lambda event: event.position)


def marks(cut: Cut, state: str) -> list[dict[str, Any]]:
    return [mark for mark in cut.record["snapshots"] if mark["state"] == state]


def wait_until_loaded(pipeline: Pipeline) -> None:
    end = time.monotonic() + PATIENCE_S
    while '"loaded"' not in (text := pipeline.daemon.log_text()):
        assert pipeline.daemon.alive, text
        assert time.monotonic() < end, text
        time.sleep(0.05)


def check(loading: Pipeline, whole: Pipeline, last_lsn: int) -> list[Cut]:
    """Compare the mirror of ``loading`` with that of ``whole`` at every cut after the end of a load."""
    cuts = read_until(loading, last_lsn)
    known = read_until(whole, cuts[-1].record["end_lsn"])
    history = iter(events_of(known))
    ahead = next(history, None)
    mirror, truth, is_loaded, compared = Mirror(), Mirror(), False, 0
    for cut in cuts:
        for event in events_of([cut]):
            mirror.apply(event)
        end_lsn = cut.record["end_lsn"]
        while ahead is not None and ahead["lsn"] < end_lsn:
            truth.apply(ahead)
            ahead = next(history, None)
        is_loaded = is_loaded or bool(marks(cut, "end"))
        if is_loaded:
            compared += 1
            assert mirror.rows == truth.rows, f"cut {cut.record['cut']}"
    assert compared > 0
    return cuts


@pytest.fixture
def follow(kafka: Kafka) -> Iterator[Follow]:
    """Provide a function that starts a pipeline on a database. All pipelines stop after the test."""
    with ExitStack() as stack:

        def begin(database: Database, settings: dict[str, dict[str, Any]]) -> Pipeline:
            daemon = Daemon(f"s{uuid4().hex[:10]}", database.conninfo(), kafka.bootstrap_servers, settings)
            return Pipeline(database, kafka, stack.enter_context(daemon))

        yield begin


@pytest.fixture
def with_history(new_database: Callable[..., Database], follow: Follow) -> Callable[[int], tuple[Database, Pipeline]]:
    """Provide a function that creates a table and a pipeline. The pipeline receives all changes of the table."""

    def make(version: int) -> tuple[Database, Pipeline]:
        database = prepared(new_database(version))
        whole = follow(database, {"kafka": {"topics": {"partitions": 1}}})
        filled(database)
        return database, whole

    return make


@pytest.mark.parametrize("version", VERSIONS)
def test_a_table_is_loaded_while_several_writers_change_it(
    version: int, with_history: Callable[[int], tuple[Database, Pipeline]], follow: Follow
) -> None:
    database, whole = with_history(version)
    with Writers(database, seed=version).at_work():
        loading = follow(database, SETTINGS)
        wait_until_loaded(loading)
    cuts = check(loading, whole, position(database))
    (begin,) = [mark for cut in cuts for mark in marks(cut, "begin")]
    (end,) = [mark for cut in cuts for mark in marks(cut, "end")]
    rows = [event for event in events_of(cuts) if event["op"] == "r"]
    assert begin["id"] == end["id"]
    assert end["rows"] == len(rows) > 0
    assert end["replaces"]
    assert all((begin["lsn"], begin["seq"]) < event.position[1:] < (end["lsn"], end["seq"]) for event in rows)
    assert all(event["xid"] == 0 and event["before"] is None for event in rows)


def test_a_load_continues_after_a_kill(
    with_history: Callable[[int], tuple[Database, Pipeline]], follow: Follow
) -> None:
    database, whole = with_history(17)
    settings = {**SETTINGS, "snapshot": {"mode": "initial", "chunk_rows": 100}}
    with Writers(database, seed=1).at_work():
        loading = follow(database, settings)
        wait_until(lambda: "loading" in loading.daemon.log_text(), "the load to begin")
        for _ in range(3):
            loading.daemon.kill()
            loading.daemon.start()
        wait_until_loaded(loading)
    cuts = check(loading, whole, position(database))
    ids = {mark["id"] for cut in cuts for mark in cut.record["snapshots"]}
    (end,) = [mark for cut in cuts for mark in marks(cut, "end")]
    assert ids == {end["id"]}
    assert end["rows"] == sum(event["op"] == "r" for event in events_of(cuts))


def test_a_loaded_table_is_not_loaded_again(database: Database, follow: Follow) -> None:
    prepared(database)
    filled(database)
    loading = follow(database, SETTINGS)
    wait_until_loaded(loading)
    loading.daemon.restart()
    cuts = read_until(loading, position(database))
    assert sum(len(marks(cut, "begin")) for cut in cuts) == 1
    assert sum(event["op"] == "r" for event in events_of(cuts)) == ROWS
