"""A database, its daemon, and an independent consumer that knows the content of the tables at every cut.

The consumer, ``Shop.model``, follows the contract (docs/events.md). It uses Confluent's client, and not Spark.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import TimestampType

from pgsluice_spark import Pipeline, RestRegistry
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.support.reader import Cut, Event, Reader

Row = dict[str, Any]
Rows = dict[str, Row]
"""The rows of a table by key. The key is a text."""

SYSTEM = "_pgsluice"


class Model:
    """Copies of all tables. ``at[n]`` has their rows at the end of cut ``n``."""

    def __init__(self) -> None:
        self.at: dict[int, dict[str, Rows]] = {}
        self._tables: dict[str, dict[str, tuple[tuple[int, int, int], Row]]] = {}
        self._begins: dict[str, tuple[int, int, int]] = {}
        self.events: dict[str, int] = {}
        """The number of distinct changes of each table."""

    def apply(self, cut: Cut) -> None:
        events = {event.position: event for event in cut.events if event.value is not None and "op" in event.value}
        for position in sorted(events):
            self._event(events[position])
        for mark in cut.record["snapshots"]:
            self._mark(mark)
        tables = {table: {key: row for key, (_, row) in rows.items()} for table, rows in self._tables.items()}
        self.at[cut.record["cut"]] = deepcopy(tables)

    def _event(self, event: Event) -> None:
        name = f"{event['schema']}.{event['table']}"
        rows = self._tables.setdefault(name, {})
        self.events[name] = self.events.get(name, 0) + 1
        key = repr(event.key)
        if event.op == "t":
            rows.clear()
        elif event.op == "d":
            if "key_change" not in event["flags"]:
                rows.pop(key, None)
            else:
                rows["moving"] = rows.pop(key, (event.position, {}))
        else:
            moving = rows.pop("moving", None)
            former = moving or rows.get(key, (event.position, {}))
            kept = {name: former[1].get(name) for name in event["unchanged"]}
            rows[key] = event.position, {**event["after"], **kept}

    def _mark(self, mark: Mapping[str, Any]) -> None:
        place = mark["epoch"], mark["lsn"], mark["seq"]
        if mark["state"] == "begin":
            self._begins[mark["id"]] = place
        if mark["state"] == "end" and mark["replaces"]:
            rows = self._tables.get(f"{mark['schema']}.{mark['table']}", {})
            for key in [key for key, (position, _) in rows.items() if position < self._begins[mark["id"]]]:
                del rows[key]


class Shop:
    """A pipeline under test. ``run`` executes SQL, and returns when all changes are in Kafka."""

    def __init__(self, spark: SparkSession, connection: psycopg.Connection, daemon: Daemon, kafka: Kafka) -> None:
        self.connection, self.daemon, self.kafka = connection, daemon, kafka
        self.reader = Reader(kafka.bootstrap_servers, daemon.url, daemon.name)
        self.model = Model()
        self.spark = spark
        self.pipeline = Pipeline(
            spark, prefix=daemon.name, bootstrap_servers=kafka.bootstrap_servers, registry=RestRegistry(daemon.url)
        )

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())
        ((lsn,),) = self.connection.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchall()
        for cut in self.reader.read_until(int(lsn)):
            self.model.apply(cut)

    def wait_until_loaded(self, tables: int) -> None:
        end = time.monotonic() + 120
        while (text := self.daemon.log_text()).count('"event": "loaded"') < tables:
            assert self.daemon.alive, text
            assert time.monotonic() < end, text
            time.sleep(0.1)
        self.run(
            "SELECT pg_logical_emit_message(true, 'tests', 'the load is over')", "INSERT INTO ticks DEFAULT VALUES"
        )

    def table(self, name: str) -> list[Row]:
        """Return the current rows in PostgreSQL."""
        with self.connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            return ordered(cursor.execute(f"SELECT * FROM {name}".encode()).fetchall())


@contextmanager
def opened(
    spark: SparkSession,
    database: Database,
    kafka: Kafka,
    name: str,
    setup: tuple[str, ...],
    settings: Mapping[str, Mapping[str, Any]],
) -> Iterator[Shop]:
    """Provide a shop whose tables exist before its daemon starts."""
    with database.connect() as connection:
        for statement in (*setup, "CREATE TABLE ticks (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)"):
            connection.execute(statement.encode())
        connection.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES")
        with Daemon(name, database.conninfo(), kafka.bootstrap_servers, settings) as daemon:
            shop = Shop(spark, connection, daemon, kafka)
            try:
                yield shop
            finally:
                shop.reader.close()


def ordered(rows: list[Row]) -> list[Row]:
    """Return rows in a fixed order, without their null columns.

    A row that lacks a column has to equal a row in which this column is null.
    """
    plain = [{name: _plain(value) for name, value in row.items() if value is not None} for row in rows]
    return sorted(plain, key=lambda row: repr(sorted(row.items())))


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo is not None else value
    return value


def spark_rows(frame: DataFrame) -> list[Row]:
    """Return the rows of a Spark table. Check that all values are known."""
    moments = {field.name for field in frame.schema if isinstance(field.dataType, TimestampType)}
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    assert [row for row in rows if row[SYSTEM]["unchanged"] or row[SYSTEM]["raw"]] == []
    return ordered([{name: _moment(row[name], name in moments) for name in row if name != SYSTEM} for row in rows])


def _moment(value: Any, is_moment: bool) -> Any:  # noqa: ANN401, FBT001 - any value of a row
    """Return a moment in UTC with its time zone, because PySpark returns local time without a time zone."""
    return value.astimezone(UTC) if is_moment and value is not None else value
