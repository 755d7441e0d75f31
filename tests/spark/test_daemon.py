"""End-to-end tests: rows go from PostgreSQL through the daemon and Kafka into Spark, and have to be the same there."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation
from pyspark.sql.types import StructType, TimestampType

from pgsluice_spark import RestRegistry, TopicRegistry, latest, read_changes, read_marks
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.support.reader import Reader

NAME = "native"
TOPIC = f"{NAME}.public.samples"
SETTINGS: dict[str, dict[str, Any]] = {
    "kafka": {"topics": {"partitions": 2}},
    "delivery": {"heartbeat": "500ms"},
    "tables": {"tombstones": True},
}

COLUMNS = {
    # By column: the type in PostgreSQL, and the type in Spark.
    "id": ("int4 PRIMARY KEY", "int"),
    "flag": ("bool", "boolean"),
    "small": ("int2", "int"),
    "big": ("int8", "bigint"),
    "amount": ("numeric(10,2)", "decimal(10,2)"),
    "ratio": ("float8", "double"),
    "note": ("text", "string"),
    "day": ("date", "date"),
    "local": ("timestamp", "timestamp_ntz"),
    "moment": ("timestamptz", "timestamp"),
    "token": ("uuid", "string"),
    "data": ("bytea", "binary"),
    "counts": ("int[]", "array<int>"),
    "tags": ("text[]", "array<string>"),
}
ADDED = {"price": ("numeric(20,4)", "decimal(20,4)")}

SETUP = (
    f"CREATE TABLE samples ({', '.join(f'{name} {kind}' for name, (kind, _) in COLUMNS.items())})",
    "ALTER TABLE samples ALTER note SET STORAGE EXTERNAL",
    "CREATE PUBLICATION pgsluice FOR TABLE samples",
)
FULL = r"""
    true, -32768, 9223372036854775807, -12345678.90, 0.1, 'żółć 🙂', '2024-02-29', '1066-10-14 09:00:00.000001',
    '2024-10-27 02:30:00.123456+02', '6f1e2c1c-7b1f-4e0e-9f0a-0d6e2a3b4c5d', '\x00ff', '{1,NULL,-3}', '{"a, b",NULL,""}'
"""
LONG = "repeat('kept out of line ', 500)"

BEFORE = (
    f"INSERT INTO samples VALUES (1, {FULL}), (2, {FULL}), (3, {FULL})",
    "INSERT INTO samples (id) VALUES (4), (5)",
    f"INSERT INTO samples (id, amount, ratio, note) VALUES (6, 'NaN', 'NaN', {LONG}), (7, 1, '-Infinity', {LONG})",
    f"BEGIN; DELETE FROM samples WHERE id = 2; INSERT INTO samples (id, note) VALUES (8, {LONG}); COMMIT",
    "UPDATE samples SET flag = NOT flag, tags = '{}', data = '', day = NULL WHERE id = 1",
)
AFTER = (
    "UPDATE samples SET counts = '{7}' WHERE id = 6",  # the note is TOASTed, so it is not in the stream
    "ALTER TABLE samples ADD price numeric(20,4)",
    "INSERT INTO samples (id, price) VALUES (9, 1234567890123456.7891)",
    "UPDATE samples SET price = 0.5, note = NULL WHERE id = 3",
    "UPDATE samples SET id = 70, amount = -0.01 WHERE id = 7",  # the note of row 7 is not in the stream either
    "DELETE FROM samples WHERE id IN (4, 8)",
    "INSERT INTO samples (id, moment) VALUES (2, '1999-12-31 23:59:59.999999Z')",
)


LOADED = "loaded"
LOADED_SETTINGS: dict[str, dict[str, Any]] = {
    "kafka": {"topics": {"partitions": 2}},
    "snapshot": {"mode": "initial", "chunk_rows": 30},
    "tables": {"rules": [{"match": f"public.{table}", "topic": "{prefix}.{schema}"} for table in ("notes", "tags")]},
}

FILLED = (
    "CREATE TABLE notes (id int PRIMARY KEY, value text)",
    "CREATE TABLE tags (id int PRIMARY KEY, value text)",
    "INSERT INTO notes SELECT n, 'note ' || n FROM generate_series(1, 100) AS n",
    "INSERT INTO tags SELECT n, 'tag ' || n FROM generate_series(1, 50) AS n",
    "CREATE PUBLICATION pgsluice FOR ALL TABLES",
)
CHANGED = (
    "UPDATE notes SET value = 'changed' WHERE id < 10",
    "DELETE FROM tags WHERE id = 1",
    "UPDATE tags SET id = 1000 WHERE id = 2",
)
MADE_AGAIN = (  # there is no event for the rows that are dropped with the table
    "DROP TABLE notes",
    "CREATE TABLE notes (id int PRIMARY KEY, value text)",
    "INSERT INTO notes SELECT n, 'new note ' || n FROM generate_series(90, 110) AS n",
)


class Table:
    """The table, and a reader that waits until all its changes are in Kafka."""

    def __init__(self, connection: psycopg.Connection, reader: Reader) -> None:
        self._connection = connection
        self._reader = reader

    def run(self, statements: tuple[str, ...]) -> None:
        """Execute statements, and wait until consumers can read their changes."""
        for statement in statements:
            self._connection.execute(statement.encode())
        ((lsn,),) = self._connection.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchall()
        self._reader.read_until(int(lsn))

    def rows(self) -> dict[int, str]:
        """Return the rows by key, as text, so that types and NaN are compared as well."""
        with self._connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            return {row["id"]: comparable(row) for row in cursor.execute("SELECT * FROM samples")}


@contextmanager
def followed(database: Database, kafka: Kafka) -> Iterator[tuple[Table, Daemon]]:
    """Provide a new table, and the daemon that replicates it."""
    with database.connect() as connection:
        for statement in SETUP:
            connection.execute(statement.encode())
        with Daemon(NAME, database.conninfo(), kafka.bootstrap_servers, SETTINGS) as daemon:
            reader = Reader(kafka.bootstrap_servers, daemon.url, NAME)
            try:
                yield Table(connection, reader), daemon
            finally:
                reader.close()


def comparable(row: dict[str, Any]) -> str:
    return repr({name: _one_type(value) for name, value in row.items()})


def _one_type(value: object) -> object:
    """Convert a value of psycopg or PySpark to a common type, so that both can be compared."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, bytearray):
        return bytes(value)
    return str(value) if isinstance(value, UUID) else value


