"""Delta tables as targets, with one directory for each table and one commit for each piece of a batch.

Each commit has an application id and a version. This version is not the table's version: it orders the commits that
have the same application id. Delta skips a commit if the table already has this version for this id.

``tests/spark/test_mirror.py`` covers this module.

https://docs.delta.io/latest/delta-batch.html#idempotent-table-writes-in-foreachbatch
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pgsluice_spark.errors import ForeignWrite, PipelineError
from pgsluice_spark.targets import (
    Commit,
    Committed,
    Merge,
    Requirements,
    Upkeep,
    property_of,
    quoted,
    set_properties,
)

SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""The settings that a session needs before it starts."""

_TXN: Final = "spark.databricks.delta.write.txn"
_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"
_OURS: Final = "pgsluice"
"""The name in a commit's metadata that marks our own commits."""

_ALWAYS: Final = {"spark.databricks.delta.skipRecordingEmptyCommits": "false"}
"""Makes Delta record even a commit that changes no row, because a commit also says which cuts the table contains."""

_MAINTENANCE: Final = frozenset(
    (
        "ADD COLUMNS",
        "CHANGE COLUMN",
        "CHANGE COLUMNS",
        "CLUSTER BY",
        "OPTIMIZE",
        "REORG",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "UPGRADE PROTOCOL",
        "VACUUM END",
        "VACUUM START",
    )
)
"""The operations of Delta that do not change rows."""

_VACUUM: Final[Mapping[str, str]] = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}
"""Settings for VACUUM.

Delta's check of the retention is off, because we know which files are needed. VACUUM is not logged, because its commits
would only fill the history. The parallelism is low, because each of our tables is a single directory, and Spark would
list it with ten thousand tasks, which takes minutes.
"""

_RETENTION_S: Final[Mapping[str, int]] = {
    "delta.deletedFileRetentionDuration": 7 * 86_400,
    "delta.logRetentionDuration": 30 * 86_400,
}
"""The table properties that say how long Delta's log knows which files belonged to an older version of the table.

The values are Delta's defaults, in seconds.
"""

_CLOCKS: Final = 0.1
"""Files are kept longer by this fraction of ``keep_s``, because the clocks of drivers and file systems differ."""

_LOCAL: Final = "timestamp_ntz"

