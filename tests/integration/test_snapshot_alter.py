"""Tests tables that are altered after they were loaded.

DDL can change existing rows, and the stream does not contain these changes.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
import pytest

from pgsluice.errors import TableUnreadable
from pgsluice.postgres.catalog import Catalog
from pgsluice.postgres.chunks import ChunkReader
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.support.kafka import read_committed
from tests.support.loading import read_behind, wait_for, wait_until_loaded
from tests.support.reader import Cut, Event
from tests.support.replication import PUBLICATION, options_for
from tests.support.versions import long
from tests.support.weather import wait_until

ROWS = 60

SETTINGS: dict[str, dict[str, Any]] = {
    "snapshot": {"mode": "initial", "chunk_rows": 50},
    "delivery": {"heartbeat": "500ms"},
    "kafka": {"topics": {"partitions": 1}},
}

VERSIONS = (*long(10, 14), 18)

STALE = "a table was altered, and existing rows have values that the stream did not send"

Follow = Callable[..., Daemon]
Row = dict[str, str | None]


class Case(NamedTuple):
    """A statement that alters a table, and whether the table has to be loaded again because of it."""

    sql: str
    is_loaded_again: bool
    renamed: tuple[str, str] = ("", "")
    """A column's names before and after the statement."""


CASES = {
    "constant": Case("ALTER TABLE {t} ADD COLUMN w text DEFAULT 'c'", is_loaded_again=True),
    "volatile": Case("ALTER TABLE {t} ADD COLUMN w int DEFAULT random() * 1000", is_loaded_again=True),
    "without_default": Case(
        "ALTER TABLE {t} ADD COLUMN w int DEFAULT random() * 1000; ALTER TABLE {t} ALTER COLUMN w DROP DEFAULT",
        is_loaded_again=True,
    ),
    "nullable": Case("ALTER TABLE {t} ADD COLUMN w text", is_loaded_again=False),
    "default_later": Case(
        "ALTER TABLE {t} ADD COLUMN w text; ALTER TABLE {t} ALTER COLUMN w SET DEFAULT 'x'", is_loaded_again=False
    ),
    "type": Case("ALTER TABLE {t} ALTER COLUMN n TYPE text", is_loaded_again=True),
    "same_type": Case("ALTER TABLE {t} ALTER COLUMN v TYPE varchar(20) USING upper(v)", is_loaded_again=True),
    "precision": Case("ALTER TABLE {t} ALTER COLUMN d TYPE numeric(12,2)", is_loaded_again=True),
    "length": Case("ALTER TABLE {t} ALTER COLUMN v TYPE varchar(50)", is_loaded_again=False),
    "again": Case("ALTER TABLE {t} DROP COLUMN v; ALTER TABLE {t} ADD COLUMN v varchar(20)", is_loaded_again=True),
    "dropped": Case("ALTER TABLE {t} DROP COLUMN n", is_loaded_again=False),
    "renamed": Case("ALTER TABLE {t} RENAME COLUMN v TO w", is_loaded_again=False, renamed=("v", "w")),
    "vacuumed": Case("VACUUM FULL {t}", is_loaded_again=False),
}


def make(connection: psycopg.Connection, name: str) -> None:
    connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, n int, d numeric(10,2), v varchar(20))")
    connection.execute(f"INSERT INTO {name} SELECT n, n, n, 'row ' || n FROM generate_series(1, {ROWS}) n")


def write(connection: psycopg.Connection, name: str) -> None:
    connection.execute(f"INSERT INTO {name} (id) VALUES (1000)")
    connection.execute(f"UPDATE {name} SET id = id WHERE id = 1")
    connection.execute(f"DELETE FROM {name} WHERE id = 2")


