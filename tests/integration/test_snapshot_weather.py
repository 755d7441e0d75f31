"""Tests what can happen to a table or to the server during a load. Nothing must be lost or delivered twice."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from tests.support.loading import read_behind, wait_for, wait_until_loaded
from tests.support.reader import Cut, Event

SETTINGS: dict[str, dict[str, Any]] = {
    "snapshot": {"mode": "initial", "chunk_rows": 50},
    "delivery": {"heartbeat": "500ms"},
    "kafka": {"topics": {"partitions": 1}},
}

ROWS = 500

Follow = Callable[..., Daemon]


@pytest.fixture
def items(database: Database) -> Database:
    """Provide a database with a published table that contains rows."""
    with database.connect() as connection:
        make_items(connection)
        connection.execute("CREATE PUBLICATION pgsluice FOR TABLE items")
    return database


def make_items(connection: psycopg.Connection) -> None:
    connection.execute("CREATE TABLE items (id int PRIMARY KEY, v text)")
    connection.execute("INSERT INTO items SELECT n, n FROM generate_series(1, %s) n", [ROWS])


@pytest.fixture
def follow(kafka: Kafka) -> Iterator[Follow]:
    """Provide a function that starts a daemon on a database. The daemon stops after the test."""
    with ExitStack() as stack:

        def begin(database: Database, **settings: dict[str, Any]) -> Daemon:
            name = f"w{uuid4().hex[:10]}"
            daemon = Daemon(name, database.conninfo(), kafka.bootstrap_servers, {**SETTINGS, **settings})
            return stack.enter_context(daemon)

        yield begin


def read(daemon: Daemon, kafka: Kafka, database: Database) -> list[Cut]:
    return read_behind("INSERT INTO items (id) VALUES (-1)", daemon, kafka, database)


def events_of(cuts: list[Cut]) -> list[Event]:
    return sorted((event for cut in cuts for event in cut.events), key=lambda event: event.position)


def mirror(cuts: list[Cut]) -> dict[int, Any]:
    """Return the rows of a mirror. At the end of a load, the mirror deletes rows from before the load's beginning."""
    rows: dict[int, tuple[tuple[int, int, int], Any]] = {}
    steps: list[tuple[tuple[int, int, int], Any]] = [(event.position, event) for event in events_of(cuts)]
    begins: dict[str, tuple[int, int, int]] = {}
    for cut in cuts:
        steps += [((mark["epoch"], mark["lsn"], mark["seq"]), mark) for mark in cut.record["snapshots"]]
    for position, step in sorted(steps, key=lambda one: one[0]):
        if isinstance(step, Event):
            if step["op"] == "t":
                rows.clear()
            elif step["op"] == "d":
                del rows[step["before"]["id"]]
            else:
                rows[step["after"]["id"]] = position, step["after"]["v"]
        elif step["state"] == "begin":
            begins[step["id"]] = position
        elif step["state"] == "end":
            assert step["replaces"]
            rows = {key: row for key, row in rows.items() if row[0] > begins[step["id"]]}
    return {key: value for key, (_, value) in rows.items()}


def held(database: Database) -> dict[int, Any]:
    with database.connect() as connection:
        return dict(connection.execute("SELECT id, v FROM items").fetchall())


def test_a_table_that_is_added_to_the_publication_is_loaded(follow: Follow, kafka: Kafka, items: Database) -> None:
    with items.connect() as connection:
        connection.execute("ALTER PUBLICATION pgsluice DROP TABLE items")
    daemon = follow(items)
    with items.connect() as connection:
        connection.execute("ALTER PUBLICATION pgsluice ADD TABLE items")
    wait_until_loaded(daemon)
    assert mirror(read(daemon, kafka, items)) == held(items)


def test_a_load_waits_for_transactions_that_wrote_before_the_table_was_added(
    follow: Follow, kafka: Kafka, items: Database
) -> None:
    """Check that the load waits, because only a snapshot from after the commit contains the early row."""
    with items.connect() as connection:
        connection.execute("ALTER PUBLICATION pgsluice DROP TABLE items")
    daemon = follow(items)
    with items.connect(autocommit=False) as writer, items.connect() as connection:
        writer.execute("INSERT INTO items VALUES (1000, 'early')")
        connection.execute("ALTER PUBLICATION pgsluice ADD TABLE items")
        wait_for(daemon, "that are changing it have ended")
        assert '"event": "loaded"' not in daemon.log_text()
        writer.commit()
    wait_until_loaded(daemon)
    rows = mirror(read(daemon, kafka, items))
    assert rows == held(items)
    assert rows[1000] == "early"


