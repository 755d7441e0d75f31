"""Delta tables as targets, with one directory for each table and one commit for each piece of a batch.

Each commit has an application id and a version. This version is not the table's version: it orders the commits that
have the same application id. If the table already has this version or a higher one for this id, Delta skips the commit.

``tests/spark/test_mirror.py`` covers this module.

https://docs.delta.io/latest/delta-batch.html#idempotent-table-writes-in-foreachbatch
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation
from pyspark.sql.types import DataType, DecimalType, StructType

from pgsluice_spark.delta_log import HISTORY, OURS, DeltaLog, Info, last_in
from pgsluice_spark.errors import ForeignWrite, NoSuchView, PipelineError, TableRefused
from pgsluice_spark.files import Files
from pgsluice_spark.targets import (
    Commit,
    Committed,
    Merge,
    Requirements,
    Upkeep,
    property_of,
    quoted,
    set_properties,
    vanished,
)

SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""The settings that a session needs before it starts."""

_TXN: Final = "spark.databricks.delta.write.txn"
_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"
_ALWAYS: Final = {"spark.databricks.delta.skipRecordingEmptyCommits": "false"}
"""Makes Delta record even a commit that changes no row, because a commit also says which cuts the table contains."""

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
"""The table properties that limit how long Delta's log keeps the file lists of older versions of the table.

The values are Delta's defaults, in seconds.
"""

_CLOCKS: Final = 0.1
"""Files are kept longer by this fraction of ``keep_s``, because the clocks of drivers and file systems differ."""

_UNLIMITED: Final = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
"""The setting by which Delta refuses to read a version that is older than the retention of deleted files.

We switch it off. The age of a version says nothing about its files, because a version that was committed long ago may
have been the newest one until now.
"""
_UNLIMITED_LOCK: Final = Lock()

_LOCAL: Final = "timestamp_ntz"

_WIDENINGS: Final = {("int", "bigint"), ("int", "double"), ("float", "double")}
"""The changes of a type that occur in a topic, all of which Delta supports. Decimals can also get more digits."""

