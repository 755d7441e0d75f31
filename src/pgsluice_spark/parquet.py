"""Directories of Parquet files as a target of change logs, with one directory for each piece of a batch.

Parquet has no transactions. A piece is committed when its directory has a manifest, which is written last and describes
the piece. A killed driver may leave a directory without a manifest. Such directories are deleted before the next piece
is written. So only directories that come after the last one with a manifest can be incomplete.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from pgsluice_spark.errors import PipelineError
from pgsluice_spark.files import Files
from pgsluice_spark.targets import Commit, Committed, Merge, Requirements, Upkeep, quoted, refusal

MANIFEST: Final = "_pgsluice.json"
"""The file whose presence in a directory says that the directory's content is committed."""

_PREFIX: Final = "upto="
"""The beginning of a directory's name. The rest is the offset of the piece's last cut record, in twenty digits."""


@dataclass(frozen=True, slots=True)
class Parquet:
    """A directory with one directory for each table, in a file system that Spark supports."""

    path: str

    @property
    def place(self) -> str:
        """The location of the target, for messages."""
        return self.path

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings that sessions need to write to the target. Parquet needs none."""
        return {}

    @property
    def requires(self) -> Requirements:
        """The class and the settings that a session must have before it starts. Spark itself is enough."""
        return Requirements("org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat", "spark-sql", {})

    @property
    def is_mutable(self) -> bool:
        """Whether rows and files can be replaced, which is never possible here."""
        return False

    def check_writable(self, spark: SparkSession) -> None:
        """Write a file and delete it again."""
        files = Files(spark)
        file = f"{self.path.rstrip('/')}/_pgsluice_check"
        files.write(file, "")
        files.delete(file)

    def table(self, spark: SparkSession, name: str, since: int | None = None) -> "ParquetTable":
        """Return a table of the target, which need not exist yet. ``since`` is ignored."""
        del since
        return ParquetTable(spark, f"{self.path.rstrip('/')}/{name}")


@dataclass(frozen=True, slots=True)
class ParquetTable:
    """The directories of one table."""

    spark: SparkSession
    path: str

    @property
    def sql(self) -> str:
        """The table's name in SQL. A query with this name also reads incomplete directories."""
        return f"parquet.{quoted(self.path)}"

    @property
    def exists(self) -> bool:
        """Whether the table has a commit."""
        return self._last() is not None

    def read(self, version: int | None = None) -> DataFrame:
        """Return the table's rows after the commit with this number, or after the last commit."""
        last = self._last()
        if last is None:
            raise PipelineError(f"{self.path} has no complete batch, so there is nothing to read")
        number, manifest = last
        end = number if version is None else min(version, number)
        found = [self._directory(one) for one in self._numbers() if one <= end]
        return self.spark.read.schema(StructType.fromJson(manifest["schema"])).parquet(*found)

    def create(self, schema: StructType, rows: DataFrame, commit: Commit) -> int:
        """Raise PipelineError, because this target supports only change logs."""
        del schema, rows, commit
        self._refuse()

    def fit(self, schema: StructType) -> None:
        """Do nothing, because each directory has its own schema."""

    def append(self, rows: DataFrame, commit: Commit) -> int:
        """Add a directory with these rows, which may have columns, fields and wider types that earlier rows lack."""
        last = self._last()
        if last is not None and last[0] >= commit.version:
            raise PipelineError(
                f"{self.path} already has the batch up to offset {last[0]}, and {commit.version} is not after it. "
                "Two queries write to it. Stop one of them"
            )
        for number in self._numbers():
            if last is None or number > last[0]:
                self._files.delete(self._directory(number))
        schema = rows.schema if last is None else _merged(StructType.fromJson(last[1]["schema"]), rows.schema)
        directory = self._directory(commit.version)
        rows.write.mode("overwrite").parquet(directory)
        own = {"app": commit.app, "version": commit.version, "state": commit.state, "schema": schema.jsonValue()}
        self._files.write(f"{directory}/{MANIFEST}", json.dumps(own))
        return commit.version

    def extend(self, rows: DataFrame, commit: Commit) -> int:
        """Add a directory with these rows."""
        return self.append(rows, commit)

    def overwrite(self, rows: DataFrame, commit: Commit) -> int:
        """Raise PipelineError, because this target supports only change logs."""
        del rows, commit
        self._refuse()

    def merge(self, merge: Merge, commit: Commit) -> int:
        """Raise PipelineError, because this target supports only change logs."""
        del merge, commit
        self._refuse()

    def delete(self, condition: str, commit: Commit) -> int:
        """Raise PipelineError, because this target supports only change logs."""
        del condition, commit
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise PipelineError(refusal(self.path))

    def last(self) -> Committed | None:
        """Return our last commit, or None if there is none."""
        last = self._last()
        if last is None:
            return None
        number, manifest = last
        return Committed(number, Commit(manifest["app"], manifest["version"], manifest["state"]))

    def forget(self, condition: str) -> None:
        """Raise PipelineError, because this target supports only change logs."""
        del condition
        self._refuse()

    def maintain(self, upkeep: Upkeep) -> None:
        """Raise PipelineError, because this target supports only change logs."""
        del upkeep
        self._refuse()

    def get_property(self, name: str) -> str | None:
        """Raise PipelineError, because this target supports only change logs."""
        del name
        self._refuse()

    def set_property(self, name: str, value: str) -> None:
        """Raise PipelineError, because this target supports only change logs."""
        del name, value
        self._refuse()

    @property
    def _files(self) -> Files:
        return Files(self.spark)

    def _last(self) -> tuple[int, dict[str, Any]] | None:
        """Return the number and the manifest of the last commit, or None if there is none."""
        for number in reversed(self._numbers()):
            manifest = self._files.json(f"{self._directory(number)}/{MANIFEST}")
            if manifest is not None:
                return number, manifest
        return None

    def _numbers(self) -> list[int]:
        """Return the numbers of all directories, including incomplete ones."""
        names = self._files.names(self.path)
        return sorted(int(name.removeprefix(_PREFIX)) for name in names if name.startswith(_PREFIX))

    def _directory(self, number: int) -> str:
        return f"{self.path}/{_PREFIX}{number:020}"


def _merged(known: StructType, new: StructType) -> StructType:
    """Return the fields of both schemas. If two types differ, the new type is used, because types only become wider."""
    fields = {field.name: field.dataType for field in known}
    for field in new:
        fields[field.name] = _merged_type(fields.get(field.name), field.dataType)
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def _merged_type(known: DataType | None, new: DataType) -> DataType:
    return _merged(known, new) if isinstance(known, StructType) and isinstance(new, StructType) else new
