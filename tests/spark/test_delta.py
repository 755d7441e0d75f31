"""Tests of Delta tables as targets: commits, and their refusal if another program has written to the table."""

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgsluice_spark import Delta, ForeignWrite
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
