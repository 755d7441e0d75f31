"""Runs every example of docs/spark.md, in order, on real servers.

The servers and paths in the examples are replaced by those of the test.
"""

import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from pgsluice_spark.cli import main
from pgsluice_spark.command_line import parser
from pgsluice_spark.config import read
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from tests.spark.shop import Shop, opened

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"

SETUP = (
    "CREATE TABLE orders (id int PRIMARY KEY, note text)",
    "INSERT INTO orders VALUES (1, 'fine')",
    "CREATE TABLE lines (order_id int, number int, PRIMARY KEY (order_id, number))",
    "INSERT INTO lines VALUES (1, 1), (1, 2)",
    "CREATE TABLE invoices (id int PRIMARY KEY)",
    "INSERT INTO invoices VALUES (7)",
    "CREATE ROLE auditor LOGIN PASSWORD '...' IN ROLE pg_read_all_stats",
    "GRANT SELECT ON ALL TABLES IN SCHEMA public TO auditor",
    "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO auditor",
)
SETTINGS: dict[str, dict[str, Any]] = {
    "snapshot": {"mode": "initial"},
    "delivery": {"heartbeat": "500ms"},
    "tables": {"rules": [{"match": "public.invoices", "topic": "{prefix}.sales"}]},
}


def examples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def database(postgres_server: Callable[..., Postgres]) -> Iterator[Database]:
    with postgres_server().database() as found:
        yield found
    with postgres_server().connect() as connection:
        connection.execute("DROP ROLE auditor")


@pytest.fixture(scope="module")
def shop(spark: SparkSession, database: Database, kafka: Kafka) -> Iterator[Shop]:
    with ExitStack() as stack:
        found = stack.enter_context(opened(spark, database, kafka, "shop", SETUP, SETTINGS))
        found.wait_until_loaded(4)
        yield found


def test_python(shop: Shop, database: Database, tmp_path: Path) -> None:
    """Run the Python examples in order, because later examples use names that earlier ones define."""
    names: dict[str, Any] = {"spark": shop.spark}
    replaced = {
        '"kafka:9092"': repr(shop.kafka.bootstrap_servers),
        '"http://pgsluice:8080"': repr(shop.daemon.url),
        "host=db dbname=shop": database.conninfo(),
        '"10 seconds"': '"available now"',
        '"/lake/': f'"{tmp_path}/lake/',
        '"/data/': f'"{tmp_path}/data/',
    }
    for example in examples("python"):
        text = example
        for ours, theirs in replaced.items():
            text = text.replace(ours, theirs)
        exec(compile(text, f"{PAGE}: {example}", "exec"), names)  # noqa: S102 - this is what the test is for
        for query in shop.spark.streams.active:
            query.awaitTermination()
    assert names["report"].equal
    assert names["orders"].count() == 1
    assert names["view"].unfinished == []


def test_files(tmp_path: Path) -> None:
    whole, *parts = examples("toml")
    file = tmp_path / "mirror.toml"
    file.write_text(whole)
    assert read(str(file)).tables == ["public.*"]
    for part in parts:
        for name, values in tomllib.loads(part).items():
            assert values
            assert name in tomllib.loads(whole)


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for example in examples("sh") for line in example.splitlines()]
    commands = re.findall(r"^\| `(pgsluice-spark [^`]*)`", PAGE.read_text(), flags=re.MULTILINE)
    commands += [line for line in lines if line.startswith("pgsluice-spark ")]
    assert len(commands) > 7
    for command in commands:
        parser().parse_args(shlex.split(command.replace(" ... ", " "))[1:])
    assert main(["jars"]) == 0
    assert f"spark-sql-kafka-0-10_2.13:{pyspark.__version__}" in capsys.readouterr().out
