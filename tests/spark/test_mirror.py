"""Tests that at every entry of a mirror's control table, all tables equal those of an independent consumer."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pgsluice_spark import consistent_view, latest
from pgsluice_spark.control import ControlTable
from sandbox.kafka import Kafka
from sandbox.postgres import Postgres
from tests.spark.dying import Dying
from tests.spark.lakes import LAKES, USUAL_LAKES, Lake
from tests.spark.shop import Rows, Shop, opened, ordered, spark_rows

pytestmark = pytest.mark.usefixtures("without_compilation")

LONG = "repeat('kept out of line ', 500)"
SETTINGS: dict[str, dict[str, Any]] = {
    "kafka": {"topics": {"partitions": 2}},
    "snapshot": {"mode": "initial", "chunk_rows": 30},
    "delivery": {"heartbeat": "500ms"},
}
SETUP = (
    """
    CREATE TABLE orders (
        id int PRIMARY KEY, amount numeric(10,2), note text, at timestamptz, local timestamp, day date
    )
    """,
    "CREATE TABLE lines (order_id int, number int, item text, data bytea, tags text[], PRIMARY KEY (order_id, number))",
    "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
    f"""
    INSERT INTO orders
    SELECT n, n * 1.01, {LONG}, '2026-03-29 01:30:00.000001Z', '1999-12-31 23:59:59', '2024-02-29'
    FROM generate_series(1, 100) AS n
    """,
    r"""
    INSERT INTO lines SELECT n, k, 'item ' || k, '\x00ff', '{a,NULL}'
    FROM generate_series(1, 50) AS n, generate_series(1, 2) AS k
    """,
)

CHANGED = (
    """
    BEGIN;
    UPDATE orders SET amount = 0 WHERE id < 10;
    DELETE FROM lines WHERE order_id = 1;
    INSERT INTO lines VALUES (1, 1, 'again', NULL, '{}');
    COMMIT
    """,
    "UPDATE orders SET id = id + 1000 WHERE id IN (5, 6)",  # the notes are TOASTed, so they are not in the stream
    "UPDATE orders SET id = id + 1000 WHERE id IN (1005, 7)",
    "UPDATE orders SET note = 'short', day = NULL WHERE id IN (8, 1006)",
    "DELETE FROM orders WHERE id = 9",
    "UPDATE orders SET id = 6 WHERE id = 2005",
    """
    BEGIN;
    UPDATE orders SET id = -id WHERE id IN (20, 21);
    UPDATE orders SET id = 41 + id WHERE id IN (-20, -21);
    COMMIT
    """,
)


@pytest.fixture(scope="module")
def shop(spark: SparkSession, postgres_server: Callable[..., Postgres], kafka: Kafka) -> Iterator[Shop]:
    with ExitStack() as stack:
        database = stack.enter_context(postgres_server().database())
        found = stack.enter_context(opened(spark, database, kafka, "lake", SETUP, SETTINGS))
        found.wait_until_loaded(3)
        yield found


@pytest.fixture(params=USUAL_LAKES)
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Lake:
    made: Lake = request.param(spark, tmp_path / "lake")
    return made


def mirrored(shop: Shop, target: Any, directory: Path, max_events: int = 1000) -> None:  # noqa: ANN401 - a Target or a Dying
    """Run a mirror up to the current end of the topics."""
    query = shop.pipeline.mirror(
        target,
        tables=["public.*"],
        checkpoint=str(directory / "checkpoint"),
        trigger="available now",
        max_events=max_events,
    )
    query.awaitTermination()
    shop.run("INSERT INTO ticks DEFAULT VALUES")  # so that the model reads all cuts that the mirror has


def check(shop: Shop, lake: Lake) -> list[int]:
    """Compare all tables with the model at each entry of the control table. Return the cuts of the entries."""
    target = lake.target
    control = ControlTable(target.table(shop.spark, "_pgsluice_cuts"))
    cuts = sorted(row["cut"] for row in control.table.read().select("cut").collect())
    for cut in cuts:
        view = consistent_view(shop.spark, target, at=cut)
        assert view.cut == cut
        expected = {name: rows for name, rows in shop.model.at[cut].items() if rows or name in view}
        assert {name: lake.rows(name, view.versions[name]) for name in view} == values(expected)
    last = consistent_view(shop.spark, target)
    assert {name: spark_rows(last[name]) for name in last} == values(shop.model.at[cuts[-1]])
    assert len(cuts) == len(set(cuts))
    return cuts


def values(tables: dict[str, Rows]) -> dict[str, Any]:
    return {name: ordered(list(rows.values())) for name, rows in tables.items()}


def test_tables_equal_the_source_at_every_entry(shop: Shop, tmp_path: Path) -> None:
    lakes = [lake(shop.spark, tmp_path / lake.__name__ / "lake") for lake in USUAL_LAKES]
    for lake in lakes:
        mirrored(shop, lake.target, tmp_path / type(lake).__name__, max_events=70)
        assert len(check(shop, lake)) > 2
        view = consistent_view(shop.spark, lake.target)
        assert (view.unfinished, set(view)) == ([], {"public.orders", "public.lines", "public.ticks"})

    shop.run(*CHANGED)
    for lake in lakes:
        mirrored(shop, lake.target, tmp_path / type(lake).__name__)
        check(shop, lake)
        last = consistent_view(shop.spark, lake.target)
        assert spark_rows(last["public.orders"]) == shop.table("orders")
        assert spark_rows(last["public.lines"]) == shop.table("lines")


@pytest.mark.long
def test_a_driver_that_dies(shop: Shop, tmp_path: Path) -> None:
    """Let drivers die between the commits of two tables, and before the commit of the control table.

    After each of these drivers, another driver continues. The drivers in ``test_ledger.py`` write to Delta, so the
    drivers of this test write to Iceberg if it is installed.
    """
    lake = LAKES[-1](shop.spark, tmp_path / "lake")
    mirrored(shop, lake.target, tmp_path)
    for number, (victim, made) in enumerate(
        [("public.orders", True), ("public.lines", False), ("_pgsluice_cuts", False)]
    ):
        for id in (30 + number, 40 + number):  # noqa: A001 - the column's name
            shop.run(
                f"""
                BEGIN;
                INSERT INTO lines SELECT id, 100, note FROM orders WHERE id = {id};
                UPDATE orders SET id = -id WHERE id = {id};
                UPDATE orders SET amount = amount + 1 WHERE id > 60;
                DELETE FROM lines WHERE order_id = {id} AND number = 1;
                COMMIT
                """
            )
        with pytest.raises(StreamingQueryException, match="Killed"):
            mirrored(shop, Dying(lake.target, victim, made), tmp_path)
        if number != 1:
            shutil.rmtree(tmp_path / "checkpoint")
        mirrored(shop, lake.target, tmp_path, max_events=1 if number == 0 else 1000)
        check(shop, lake)
    last = consistent_view(shop.spark, lake.target)
    assert spark_rows(last["public.orders"]) == shop.table("orders")
    assert spark_rows(last["public.lines"]) == shop.table("lines")


def test_a_change_log(shop: Shop, lake: Lake, tmp_path: Path) -> None:
    """A change log must have each change once, even if a checkpoint is lost. The table can be derived from the log."""
    shop.run("UPDATE lines SET item = 'changed' WHERE number = 2", "ALTER TABLE lines ADD IF NOT EXISTS price float")
    for count in (1, 2):
        for checkpoint in ("a", "b"):
            query = shop.pipeline.changelog(
                lake.target,
                tables=["public.lines"],
                checkpoint=str(tmp_path / checkpoint),
                trigger="available now",
            )
            query.awaitTermination()
        log = lake.target.table(shop.spark, "public.lines").read()
        assert log.count() == log.select("epoch", "lsn", "seq").distinct().count() == shop.model.events["public.lines"]
        if count == 1:
            shop.run("UPDATE lines SET price = 1.5 WHERE number = 2")
    rows = latest(log).select("after.*").collect()
    assert ordered([row.asDict() for row in rows]) == shop.table("lines")