@pytest.fixture
def follow(kafka: Kafka) -> Iterator[Follow]:
    """Provide a function that starts a daemon on a database. The daemon stops after the test."""
    with ExitStack() as stack:

        def begin(database: Database, **settings: dict[str, Any]) -> Daemon:
            name = f"a{uuid4().hex[:10]}"
            daemon = Daemon(name, database.conninfo(), kafka.bootstrap_servers, {**SETTINGS, **settings})
            return stack.enter_context(daemon)

        yield begin


@pytest.fixture
def items(database: Database) -> Database:
    """Provide a database with a published table that contains rows."""
    with database.connect() as connection:
        make(connection, "items")
        connection.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES")
    return database


def read(daemon: Daemon, kafka: Kafka, database: Database) -> list[Cut]:
    return read_behind("CREATE TABLE IF NOT EXISTS last (n int)", daemon, kafka, database)


def marks(cuts: list[Cut], table: str) -> list[dict[str, Any]]:
    return [mark for cut in cuts for mark in cut.record["snapshots"] if mark["table"] == table]


def mirror(cuts: list[Cut], table: str) -> dict[int, Row]:
    """Return the rows of a mirrored table, with the names of the columns and their latest values."""
    rows: dict[int, tuple[tuple[int, int, int], Row]] = {}
    events = [event for cut in cuts for event in cut.events if event.topic.endswith(f".{table}")]
    steps: list[tuple[tuple[int, int, int], Any]] = [(event.position, event) for event in events]
    steps += [((mark["epoch"], mark["lsn"], mark["seq"]), mark) for mark in marks(cuts, table)]
    begins: dict[str, tuple[int, int, int]] = {}
    for position, step in sorted(steps, key=lambda one: one[0]):
        if not isinstance(step, Event):
            begins.setdefault(step["id"], position)
            if step["state"] == "end":
                assert step["replaces"]
                rows = {key: row for key, row in rows.items() if row[0] > begins[step["id"]]}
        elif step["op"] == "d":
            del rows[step["before"]["id"]]
        else:
            row = {column_of(name): text(value) for name, value in step["after"].items()}
            rows[step["after"]["id"]] = position, row
    return {key: row for key, (_, row) in rows.items()}


def column_of(field: str) -> str:
    """Return the name of a field's column. If a column gets a new field later, the new field's name has a suffix."""
    return re.sub(r"__\d+$", "", field)


def text(value: object) -> str | None:
    return None if value is None else str(value)


def assert_same(found: dict[int, Row], connection: psycopg.Connection, table: str, case: Case) -> None:
    """Compare a mirror with the table, using the table's current columns."""
    cursor = connection.execute(f"SELECT * FROM {table}")
    names = [column.name for column in cursor.description or ()]
    expected = {row[0]: {name: text(value) for name, value in zip(names, row, strict=True)} for row in cursor}
    before, after = case.renamed
    for row in found.values():
        if after and after not in row:
            row[after] = row[before]
    assert {key: {name: row.get(name) for name in names} for key, row in found.items()} == expected


def attnums(daemon: Daemon, kafka: Kafka, table: str) -> dict[str, int]:
    """Return the numbers of the table's columns from the table's last record in the schema topic."""
    records = [json.loads(one.value() or b"{}") for one in read_committed(kafka, f"{daemon.name}.schemas")]
    *_, last = [one for one in records if one["subject"].endswith(f".{table}-value")]
    return {column["name"]: column["attnum"] for column in last["postgres"]["columns"]}


