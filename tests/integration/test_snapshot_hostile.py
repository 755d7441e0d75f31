"""Tests tables of a user whose only right is to create tables. Loading them must not run any of the user's code."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import pytest

from pgsluice.errors import ReadTooSlow, TableUnreadable
from pgsluice.postgres.chunks import ChunkReader
from pgsluice.postgres.options import ConnectionOptions
from pgsluice.relation import PublishedName
from pgsluice.snapshot import Chunk, Shape
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.integration.test_snapshot_tables import wait_until_loaded
from tests.support.weather import wait_until

TRAP = """
CREATE TABLE {schema}.{table} (id int PRIMARY KEY);
INSERT INTO {schema}.{table} VALUES (1);
CREATE FUNCTION {schema}.{table}_ran(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN PERFORM pg_create_physical_replication_slot('{slot}'); RETURN n; EXCEPTION WHEN OTHERS THEN RETURN n; END $$;
CREATE INDEX ON {schema}.{table} ((id + {schema}.{table}_ran(0)));
GRANT SELECT ON {schema}.{table} TO public
"""
"""A table with an index on a function. If the planner runs it, a slot is created with the reader's rights."""


@pytest.mark.parametrize("version", [10, 18])
def test_reading_runs_no_functions_of_users_who_can_only_create_tables(
    version: int, new_database: Callable[..., Database], kafka: Kafka
) -> None:
    database = new_database(version)
    owner = f"hostile{uuid4().hex[:8]}"
    slot = f"stolen{uuid4().hex[:8]}"
    with database.connect() as connection:
        connection.execute(f"CREATE ROLE {owner}")
        connection.execute(f"CREATE SCHEMA hostile AUTHORIZATION {owner}")
        connection.execute("CREATE TABLE mine (id int PRIMARY KEY)")
        connection.execute("INSERT INTO mine VALUES (1)")
        connection.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES")
        connection.execute(f"SET ROLE {owner}")
        connection.execute(TRAP.format(schema="hostile", table="trap", slot=slot))
        connection.execute("RESET ROLE")
    settings = {"snapshot": {"mode": "initial"}, "delivery": {"heartbeat": "500ms"}}
    with ExitStack() as stack:
        name = f"k{uuid4().hex[:10]}"
        daemon = stack.enter_context(Daemon(name, database.conninfo(), kafka.bootstrap_servers, settings))
        wait_until_loaded(daemon, 1)
        wait_until(lambda: "Table hostile.trap is left out until" in daemon.log_text(), "the table to be left out")
        with database.connect() as connection:
            assert not connection.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", [slot]).fetchone()


@pytest.mark.parametrize(("member", "is_trusted"), [("ALL TABLES", False), ("TABLE whole", True), ("TABLE part", True)])
@pytest.mark.parametrize("owner", ["somebody", "the database's owner"])
def test_tables_are_read_only_if_their_owners_are_trusted(
    member: str, *, is_trusted: bool, owner: str, new_database: Callable[..., Database]
) -> None:
    """Read the partition ``part``. In one case, the publication names only the partition's root, ``whole``."""
    role = f"owner{uuid4().hex[:8]}"
    database = new_database(17)
    with database.connect() as connection:
        connection.execute(f"CREATE ROLE {role}")
        connection.execute(f"GRANT CREATE ON SCHEMA public TO {role}")
        if owner != "somebody":
            connection.execute(f'ALTER DATABASE "{connection.info.dbname}" OWNER TO {role}')
        connection.execute(f"SET ROLE {role}")
        connection.execute("CREATE TABLE whole (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        connection.execute("CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (9)")
        connection.execute("RESET ROLE")
        connection.execute(f"CREATE PUBLICATION pgsluice FOR {member}")
    shape = asyncio.run(shape_of(database, "part"))
    assert shape.is_trusted == (is_trusted or owner != "somebody")


def test_a_table_is_untrusted_if_another_user_owns_a_partition_or_the_schema(
    new_database: Callable[..., Database],
) -> None:
    """Check that owners of partitions and of the schema matter, except for tables that the publication names."""
    role = f"tenant{uuid4().hex[:8]}"
    database = new_database(17)
    with database.connect() as connection:
        connection.execute(f"CREATE ROLE {role}")
        connection.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES WITH (publish_via_partition_root)")
        connection.execute("CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        connection.execute("CREATE TABLE upper PARTITION OF root FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (id)")
        connection.execute("CREATE TABLE part PARTITION OF upper FOR VALUES FROM (0) TO (5)")
        connection.execute("CREATE PUBLICATION named FOR TABLE root WITH (publish_via_partition_root)")
        connection.execute("CREATE TABLE parent (id int PRIMARY KEY)")
        connection.execute("CREATE TABLE child () INHERITS (parent)")
        connection.execute(f"ALTER TABLE child OWNER TO {role}")
    for owned in ("TABLE part", "TABLE upper", "SCHEMA public"):
        assert asyncio.run(shape_of(database, "root")).is_trusted
        assert asyncio.run(shape_of(database, "parent")).is_trusted  # a load of the parent does not read the child
        with database.connect() as connection:
            connection.execute(f"ALTER {owned} OWNER TO {role}".encode())
        assert not asyncio.run(shape_of(database, "root")).is_trusted
        assert asyncio.run(shape_of(database, "root", "named")).is_trusted
        with database.connect() as connection:
            connection.execute(f"ALTER {owned} OWNER TO CURRENT_USER".encode())


def test_hostile_columns_do_not_prevent_loading_other_tables(
    new_database: Callable[..., Database], kafka: Kafka
) -> None:
    """PostgreSQL needs more than ten seconds to resolve the domains of one table. Nothing must wait for this table."""
    database = new_database(17)
    owner = f"hostile{uuid4().hex[:8]}"
    with database.connect() as connection:
        connection.execute(f"CREATE ROLE {owner}")
        connection.execute(f"CREATE SCHEMA hostile AUTHORIZATION {owner}")
        connection.execute("CREATE TABLE mine (id int PRIMARY KEY)")
        connection.execute("INSERT INTO mine SELECT generate_series(1, 1000)")
        connection.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES")
        connection.execute(f"SET ROLE {owner}")
        connection.execute("CREATE DOMAIN hostile.d0 AS int")
        connection.execute(
            "DO $$ BEGIN FOR n IN 1..5000 LOOP "
            "EXECUTE format('CREATE DOMAIN hostile.d%s AS hostile.d%s', n, n - 1); END LOOP; END $$"
        )
        columns = ", ".join(f"c{number} hostile.d{5000 - number}" for number in range(1600))
        connection.execute(f"CREATE TABLE hostile.wide ({columns})".encode())
    settings = {"snapshot": {"mode": "initial"}, "delivery": {"heartbeat": "500ms"}}
    name = f"k{uuid4().hex[:10]}"
    with Daemon(name, database.conninfo(), kafka.bootstrap_servers, settings) as daemon:
        wait_until_loaded(daemon, 1)
        assert daemon.status()["snapshot"]["tables"]["blocked"] == 1
        assert "tables cannot be read now" not in daemon.log_text()


def test_a_locked_table_does_not_prevent_reading_others(new_database: Callable[..., Database]) -> None:
    """Check that reading does not wait for the lock. A query of pg_publication_tables would wait for it."""
    database = new_database(17)
    with database.connect() as connection, database.connect(autocommit=False) as stranger:
        connection.execute("CREATE TABLE mine (id int PRIMARY KEY)")
        connection.execute("CREATE TABLE his (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES")
        stranger.execute("LOCK TABLE his")
        assert asyncio.run(shape_of(database, "mine")).key == ("id",)


@asynccontextmanager
async def reading(database: Database, publication: str = "pgsluice") -> AsyncIterator[ChunkReader]:
    """Yield a reader of the published tables, and close its connections afterwards."""
    reader = ChunkReader(ConnectionOptions({"dsn": database.conninfo()}), [publication])
    try:
        yield reader
    finally:
        await reader.close()


async def shape_of(database: Database, table: str, publication: str = "pgsluice") -> Shape:
    """Return the table's shape, which a ``ChunkReader`` needs to read the table."""
    with database.connect() as connection:
        found = connection.execute("SELECT %s::regclass::oid", [table]).fetchone()
    assert found is not None
    async with reading(database, publication) as reader:
        shape = await reader.shape(PublishedName(found[0], "public", table, columns=1, is_trusted=False))
    assert shape is not None
    return shape


def test_a_key_in_binary_format_is_read_without_the_casts_of_its_type(new_database: Callable[..., Database]) -> None:
    database = new_database(17)
    with database.connect() as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('good', 'bad')")
        connection.execute("CREATE FUNCTION lie(mood) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'bad' $$")
        connection.execute("CREATE CAST (mood AS text) WITH FUNCTION lie(mood)")
        connection.execute("CREATE TABLE moods (m mood PRIMARY KEY)")
        connection.execute("INSERT INTO moods VALUES ('good'), ('bad')")
        connection.execute("CREATE PUBLICATION pgsluice FOR TABLE moods")

    async def read() -> Chunk:
        shape = await shape_of(database, "moods")
        async with reading(database) as reader:
            await reader.begin(shape)
            return await reader.rows_of(shape, [(f"b{b'good'.hex()}",)], 1 << 20)

    (frame,) = asyncio.run(read()).frames
    assert b"good" in frame


@pytest.mark.parametrize(
    "type_",
    [
        "CREATE TYPE t AS (n int)",
        "CREATE DOMAIN t AS mood",
        "CREATE DOMAIN t AS int4range",
        "CREATE EXTENSION citext; CREATE DOMAIN t AS citext",
    ],
)
def test_types_whose_values_cannot_be_compared_are_not_keys(type_: str, new_database: Callable[..., Database]) -> None:
    database = new_database(17)
    with database.connect() as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('good', 'bad')")
        connection.execute(type_)
        connection.execute("CREATE TABLE odd (key t PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pgsluice FOR TABLE odd")
    assert asyncio.run(shape_of(database, "odd")).key == ()


def test_only_oids_are_keys_that_postgresql_compares_as_oids(new_database: Callable[..., Database]) -> None:
    """Check that a reg type is not a key, because PostgreSQL would take the name in its text for an oid."""
    database = new_database(17)
    with database.connect() as connection:
        connection.execute("CREATE DOMAIN number AS oid; CREATE DOMAIN name_of_table AS regclass")
        for table, type_ in (("a", "oid"), ("b", "number"), ("c", "regclass"), ("d", "name_of_table")):
            connection.execute(f"CREATE TABLE {table} (key {type_} PRIMARY KEY)".encode())
        connection.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES")
    keys = [asyncio.run(shape_of(database, table)).key for table in "abcd"]
    assert keys == [("key",), ("key",), (), ()]


def test_a_column_is_a_key_only_if_its_constraint_against_nulls_is_valid(new_database: Callable[..., Database]) -> None:
    database = new_database(18)
    with database.connect() as connection:
        connection.execute("CREATE TABLE items (id int UNIQUE)")
        connection.execute("INSERT INTO items VALUES (1), (NULL), (NULL)")
        connection.execute("ALTER TABLE items ADD CONSTRAINT no_null NOT NULL id NOT VALID")
        connection.execute("CREATE PUBLICATION pgsluice FOR TABLE items")
        assert asyncio.run(shape_of(database, "items")).key == ()
        connection.execute("TRUNCATE items")
        connection.execute("ALTER TABLE items VALIDATE CONSTRAINT no_null")
        assert asyncio.run(shape_of(database, "items")).key == ("id",)


@pytest.mark.parametrize(
    ("where", "is_valid"),
    [
        ("id IN (1, 2) AND note LIKE '%)%' -- (", True),
        ("id = ANY (ARRAY[1, 2])", True),
        ("id = 1) OR (id = 2", False),
        ("id = 1] IS NOT NULL OR ARRAY[id = 2", False),
        ("id = 1)] IS NOT NULL OR ARRAY[(id = 2", False),
        ("id = 1 /*", False),
        ("id = 1; SELECT 1", False),
    ],
)
def test_a_condition_cannot_escape_from_its_parentheses(
    where: str, *, is_valid: bool, new_database: Callable[..., Database]
) -> None:
    """Check such conditions, because they would select rows that the publication leaves out."""
    database = new_database(17)
    with database.connect() as connection:
        connection.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
        connection.execute("CREATE PUBLICATION pgsluice FOR TABLE items WHERE (id > 1)")

    async def check() -> None:
        shape = replace(await shape_of(database, "items"), where=where)
        async with reading(database) as reader:
            await reader.check_readable(shape)

    if is_valid:
        asyncio.run(check())
    else:
        with pytest.raises(TableUnreadable, match=r"syntax error|unterminated"):
            asyncio.run(check())


def test_rows_of_any_size_are_read_in_portions_that_fit_into_memory(new_database: Callable[..., Database]) -> None:
    """Read rows by their keys, and with a cursor. Both stop at a limit, although small rows precede the large ones."""
    database, size = new_database(17), 1 << 20
    with database.connect() as connection:
        connection.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
        connection.execute(
            "INSERT INTO items SELECT n, CASE WHEN n > 500 THEN repeat('x', 100000) END FROM generate_series(1, 700) n"
        )
        connection.execute("CREATE PUBLICATION pgsluice FOR TABLE items")

    async def read() -> list[Chunk]:
        shape = await shape_of(database, "items")
        found: list[Chunk] = []
        async with reading(database) as reader:
            await reader.begin(shape)
            await reader.open_rows(shape)
            while not (found and found[-1].is_last):
                found.append(await reader.next_rows(shape, 10_000, size))
            with pytest.raises(ReadTooSlow, match="more than 1,048,576 bytes"):
                await reader.rows_of(shape, [(f"t{n}",) for n in range(501, 601)], size)
            await reader.end()
            await reader.begin(shape)
            assert len((await reader.rows_of(shape, [("t501",)], 1)).frames) == 1
        return found

    chunks = asyncio.run(read())
    assert sum(len(chunk.frames) for chunk in chunks) == 700
    assert max(chunk.bytes for chunk in chunks) < 12 * size


@pytest.mark.parametrize(
    ("identity", "key"),
    [("PRIMARY KEY (id)", ()), ("PRIMARY KEY (id, at)", ("id", "at")), ("UNIQUE (id)", ("id", "at"))],
)
def test_a_root_has_a_key_only_if_the_stream_sends_it_for_old_rows_of_all_partitions(
    identity: str, key: tuple[str, ...], new_database: Callable[..., Database]
) -> None:
    """Check that a row cannot be missed because it moves to another key while the table is read."""
    database = new_database(15)
    with database.connect() as connection:
        connection.execute("CREATE TABLE whole (id int NOT NULL, at date NOT NULL) PARTITION BY LIST (at)")
        connection.execute("CREATE UNIQUE INDEX ON whole (id, at)")
        connection.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
        connection.execute("CREATE TABLE part PARTITION OF whole FOR VALUES IN ('2026-01-01') PARTITION BY LIST (id)")
        connection.execute(f"CREATE TABLE leaf PARTITION OF part ({identity}) FOR VALUES IN (1)".encode())
        connection.execute("CREATE PUBLICATION pgsluice FOR TABLE whole WITH (publish_via_partition_root)")
    assert asyncio.run(shape_of(database, "whole")).key == key
