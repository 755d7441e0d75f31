"""Scenarios for the boundaries and the order of transactions, and for changes that were rolled back."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg

from tests.support.scenario import Found, Place, Scenario

LARGE_ROWS = 4000
"""The number of rows of a large transaction. Its rows have 100 characters, so it exceeds delivery.cut_bytes."""


def _interleaved(place: Place) -> None:
    """Run two transactions. The one that begins later commits first."""
    with place.connect() as first, place.connect() as second:
        first.execute("BEGIN; INSERT INTO t VALUES (1, 'first')")
        second.execute("BEGIN; INSERT INTO t VALUES (2, 'second')")
        first.execute("INSERT INTO t VALUES (3, 'first')")
        second.execute("COMMIT; INSERT INTO t VALUES (4, 'third')")
        first.execute("COMMIT")


def _in_commit_order(found: Found) -> None:
    assert found.values("v") == ["second", "third", "first", "first"]


def _prepared(place: Place) -> None:
    kept, dropped = uuid4().hex, uuid4().hex  # unique in the whole server
    with place.connect() as connection:
        connection.execute(f"BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION '{kept}'")
        connection.execute(f"BEGIN; INSERT INTO t VALUES (2); PREPARE TRANSACTION '{dropped}'")
        connection.execute("INSERT INTO t VALUES (3)")
        connection.execute(f"COMMIT PREPARED '{kept}'")
        connection.execute(f"ROLLBACK PREPARED '{dropped}'")


def _at_their_commit(found: Found) -> None:
    assert found.values("id") == [3, 1]


def _ids(found: Found, *expected: int) -> None:
    assert found.values("id") == list(expected)


def _identities(found: Found) -> None:
    """Check that events have the xid and the commit time that the server reports."""
    for event in found.events():
        assert event["xid"] == event["after"]["xid"]
        assert timedelta(0) <= event["ts"] - event["after"]["at"] < timedelta(seconds=10)
        produced = event.timestamp_ms / 1000
        assert abs(produced - event["ts"].timestamp()) < 600, "the timestamp is not the time of producing"


def _steps(found: Found) -> None:
    """Check that all changes of a row arrive, with consecutive numbers within the transaction."""
    assert found.values("v") == list(range(51))
    assert [event["seq"] for event in found.events()] == list(range(51))


class _OpenTransaction:
    """A transaction that begins before the daemon stops, and commits after the daemon's next start."""

    def __init__(self) -> None:
        self._connections: dict[str, psycopg.Connection] = {}

    def begin(self, place: Place) -> None:
        connection = self._connections[place.database.name] = place.connect()
        connection.execute("BEGIN; INSERT INTO t VALUES (1, 'before')")

    def go_on(self, place: Place) -> None:
        self._connections[place.database.name].execute("INSERT INTO t VALUES (2, 'down')")
        place.run("INSERT INTO t VALUES (3, 'other')")

    def commit(self, place: Place) -> None:
        with self._connections.pop(place.database.name) as connection:
            connection.execute("INSERT INTO t VALUES (4, 'after'); COMMIT")


_open_transaction = _OpenTransaction()


def _whole(found: Found) -> None:
    assert found.values("id") == [3, 1, 2, 4]
    assert len({event["lsn"] for event in found.events()}) == 2


def _prepare(place: Place) -> None:
    with place.connect() as connection:
        connection.execute(f"BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'held {place.database.name}'")
        connection.execute("INSERT INTO t VALUES (2)")


def _commit_prepared(place: Place) -> None:
    with place.connect() as connection:
        connection.execute(f"COMMIT PREPARED 'held {place.database.name}'")


def _replicated(place: Place) -> None:
    """Write transactions as a subscription does: with an origin, and with their commit times on the other server."""
    name = f"node_{uuid4().hex[:8]}"
    with place.connect() as connection:
        connection.execute("SELECT pg_replication_origin_create(%s)", [name])
        connection.execute("SELECT pg_replication_origin_session_setup(%s)", [name])
        for number in (1, 2):
            connection.execute("BEGIN")
            connection.execute("SELECT pg_replication_origin_xact_setup('0/123', '2001-02-03 04:05:06+00')")
            connection.execute("INSERT INTO t VALUES (%s, %s)", [number, name])
            connection.execute("COMMIT")
        connection.execute("SELECT pg_replication_origin_session_reset()")
        connection.execute("INSERT INTO t VALUES (3, NULL)")
        connection.execute("SELECT pg_replication_origin_drop(%s)", [name])