def alter(connection: psycopg.Connection, sql: str) -> None:
    if sql.startswith("VACUUM"):
        connection.execute(sql)
    else:
        with connection.transaction():
            connection.execute(sql)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_mirror_contains_the_rows_that_ddl_changed(
    version: int, new_database: Callable[[int], Database], follow: Follow, kafka: Kafka
) -> None:
    """Test every case twice: with and without writes to the table after the statement."""
    tables = {f"{name}{suffix}": case for name, case in CASES.items() for suffix in ("", "_written")}
    again = [name for name, case in tables.items() if case.is_loaded_again]
    database = new_database(version)
    with database.connect() as connection:
        for name in (*tables, "sentinel"):
            make(connection, name)
        connection.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES")
        daemon = follow(database)
        wait_until_loaded(daemon, len(tables) + 1)
        for name, case in tables.items():
            alter(connection, case.sql.format(t=name))
            if name.endswith("_written"):
                write(connection, name)
        wait_until_loaded(daemon, len(tables) + 1 + len(again))
        # When the daemon has noticed this later change, it knows all tables that it has to load again.
        connection.execute("ALTER TABLE sentinel ADD COLUMN w int DEFAULT 1")
        wait_until_loaded(daemon, len(tables) + 1 + len(again) + 1)
        cuts = read(daemon, kafka, database)
        for name, case in tables.items():
            states = [mark["state"] for mark in marks(cuts, name) if mark["state"] != "rows"]
            expected = ["begin", "end", "stale", "begin", "end"] if case.is_loaded_again else ["begin", "end"]
            assert states == expected, (name, daemon.log_text())
            assert_same(mirror(cuts, name), connection, name, case)
        assert attnums(daemon, kafka, "again_written") == {"id": 1, "n": 2, "d": 3, "v": 5}
        assert attnums(daemon, kafka, "renamed_written") == {"id": 1, "n": 2, "d": 3, "w": 4}


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_columns_are_those_at_the_time_of_the_lock(
    version: int, new_database: Callable[..., Database]
) -> None:
    """Check that ``shape`` returns the present columns, and that reading rows fails if a column is added later."""
    database = new_database(version)
    with database.connect() as connection:
        make(connection, "items")
        connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE items")
    options = options_for(database)
    async with Catalog(options) as catalog:
        (table,) = await catalog.published_names([PUBLICATION])
    reader = ChunkReader(options, [PUBLICATION])
    with database.connect() as connection:
        connection.execute("ALTER TABLE items ADD COLUMN w text DEFAULT 'c'")
        shape = await reader.shape(table)
        assert shape is not None
        assert [column.name for column in shape.relation.columns] == ["id", "n", "d", "v", "w"]
        connection.execute("ALTER TABLE items ADD COLUMN x text DEFAULT 'c'")
        await reader.begin(shape)
        with pytest.raises(TableUnreadable, match="was altered"):
            await reader.rows(shape, (), 10, 1_000)
        await reader.end()
        connection.execute(f"DROP PUBLICATION {PUBLICATION}")
        connection.execute(f"CREATE PUBLICATION {PUBLICATION}")
        assert await reader.shape(table) is None
    await reader.close()


def test_the_mark_names_the_load_that_is_stale(follow: Follow, kafka: Kafka, items: Database) -> None:
    daemon = follow(items)
    wait_until_loaded(daemon)
    with items.connect() as connection:
        connection.execute("ALTER TABLE items ADD COLUMN w int DEFAULT 1")
    wait_until_loaded(daemon, 2)
    first, stale, second = [
        mark for mark in marks(read(daemon, kafka, items), "items") if mark["state"] in ("end", "stale")
    ]
    assert (stale["id"], stale["rows"], stale["replaces"]) == (first["id"], ROWS, False)
    assert second["id"] != first["id"]


@pytest.mark.parametrize("moment", ["before it is known", "while it is loaded again"])
def test_a_kill_between_the_change_and_the_end_of_the_load_loses_nothing(
    moment: str, follow: Follow, kafka: Kafka, items: Database
) -> None:
    daemon = follow(items, snapshot={"mode": "initial", "chunk_rows": 2})
    wait_until_loaded(daemon)
    with items.connect() as connection:
        connection.execute(CASES["same_type"].sql.format(t="items"))
        if moment == "while it is loaded again":
            wait_for(daemon, STALE)
        daemon.kill()
        write(connection, "items")
        daemon.start()
        wait_until_loaded(daemon, 2)
        cuts = read(daemon, kafka, items)
        assert_same(mirror(cuts, "items"), connection, "items", CASES["same_type"])