@pytest.mark.long
def test_a_load_waits_for_prepared_transactions_that_wrote_before_the_table_was_added(
    follow: Follow, kafka: Kafka, items: Database
) -> None:
    with items.connect() as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO items VALUES (1000, 'early')")
        connection.execute("PREPARE TRANSACTION 'early'")
        connection.execute("ALTER PUBLICATION pgsluice DROP TABLE items")
        connection.execute("COMMIT PREPARED 'early'")
        daemon = follow(items)
        connection.execute("BEGIN")
        connection.execute("INSERT INTO items VALUES (1001, 'early, too')")
        connection.execute("PREPARE TRANSACTION 'early'")
        connection.execute("ALTER PUBLICATION pgsluice ADD TABLE items")
        wait_for(daemon, "that are changing it have ended")
        connection.execute("COMMIT PREPARED 'early'")
    wait_until_loaded(daemon)
    assert mirror(read(daemon, kafka, items)) == held(items)


@pytest.mark.parametrize(
    "sql",
    [
        "TRUNCATE items",
        "ALTER TABLE items ADD COLUMN more text DEFAULT 'new'",
        "ALTER TABLE items ALTER COLUMN v TYPE varchar(50)",
        "ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (id) INCLUDE (v)",
    ],
)
def test_a_table_may_be_altered_during_its_load(sql: str, follow: Follow, kafka: Kafka, items: Database) -> None:
    daemon = follow(items, snapshot={"mode": "initial", "chunk_rows": 2})
    wait_for(daemon, '"event": "loading"')
    with items.connect() as connection:
        connection.execute(sql)
        connection.execute("INSERT INTO items (id, v) VALUES (1000, 'after')")
    wait_until_loaded(daemon)
    assert mirror(read(daemon, kafka, items)) == held(items)


def test_a_load_begins_again_if_an_enum_label_in_the_key_is_renamed(
    follow: Follow, kafka: Kafka, items: Database
) -> None:
    """Check that the table is read from the beginning, because the last key that was read contains the former label.

    The middle row cannot be read before the label is renamed, because reading it needs a lock that the test holds.
    """
    with items.connect() as connection:
        connection.execute("CREATE TYPE size AS ENUM ('small')")
        connection.execute(
            "ALTER TABLE items ADD size size DEFAULT 'small', DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (size, id)"
        )
    with items.connect() as gate:
        gate.execute("SELECT pg_advisory_lock(1)")
        stops = f"id <> {ROWS // 2} OR pg_advisory_xact_lock_shared(1) IS NOT NULL"
        rules = {"rules": [{"match": "public.items", "where": stops}]}
        daemon = follow(items, snapshot={"mode": "initial", "chunk_rows": 2}, tables=rules)
        wait_for(daemon, "a table cannot be read now")
        gate.execute("ALTER TYPE size RENAME VALUE 'small' TO 'tiny'")
    wait_for(daemon, "invalid input value for enum public.size")
    wait_until_loaded(daemon)
    events = [event["after"] for event in events_of(read(daemon, kafka, items))]
    assert {row["size"] for row in events} == {"small", "tiny"}
    assert {row["id"]: row["v"] for row in events if row["size"] == "tiny"} == held(items)


def test_a_table_may_be_dropped_and_created_again_during_its_load(
    follow: Follow, kafka: Kafka, items: Database
) -> None:
    daemon = follow(items, snapshot={"mode": "initial", "chunk_rows": 2})
    wait_for(daemon, '"event": "loading"')
    with items.connect() as connection:
        connection.execute("DROP TABLE items")
        make_items(connection)
        connection.execute("DELETE FROM items WHERE id > 400")
        connection.execute("ALTER PUBLICATION pgsluice ADD TABLE items")
    wait_until_loaded(daemon)
    assert mirror(read(daemon, kafka, items)) == held(items)


def test_a_locked_table_does_not_delay_the_stream(follow: Follow, kafka: Kafka, items: Database) -> None:
    with items.connect(autocommit=False) as owner, items.connect() as connection:
        connection.execute("CREATE TABLE others (id int PRIMARY KEY)")
        connection.execute("ALTER PUBLICATION pgsluice ADD TABLE others")
        daemon = follow(items, snapshot={"mode": "initial", "chunk_rows": 2})
        wait_for(daemon, '"event": "loading"')
        daemon.kill()
        owner.execute("LOCK TABLE items IN ACCESS EXCLUSIVE MODE")
        daemon.start()
        wait_for(daemon, "a table cannot be read now")
        connection.execute("INSERT INTO others VALUES (1)")
        owner.rollback()
    wait_until_loaded(daemon, 2)
    cuts = read(daemon, kafka, items)
    assert [event.op for event in events_of(cuts) if event.topic.endswith(".others")].count("c") == 1


