"""Tests of commits to an Iceberg table: their properties, and their refusal if another program has written."""

import time
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark import ForeignWrite, Iceberg, PipelineError, TableRefused
from pgsluice_spark.iceberg import IcebergTable
from pgsluice_spark.targets import Commit, Committed, Upkeep
from tests.spark.lakes import CATALOG, HAS_ICEBERG

pytestmark = [
    pytest.mark.skipif(not HAS_ICEBERG, reason="the Iceberg target needs Spark 4.1"),
    pytest.mark.usefixtures("without_compilation"),
]


class Orders:
    """An Iceberg table, and commits to it as the product makes them."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark, self._target, self._version = spark, Iceberg(f"{CATALOG}.made_{uuid4().hex}"), 0
        self.last: int | None = None

    @property
    def table(self) -> IcebergTable:
        return self._target.table(self.spark, "public.orders", self.last)

    def rows(self, count: int = 1) -> DataFrame:
        return self.spark.range(count).select(F.col("id").cast("int"))

    def commit(self) -> Commit:
        self._version += 1
        return Commit("topic", self._version, '{"state": "of the table"}')

    def append(self) -> Committed:
        commit = self.commit()
        self.last = self.table.append(self.rows(), commit)
        return Committed(self.last, commit)

    def call(self, procedure: str) -> None:
        self.spark.sql(f"CALL {CATALOG}.system.{procedure}".replace("TABLE", self.table.name.split(".", 1)[1]))

    def snapshots(self) -> list[int]:
        rows = self.spark.sql(f"SELECT snapshot_id FROM {self.table.sql}.snapshots ORDER BY committed_at").collect()
        return [row["snapshot_id"] for row in rows]

    def files(self) -> int:
        return len(self.spark.sql(f"SELECT file_path FROM {self.table.sql}.files").collect())

    def branches(self) -> list[str]:
        return [row["name"] for row in self.spark.sql(f"SELECT name FROM {self.table.sql}.refs").collect()]


@pytest.fixture
def orders(spark: SparkSession) -> Orders:
    made = Orders(spark)
    made.append()
    return made


@pytest.mark.parametrize("condition", ["id = 0", "id = 1"])
def test_a_delete_has_the_properties_of_its_commit(orders: Orders, condition: str) -> None:
    """Check a delete that removes a whole file, and a delete that removes nothing."""
    commit = orders.commit()
    number = orders.table.delete(condition, commit)
    assert orders.table.last() == Committed(number, commit)
    assert orders.table.read().count() == (0 if condition == "id = 0" else 1)


def test_a_commit_leaves_one_snapshot_and_no_branch(orders: Orders) -> None:
    committed = orders.append()
    assert orders.table.last() == committed
    assert orders.branches() == ["main"]
    assert [orders.table.read(number).count() for number in orders.snapshots()] == [0, 1, 2]


def test_maintenance_is_not_a_foreign_write(orders: Orders) -> None:
    committed = orders.append()
    orders.call("rewrite_data_files(table => 'TABLE', options => map('rewrite-all', 'true'))")
    orders.call("expire_snapshots(table => 'TABLE', older_than => TIMESTAMP '2999-01-01', retain_last => 2)")
    assert len(orders.snapshots()) == 2
    assert orders.table.last() == committed
    orders.append()
    assert orders.table.read().count() == 3


def test_our_own_maintenance(orders: Orders) -> None:
    """The snapshots that maintenance makes have the properties of the last commit, so earlier snapshots may expire."""
    commits = [orders.append() for _ in range(5)]
    before, kept = orders.files(), commits[1].number
    orders.table.maintain(Upkeep(frozenset([kept]), time.time(), 1, 1, compact=True))
    assert orders.files() < before
    assert orders.snapshots()[:2] == [kept, commits[-1].number]
    assert (len(orders.snapshots()), orders.table.read(kept).count()) == (3, 3)
    assert orders.table.last() == commits[-1]
    last = orders.append()
    orders.table.forget("id = 0")
    orders.table.maintain(Upkeep(frozenset(), time.time(), 1, 1, compact=True))
    orders.call("expire_snapshots(table => 'TABLE', older_than => TIMESTAMP '2999-01-01', retain_last => 1)")
    assert orders.table.last() == last  # although the snapshot of this commit has expired
    orders.append()
    assert orders.table.read().count() == 1


def test_expired_properties_of_the_last_commit_are_an_error(orders: Orders) -> None:
    orders.call("rewrite_data_files(table => 'TABLE', options => map('rewrite-all', 'true'))")
    orders.call("expire_snapshots(table => 'TABLE', older_than => TIMESTAMP '2999-01-01', retain_last => 1)")
    with pytest.raises(PipelineError, match=r"snapshot \d+ has expired, so nobody can tell"):
        orders.table.last()


def test_a_foreign_write_during_a_commit(orders: Orders) -> None:
    """Let another program write to the table after the branch of the batch was created.

    The batch is refused, although the two writes do not conflict.
    """
    table, before = orders.table, orders.snapshots()[-1]

    class Meddling(IcebergTable):
        def _publish(self, branch: str) -> None:
            self.spark.sql(f"INSERT INTO {self.sql} VALUES (7)")
            IcebergTable._publish(self, branch)

    with pytest.raises(ForeignWrite, match=r"has the operation append\."):
        Meddling(table.spark, table.name, table.since).append(orders.rows(100), orders.commit())
    assert table.read().count() == 2
    orders.call(f"rollback_to_snapshot('TABLE', {before})")
    orders.append()
    assert (table.read().count(), orders.branches()) == (2, ["main"])


def test_another_query_and_a_rollback(orders: Orders) -> None:
    table, before = orders.table, orders.snapshots()[-1]
    orders.append()
    with pytest.raises(PipelineError, match="Two queries write to it"):
        table.append(orders.rows(), orders.commit())
    orders.call(f"rollback_to_snapshot('TABLE', {before})")
    with pytest.raises(ForeignWrite, match=r"the table has lost snapshot \d+"):
        orders.table.last()


def test_a_type_that_iceberg_cannot_widen(orders: Orders) -> None:
    orders.last = orders.table.extend(orders.rows().select(F.col("id").cast("long")), orders.commit())
    assert orders.table.read().count() == 2
    with pytest.raises(TableRefused, match="column `id` has become double, and Iceberg cannot change bigint"):
        orders.table.extend(orders.rows().select(F.col("id").cast("double")), orders.commit())


def test_names_that_iceberg_reserves(orders: Orders) -> None:
    reserved = ("_file", "_last_updated_sequence_number", "_Pos", "_row_id")
    wide = orders.rows().withColumns({name: F.lit("a") for name in reserved})
    names = ", ".join(reserved).lower()
    with pytest.raises(TableRefused, match=f"cannot have columns with the names {names}, because"):
        orders.table.extend(wide, orders.commit())
    assert orders.table.read().columns == ["id"]
    with pytest.raises(TableRefused, match=names):
        Orders(orders.spark).table.create(wide.schema, wide, orders.commit())