def test_a_table_altered_while_the_pipeline_is_stopped_is_loaded_again(
    follow: Follow, kafka: Kafka, items: Database
) -> None:
    daemon = follow(items)
    wait_until_loaded(daemon)
    daemon.stop()
    with items.connect() as connection:
        connection.execute(CASES["again"].sql.format(t="items"))
        write(connection, "items")
        daemon.start()
        wait_until_loaded(daemon, 2)
        cuts = read(daemon, kafka, items)
        assert_same(mirror(cuts, "items"), connection, "items", CASES["again"])


@pytest.mark.long
def test_a_new_column_with_a_former_name_causes_a_load(follow: Follow, kafka: Kafka, items: Database) -> None:
    """Check that the table is loaded again, because mirrors may still have the former column's values."""
    daemon = follow(items)
    wait_until_loaded(daemon)
    with items.connect() as connection:
        connection.execute("ALTER TABLE items DROP COLUMN v")
        wait_until(lambda: '"former": [["v", 4]]' in snapshots(daemon, kafka), "the record to be written again")
        connection.execute("ALTER TABLE items ADD COLUMN v varchar(20)")
        wait_until_loaded(daemon, 2)
        cuts = read(daemon, kafka, items)
        assert_same(mirror(cuts, "items"), connection, "items", CASES["again"])