_CONFLICTS: Final = "io.delta.exceptions."
"""The package of Delta's errors for commits that conflict with other commits."""


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
        files, file = Files(spark), f"{self.path.rstrip('/')}/_pgsluice_check_{uuid4().hex}"
        files.write(file, "")
        files.delete(file)

    def table(self, spark: SparkSession, name: str, since: int | None = None) -> "DeltaTable":
        """Return a table of the target, which need not exist yet.

        ``since`` is the number of our last commit, if it is known.
        """
        # In SQL, Delta does not accept relative paths.
        return DeltaTable(spark, f"{Files(spark).absolute(self.path).rstrip('/')}/{name}", since)


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """One Delta table.

    A Spark session commits to only one table at a time, because the session's settings contain the commit's metadata.
    """

    spark: SparkSession
    path: str
    since: int | None = None
    """The number of our last known commit. All later commits that change rows must be ours as well."""

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
        return reader.load(self.path) if version is None else self._read_version(reader, version)

    def _read_version(self, reader: DataFrameReader, version: int) -> DataFrame:
        with _UNLIMITED_LOCK:  # a view may be read by several threads with the same session
            self.spark.conf.set(_UNLIMITED, "false")
            try:
                return reader.option("versionAsOf", version).load(self.path)
            except AnalysisException as error:
                raise NoSuchView(_not_readable(self.path, version)) from error
            finally:
                self.spark.conf.unset(_UNLIMITED)

    def create(self, schema: StructType, rows: DataFrame, commit: Commit) -> int:
        """Create the table with this schema and these rows, and return the number of the commit."""
        fields = [F.col(quoted(field.name)).cast(field.dataType).alias(field.name) for field in schema]
        return self.append(rows.select(*fields), commit)

    def fit(self, schema: StructType) -> None:
        """Add missing columns and widen types."""
        with self._conflicts():
            self._fit(schema)

    def _fit(self, schema: StructType) -> None:
        self._allow(schema)
        known = {field.name.lower(): field.dataType.simpleString() for field in self.read().schema}
        wanted = {field.name: field.dataType.simpleString() for field in schema}
        if added := [f"{quoted(name)} {kind}" for name, kind in wanted.items() if name.lower() not in known]:
            self.spark.sql(f"ALTER TABLE {self.sql} ADD COLUMNS ({', '.join(added)})")
        for name, kind in wanted.items():
            if known.get(name.lower(), kind) != kind:
                self.spark.sql(f"ALTER TABLE {self.sql} ALTER COLUMN {quoted(name)} TYPE {kind}")

    def _allow(self, schema: StructType) -> None:
        """Enable the table features that ``schema`` needs. Raise TableRefused if Delta cannot change a type.

        The features are not enabled from the start, because some readers refuse tables with them.
        """
        known, wanted = _leaves(self.read().schema), _leaves(schema)
        common = {path: (known[path], kind) for path, kind in wanted.items() if path in known}
        changed = {path: types for path, types in common.items() if _differ(*types)}
        for path, types in changed.items():
            if not _is_widening(*types):
                raise TableRefused(_other_type(self.path, path, *types))
        properties = {}
        if changed:
            properties["delta.enableTypeWidening"] = "true"
        if any(_LOCAL in kind.simpleString() for path, kind in wanted.items() if path not in known):
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
        return self._log.last(self.since, self._history)

    def _history(self) -> Mapping[int, Info]:
        """Return the ``commitInfo`` of the last commits, by version."""
        rows = self.spark.sql(f"DESCRIBE HISTORY {self.sql} LIMIT {HISTORY}").collect()
        return {row["version"]: row.asDict() for row in rows}

    @property
    def _log(self) -> DeltaLog:
        return DeltaLog(Files(self.spark), self.path)

    def forget(self, condition: str) -> None:
        """Delete rows without changing the number and the state of our last commit."""
        with self._committing(None):
            self.spark.sql(f"DELETE FROM {self.sql} WHERE {condition}").collect()  # noqa: S608 - our own condition

    def maintain(self, upkeep: Upkeep) -> None:
        """Compact the files, and delete old files. The states that ``upkeep`` specifies remain readable."""
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

        At that time, all files of the committed version were part of the table. Each of these files either still is
        part of the table, or was removed from it later. So VACUUM keeps these files if it keeps all files that were
        removed after that time.
        """
        return self._log.committed_at(number)

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
        if self.since is not None and not self.exists:
            raise ForeignWrite(vanished(self.path))
        found = self._committed(commit, commit.app, action)
        if _lacks(found, commit):
            found = last_in(self.path, self._history(), self.since)  # the log's files may not show the commit yet
        if _lacks(found, commit):
            # Delta has skipped the commit. This happens after a RESTORE, because Delta still knows the application ids
            # and versions of the commits that were undone. Make the commit again, with another application id.
            found = self._committed(commit, f"{commit.app}:{uuid4().hex}", action)
        if found is None or found.commit.version != commit.version:
            raise PipelineError(
                f"{self.path} does not have the commit that was just made for version {commit.version}. Two queries "
                "write to it. Stop one of them"
            )
        return found.number

    def _committed(self, commit: Commit, transactions: str, action: Callable[[], object]) -> Committed | None:
        """Make a commit with the application id ``transactions``, and return our last commit in the table.

        Delta skips the commit if the table already has its version, or a higher one, for this id.
        """
        with self._committing(commit, transactions), self._conflicts():
            action()
        return self.last()

    @contextmanager
    def _conflicts(self) -> Iterator[None]:
        """Raise ForeignWrite or PipelineError if Delta refuses a commit because of another commit."""
        try:
            yield
        except (Py4JJavaError, CapturedException) as error:
            if not _java_class(error).startswith(_CONFLICTS):
                raise
            self.last()  # raises ForeignWrite if another program has written to the table
            raise PipelineError(
                f"{self.path}: Delta refused the commit, because there was another commit at the same moment. Nothing "
                "was added to the table. If two queries write to the target, stop one of them. Then start this query "
                "again. It will continue with this batch"
            ) from error

    @contextmanager
    def _committing(self, commit: Commit | None, transactions: str = "") -> Iterator[None]:
        conf = self.spark.conf
        own = {"app": "", "version": -1, "state": ""} if commit is None else _as_dict(commit)
        settings = {_METADATA: json.dumps({OURS: own}), **_ALWAYS}
        if commit is not None:
            settings |= {f"{_TXN}AppId": transactions, f"{_TXN}Version": str(commit.version)}
        for name, value in settings.items():
            conf.set(name, value)
        try:
            yield
        finally:
            for name in settings:
                conf.unset(name)


def _lacks(found: Committed | None, commit: Commit) -> bool:
    """Return whether the last commit is older than ``commit``."""
    return found is None or found.commit.version < commit.version


def _interval_s(text: str | None) -> int | None:
    """Return the seconds of an interval in the form that we write. Return 0 for other texts, and None for None."""
    if text is None:
        return None
    found = re.fullmatch(r"interval (\d+) seconds", text)
    return int(found[1]) if found else 0


def _leaves(schema: StructType, path: str = "") -> dict[str, DataType]:
    """Return the types of all fields that are not structs, by their paths."""
    found: dict[str, DataType] = {}
    for field in schema:
        name, kind = f"{path}{field.name.lower()}", field.dataType
        found.update(_leaves(kind, f"{name}.") if isinstance(kind, StructType) else {name: kind})
    return found


def _differ(known: DataType, wanted: DataType) -> bool:
    """Return whether two types differ in more than whether their elements can be null."""
    return bool(known.simpleString() != wanted.simpleString())


def _is_widening(known: DataType, wanted: DataType) -> bool:
    if isinstance(known, DecimalType) and isinstance(wanted, DecimalType):
        return bool(known.scale == wanted.scale and known.precision < wanted.precision)
    return (known.simpleString(), wanted.simpleString()) in _WIDENINGS


def _not_readable(place: str, version: int) -> str:
    return (
        f"{place}: version {version} cannot be read, because Delta's log does not describe it any more. Request a "
        "later state. The table property `delta.logRetentionDuration` says for how long the log describes versions"
    )


def _other_type(place: str, column: str, known: DataType, wanted: DataType) -> str:
    return (
        f"{place}: column {column} has become {wanted.simpleString()}, and Delta cannot change {known.simpleString()} "
        "to this type. Nothing of this batch was applied. Begin a new target for the table and load it with `pgsluice "
        "snapshot start`"
    )


def _java_class(error: Py4JJavaError | CapturedException) -> str:
    """Return the class of the Java exception that caused an error."""
    java = error.java_exception if isinstance(error, Py4JJavaError) else error._origin  # noqa: SLF001 - no other way
    return "" if java is None else str(java.getClass().getName())


def _as_dict(commit: Commit) -> dict[str, Any]:
    return {"app": commit.app, "version": commit.version, "state": commit.state}
