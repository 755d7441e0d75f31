"""The Spark session of the tests, in the installed version of PySpark."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from sandbox.spark import jars
from tests.spark.lakes import CATALOG

INTERPRETED: Final[Mapping[str, str]] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Settings that make Spark interpret its plans, and plan them only once. This is faster for many plans with few
rows."""


JAVA_OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1",  # a session takes only minutes, so compiling to better code would not pay off
    "-XX:ReservedCodeCacheSize=256m",  # this compiler's default is 48 MB, and Java ends when its code cache is full
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",  # verifying Spark's classes takes a quarter of a session's first minute
    "-XX:-UsePerfData",
)


def new_session(directory: Path, more: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session that keeps its files in ``directory``. ``more`` contains additional settings."""
    settings = {
        "spark.driver.extraJavaOptions": " ".join(JAVA_OPTIONS),
        "spark.jars": ",".join(map(str, jars(pyspark.__version__))),
        "spark.databricks.delta.snapshotPartitions": 1,
        "spark.local.dir": directory,
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{CATALOG}.type": "hadoop",
        f"spark.sql.catalog.{CATALOG}.warehouse": directory / "iceberg",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.warehouse.dir": directory / "warehouse",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": 2,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if pyspark.__version__.startswith("4.1."):  # avoids SPARK-55271, as docs/spark.md explains
        settings["spark.sql.streaming.disabledV2MicroBatchReaders"] = (
            "org.apache.spark.sql.kafka010.KafkaSourceProvider"
        )
    builder = SparkSession.builder.master("local[2]").appName("pgsluice tests")
    for name, value in {**settings, **(more or {})}.items():
        builder = builder.config(name, str(value))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")  # some tests expect errors, so these are not logged
    return session
