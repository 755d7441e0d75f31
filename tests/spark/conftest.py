"""One Spark session for all tests of this directory, in the version of PySpark that is installed."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from sandbox.spark import jars
from tests.spark.lakes import CATALOG

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let PySpark leave its sockets to the garbage collector; other warnings stay errors."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give the session; it keeps its files to itself."""
    directory = tmp_path_factory.mktemp("spark")
    settings = {
        # a session of a minute is over before better code would pay
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
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
    if pyspark.__version__.startswith("4.1."):  # SPARK-55271; docs/spark.md tells users
        settings["spark.sql.streaming.disabledV2MicroBatchReaders"] = (
            "org.apache.spark.sql.kafka010.KafkaSourceProvider"
        )
    builder = SparkSession.builder.master("local[2]").appName("pgsluice tests")
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")  # errors are what some tests want
    yield session
    session.stop()
    gc.collect()  # while such sockets are no error yet
