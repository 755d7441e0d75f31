"""The targets into which tests mirror tables, each with a reader other than Spark."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from pgsluice_spark import Delta, Iceberg
from pgsluice_spark.targets import Target
from tests.spark.shop import SYSTEM, Row, ordered
from tests.support.versions import covers_all

CATALOG = "iceberg"
"""The name of the Iceberg catalog in the session."""


class Lake(ABC):
    """A target, and a way to read its tables without Spark."""

    target: Target
    foreign: ClassVar[str]
    """A regular expression for the message that reports a delete by another program."""

    @abstractmethod
    def __init__(self, spark: SparkSession, directory: Path) -> None: ...

    def rows(self, table: str, version: int) -> list[Row]:
        """Return the rows of a table after the commit ``version``."""
        found = self._read(table, version)
        columns = {name: found.column(name).to_pylist() for name in found.column_names if name != SYSTEM}
        return ordered([dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)])

    @abstractmethod
    def _read(self, table: str, version: int) -> pa.Table: ...

    @abstractmethod
    def undo(self, spark: SparkSession, table: str) -> None:
        """Undo the last commit of a table."""


class DeltaLake(Lake):
    """A directory of Delta tables."""

    foreign = r"version 1 is a DELETE.*RESTORE TABLE delta.*VERSION AS OF 0"

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        del spark
        self._directory = directory
        self.target = Delta(str(directory))

    def _read(self, table: str, version: int) -> pa.Table:
        found = DeltaTable(str(self._directory / table), version=version)
        if "typeWidening" in (found.protocol().reader_features or ()):
            # The query engine of deltalake refuses tables with widened types, but deltalake can read their log. So read
            # the files that the log lists for this version, and give each column the widest of its types.
            files = [pq.read_table(file) for file in found.file_uris()]
            return pa.concat_tables(files, promote_options="permissive") if files else pa.table({})
        return pa.table(QueryBuilder().register("t", found).execute("SELECT * FROM t").read_all())

    def undo(self, spark: SparkSession, table: str) -> None:
        number = DeltaTable(str(self._directory / table)).version() - 1
        spark.sql(f"RESTORE TABLE delta.`{self._directory / table}` TO VERSION AS OF {number}")


class IcebergLake(Lake):
    """A namespace of the Iceberg catalog."""

    foreign = (
        r"has the operation delete\..*CALL iceberg\.system\.rollback_to_snapshot\('lake_\w+\.public\.orders', \d+\)"
    )

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        del directory
        self._namespace = f"lake_{uuid4().hex}"
        self._warehouse = Path(spark.conf.get(f"spark.sql.catalog.{CATALOG}.warehouse") or "")
        self.target = Iceberg(f"{CATALOG}.{self._namespace}")

    def _table(self, table: str) -> StaticTable:
        metadata = self._warehouse / self._namespace / Path(*table.split(".")) / "metadata"
        return StaticTable.from_metadata(
            str(metadata / f"v{(metadata / 'version-hint.text').read_text()}.metadata.json")
        )

    def _read(self, table: str, version: int) -> pa.Table:
        return self._table(table).scan(snapshot_id=version).to_arrow()

    def undo(self, spark: SparkSession, table: str) -> None:
        snapshot = self._table(table).current_snapshot()
        assert snapshot is not None
        name = f"{self._namespace}.{table}"
        spark.sql(f"CALL {CATALOG}.system.rollback_to_snapshot('{name}', {snapshot.parent_snapshot_id})")


HAS_ICEBERG = pyspark.__version__.startswith("4.1.")
"""Whether the jars of Iceberg are installed."""

LAKES: tuple[type[Lake], ...] = (DeltaLake, IcebergLake) if HAS_ICEBERG else (DeltaLake,)

USUAL_LAKES = LAKES if covers_all() else LAKES[:1]
"""The targets for tests that hardly depend on the target. Usually there is only one, because the tests take a
minute for each target."""
