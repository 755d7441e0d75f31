"""Tests of change logs in Parquet files. A log has each change once, even if a killed driver has left partial files."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgsluice_spark import Delta, Maintenance, Parquet, consistent_view
from pgsluice_spark.files import PART
from pgsluice_spark.parquet import MANIFEST
from pgsluice_spark.targets import Target
from sandbox.kafka import Kafka
from tests.spark.events import column
from tests.spark.handmade import COLUMNS, Handmade

pytestmark = pytest.mark.usefixtures("without_compilation")

MARK = {"topic": "", "schema": "public", "table": "orders", "epoch": 1, "rows": 0, "replaces": True, "id": "load"}


@pytest.fixture
def made(spark: SparkSession, kafka: Kafka) -> Handmade:
    return Handmade(spark, kafka, "orders")


def logged(made: Handmade, target: Target, checkpoint: Path, max_events: int) -> None:
    query = made.pipeline.changelog(
        target, tables=["*"], checkpoint=str(checkpoint), trigger="available now", max_events=max_events
    )
    query.awaitTermination()


def changes(made: Handmade, target: Target, at: int | None = None) -> list[tuple[int, int]]:
    rows = consistent_view(made.pipeline.spark, target, at=at)["public.orders"].collect()
    return sorted((row["lsn"], row["after"]["count"]) for row in rows)


def test_each_change_once(made: Handmade, tmp_path: Path) -> None:
    """Leave a batch incomplete, as a killed driver does. Continue without the checkpoint, and with smaller batches."""
    target = Parquet(str(tmp_path / "log"))
    for number in range(1, 5):
        made.cut(made.event("orders", "c", number, 0, {"id": number}, after={"count": number}))
    logged(made, target, tmp_path / "first", max_events=2)
    batches = sorted((tmp_path / "log" / "public.orders").glob("upto=*"))
    assert len(batches) == 2
    (batches[-1] / MANIFEST).unlink()  # as if the driver was killed before the batch was complete
    (batches[-1] / "_SUCCESS").unlink()
    controls = sorted((tmp_path / "log" / "_pgsluice_cuts").glob("upto=*"))
    (controls[-1] / MANIFEST).rename(controls[-1] / f"{MANIFEST}{PART}")
    assert changes(made, target) == [(1, 1), (2, 2)]
    made.register("orders", [*COLUMNS[:2], column("count", "long"), column("price", "double")], {"id": "int"})
    made.cut(made.event("orders", "u", 5, 0, {"id": 1}, after={"count": 2**40, "price": 0.5}))
    logged(made, target, tmp_path / "second", max_events=1)
    assert changes(made, target) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 2**40)]
    assert changes(made, target, at=3) == [(1, 1), (2, 2), (3, 3)]
    for control in (tmp_path / "log" / "_pgsluice_cuts").glob("upto=*"):
        (control / MANIFEST).unlink()  # so that the tables are ahead of the control table
    logged(made, target, tmp_path / "third", max_events=1000)
    assert [count for _, count in changes(made, target)] == [1, 2, 3, 4, 2**40]


@pytest.mark.parametrize("kind", [Delta, Parquet])
def test_the_end_of_a_load(made: Handmade, tmp_path: Path, kind: type[Delta | Parquet]) -> None:
    """The end of a load must not remove earlier changes from a log, even if the end is in a cut without changes."""
    target = kind(str(tmp_path / "log"))
    made.cut(made.event("orders", "c", 10, 0, {"id": 1}, after={"count": 1}))
    begin = {**MARK, "state": "begin", "lsn": 20, "seq": -10}
    made.cut(made.event("orders", "r", 20, -9, {"id": 1}, after={"count": 1}), snapshots=[begin])
    made.cut(snapshots=[{**MARK, "state": "end", "lsn": 30, "seq": -7, "rows": 1}], end_lsn=30)
    logged(made, target, tmp_path / "checkpoint", max_events=1)
    assert changes(made, target) == [(10, 1), (20, 1)]
    assert consistent_view(made.pipeline.spark, target).status == {"public.orders": "loaded"}


def test_uses_that_parquet_does_not_support_are_refused(made: Handmade, tmp_path: Path) -> None:
    target, checkpoint = Parquet(str(tmp_path / "log")), str(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match=r"log has files that are never replaced.*Use Delta or Iceberg for mirrors"):
        made.pipeline.mirror(target, tables=["*"], checkpoint=checkpoint)
    with pytest.raises(ValueError, match="takes change logs only, without maintenance"):
        made.pipeline.changelog(target, tables=["*"], checkpoint=checkpoint, maintenance=Maintenance())
    target.check_writable(made.pipeline.spark)
    assert list((tmp_path / "log").iterdir()) == []
