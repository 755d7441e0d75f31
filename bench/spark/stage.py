"""A pipeline whose topics Spark reads, with its database, its daemon, and the targets to which mirrors write."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyspark
from pyspark.sql import SparkSession

from bench.servers import delete_topics, new_name, wait_until
from pgsluice_spark import Delta, Pipeline, RestRegistry
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from sandbox.spark import jars

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "kafka": {"topics": {"partitions": 2}},
    "snapshot": {"mode": "initial"},
    "delivery": {"heartbeat": "500ms"},
}

TICKS = "CREATE TABLE ticks (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)"


def session(directory: Path) -> SparkSession:
    """Return a session on two cores. Only the memory and the number of shuffle partitions are tuned."""
    settings = {
        "spark.driver.memory": "3g",
        "spark.jars": ",".join(map(str, jars(pyspark.__version__))),
        "spark.local.dir": directory / "spark",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": 4,
        "spark.sql.streaming.disabledV2MicroBatchReaders": "org.apache.spark.sql.kafka010.KafkaSourceProvider",
        "spark.sql.warehouse.dir": directory / "warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("pgsluice bench")
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline, and a directory for the targets of its mirrors."""

    spark: SparkSession
    database: Database
    connection: psycopg.Connection
    daemon: Daemon
    kafka: Kafka
    directory: Path

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline as an object of the Spark side."""
        servers = self.kafka.bootstrap_servers
        return Pipeline(
            self.spark, prefix=self.daemon.name, bootstrap_servers=servers, registry=RestRegistry(self.daemon.url)
        )

    def topic(self, table: str) -> str:
        """Return the topic of a table."""
        return f"{self.daemon.name}.public.{table}"

    def wait_until_loaded(self, tables: int) -> None:
        """Wait until ``tables`` tables have been loaded, and everything that was committed is in Kafka."""
        wait_until(lambda: self.daemon.log_text().count('"event": "loaded"') >= tables)
        self.wait_until_delivered()

    def wait_until_delivered(self) -> None:
        """Wait until everything that was committed is in Kafka."""
        row = self.connection.execute(
            "INSERT INTO ticks DEFAULT VALUES RETURNING pg_current_wal_insert_lsn()"
        ).fetchone()
        assert row is not None
        sql = "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = %s"
        slot = f"pgsluice_{self.daemon.name}"
        wait_until(lambda: self.connection.execute(sql, [row[0], slot]).fetchone() == (True,))

    def mirror(self, name: str, tables: Sequence[str]) -> float:
        """Mirror tables up to the present end of the topics. Return the seconds that this took."""
        begin = time.monotonic()
        query = self.pipeline.mirror(
            self.target(name),
            tables=tables,
            checkpoint=str(self.directory / f"{name}.checkpoint"),
            trigger="available now",
        )
        query.awaitTermination()
        return time.monotonic() - begin

    def target(self, name: str) -> Delta:
        """Return the target of a mirror by its name."""
        return Delta(str(self.directory / name))


@contextmanager
def opened(
    spark: SparkSession, postgres: Postgres, kafka: Kafka, directory: Path, setup: Sequence[str]
) -> Iterator[Stage]:
    """Yield a stage whose tables have been created before its daemon starts."""
    with postgres.database() as database, database.connect() as connection:
        for statement in (TICKS, *setup, "CREATE PUBLICATION pgsluice FOR ALL TABLES"):
            connection.execute(statement.encode())
        name = new_name()
        with Daemon(name, database.conninfo(), kafka.bootstrap_servers, SETTINGS) as daemon:
            yield Stage(spark, database, connection, daemon, kafka, directory / name)
            daemon.end()
        delete_topics(kafka, name)