def spark_rows(changes: DataFrame) -> dict[int, str]:
    """Return the table's rows derived from its changes, in the form of ``Table.rows``."""
    rows = latest(changes)
    schema = rows.schema["after"].dataType
    found = rows.collect()
    assert len({row["key"]["id"] for row in found}) == len(found)
    assert all(row["unchanged"] == [] for row in found)
    return {row["key"]["id"]: comparable(_values(row, schema)) for row in found}


def _values(row: Row, schema: StructType) -> dict[str, Any]:
    values: dict[str, Any] = row["after"].asDict()
    for name, text in row["raw"].items():
        assert (values[name], schema[name].dataType.typeName()) == (None, "decimal")
        values[name] = Decimal(text)
    for field in schema:
        if isinstance(field.dataType, TimestampType) and values[field.name] is not None:
            values[field.name] = values[field.name].astimezone(UTC)  # PySpark returns local time
    return values


def run(changes: DataFrame, directory: Path) -> None:
    """Write the changes up to the current end of the topic to Parquet files."""
    query = (
        changes.writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "changes"))
    )
    query.awaitTermination()


def as_json(changes: DataFrame) -> list[str]:
    return sorted(row[0] for row in changes.select(F.to_json(F.struct("*"))).collect())


def types(changes: DataFrame, struct: str) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in changes.schema[struct].dataType}


def test_a_table_is_the_same_in_spark(
    spark: SparkSession, new_database: Callable[[], Database], kafka: Kafka, tmp_path: Path
) -> None:
    servers = kafka.bootstrap_servers
    with followed(new_database(), kafka) as (table, daemon):
        rest = RestRegistry(daemon.url)
        table.run(BEFORE)
        changes = read_changes(spark, TOPIC, bootstrap_servers=servers, registry=rest)
        run(changes, tmp_path)
        expected = {name: kind for name, (_, kind) in COLUMNS.items()}
        assert (types(changes, "after"), types(changes, "key")) == (expected, {"id": "int"})
        written = spark.read.parquet(str(tmp_path / "changes"))
        assert written.schema.simpleString() == changes.schema.simpleString()
        assert spark_rows(written) == table.rows()

        table.run(AFTER)
        changes = read_changes(spark, TOPIC, bootstrap_servers=servers, registry=rest)
        assert types(changes, "after") == expected | {name: kind for name, (_, kind) in ADDED.items()}
        run(changes, tmp_path)
        written = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "changes"))
        assert written.where("size(unchanged) > 0").count() == 2
        rows = table.rows()
        assert rows.keys() == {1, 2, 3, 5, 6, 9, 70}
        assert spark_rows(written) == rows

    # The daemon has ended. Kafka alone is enough to read the schemas and the changes.
    by_topic = TopicRegistry(spark, servers, f"{NAME}.schemas")
    batch = read_changes(spark, TOPIC, bootstrap_servers=servers, registry=by_topic, streaming=False)
    assert batch.schema.simpleString() == changes.schema.simpleString()
    assert as_json(batch) == as_json(written)


def wait_until_loaded(daemon: Daemon, tables: int) -> None:
    end = time.monotonic() + 120
    while (text := daemon.log_text()).count('"event": "loaded"') < tables:
        assert daemon.alive, text
        assert time.monotonic() < end, text
        time.sleep(0.1)


def by_table(rows: DataFrame) -> list[tuple[str, int, str]]:
    return sorted((row["table"], row["after"]["id"], row["after"]["value"]) for row in rows.collect())


def test_rows_from_before_the_stream(spark: SparkSession, new_database: Callable[[], Database], kafka: Kafka) -> None:
    """Load two tables that share a topic, and recreate one of them."""
    database, servers = new_database(), kafka.bootstrap_servers
    with database.connect() as connection, ExitStack() as stack:
        for statement in FILLED:
            connection.execute(statement.encode())
        daemon = stack.enter_context(Daemon(LOADED, database.conninfo(), servers, LOADED_SETTINGS))
        wait_until_loaded(daemon, 2)
        reader = Reader(servers, daemon.url, LOADED)
        stack.callback(reader.close)
        table = Table(connection, reader)
        table.run(CHANGED)
        table.run(MADE_AGAIN)
        wait_until_loaded(daemon, 3)
        table.run(("INSERT INTO tags VALUES (0, 'last')",))
        registry = RestRegistry(daemon.url)
        marks = read_marks(
            spark, f"{LOADED}.transactions", bootstrap_servers=servers, registry=registry, streaming=False
        ).localCheckpoint()
        changes = read_changes(
            spark, f"{LOADED}.public", bootstrap_servers=servers, registry=registry, streaming=False
        ).localCheckpoint()
        expected = connection.execute(
            "SELECT 'notes', id, value FROM notes UNION ALL SELECT 'tags', id, value FROM tags ORDER BY 1, 2"
        ).fetchall()
    assert marks.where("state = 'end' AND replaces").count() == 3
    assert by_table(latest(changes, marks)) == expected
    assert len(by_table(latest(changes))) == len(expected) + 89