_HISTORY: Final = 50
"""The number of commits in which we search for our last commit."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A directory of Delta tables, in a file system that Spark supports."""

    path: str

    @property
    def place(self) -> str:
        """The location of the target, for messages."""
        return self.path

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of the sessions that write to the target."""
        return {
            # The merged rows are cached until the commit, so Delta need not cache them as well.
            "spark.databricks.delta.merge.materializeSource": "none",
            # By default, Delta reads a table's log in 50 tasks after each commit. On a few cores, this takes seconds.
            "spark.databricks.delta.snapshotPartitions": "4",
        }

    @property
    def is_mutable(self) -> bool:
        """Whether rows and files can be replaced."""
        return True

    @property
    def requires(self) -> Requirements:
        """The class and the settings that a session must have before it starts."""
        return Requirements(SETTINGS["spark.sql.extensions"], "delta-spark", SETTINGS)

    def check_writable(self, spark: SparkSession) -> None:
        """Write a file and delete it again."""
        java: Any = spark._jvm  # noqa: SLF001 - PySpark has no other way to Java
        file = java.org.apache.hadoop.fs.Path(f"{self.path.rstrip('/')}/_pgsluice_check_{uuid4().hex}")
        files = file.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001
        files.create(file).close()
        files.delete(file, False)  # noqa: FBT003 - a parameter of a Java method

    def table(self, spark: SparkSession, name: str, since: int | None = None) -> "DeltaTable":
        """Return a table of the target, which need not exist yet.

        ``since`` is the number of our last commit, if it is known.
        """
        return DeltaTable(spark, f"{self.path.rstrip('/')}/{name}", since)


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """One Delta table.

    A Spark session commits to only one table at a time, because the session's settings contain the commit's metadata.
    """

    spark: SparkSession
    path: str
    since: int | None = None
    """The number of our last known commit. All commits after it must be ours as well."""

    @property
    def sql(self) -> str:
        """The table's name in SQL."""
        return f"delta.{quoted(self.path)}"

    @property
    def exists(self) -> bool:
        """Whether there is a Delta table."""
        spark = self.spark
        kind = spark._jvm.io.delta.tables.DeltaTable  # noqa: SLF001 - PySpark has no other way to Java
        return bool(kind.isDeltaTable(spark._jsparkSession, self.path))  # noqa: SLF001 - as above

    def read(self, version: int | None = None) -> DataFrame:
        """Return the table's rows after the commit with this number, or after the last commit."""
        reader = self.spark.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(self.path)

    def fit(self, schema: StructType) -> bool:
        """Create the table, or add missing columns and widen types. Return whether the table was created."""
        if not self.exists:
            with self._committing(None):
                self.spark.createDataFrame([], schema).write.format("delta").save(self.path)
            return True
        self._allow(schema)
        known = {field.name.lower(): field.dataType.simpleString() for field in self.read().schema}
        wanted = {field.name: field.dataType.simpleString() for field in schema}
        if added := [f"{quoted(name)} {kind}" for name, kind in wanted.items() if name.lower() not in known]:
            self.spark.sql(f"ALTER TABLE {self.sql} ADD COLUMNS ({', '.join(added)})")
        for name, kind in wanted.items():
            if known.get(name.lower(), kind) != kind:
                self.spark.sql(f"ALTER TABLE {self.sql} ALTER COLUMN {quoted(name)} TYPE {kind}")
        return False

    def _allow(self, schema: StructType) -> None:
        """Enable the table features that ``schema`` needs.

        They are not enabled from the start, because some readers refuse tables with them.
        """
        known, wanted = _leaves(self.read().schema), _leaves(schema)
        properties = {}
        if any(known.get(path, kind) != kind for path, kind in wanted.items()):
            properties["delta.enableTypeWidening"] = "true"
        if any(_LOCAL in kind for path, kind in wanted.items() if path not in known):
            properties["delta.feature.timestampNtz"] = "supported"
        for name, value in properties.items():
            self.spark.sql(f"ALTER TABLE {self.sql} SET TBLPROPERTIES ('{name}' = '{value}')")

    def append(self, rows: DataFrame, commit: Commit) -> int:
        """Add rows, and return the number of the commit."""
        return self._commit(commit, lambda: self._write(rows, "append"))

    def extend(self, rows: DataFrame, commit: Commit) -> int:
        """Add rows, which may have columns, fields and wider types that the table lacks."""
        if self.exists:
            self._allow(rows.schema)
        return self._commit(commit, lambda: self._write(rows, "append", mergeSchema="true"))

    def overwrite(self, rows: DataFrame, commit: Commit) -> int:
        """Replace all rows by ``rows``, and return the number of the commit."""
        return self._commit(commit, lambda: self._write(rows, "overwrite"))

    def merge(self, merge: Merge, commit: Commit) -> int:
        """Merge rows into the table, and return the number of the commit."""
        merge.source.createOrReplaceTempView("pgsluice_source")
        condition = f"{merge.condition} {' '.join(merge.clauses)}"
        statement = f"MERGE INTO {self.sql} AS t USING pgsluice_source AS s ON {condition}"
        return self._commit(commit, lambda: self.spark.sql(statement).collect())

    def delete(self, condition: str, commit: Commit) -> int:
        """Delete rows, and return the number of the commit."""
        return self._commit(commit, lambda: self.spark.sql(f"DELETE FROM {self.sql} WHERE {condition}").collect())  # noqa: S608

    def last(self) -> Committed | None:
        """Return our last commit, or None if there is none.

        Raise ForeignWrite if another program has changed rows after this commit, or after the commit ``since``.
        """
        if not self.exists:
            return None
        history = self.spark.sql(f"DESCRIBE HISTORY {self.sql} LIMIT {_HISTORY}").collect()
        return _last(self.path, sorted(history, key=lambda row: row["version"], reverse=True), self.since)

    def forget(self, condition: str) -> None:
        """Delete rows without changing the number and the state of our last commit."""
        with self._committing(None):
            self.spark.sql(f"DELETE FROM {self.sql} WHERE {condition}").collect()  # noqa: S608 - our own condition

    def maintain(self, upkeep: Upkeep) -> None:
        """Compact the files, and delete files that are not needed to read one of the states that ``upkeep`` keeps."""
        oldest = min([upkeep.before, *(self._committed_at(number) for number in upkeep.kept)])
        self._let_log_keep(time.time() - oldest + upkeep.needed_s)
        if upkeep.compact:
            self.spark.sql(f"OPTIMIZE {self.sql}").collect()
        hours = (time.time() - oldest + _CLOCKS * upkeep.keep_s) / 3600
        for name, value in _VACUUM.items():
            self.spark.conf.set(name, value)
        self.spark.sql(f"VACUUM {self.sql} RETAIN {hours:.6f} HOURS").collect()

    def _committed_at(self, number: int) -> float:
        """Return the time of a commit.

        At that time, all files of the committed version were part of the table. Each of these files still is part of
        it, or was removed later. So VACUUM keeps them if it keeps all files that were removed after that time.
        """
        java: Any = self.spark._jvm  # noqa: SLF001 - PySpark has no other way to Java
        file = java.org.apache.hadoop.fs.Path(f"{self.path}/_delta_log/{number:020}.json")
        files = file.getFileSystem(self.spark._jsc.hadoopConfiguration())  # noqa: SLF001 - as above
        return float(files.getFileStatus(file).getModificationTime()) / 1000

    def _let_log_keep(self, needed_s: float) -> None:
        """Make Delta's log keep the file lists of old versions for ``needed_s`` seconds.

        If the table no longer changes, its last version gets older and older, so ``needed_s`` may be months.
        """
        known = {name: _interval_s(self.get_property(name)) or default for name, default in _RETENTION_S.items()}
        most = max(needed_s, *_RETENTION_S.values())
        if any(value < needed_s or value > 4 * most for value in known.values()):
            set_properties(self, dict.fromkeys(_RETENTION_S, f"interval {int(2 * most)} seconds"))

    def get_property(self, name: str) -> str | None:
        """Return a property of the table."""
        return property_of(self, name)

    def set_property(self, name: str, value: str) -> None:
        """Set a property of the table."""
        set_properties(self, {name: value})

    def _write(self, rows: DataFrame, mode: str, **options: str) -> None:
        rows.write.format("delta").mode(mode).options(**options).save(self.path)

    def _commit(self, commit: Commit, action: Callable[[], object]) -> int:
        found = self._committed(commit, commit.app, action)
        if found is None or found.commit.version < commit.version:
            # After a RESTORE, Delta still knows the application ids and versions of the commits that were undone. So it
            # has skipped this commit. Make the commit again, with another application id.
            found = self._committed(commit, f"{commit.app}:{uuid4().hex}", action)
        if found is None or found.commit.version != commit.version:
            raise PipelineError(
                f"{self.path} does not have the commit that was just made for version {commit.version}. Two queries "
                "write to it. Stop one of them"
            )
        return found.number

    def _committed(self, commit: Commit, transactions: str, action: Callable[[], object]) -> Committed | None:
        """Make a commit with the application id ``transactions``. Return our last commit after that.

        Delta skips the commit if the table already has its version for this id.
        """
        with self._committing(commit, transactions):
            action()
        return self.last()

    @contextmanager
    def _committing(self, commit: Commit | None, transactions: str = "") -> Iterator[None]:
        conf = self.spark.conf
        own = {"app": "", "version": -1, "state": ""} if commit is None else _as_dict(commit)
        settings = {_METADATA: json.dumps({_OURS: own}), **_ALWAYS}
        if commit is not None:
            settings |= {f"{_TXN}AppId": transactions, f"{_TXN}Version": str(commit.version)}
        for name, value in settings.items():
            conf.set(name, value)
        try:
            yield
        finally:
            for name in settings:
                conf.unset(name)


