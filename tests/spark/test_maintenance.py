"""Tests of the maintenance between batches, for each target: which files it deletes, and which it keeps."""

import logging
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark import Delta, Maintenance, NoSuchView, PipelineError, View, consistent_view
from pgsluice_spark.delta import DeltaTable
from pgsluice_spark.targets import Commit, Committed, Target, Upkeep
from sandbox.kafka import Kafka
from tests.spark.handmade import Handmade
from tests.spark.lakes import LAKES, DeltaLake, Lake

pytestmark = pytest.mark.usefixtures("without_compilation")

AT_ONCE = Maintenance(every="0 seconds", keep="1 hour")
BATCHES = 5
"""Iceberg rewrites the files of a table only if the table has at least five files."""

LONG_AGO = timedelta(hours=3)


@pytest.fixture
def made(spark: SparkSession, kafka: Kafka) -> Handmade:
    return Handmade(spark, kafka, "orders", "lines")


def add(made: Handmade, table: str = "orders", ago: timedelta = timedelta()) -> None:
    """Write a cut that adds a row."""
    number = made.number + 1
    event = made.event(table, "c", 10 * number, 0, {"id": number}, after={"note": "n", "count": number})
    made.cut(event, ts=datetime.now(UTC) - ago)


def mirrored(made: Handmade, directory: Path, target: Target, maintenance: Maintenance | None = None) -> None:
    query = made.pipeline.mirror(
        target,
        tables=["*"],
        checkpoint=str(directory / "checkpoint"),
        trigger="available now",
        max_events=1,
        maintenance=maintenance,
    )
    query.awaitTermination()


def ids(view: View, table: str = "orders") -> list[int]:
    return sorted(row["id"] for row in view[f"public.{table}"].select("id").collect())


def files(spark: SparkSession, target: Target, table: str = "public.orders") -> int:
    """Return the number of files that the table has now."""
    return len(target.table(spark, table).read().select(F.input_file_name()).distinct().collect())


@pytest.mark.long
@pytest.mark.parametrize("kind", LAKES)
def test_states_that_are_older_than_keep(spark: SparkSession, made: Handmade, tmp_path: Path, kind: type[Lake]) -> None:
    """All states that are not older than ``keep`` must remain. The target must still know which cuts it has applied."""
    target = kind(spark, tmp_path / "lake").target
    for _ in range(BATCHES):
        add(made, ago=LONG_AGO)
    add(made, "lines")
    mirrored(made, tmp_path, target, AT_ONCE)
    assert files(spark, target) == 1
    maintained = target.table(spark, "_pgsluice_cuts").get_property("pgsluice.maintained")
    with pytest.raises(NoSuchView, match=r"no state of the database as of 3 or before\. The oldest .* is cut 5 \(20"):
        consistent_view(spark, target, at=3)
    (tmp_path / "checkpoint").rename(tmp_path / "former checkpoint")
    add(made)
    mirrored(made, tmp_path, target, Maintenance(every="1 day", keep="1 hour"))
    views = [ids(consistent_view(spark, target, at=cut)) for cut in (5, 6, 7)]
    assert views == [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 7]]
    assert ids(consistent_view(spark, target), "lines") == [6]
    # The second run did no maintenance, because one day had not passed.
    assert target.table(spark, "_pgsluice_cuts").get_property("pgsluice.maintained") == maintained


@pytest.mark.parametrize("hint", [None, "", "{"])
def test_the_last_commit_is_found_if_the_log_is_incomplete(
    spark: SparkSession, tmp_path: Path, hint: str | None
) -> None:
    """Delta may delete the oldest commits, and some file systems replace the pointer to the checkpoint in two steps."""
    table = Delta(str(tmp_path)).table(spark, "orders")
    table.append(spark.range(1), Commit("topic", 0, "{}"))
    table.set_property("delta.checkpointInterval", "1")
    number = table.append(spark.range(1), Commit("topic", 1, "{}"))
    log = tmp_path / "orders" / "_delta_log"
    for file in (log / f"{0:020}.json", log / "_last_checkpoint"):
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    if hint is not None:
        (log / "_last_checkpoint").write_text(hint)
    assert table.last() == Committed(number, Commit("topic", 1, "{}"))
    later = Delta(str(tmp_path)).table(spark, "orders", number)
    assert later.last() == Committed(number, Commit("topic", 1, "{}"))


@pytest.mark.long
def test_deltas_log_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    """The log must name the applied cuts even after OPTIMIZE and a checkpoint.

    Delta must keep the log at least as long as old states.
    """
    table = Delta(str(tmp_path)).table(spark, "orders")
    numbers = [table.append(spark.range(1), Commit("topic", version, "{}")) for version in range(3)]
    last = table.last()
    table.maintain(Upkeep(frozenset([numbers[1]]), time.time(), 86_400, 40 * 86_400, compact=True))
    retention = re.fullmatch(r"interval (\d+) seconds", table.get_property("delta.logRetentionDuration") or "")
    assert retention is not None
    assert int(retention[1]) >= 80 * 86_400
    table.set_property("delta.checkpointInterval", "1")
    table.set_property("comment", "a commit that makes a checkpoint")
    assert list((tmp_path / "orders" / "_delta_log").glob("*.checkpoint*.parquet"))
    table.maintain(Upkeep(frozenset([numbers[1]]), time.time() + 1, 0, 0, compact=True))
    assert (table.last(), len(table.read().inputFiles())) == (last, 1)
    assert [table.read(number).count() for number in numbers[1:]] == [2, 3]
    with pytest.raises(PipelineError, match="does not have the commit that was just made"):
        table.append(spark.range(1), Commit("topic", 1, "{}"))
    table.append(spark.range(1), Commit("topic", 3, "{}"))
    assert table.read().count() == 4


@pytest.mark.long
def test_maintenance_that_fails(
    spark: SparkSession,
    made: Handmade,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = DeltaLake(spark, tmp_path / "lake").target
    maintain: Callable[[DeltaTable, Upkeep], None] = DeltaTable.maintain

    def failing(table: DeltaTable, upkeep: Upkeep) -> None:
        if table.path.endswith("orders"):
            raise Py4JError("no space")
        maintain(table, upkeep)

    monkeypatch.setattr(DeltaTable, "maintain", failing)
    add(made)
    with caplog.at_level(logging.WARNING, "pgsluice_spark"):
        mirrored(made, tmp_path, target, AT_ONCE)
    assert "maintenance of public.orders failed" in caplog.text
    assert "no space" in caplog.text
    add(made)
    mirrored(made, tmp_path, target)
    assert ids(consistent_view(spark, target)) == [1, 2]