def test_a_missing_right_to_read_the_table_blocks_only_its_load(follow: Follow, kafka: Kafka, items: Database) -> None:
    with items.connect() as connection:
        role = f"reader_{uuid4().hex[:8]}"
        connection.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
        daemon = follow(items, postgres={"dsn": items.conninfo(user=role)})
        wait_for(daemon, "permission denied for table items")
        connection.execute(f"GRANT SELECT ON items TO {role}")
        wait_until_loaded(daemon)
        assert mirror(read(daemon, kafka, items)) == held(items)
        connection.execute(f"DROP OWNED BY {role}")


def test_rows_that_a_policy_hides_are_an_error(follow: Follow, kafka: Kafka, items: Database) -> None:
    with items.connect() as connection:
        role = f"reader_{uuid4().hex[:8]}"
        connection.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
        connection.execute(f"GRANT SELECT ON items TO {role}")
        connection.execute("ALTER TABLE items ENABLE ROW LEVEL SECURITY")
        daemon = follow(items, postgres={"dsn": items.conninfo(user=role)})
        wait_for(daemon, "row-level security")
        connection.execute("ALTER TABLE items DISABLE ROW LEVEL SECURITY")
        wait_until_loaded(daemon)
        assert mirror(read(daemon, kafka, items)) == held(items)
        connection.execute(f"DROP OWNED BY {role}")


def test_a_terminated_connection_is_replaced(follow: Follow, kafka: Kafka, items: Database) -> None:
    daemon = follow(items, snapshot={"mode": "initial", "chunk_rows": 2})
    wait_for(daemon, '"event": "loading"')
    with items.connect() as connection:
        for _ in range(3):
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            time.sleep(0.1)
    wait_until_loaded(daemon)
    assert mirror(read(daemon, kafka, items)) == held(items)


def test_a_load_continues_after_a_crash_of_the_server(follow: Follow, kafka: Kafka) -> None:
    with Postgres(17, {"fsync": "on"}) as server, server.database() as database:
        with database.connect() as connection:
            make_items(connection)
            connection.execute("CREATE PUBLICATION pgsluice FOR TABLE items")
        daemon = follow(database, snapshot={"mode": "initial", "chunk_rows": 2})
        wait_for(daemon, '"event": "loading"')
        server.kill()
        server.start()
        wait_until_loaded(daemon)
        assert mirror(read(daemon, kafka, database)) == held(database)


def test_a_table_is_loaded_again_when_changes_were_missed(follow: Follow, kafka: Kafka, items: Database) -> None:
    daemon = follow(items, snapshot={"mode": "when_needed", "chunk_rows": 50})
    wait_until_loaded(daemon)
    daemon.stop()
    with items.connect() as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
        )
        connection.execute("DELETE FROM items WHERE id % 3 = 0")
        connection.execute("UPDATE items SET v = 'changed' WHERE id % 3 = 1")
        connection.execute("INSERT INTO items SELECT n, 'new' FROM generate_series(5000, 5100) n")
    daemon.start("--adopt-slot")
    wait_until_loaded(daemon, 2)
    assert mirror(read(daemon, kafka, items)) == held(items)


def test_a_row_whose_other_unique_column_changes_keeps_its_large_value(
    follow: Follow, kafka: Kafka, database: Database
) -> None:
    """Check that rows are not read in the order of the primary key, which is not the replica identity here.

    If an UPDATE changes the primary key, the stream does not contain its former value.
    """
    with database.connect() as connection:
        connection.execute("CREATE TABLE items (place int PRIMARY KEY, id int NOT NULL UNIQUE, v text)")
        connection.execute("ALTER TABLE items ALTER v SET STORAGE EXTERNAL")
        connection.execute("ALTER TABLE items REPLICA IDENTITY USING INDEX items_id_key")
        connection.execute("INSERT INTO items SELECT n, n, repeat(n::text, 3000) FROM generate_series(1, 200) n")
        connection.execute("CREATE PUBLICATION pgsluice FOR TABLE items")
    daemon = follow(database, snapshot={"mode": "initial", "chunk_rows": 50, "max_rows_per_second": 50})
    wait_for(daemon, '"event": "table"')
    with database.connect() as connection:
        connection.execute("UPDATE items SET place = -1 WHERE place = 200")
    wait_until_loaded(daemon)
    cuts = read_behind("INSERT INTO items (place, id) VALUES (1000, 1000)", daemon, kafka, database)
    events = [event for event in events_of(cuts) if (event["after"] or {}).get("id") == 200]
    assert events[-1]["after"]["v"] == "200" * 3000
