"""Tests of Delta tables as targets: commits, and their refusal if another program has written to the table."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark import Delta, ForeignWrite, NoSuchView, PipelineError, TableRefused
from pgsluice_spark.targets import Commit, Committed, Merge

pytestmark = pytest.mark.usefixtures("without_compilation")


def test_a_table_that_is_restored_to_an_earlier_version(spark: SparkSession, tmp_path: Path) -> None:
    """The table then lacks changes that the mirror does not apply again, so the query must stop."""
    target = Delta(str(tmp_path))
    numbers = [
        target.table(spark, "orders").append(spark.range(1), Commit("topic", version, "{}")) for version in range(3)
    ]
    table = target.table(spark, "orders", numbers[1])
    spark.sql(f"RESTORE TABLE {table.sql} TO VERSION AS OF {numbers[0]}")
    with pytest.raises(ForeignWrite, match=r"has lost version 1, .* 3 has restored version 0.*TO VERSION AS OF 1\)"):
        table.last()
    with pytest.raises(ForeignWrite, match="has lost version 1"):
        table.append(spark.range(1), Commit("topic", 3, "{}"))
    spark.sql(f"RESTORE TABLE {table.sql} TO VERSION AS OF {numbers[1]}")
    assert table.last() == Committed(numbers[1], Commit("topic", 1, "{}"))
    table.append(spark.range(1), Commit("topic", 2, "{}"))
    assert table.read().count() == 3


def test_a_relative_path(spark: SparkSession, tmp_path: Path) -> None:
    table = Delta(os.path.relpath(tmp_path)).table(spark, "orders")
    table.append(spark.range(1), Commit("topic", 0, "{}"))
    table.merge(Merge(spark.range(2), "t.id = s.id", ["WHEN NOT MATCHED THEN INSERT *"]), Commit("topic", 1, "{}"))
    assert Delta(str(tmp_path)).table(spark, "orders").read().count() == 2


def waiting(begun: Path, end: Path) -> Column:
    """Return the column ``id``. A query that computes it creates the file ``begun``, then waits for the file ``end``.

    The rows must be in one partition, because each waiting task occupies one of the session's two cores.
    """

    def wait(number: int) -> int:
        begun.touch()
        while not end.exists():
            time.sleep(0.05)
        return number

    return F.udf(wait, "long", useArrow=False)("id").alias("id")


@pytest.mark.parametrize(("is_ours", "error"), [(True, PipelineError), (False, ForeignWrite)])
def test_another_commit_during_a_merge(
    spark: SparkSession, tmp_path: Path, error: type[PipelineError], *, is_ours: bool
) -> None:
    target, begun, end = Delta(str(tmp_path / "lake")), tmp_path / "begun", tmp_path / "end"
    number = target.table(spark, "orders").append(spark.range(3), Commit("topic", 0, "{}"))
    clauses = ["WHEN MATCHED THEN UPDATE SET t.id = s.id + 100"]
    merge = Merge(spark.range(0, 2, 1, 1).select(waiting(begun, end)), "t.id = s.id", clauses)
    other = target.table(spark.newSession(), "orders", number)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(target.table(spark, "orders", number).merge, merge, Commit("topic", 1, "{}"))
        while not (begun.exists() or running.done()):
            time.sleep(0.05)
        try:
            if is_ours:
                other.append(other.spark.range(1), Commit("topic", 1, "{}"))
            else:
                other.spark.sql(f"DELETE FROM {other.sql} WHERE id = 1")
        finally:
            end.touch()
    sentence = "another commit at the same moment" if is_ours else "version 1 is a DELETE"
    with pytest.raises(error, match=sentence):
        running.result()


def test_a_type_that_delta_cannot_widen(spark: SparkSession, tmp_path: Path) -> None:
    table = Delta(str(tmp_path)).table(spark, "orders")
    rows = spark.range(1).select(F.col("id").cast("int"), F.struct(F.lit("a").alias("note")).alias("after"))
    table.append(rows, Commit("topic", 0, "{}"))
    other = rows.withColumns({"id": F.col("id").cast("bigint"), "after": F.struct(F.lit(1).alias("note"))})
    with pytest.raises(TableRefused, match=r"column after\.note has become int, and Delta cannot change string"):
        table.extend(other, Commit("topic", 1, "{}"))
    with pytest.raises(TableRefused, match=r"after\.note has become int"):
        table.fit(other.schema)
    assert (table.read().dtypes, table.get_property("delta.enableTypeWidening")) == (rows.dtypes, None)


def test_a_version_that_is_older_than_the_retention_of_files(spark: SparkSession, tmp_path: Path) -> None:
    """It can be read as long as the log describes it, because it may have been the newest version until now."""
    table = Delta(str(tmp_path)).table(spark, "orders")
    table.append(spark.range(1), Commit("topic", 0, "{}"))
    first = tmp_path / "orders" / "_delta_log" / f"{0:020}.json"
    old = time.time() - 8 * 86_400
    os.utime(first, (old, old))
    table.set_property("delta.checkpointInterval", "1")
    table.append(spark.range(1), Commit("topic", 1, "{}"))
    assert (table.read(0).count(), table.read().count()) == (1, 2)
    first.unlink()
    with pytest.raises(NoSuchView, match="version 0 cannot be read, because Delta's log does not describe it"):
        table.read(0)