def _origins(found: Found) -> None:
    assert [event["origin"] for event in found.events()] == found.values("origin")
    assert found.values("origin").count(None) == 1
    times = [event["ts"] == datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC) for event in found.events()]
    assert times == [True, True, False]


def _own_cuts(found: Found) -> None:
    """Check that a transaction larger than a cut is alone in its cut."""
    large = found.events()[1]["lsn"]
    (cut,) = (cut for cut in found.replay.cuts if large in (cut.record["first_lsn"], cut.record["last_lsn"]))
    assert cut.record["transactions"] == 1
    assert cut.record["first_lsn"] == cut.record["last_lsn"] == large
    assert cut.record["events"] == LARGE_ROWS + 1


def _flags(found: Found) -> None:
    flags = {
        table: [event["flags"] for event in found.events(table) if event["op"] == "t"]
        for table in ("parent", "child", "other")
    }
    assert flags == {"parent": [["cascade"], []], "child": [["cascade"], []], "other": [["restart_identity"], [], []]}


SCENARIOS = [
    Scenario(
        "savepoints",
        "Changes that are rolled back to a savepoint do not arrive. Changes after a released savepoint arrive.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text)",
        work="""
            BEGIN;
            INSERT INTO t VALUES (1, 'a');
            SAVEPOINT outer_one;
            INSERT INTO t VALUES (2, 'never');
            SAVEPOINT inner_one;
            UPDATE t SET v = 'never' WHERE id = 1;
            RELEASE inner_one;
            ROLLBACK TO outer_one;
            INSERT INTO t VALUES (2, 'b');
            SAVEPOINT inner_one;
            INSERT INTO t VALUES (3, 'c');
            RELEASE inner_one;
            COMMIT;
            BEGIN;
            DELETE FROM t;
            ROLLBACK;
        """,
        ops={"t": "ccc"},
    ),
    Scenario(
        "many subtransactions",
        "There are more subtransactions than a backend's cache holds. Every third subtransaction fails.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v int)",
        work="""
            DO $$ BEGIN
                FOR i IN 1 .. 200 LOOP
                    BEGIN
                        INSERT INTO t VALUES (i, 6 / (i % 3));
                    EXCEPTION WHEN division_by_zero THEN
                        UPDATE t SET v = -1 WHERE id = i - 1;
                    END;
                END LOOP;
            END $$;
        """,
        ops={"t": "ccu" * 66 + "cc"},
    ),
    Scenario(
        "interleaved",
        "Transactions arrive whole, in the order of their commits.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text)",
        work=_interleaved,
        ops={"t": "cccc"},
        check=_in_commit_order,
    ),
    Scenario(
        "prepared",
        "A prepared transaction arrives when it is committed.",
        setup="CREATE TABLE t (id int PRIMARY KEY)",
        work=_prepared,
        ops={"t": "cc"},
        check=_at_their_commit,
    ),
    Scenario(
        "prepared across restarts",
        "A prepared transaction arrives when it is committed, even if pgsluice has been restarted meanwhile.",
        setup="CREATE TABLE t (id int PRIMARY KEY)",
        work=_prepare,
        while_down="INSERT INTO t VALUES (3)",
        after_restart=_commit_prepared,
        check=lambda found: _ids(found, 2, 3, 1),
    ),
    Scenario(
        "open across restarts",
        "A transaction that began before the daemon stopped arrives whole.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text)",
        work=_open_transaction.begin,
        while_down=_open_transaction.go_on,
        after_restart=_open_transaction.commit,
        ops={"t": "cccc"},
        check=_whole,
    ),
    Scenario(
        "nothing to publish",
        "Empty and rolled back transactions, locks, other tables and messages cause no events.",
        setup="CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int); INSERT INTO t VALUES (1)",
        publication="FOR TABLE t",
        work="""
            BEGIN;
            COMMIT;
            BEGIN;
            SELECT txid_current();
            COMMIT;
            BEGIN;
            SELECT * FROM t FOR UPDATE;
            COMMIT;
            INSERT INTO other SELECT generate_series(1, 10);
            BEGIN;
            INSERT INTO t VALUES (2);
            ROLLBACK;
            BEGIN;
            CREATE TEMP TABLE fleeting AS SELECT generate_series(1, 10) AS id;
            CREATE UNLOGGED TABLE unlogged AS SELECT * FROM fleeting;
            COMMIT;
            SELECT pg_logical_emit_message(true, 'prefix', 'content');
            SELECT pg_logical_emit_message(false, 'prefix', 'content');
        """,
        while_down="INSERT INTO other VALUES (11)",
        contents={"t": "SELECT 1 AS id WHERE false"},
        ops={"t": "", "other": ""},
    ),
    Scenario(
        "identity of transactions",
        "xid and ts belong to the transaction. The timestamp of the record is the time at which it was produced.",
        setup="CREATE TABLE t (id serial PRIMARY KEY, xid bigint, at timestamptz)",
        work="""
            INSERT INTO t (xid, at) VALUES (txid_current(), clock_timestamp());
            BEGIN;
            INSERT INTO t (xid, at) VALUES (txid_current(), clock_timestamp());
            SAVEPOINT s;
            INSERT INTO t (xid, at) VALUES (txid_current(), clock_timestamp());
            COMMIT;
        """,
        check=_identities,
    ),
    Scenario(
        "one row, many changes",
        "Every change arrives, in order.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v int)",
        work="""
            DO $$ BEGIN
                INSERT INTO t VALUES (1, 0);
                FOR i IN 1 .. 50 LOOP UPDATE t SET v = i; END LOOP;
            END $$;
        """,
        check=_steps,
    ),
    Scenario(
        "large",
        "A transaction larger than a cut is alone in its cut. Small transactions next to it are in other cuts.",
        setup="CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)",
        tables=["t", "u"],
        work=f"""
            INSERT INTO t VALUES (-1, 'before');
            BEGIN;
            INSERT INTO u VALUES (1);
            INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, {LARGE_ROWS}) AS g;
            COMMIT;
            INSERT INTO t VALUES (-2, 'after');
        """,
        while_down="BEGIN; UPDATE t SET v = repeat('y', 100); DELETE FROM t WHERE id % 2 = 0; COMMIT",
        check=_own_cuts,
    ),
    Scenario(
        "truncate",
        "Truncates arrive in order with the rows, with or without CASCADE and RESTART IDENTITY, unless rolled back.",
        since=11,
        lacking="TRUNCATE is replicated from PostgreSQL 11 on",
        setup="""
            CREATE TABLE parent (id int PRIMARY KEY);
            CREATE TABLE child (id int PRIMARY KEY REFERENCES parent);
            CREATE TABLE other (id serial PRIMARY KEY, v text)
        """,
        tables=["parent", "child", "other"],
        work="""
            INSERT INTO parent VALUES (1), (2), (3);
            INSERT INTO child VALUES (1), (2);
            INSERT INTO other (v) VALUES ('a'), ('b');
            TRUNCATE parent CASCADE;
            BEGIN;
            TRUNCATE other RESTART IDENTITY;
            INSERT INTO other (v) VALUES ('c');
            TRUNCATE other;
            INSERT INTO other (v) VALUES ('d');
            SAVEPOINT s;
            TRUNCATE other, parent, child;
            ROLLBACK TO s;
            COMMIT;
            BEGIN;
            TRUNCATE other;
            ROLLBACK;
        """,
        while_down="""
            INSERT INTO parent VALUES (4);
            BEGIN;
            INSERT INTO other (v) VALUES ('e');
            TRUNCATE other, child, parent;
            INSERT INTO parent VALUES (5);
            COMMIT;
        """,
        ops={"parent": "ccctctc", "child": "cctt", "other": "cctctcct"},
        check=_flags,
    ),
    Scenario(
        "origins",
        "A transaction that was replicated from another server has its origin, and its commit time on that server.",
        setup="CREATE TABLE t (id int PRIMARY KEY, origin text)",
        work=_replicated,
        ops={"t": "ccc"},
        check=_origins,
    ),
]
