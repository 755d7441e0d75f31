"""Tests the image in deploy/spark as Kubernetes runs it: a driver, an executor and other commands."""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from deltalake import DeltaTable

from sandbox.containers import Engine
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from sandbox.spark import NEWEST
from tests.support.container import ROOT
from tests.support.weather import Pipeline, configured, prepare

pytestmark = pytest.mark.long

IMAGE = "pgsluice-spark"
USER = 185
RUN_S = 300


@pytest.fixture(scope="module")
def image(engine: Engine) -> str:
    """Build the image without the packages for object stores, which are large."""
    engine.build(ROOT, IMAGE, "--file", "deploy/spark/Dockerfile", "--build-arg", "PACKAGES=")
    return IMAGE


@pytest.fixture
def pipeline(database: Database, kafka: Kafka) -> Iterator[Pipeline]:
    prepare(database)
    settings = configured({"snapshot": {"mode": "initial"}})
    with Daemon(f"spark{uuid4().hex[:8]}", database.conninfo(), kafka.bootstrap_servers, settings) as daemon:
        yield Pipeline(database, kafka, daemon)


def written(directory: Path, pipeline: Pipeline) -> Path:
    """Write the configuration of pgsluice-spark. The image's user owns the directory of the lake and the checkpoint."""
    lake = directory / "lake"
    lake.mkdir()
    os.chown(lake, USER, 0)
    file = directory / "mirror.toml"
    file.write_text(
        f"""
        [pipeline]
        prefix = "{pipeline.daemon.name}"
        bootstrap_servers = "{pipeline.kafka.bootstrap_servers}"
        [registry]
        url = "{pipeline.daemon.url}"
        [target]
        path = "/lake/shop"
        tables = ["public.*"]
        [query]
        checkpoint = "/lake/checkpoint"
        trigger = "available now"
        [spark]
        "spark.sql.shuffle.partitions" = "2"
        """
    )
    file.chmod(0o644)
    return file


def test_a_driver_mirrors_tables(engine: Engine, image: str, pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.write(20)
    pipeline.wait_until_confirmed()
    file = written(tmp_path, pipeline)
    mounts = ("-v", f"{file}:/etc/pgsluice/mirror.toml:ro", "-v", f"{tmp_path / 'lake'}:/lake")
    hardened = ("--cap-drop", "ALL", "--security-opt", "no-new-privileges")
    application = ("local:///opt/pgsluice/application.py", "mirror", "-c", "/etc/pgsluice/mirror.toml")
    driver = ("driver", "--master", "local[2]", *application)
    found = engine.run(*mounts, *hardened, "-e", "SPARK_DRIVER_BIND_ADDRESS=127.0.0.1", image, *driver, timeout=RUN_S)
    assert found.returncode == 0, found.stdout + found.stderr
    table = DeltaTable(str(tmp_path / "lake/shop/public.numbers")).to_pyarrow_table(columns=["n"])
    assert sorted(table.column("n").to_pylist()) == pipeline.committed()


def test_an_executor_looks_for_its_driver(engine: Engine, image: str) -> None:
    """Nothing listens at the driver's address, so the executor fails, but only after it has read its arguments."""
    values = {
        "DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:1",
        "EXECUTOR_ID": "1",
        "EXECUTOR_CORES": "1",
        "EXECUTOR_MEMORY": "512m",
        "EXECUTOR_POD_IP": "127.0.0.1",
        "EXECUTOR_POD_NAME": "executor",
        "APPLICATION_ID": "application",
        "RESOURCE_PROFILE_ID": "0",
        "JAVA_OPT_0": "-Dfirst=1",
        "JAVA_OPT_1": "-XX:+UseSerialGC",
    }
    variables = [word for name, value in values.items() for word in ("-e", f"SPARK_{name}={value}")]
    found = engine.run(*variables, image, "executor", timeout=RUN_S)
    assert "Failed to connect to /127.0.0.1:1" in found.stdout + found.stderr


def test_it_has_spark_and_the_packages(engine: Engine, image: str) -> None:
    version = engine.run(image, "python3", "-c", "import pyspark; print(pyspark.__version__)", timeout=RUN_S)
    assert version.stdout.strip() == NEWEST
    jars = engine.run(image, "sh", "-c", "ls $SPARK_HOME/jars", timeout=RUN_S).stdout
    packages = engine.run(image, "python3", "-m", "pgsluice_spark", "jars", timeout=RUN_S).stdout.strip().split(",")
    missing = [package for package in packages if "-".join(package.split(":")[1:]) + ".jar" not in jars]
    assert len(packages) == 5
    assert missing == []


def test_it_runs_without_root(engine: Engine, image: str) -> None:
    assert engine.run(image, "id", "-u", timeout=RUN_S).stdout.strip() == str(USER)
