"""Tests of ``pgsluice-spark`` as users call it, on real servers. Each command runs in a separate process."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyspark
import pytest
from confluent_kafka.admin import ConfigResource
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

from pgsluice_spark import Delta
from sandbox import object_store
from sandbox.kafka import Kafka
from sandbox.object_store import ObjectStore
from sandbox.postgres import Database, Postgres
from sandbox.spark import jars
from tests.spark.session import INTERPRETED, JAVA_OPTIONS
from tests.spark.shop import Shop, opened
from tests.support.kafka import configure

pytestmark = pytest.mark.usefixtures("without_compilation")

SETUP = (
    "CREATE TABLE orders (id int PRIMARY KEY, note text)",
    "INSERT INTO orders SELECT n, 'order ' || n FROM generate_series(1, 500) AS n",
)
SETTINGS: dict[str, dict[str, Any]] = {"snapshot": {"mode": "initial"}, "delivery": {"heartbeat": "500ms"}}


@pytest.fixture(scope="module")
def database(postgres_server: Callable[..., Postgres]) -> Iterator[Database]:
    with postgres_server().database() as found:
        yield found


@pytest.fixture(scope="module")
def shop(spark: SparkSession, database: Database, kafka: Kafka) -> Iterator[Shop]:
    with ExitStack() as stack:
        found = stack.enter_context(opened(spark, database, kafka, "shelled", SETUP, SETTINGS))
        found.wait_until_loaded(1)
        yield found


@dataclass(frozen=True)
class Storage:
    """The location of a mirror, and what Spark needs for writing to it.

    ``target`` has the lines of the target in the configuration file, ``place`` is its location in messages, and
    ``checkpoint`` is the directory of the checkpoint.
    """

    target: str
    place: str
    checkpoint: str
    jars: list[Path] = field(default_factory=list)
    settings: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


def in_directory(place: str) -> Storage:
    return Storage(f'path = "{place}/lake"', f"{place}/lake", f"{place}/checkpoint")


@pytest.fixture(params=["directory", "Delta in an object store", "Iceberg in an object store"])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_server: Callable[..., Postgres]
) -> Iterator[Storage]:
    if request.param == "directory":
        yield in_directory(str(tmp_path))
        return
    with ObjectStore("lake") as store, postgres_server().database() as catalog:
        found = in_directory(f"s3a://{store.bucket}")
        settings = dict(store.settings)
        if request.param == "Iceberg in an object store":
            found = replace(found, target='catalog = "lake"\nnamespace = "shop"', place="lake.shop")
            settings |= in_catalog(catalog, f"s3a://{store.bucket}/iceberg")
        yield replace(
            found,
            jars=object_store.jars(hadoop_version()),
            settings=settings,
            variables=object_store.CREDENTIALS,
        )


def in_catalog(database: Database, warehouse: str) -> Mapping[str, str]:
    """Return the settings of an Iceberg catalog that PostgreSQL keeps. The tables are in ``warehouse``."""
    parts = conninfo_to_dict(database.conninfo())
    return {
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}",
        "spark.sql.catalog.lake.jdbc.user": str(parts["user"]),
        "spark.sql.catalog.lake.warehouse": warehouse,
    }


def hadoop_version() -> str:
    """Return the version of Hadoop in the installed PySpark."""
    (client,) = Path(pyspark.__file__).with_name("jars").glob("hadoop-client-api-*.jar")
    return client.stem.removeprefix("hadoop-client-api-")


def written(directory: Path, storage: Storage, shop: Shop, database: Database) -> Path:
    """Write a configuration file to ``directory``."""
    spark = {
        "spark.master": "local[2]",
        "spark.jars": ",".join(map(str, [*jars(pyspark.__version__), *storage.jars])),
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": " ".join(JAVA_OPTIONS),
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.ui.enabled": "false",
        **INTERPRETED,
        **storage.settings,
    }
    file = directory / "mirror.toml"
    file.write_text(
        f"""
        [pipeline]
        prefix = "{shop.daemon.name}"
        bootstrap_servers = "{shop.kafka.bootstrap_servers}"
        [registry]
        url = "{shop.daemon.url}"
        [target]
        {storage.target}
        tables = ["public.orders"]
        [query]
        checkpoint = "{storage.checkpoint}"
        trigger = "available now"
        [postgres]
        dsn = "{database.conninfo()}"
        [spark]
        """
        + "\n".join(f'"{name}" = "{value}"' for name, value in spark.items())
    )
    return file


@pytest.mark.long
def test_all_commands_from_doctor_to_audit(shop: Shop, database: Database, tmp_path: Path, storage: Storage) -> None:
    file = written(tmp_path, storage, shop, database)

    def run(command: str, *words: str) -> str:
        line = [sys.executable, "-m", "pgsluice_spark", command, "-c", str(file), *words]
        variables = {**os.environ, **storage.variables}
        ended = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def audited() -> dict[str, int]:
        return {table["table"]: table["rows"] for table in json.loads(run("audit", "--json"))["tables"]}

    texts = [check["text"] for check in json.loads(run("doctor", "--json"))["checks"]]
    assert f"{storage.place} can be written to, and has no state of the database yet" in texts
    assert any("they name shelled.public.orders" in text for text in texts), texts
    assert list((tmp_path / "lake").glob("*")) == []

    run("submit", "--master", "local[2]", "mirror")
    assert audited() == {"public.orders": 500}

    shop.run("UPDATE orders SET note = 'changed' WHERE id % 7 = 0", "DELETE FROM orders WHERE id = 1")
    run("mirror")
    assert audited() == {"public.orders": 499}
    shop.run("INSERT INTO orders VALUES (1, 'order 1')")


def test_problems_that_the_doctor_finds(shop: Shop, database: Database, tmp_path: Path) -> None:
    with database.connect() as connection:
        connection.execute("CREATE ROLE blind LOGIN")
    target = Delta(str(tmp_path / "lake"))
    shop.pipeline.mirror(
        target, tables=["public.*"], checkpoint=str(tmp_path / "checkpoint"), trigger="available now"
    ).awaitTermination()
    found = shop.pipeline.doctor(target, postgres=f"{database.conninfo()} user=blind")
    assert not found.healthy
    refused = "an audit cannot read public.orders: the role has no SELECT on it. Grant SELECT"
    assert any(refused in str(one) for one in found.failed)
    assert "GRANT pg_read_all_stats" in str(found)
    assert f"{target.path} can be written to, and is at cut" in str(found)
    with database.connect() as connection:
        connection.execute("DROP ROLE blind")

    topic = ConfigResource(ConfigResource.Type.TOPIC, "shelled.public.orders")
    configure(shop.kafka, topic, "cleanup.policy", "compact")
    (compacted,) = shop.pipeline.doctor(target).failed
    assert "compacted topics lose changes" in compacted.text
    nowhere = shop.pipeline.doctor(Delta("/proc/lake"), postgres="host=127.0.0.1 port=1 dbname=none user=none")
    assert len(nowhere.failed) == 3
    assert "PostgreSQL cannot be reached" in nowhere.failed[2].text