def _interval_s(text: str | None) -> int | None:
    """Return the seconds of an interval in the form that we write. Return 0 for other texts, and None for None."""
    if text is None:
        return None
    found = re.fullmatch(r"interval (\d+) seconds", text)
    return int(found[1]) if found else 0


def _leaves(schema: StructType, path: str = "") -> dict[str, str]:
    """Return the types of all fields that are not structs, by their paths."""
    found: dict[str, str] = {}
    for field in schema:
        name, kind = f"{path}{field.name.lower()}.", field.dataType
        found.update(_leaves(kind, name) if isinstance(kind, StructType) else {name: kind.simpleString()})
    return found


def _as_dict(commit: Commit) -> dict[str, Any]:
    return {"app": commit.app, "version": commit.version, "state": commit.state}


def _metadata(text: str | None) -> Commit | None:
    """Return our metadata of a commit, or None if the commit is not ours."""
    try:
        own = json.loads(text or "")[_OURS]
        return Commit(own["app"], own["version"], own["state"])
    except (ValueError, TypeError, KeyError):
        return None


def _last(path: str, commits: Sequence[Any], since: int | None) -> Committed | None:
    """Return our last commit among ``commits``, which are sorted from the newest to the oldest."""
    found = restored = None
    for row in commits:
        if restored is not None and row["version"] > restored:
            continue
        if found is not None and (since is None or row["version"] <= since):
            break
        ours = _metadata(row["userMetadata"])
        if row["operation"] == "RESTORE" and row["operationParameters"].get("version"):
            restored = int(row["operationParameters"]["version"])
        elif ours is None and row["operation"] not in _MAINTENANCE:
            raise ForeignWrite(_foreign(path, row))
        elif found is None and ours is not None and ours.app:
            found = Committed(row["version"], ours)
    return found


def _foreign(path: str, row: Any) -> str:  # noqa: ANN401 - Spark's rows have no types
    return (
        f"{path}: something other than this pipeline has written to the table: version {row['version']} is a "
        f"{row['operation']}. Since then, the table may differ from PostgreSQL. The query has stopped. Restore the "
        f"previous version (RESTORE TABLE delta.`{path}` TO VERSION AS OF {row['version'] - 1}), or load the table "
        "into a new target. Only the pipeline may write to its tables"
    )
