"""Tests loading tables of every kind: the delivered rows must equal the rows in PostgreSQL."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.support.reader import Cut, Reader
from tests.support.replay import Replay, contents, differences
from tests.support.versions import covered

PATIENCE_S = 180


@dataclass(frozen=True)
class Kind:
    """A table that is loaded.

    ``sql`` creates the table with its rows, and ``expected`` is a query for the rows that must be delivered.
    ``member`` is the table's entry in the publication.
    """

    name: str
    sql: str
    expected: str
    member: str
    since: int = 10


KINDS = [
    Kind(
        "texts",
        """CREATE TABLE texts (a text, b int, note text, PRIMARY KEY (b, a));
        INSERT INTO texts SELECT chr(9 + n % 90) || E'\\\\\\t\\n' || n, n % 3, NULLIF(E'\\\\N' || n, E'\\\\N7')
        FROM generate_series(1, 200) n""",
        "SELECT * FROM public.texts",
        "texts",
    ),
    Kind(
        "sorted",
        """CREATE TABLE sorted (name text COLLATE "C" PRIMARY KEY, part numeric, at timestamptz, bits bytea, doc jsonb);
        INSERT INTO sorted SELECT md5(n::text), n / 7.0, 'epoch'::timestamptz + n * interval '1 hour',
            decode(md5(n::text), 'hex'), json_build_object('n', n) FROM generate_series(1, 200) n""",
        "SELECT * FROM public.sorted",
        "sorted",
    ),
    Kind(
        "Odd Name.x",
        """CREATE TABLE "Odd Name.x" ("the ""key"" x" uuid PRIMARY KEY, "Wert" float8[]);
        INSERT INTO "Odd Name.x"
        SELECT md5(n::text)::uuid, ARRAY[n::float8, NULL, 'NaN'] FROM generate_series(1, 100) n""",
        'SELECT * FROM public."Odd Name.x"',
        '"Odd Name.x"',
    ),
    Kind(
        "mood",
        """CREATE TYPE feeling AS ENUM ('zufrieden', 'bad', 'good');
        CREATE TABLE mood (f feeling, n int NOT NULL, v varchar(20) NOT NULL, UNIQUE (v, n));
        ALTER TABLE mood REPLICA IDENTITY USING INDEX mood_v_n_key;
        INSERT INTO mood SELECT (ARRAY['zufrieden', 'bad', 'good'])[1 + n % 3]::feeling, n, 'v' || n % 10
        FROM generate_series(1, 100) n""",
        "SELECT * FROM public.mood",
        "mood",
    ),
    Kind(
        "names",
        """CREATE EXTENSION citext SCHEMA public;
        CREATE TABLE names (name public.citext COLLATE "C" PRIMARY KEY, n int);
        INSERT INTO names SELECT CASE n % 2 WHEN 0 THEN upper(md5(n::text)) ELSE md5(n::text) END, n
        FROM generate_series(1, 200) n""",
        "SELECT * FROM public.names",
        "names",
    ),
    Kind(
        "full",
        """CREATE TABLE "full" (id int PRIMARY KEY, v text);
        ALTER TABLE "full" REPLICA IDENTITY FULL;
        INSERT INTO "full" SELECT n, n FROM generate_series(1, 50) n""",
        'SELECT * FROM public."full"',
        '"full"',
    ),
    Kind(
        "keyless",
        """CREATE TABLE keyless (v text, n int);
        INSERT INTO keyless SELECT repeat(n::text, n), NULLIF(n % 7, 3) FROM generate_series(1, 500) n""",
        "SELECT * FROM public.keyless",
        "keyless",
    ),
    Kind(
        "only unique",
        """CREATE TABLE "only unique" (n int NOT NULL UNIQUE, v text);
        INSERT INTO "only unique" SELECT n, repeat(n::text, n) FROM generate_series(1, 200) n""",
        'SELECT * FROM public."only unique"',
        '"only unique"',
    ),
    Kind(
        "split keyless",
        """CREATE TABLE "split keyless" (v int) PARTITION BY RANGE (v);
        CREATE TABLE few PARTITION OF "split keyless" FOR VALUES FROM (0) TO (30);
        CREATE TABLE many PARTITION OF "split keyless" FOR VALUES FROM (30) TO (100);
        INSERT INTO "split keyless" SELECT n FROM generate_series(1, 60) n""",
        'SELECT * FROM public."split keyless"',
        '"split keyless"',
        since=13,
    ),
    Kind(
        "parent",
        """CREATE TABLE parent (id int PRIMARY KEY, v text);
        CREATE TABLE child (more int, PRIMARY KEY (id)) INHERITS (parent);
        INSERT INTO parent VALUES (1, 'parent');
        INSERT INTO child VALUES (2, 'child', 3)""",
        "SELECT * FROM ONLY public.parent",
        "ONLY parent",
    ),
    Kind(
        "split",
        """CREATE TABLE split (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
        CREATE TABLE low PARTITION OF split FOR VALUES FROM (0) TO (30);
        CREATE TABLE high PARTITION OF split FOR VALUES FROM (30) TO (100);
        INSERT INTO split SELECT n, n FROM generate_series(1, 60) n""",
        "SELECT * FROM public.split",
        "split",
        since=13,
    ),
    Kind(
        "computed",
        """CREATE TABLE computed (id int PRIMARY KEY, v int, twice int GENERATED ALWAYS AS (v * 2) STORED);
        INSERT INTO computed (id, v) SELECT n, n FROM generate_series(1, 30) n""",
        "SELECT id, v FROM public.computed",
        "computed",
        since=12,
    ),
    Kind(
        "covering",
        """CREATE TABLE covering (id int, n int, v text, PRIMARY KEY (id) INCLUDE (n));
        INSERT INTO covering SELECT n, n, n FROM generate_series(1, 100) n""",
        "SELECT * FROM public.covering",
        "covering",
        since=11,
    ),
    Kind(
        "filtered",
        """CREATE TABLE filtered (id int PRIMARY KEY, v int, secret text);
        INSERT INTO filtered SELECT n, n, 'secret' FROM generate_series(1, 100) n""",
        "SELECT id, v FROM public.filtered WHERE id % 2 = 0 AND id < 50",
        "filtered (id, v) WHERE (id % 2 = 0 AND id < 50)",
        since=15,
    ),
]

VERSIONS = covered((10, 12, 14, 18), usual=(10, 18))


def wait_until_loaded(daemon: Daemon, tables: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while (text := daemon.log_text()).count('"loaded"') < tables:
        assert daemon.alive, text
        assert time.monotonic() < end, text
        time.sleep(0.05)


def read(daemon: Daemon, kafka: Kafka, database: Database) -> tuple[list[Cut], Replay]:
    """Return all cuts, and the tables that result from them."""
    with database.connect() as connection:
        connection.execute("INSERT INTO last VALUES (1)")
        row = connection.execute("SELECT pg_current_wal_flush_lsn() - '0/0'").fetchone()
        assert row is not None
    reader = Reader(kafka.bootstrap_servers, daemon.url, daemon.name)
    try:
        replay = Replay(tombstones=lambda _: False, partitions=reader.partitions)
        cuts = reader.read_until(int(row[0]))
        replay.apply(cuts)
        return cuts, replay
    finally:
        reader.close()


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_delivered_equals_the_table(
    version: int, *, binary: bool, new_database: Callable[..., Database], kafka: Kafka
) -> None:
    if binary and version < 14:
        pytest.skip("binary = true needs PostgreSQL 14")
    kinds = [kind for kind in KINDS if kind.since <= version]
    database = new_database(version)
    with database.connect() as connection:
        for kind in kinds:
            for statement in kind.sql.split(";"):
                connection.execute(statement)
        connection.execute("CREATE TABLE last (n int PRIMARY KEY)")
        connection.execute(f"CREATE PUBLICATION pgsluice FOR TABLE last, {', '.join(kind.member for kind in kinds)}")
        if version >= 13:
            connection.execute("ALTER PUBLICATION pgsluice SET (publish_via_partition_root = true)")
    settings: dict[str, dict[str, Any]] = {
        "snapshot": {"mode": "initial", "chunk_rows": 40},
        "delivery": {"heartbeat": "500ms"},
        "postgres": {"binary": binary},
    }
    with ExitStack() as stack:
        daemon = stack.enter_context(
            Daemon(f"k{uuid4().hex[:10]}", database.conninfo(), kafka.bootstrap_servers, settings)
        )
        wait_until_loaded(daemon, 1 + len(kinds))
        cuts, replay = read(daemon, kafka, database)
    assert not replay.problems
    with database.connect() as connection:
        for kind in kinds:
            table = replay.table(f"public.{kind.name}")
            assert not [*table.problems, *differences(table, *contents(connection, kind.expected))], kind.name
    ended = {mark["topic"]: mark["rows"] for cut in cuts for mark in cut.record["snapshots"] if mark["state"] == "end"}
    assert sum(ended.values()) == sum(len(replay.table(f"public.{kind.name}").rows) for kind in kinds)


def test_loaded_rows_have_the_same_keys_as_changes(new_database: Callable[..., Database], kafka: Kafka) -> None:
    """Check that a column in the INCLUDE clause of the primary key is not part of the key."""
    database = new_database(16)
    with database.connect() as connection:
        connection.execute("CREATE TABLE covering (id int, n int, PRIMARY KEY (id) INCLUDE (n))")
        connection.execute("INSERT INTO covering VALUES (1, 1)")
        connection.execute("CREATE TABLE last (n int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pgsluice FOR TABLE covering, last")
    settings = {"snapshot": {"mode": "initial"}, "delivery": {"heartbeat": "500ms"}}
    with ExitStack() as stack:
        name = f"k{uuid4().hex[:10]}"
        daemon = stack.enter_context(Daemon(name, database.conninfo(), kafka.bootstrap_servers, settings))
        wait_until_loaded(daemon, 2)
        with database.connect() as connection:
            connection.execute("UPDATE covering SET n = 2")
        cuts, _ = read(daemon, kafka, database)
    found = [event for cut in cuts for event in cut.events if event["table"] == "covering"]
    assert [(event["op"], event.key) for event in found] == [("r", {"id": 1}), ("u", {"id": 1})]


@pytest.mark.parametrize(
    ("identity", "key"),
    [("PRIMARY KEY (id, at)", ["at", "id"]), ("UNIQUE (n, id, at)", ["at", "id", "n"])],
)
def test_loaded_rows_of_partitions_have_the_same_keys_as_changes(
    identity: str, key: list[str], new_database: Callable[..., Database], kafka: Kafka
) -> None:
    """Check that the keys are those of the partitions' replica identities, whatever keys the root has."""
    database = new_database(15)
    with database.connect() as connection:
        connection.execute(
            "CREATE TABLE whole (id int NOT NULL, at date NOT NULL, n int NOT NULL) PARTITION BY LIST (at)"
        )
        connection.execute(f"CREATE TABLE part PARTITION OF whole ({identity}) FOR VALUES IN ('2026-01-01')".encode())
        connection.execute("CREATE UNIQUE INDEX ON whole (id, at)")
        connection.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
        if "n" in key:
            connection.execute("ALTER TABLE part REPLICA IDENTITY USING INDEX part_n_id_at_key")
        connection.execute("INSERT INTO whole SELECT n, '2026-01-01', n FROM generate_series(1, 5) n")
        connection.execute("CREATE TABLE last (n int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pgsluice FOR TABLE whole, last WITH (publish_via_partition_root)")
    settings: dict[str, dict[str, Any]] = {
        "snapshot": {"mode": "initial", "chunk_rows": 2},
        "delivery": {"heartbeat": "500ms"},
    }
    name = f"k{uuid4().hex[:10]}"
    with Daemon(name, database.conninfo(), kafka.bootstrap_servers, settings) as daemon:
        wait_until_loaded(daemon, 2)
        with database.connect() as connection:
            connection.execute("UPDATE whole SET n = 30 WHERE id = 3")
            connection.execute("DELETE FROM whole WHERE id = 4")
        cuts, _ = read(daemon, kafka, database)
    found = [event for cut in cuts for event in cut.events if event["table"] == "whole"]
    assert {event["op"] for event in found} >= {"r", "d"}
    assert {tuple(sorted(event.key or ())) for event in found} == {tuple(key)}
