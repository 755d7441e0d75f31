"""Tests of mirrors, change logs and audits of tables with rare names, times and topics, on real servers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgsluice_spark import Delta, consistent_view, latest
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from tests.spark.shop import Shop, opened, ordered

pytestmark = pytest.mark.usefixtures("without_compilation")

ODD = '"Żółte schema."."order; ""lines"""'
ODD_NAME = "_x017B__x00F3__x0142_te_x0020_schema_x002E_.order_x003B__x0020__x0022_lines_x0022_"
SETTINGS: dict[str, dict[str, Any]] = {
    "snapshot": {"mode": "initial", "chunk_rows": 30},
    "delivery": {"heartbeat": "500ms"},
    "tables": {"time_range": "full", "rules": [{"match": "tenant_*.orders", "topic": "{prefix}.orders"}]},
}
SETUP = (
    'CREATE SCHEMA "Żółte schema."',
    f'CREATE TABLE {ODD} ("select" int, "a.b" text, "żółć `x`" text, "1st" int, PRIMARY KEY ("select", "a.b"))',
    f"INSERT INTO {ODD} SELECT n, 'a ' || n, 'value ' || n, n FROM generate_series(1, 5) AS n",
    "CREATE TABLE times (day date, moment timestamptz, local timestamp, note text, PRIMARY KEY (day, moment))",
    """
    INSERT INTO times VALUES
    ('0044-03-15 BC', '0001-12-31 23:59:59.999999+00 BC', '4713-01-01 00:00:00 BC', 'a'),
    ('0001-01-01', '10000-01-01 00:00:00+00', '294276-12-31 23:59:59.999999', 'b'),
    ('5874897-12-31', 'infinity', '-infinity', 'c'),
    ('-infinity', '2000-01-01 00:00:00+00', 'infinity', 'd'),
    ('0001-12-31 BC', '4713-01-01 00:00:00+00 BC', '0001-01-01 00:00:00 BC', 'e')
    """,
    *(
        f"""
        CREATE SCHEMA tenant_{name};
        CREATE TABLE tenant_{name}.orders (id int PRIMARY KEY, note text);
        INSERT INTO tenant_{name}.orders SELECT n, '{name} ' || n FROM generate_series(1, 50) AS n
        """
        for name in "ab"
    ),
)
TABLES = {"public.times", "public.ticks", "tenant_a.orders", "tenant_b.orders", ODD_NAME}

CHANGED = (
    f"""UPDATE {ODD} SET "a.b" = 'b', "1st" = NULL WHERE "select" = 2""",
    f"""UPDATE {ODD} SET "żółć `x`" = 'changed' WHERE "select" = 3""",
    f"""DELETE FROM {ODD} WHERE "select" = 4""",
    "UPDATE times SET note = 'changed' WHERE note IN ('a', 'b', 'c', 'd')",
    "UPDATE times SET day = '0002-02-28 BC' WHERE note = 'e'",
    "DELETE FROM times WHERE day = '5874897-12-31'",
    "UPDATE tenant_a.orders SET note = 'changed' WHERE id < 10",
    "DELETE FROM tenant_b.orders WHERE id = 1",
    "TRUNCATE tenant_a.orders",
    "INSERT INTO tenant_a.orders VALUES (1, 'new')",
)


@pytest.fixture(scope="module")
def database(postgres_server: Callable[..., Postgres]) -> Iterator[Database]:
    with postgres_server().database() as found:
        yield found


@pytest.fixture(scope="module")
def shop(spark: SparkSession, database: Database, kafka: Kafka) -> Iterator[Shop]:
    with ExitStack() as stack:
        found = stack.enter_context(opened(spark, database, kafka, "odd", SETUP, SETTINGS))
        found.wait_until_loaded(len(TABLES))
        yield found


@pytest.mark.long
def test_odd_tables_equal_those_in_postgresql(shop: Shop, database: Database, tmp_path: Path) -> None:
    target, log = Delta(str(tmp_path / "lake")), Delta(str(tmp_path / "log"))
    for round_ in (1, 2):
        shop.pipeline.mirror(
            target, tables=["*"], checkpoint=str(tmp_path / "checkpoint"), trigger="available now"
        ).awaitTermination()
        report = shop.pipeline.audit(target, postgres=database.conninfo())
        found = {table.table: table.status for table in report.tables}
        assert found == dict.fromkeys(TABLES, "equal"), str(report)
        if round_ == 1:
            shop.run(*CHANGED)
    view = consistent_view(shop.spark, target)
    for tenant in ("tenant_a", "tenant_b"):
        rows = view[f"{tenant}.orders"].select("id", "note").collect()
        assert ordered([row.asDict() for row in rows]) == shop.table(f"{tenant}.orders")
    rows = view[ODD_NAME].drop("_pgsluice").orderBy("select").collect()
    assert [tuple(row) for row in rows] == shop.connection.execute(f"TABLE {ODD} ORDER BY 1".encode()).fetchall()
    shop.pipeline.changelog(
        log, tables=["tenant_*.orders", ODD_NAME], checkpoint=str(tmp_path / "of the log"), trigger="available now"
    ).awaitTermination()
    changes = log.table(shop.spark, ODD_NAME).read()
    assert latest(changes).count() == 4