@pytest.mark.long
@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE items ADD COLUMN w int DEFAULT 1",
        "ALTER TABLE items ADD COLUMN w int DEFAULT random() * 1000",
        "ALTER TABLE items ALTER COLUMN n TYPE text",
    ],
)
@pytest.mark.parametrize("version", [14, 18])
def test_an_altered_table_with_partitions_is_loaded_again(
    sql: str, version: int, new_database: Callable[[int], Database], follow: Follow, kafka: Kafka
) -> None:
    database = new_database(version)
    with database.connect() as connection:
        connection.execute("CREATE TABLE items (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
        connection.execute("CREATE TABLE low PARTITION OF items FOR VALUES FROM (0) TO (30)")
        connection.execute("CREATE TABLE high PARTITION OF items FOR VALUES FROM (30) TO (2000)")
        connection.execute(f"INSERT INTO items SELECT n, n FROM generate_series(1, {ROWS}) n")
        connection.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES WITH (publish_via_partition_root)")
        daemon = follow(database)
        wait_until_loaded(daemon)
        connection.execute("CREATE TABLE higher PARTITION OF items FOR VALUES FROM (2000) TO (3000)")
        connection.execute(sql)
        wait_until_loaded(daemon, 2)
        cuts = read(daemon, kafka, database)
        assert_same(mirror(cuts, "items"), connection, "items", CASES["type"])


@pytest.mark.long
@pytest.mark.parametrize(
    "sql",
    [
        "ALTER PUBLICATION pgsluice SET TABLE items",
        "ALTER PUBLICATION pgsluice SET TABLE items (id, n) WHERE (id < 40)",
        "ALTER PUBLICATION pgsluice SET TABLE items (id) WHERE (id < 50)",
    ],
)
def test_an_extended_publication_causes_a_load(
    sql: str, new_database: Callable[[int], Database], follow: Follow, kafka: Kafka
) -> None:
    database = new_database(18)
    with database.connect() as connection:
        make(connection, "items")
        connection.execute("CREATE PUBLICATION pgsluice FOR TABLE items (id) WHERE (id < 40)")
        daemon = follow(database)
        wait_until_loaded(daemon)
        connection.execute(sql)
        wait_until_loaded(daemon, 2)
        ends = [mark for mark in marks(read(daemon, kafka, database), "items") if mark["state"] == "end"]
        assert len(ends) == 2


@pytest.mark.long
def test_a_table_that_returns_to_the_publication_is_loaded_again(
    new_database: Callable[[int], Database], follow: Follow, kafka: Kafka
) -> None:
    """Check that the table is loaded again, because changes in the meantime were not sent."""
    database = new_database(16)
    with database.connect() as connection:
        make(connection, "items")
        make(connection, "others")
        connection.execute("CREATE PUBLICATION pgsluice FOR TABLE items, others")
        daemon = follow(database)
        wait_until_loaded(daemon, 2)
        connection.execute("ALTER PUBLICATION pgsluice DROP TABLE items")
        wait_for(daemon, "a table is not published any more")
        connection.execute("DELETE FROM items WHERE id < 10")
        connection.execute("UPDATE items SET v = 'x' WHERE id = 20")
        connection.execute("ALTER PUBLICATION pgsluice ADD TABLE items")
        wait_until_loaded(daemon, 3)
        connection.execute("UPDATE items SET v = 'y' WHERE id = 30")
        cuts = read(daemon, kafka, database)
        states = [mark["state"] for mark in marks(cuts, "items") if mark["state"] != "rows"]
        assert states == ["begin", "end", "stale", "begin", "end"]
        assert_same(mirror(cuts, "items"), connection, "items", CASES["nullable"])


class TestASettingThatKeepsTablesFromBeingLoadedAgain:
    @pytest.fixture(params=[{"mode": "initial", "on_alter": "warn"}, {"mode": "never"}], ids=["warn", "never"])
    def daemon(self, request: pytest.FixtureRequest, follow: Follow, items: Database) -> Daemon:
        daemon = follow(items, snapshot={"mode": "initial"})
        wait_until_loaded(daemon)
        daemon.stop()
        daemon.settings["snapshot"] = request.param
        daemon.start()
        return daemon

    @pytest.mark.long
    def test_the_log_and_the_status_report_a_stale_table_until_it_is_loaded(
        self, daemon: Daemon, kafka: Kafka, items: Database
    ) -> None:
        with items.connect() as connection:
            connection.execute("ALTER TABLE items ADD COLUMN w int DEFAULT 1")
            wait_for(daemon, "pgsluice snapshot start public.items")
            wait_until(lambda: stale_in(daemon) == ["public.items"], "the status to report the table")
            daemon.restart()
            wait_until(lambda: stale_in(daemon) == ["public.items"], "the status to report the table after a restart")
            wait_until(lambda: daemon.metric("pgsluice_snapshot_tables", state="stale") == 1, "the metric")
            assert re.search(r"^public.items +stale ", command(daemon, "status"), re.MULTILINE)
            assert "public.items: loaded, 60 rows" in command(daemon, "start", "public.items")
            assert re.search(r"^public.items +loaded ", command(daemon, "status"), re.MULTILINE)
            wait_until(lambda: stale_in(daemon) == [], "the status to report no stale table")
            cuts = read(daemon, kafka, items)
            assert [mark["state"] for mark in marks(cuts, "items") if mark["state"] != "rows"] == [
                *("begin", "end", "stale", "begin", "end")
            ]
            assert_same(mirror(cuts, "items"), connection, "items", CASES["constant"])


def stale_in(daemon: Daemon) -> list[str]:
    """Return the tables that the status reports as stale."""
    status = daemon.status()["snapshot"]
    return [] if status is None else [one["table"] for one in status["not_loaded"] if one["is_stale"]]


def command(daemon: Daemon, action: str, *arguments: str) -> str:
    """Run ``pgsluice snapshot`` and return its output."""
    line = [sys.executable, "-m", "pgsluice", "snapshot", action, "-c", str(daemon.config_file), *arguments]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def snapshots(daemon: Daemon, kafka: Kafka) -> str:
    """Return the last record in ``<prefix>.snapshots``, or an empty text if there is none."""
    values = [one.value() or b"" for one in read_committed(kafka, f"{daemon.name}.snapshots")]
    return values[-1].decode() if values else ""
