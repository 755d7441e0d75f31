"""Iceberg tables as targets, with one table in a catalog for each table of PostgreSQL.

Each piece of a batch is one snapshot. The summary of a snapshot has the metadata of our commit. Every commit is first
made on a separate branch. Then ``main`` is moved to the end of this branch. The catalog refuses the move if ``main``
has changed since the branch was created. So no other program can commit between our check of the table and our own
commit. A commit that fails halfway leaves ``main`` unchanged.

https://iceberg.apache.org/docs/latest/branching/
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation
from pyspark.sql.types import DataType, StructType

from pgsluice_spark.errors import ForeignWrite, PipelineError, TableRefused
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

CATALOG_CLASS: Final = "org.apache.iceberg.spark.SparkCatalog"
"""The class that implements a catalog."""

_PROPERTY: Final = "spark.sql.iceberg.snapshot-property."
"""The prefix of session settings that become entries in the summary of each snapshot that the session creates."""

_APP: Final = "pgsluice.app"
_VERSION: Final = "pgsluice.version"
_STATE: Final = "pgsluice.state"

_SNAPSHOT: Final = "pgsluice.snapshot"
"""An entry that only the summary of a maintenance snapshot has: the id of the snapshot of our last commit.

The other entries of a maintenance snapshot are copied from the summary of our last commit's snapshot.
"""

_BRANCH: Final = "pgsluice_"
"""The prefix of the names of our branches."""

_REWRITING: Final = (
    "spark.sql.catalog.default_rewrite_catalog",
    "org.apache.iceberg.spark.SparkRewriteTableCatalog",
)
"""A setting that is needed to rewrite files. Iceberg sets it only in the default session."""

_REWRITTEN: Final = "replace"
"""The operation of snapshots that have the same rows as their parent snapshot, in other files."""

_RESERVED: Final = frozenset(
    ("_deleted", "_file", "_last_updated_sequence_number", "_partition", "_pos", "_row_id", "_spec_id")
)
"""The names of Iceberg's metadata columns in Spark.

https://iceberg.apache.org/spec/#reserved-field-ids
"""

_WIDENINGS: Final = {("int", "bigint"), ("float", "double")}
"""The changes of a type that Iceberg supports. Decimals can also get more digits."""


@dataclass(frozen=True, slots=True)
class Iceberg:
    """A namespace in a catalog, written as ``catalog.namespace``. The session must have the settings of the catalog."""

    namespace: str

    @property
    def place(self) -> str:
        """The location of the target, for messages."""
        return self.namespace

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings that sessions need to write to the target. Iceberg needs none."""
        return {}

    @property
    def is_mutable(self) -> bool:
        """Whether rows and files can be replaced."""
        return True

    @property
    def requires(self) -> Requirements:
        """The class and the settings that a session must have before it starts."""
        catalog = self.namespace.partition(".")[0]
        return Requirements(CATALOG_CLASS, "iceberg-spark-runtime", {f"spark.sql.catalog.{catalog}": ""})

    def check_writable(self, spark: SparkSession) -> None:
        """Create a namespace below the target's namespace, and a table in it. Drop both again."""
        namespace = ".".join(quoted(part) for part in (*self.namespace.split("."), f"_pgsluice_check_{uuid4().hex}"))
        spark.sql(f"CREATE NAMESPACE {namespace}")
        try:
            spark.sql(f"CREATE TABLE {namespace}.t (id int) USING iceberg")
            spark.sql(f"DROP TABLE {namespace}.t PURGE")
        finally:
            spark.sql(f"DROP NAMESPACE {namespace}")

    def table(self, spark: SparkSession, name: str, since: int | None = None) -> "IcebergTable":
        """Return a table of the target, which need not exist yet.

        ``since`` is the id of our last snapshot, if it is known. Each schema of PostgreSQL is a namespace below
        ``self.namespace``.
        """
        return IcebergTable(spark, f"{self.namespace}.{name}", since)


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """One Iceberg table.

    A Spark session commits to only one table at a time, because the session's settings contain the commit's metadata.
    """

    spark: SparkSession
    name: str
    since: int | None = None
    """The id of our last known snapshot. All later snapshots that change rows must be ours as well."""

    @property
    def sql(self) -> str:
        """The table's name in SQL."""
        return ".".join(map(quoted, self.name.split(".")))

    @property
    def exists(self) -> bool:
        """Whether the catalog has the table."""
        return bool(self.spark.catalog.tableExists(self.sql))

    def read(self, version: int | None = None) -> DataFrame:
        """Return the table's rows in the snapshot with this id, or in the last snapshot."""
        self.spark.catalog.refreshTable(self.sql)  # the catalog caches the table, but other sessions write to it
        reader = self.spark.read
        return (reader if version is None else reader.option("versionAsOf", version)).table(self.sql)

    def create(self, schema: StructType, rows: DataFrame, commit: Commit) -> int:
        """Create the table with this schema, and then add these rows. Return the id of the snapshot with the rows."""
        if self.since is not None:
            raise ForeignWrite(vanished(self.name))
        self._check_names(schema)
        self._create(schema)
        return self._append(rows, commit)

    def _create(self, schema: StructType) -> None:
        parts = list(map(quoted, self.name.split(".")))
        for end in range(2, len(parts)):
            self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {'.'.join(parts[:end])}")
        with self._committing(Commit("", -1, "")):
            self.spark.createDataFrame([], schema).writeTo(self.sql).using("iceberg").create()

    def fit(self, schema: StructType) -> None:
        """Add missing columns and widen types."""
        self._check_names(schema)
        added, widened = _differences(self.read().schema, schema)
        for name, known, wanted in widened:
            if (known, wanted) not in _WIDENINGS and not _are_decimals(known, wanted):
                raise TableRefused(
                    f"{self.name}: column {name} has become {wanted}, and Iceberg cannot change {known} to this type. "
                    "Nothing of this batch was applied. Begin a new target for the table and load it with `pgsluice "
                    "snapshot start`"
                )
        if added:
            columns = ", ".join(f"{name} {kind}" for name, kind in added)
            self.spark.sql(f"ALTER TABLE {self.sql} ADD COLUMNS ({columns})")
        for name, _, wanted in widened:
            self.spark.sql(f"ALTER TABLE {self.sql} ALTER COLUMN {name} TYPE {wanted}")

    def append(self, rows: DataFrame, commit: Commit) -> int:
        """Add rows, and return the id of the snapshot."""
        return self._append(rows, commit) if self.exists else self.create(rows.schema, rows, commit)

    def _append(self, rows: DataFrame, commit: Commit) -> int:
        return self._commit(commit, lambda branch: rows.writeTo(branch).append())

    def _check_names(self, schema: StructType) -> None:
        """Raise TableRefused if a column has a reserved name. Iceberg accepts such a table, but no merge into it."""
        if reserved := sorted(_RESERVED.intersection(name.lower() for name in schema.fieldNames())):
            raise TableRefused(
                f"{self.name}: a table in Iceberg cannot have columns with the names {', '.join(reserved)}, because "
                "Iceberg's own metadata columns have these names. Nothing of this batch was applied. Rename the "
                "columns in PostgreSQL, leave the table out of `tables`, or mirror it to Delta"
            )

    def extend(self, rows: DataFrame, commit: Commit) -> int:
        """Add rows, which may have columns, fields and wider types that the table lacks."""
        if not self.exists:
            return self.create(rows.schema, rows, commit)
        self.fit(rows.schema)
        return self._append(rows, commit)

    def overwrite(self, rows: DataFrame, commit: Commit) -> int:
        """Replace all rows by ``rows``, and return the id of the snapshot."""
        return self._commit(commit, lambda branch: rows.writeTo(branch).overwrite(F.lit(True)))  # noqa: FBT003 - a literal

    def merge(self, merge: Merge, commit: Commit) -> int:
        """Merge rows into the table, and return the id of the snapshot."""
        merge.source.createOrReplaceTempView("pgsluice_source")
        rest = f"AS t USING pgsluice_source AS s ON {merge.condition} {' '.join(merge.clauses)}"
        return self._commit(commit, lambda branch: self.spark.sql(f"MERGE INTO {branch} {rest}").collect())

    def delete(self, condition: str, commit: Commit) -> int:
        """Delete rows, and return the id of the snapshot."""
        # MERGE is used because a DELETE of whole files would not write our entries to the summary.
        rest = f"AS t USING (SELECT true AS is_there) AS s ON s.is_there AND ({condition}) WHEN MATCHED THEN DELETE"
        return self._commit(commit, lambda branch: self.spark.sql(f"MERGE INTO {branch} {rest}").collect())

    def last(self) -> Committed | None:
        """Return our last commit, or None if there is none.

        Raise ForeignWrite if another program has changed rows after this commit, or after the snapshot ``since``.
        """
        return _last(self.name, self._loaded(), self.since) if self.exists else None

    def forget(self, condition: str) -> None:
        """Delete rows in a maintenance snapshot, which does not count as a commit.

        :meth:`last` still returns our former commit, with its id and state.
        """
        rest = self.read().where(f"NOT ({condition})")
        # The rows are overwritten because a DELETE of whole files would not write our entries to the summary.
        with self._summary(_carried(self.last())):
            rest.writeTo(self.sql).overwrite(F.lit(True))  # noqa: FBT003 - a literal
        self.spark.catalog.refreshTable(self.sql)

    def maintain(self, upkeep: Upkeep) -> None:
        """Compact the files, and expire old snapshots that are not needed any more."""
        last, table = self.last(), self._loaded()
        kept = upkeep.kept | ({last.number} if last is not None else set())
        with self._actions() as actions:
            if upkeep.compact and table.currentSnapshot() is not None:
                self.spark.conf.set(*_REWRITING)
                rewrite = actions.rewriteDataFiles(table)
                for name, value in _carried(last).items():
                    rewrite = rewrite.snapshotProperty(name, value)
                rewrite.execute()
                table.refresh()
            if expired := _expiring(table, kept, upkeep.before):
                expire = actions.expireSnapshots(table).expireOlderThan(0)  # no snapshot may expire by its age
                for number in expired:
                    expire = expire.expireSnapshotId(number)
                expire.execute()
        self.spark.catalog.refreshTable(self.sql)

    @contextmanager
    def _actions(self) -> Iterator[Any]:
        """Yield Iceberg's actions.

        The actions use the thread's active session. So the table's session is made the active one until the context
        ends.
        """
        jvm, session = self.spark._jvm, self.spark._jsparkSession  # noqa: SLF001 - PySpark has no other way
        sessions = jvm.org.apache.spark.sql.classic.SparkSession
        before = sessions.getActiveSession()
        sessions.setActiveSession(session)
        try:
            yield jvm.org.apache.iceberg.spark.actions.SparkActions.get(session)
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()

    def get_property(self, name: str) -> str | None:
        """Return a property of the table."""
        return property_of(self, name)

    def set_property(self, name: str, value: str) -> None:
        """Set a property of the table."""
        set_properties(self, {name: value})

    def _loaded(self) -> Any:  # noqa: ANN401 - an object of Java's
        """Return Iceberg's own object for the present state of the table."""
        util = self.spark._jvm.org.apache.iceberg.spark.Spark3Util  # noqa: SLF001 - PySpark has no other way to it
        table = util.loadIcebergTable(self.spark._jsparkSession, self.sql)  # noqa: SLF001 - as above
        table.refresh()
        return table

    def _commit(self, commit: Commit, action: Callable[[str], object]) -> int:
        """Create a branch, let ``action`` write to it, move ``main`` to its end, and return the id of the snapshot."""
        table = self._loaded()
        before = _last(self.name, table, self.since)
        if before is not None and (before.commit.version >= commit.version or self.since not in (None, before.number)):
            raise PipelineError(self._two_queries(commit))
        branch = f"{_BRANCH}{uuid4().hex}"
        _make_branch(table, branch)  # at the present snapshot, which _last has checked together with its ancestors
        self.spark.catalog.refreshTable(self.sql)
        with self._committing(commit):
            action(f"{self.sql}.{quoted(f'branch_{branch}')}")
        self._publish(branch)
        self.spark.catalog.refreshTable(self.sql)
        found = self.last()
        if found is None or found.commit != commit:
            raise PipelineError(self._two_queries(commit))
        return found.number

    def _two_queries(self, commit: Commit) -> str:
        return (
            f"{self.name} has commits that this query does not know, or lacks this query's commit for version "
            f"{commit.version}. Two queries write to it. Stop one of them"
        )

    def _publish(self, branch: str) -> None:
        """Move ``main`` to the end of a branch. Raise ForeignWrite if another program has written to the table."""
        table = self._loaded()
        try:
            table.manageSnapshots().fastForwardBranch("main", branch).removeBranch(branch).commit()
        except (Py4JJavaError, IllegalArgumentException) as error:
            self.last()  # raises ForeignWrite if another program has written to the table
            raise PipelineError(
                f"{self.name}: Iceberg refused the commit, for the reason in the cause of this error. Nothing was "
                "added to the table. Start the query again. It will continue with this batch"
            ) from error

    @contextmanager
    def _committing(self, commit: Commit) -> Iterator[None]:
        with self._summary(_as_summary(commit)):
            yield

    @contextmanager
    def _summary(self, summary: Mapping[str, str]) -> Iterator[None]:
        for name, value in summary.items():
            self.spark.conf.set(_PROPERTY + name, value)
        try:
            yield
        finally:
            for name in summary:
                self.spark.conf.unset(_PROPERTY + name)


def _make_branch(table: Any, name: str) -> None:  # noqa: ANN401 - an object of Java's
    """Create a branch at the snapshot of ``main``, and remove the branches of commits that were not completed."""
    change = table.manageSnapshots()
    for ref in table.refs():
        if ref.startswith(_BRANCH):
            change = change.removeBranch(ref)
    change.createBranch(name, table.currentSnapshot().snapshotId()).commit()


def _last(name: str, table: Any, since: int | None) -> Committed | None:  # noqa: ANN401 - an object of Java's
    """Return our last commit among the present snapshot and its ancestors."""
    found, snapshot = None, table.currentSnapshot()
    while snapshot is not None:
        if found is not None and since in (None, found.number, snapshot.snapshotId()):
            return found
        ours = _metadata(snapshot.summary())
        if ours is None and snapshot.operation() != _REWRITTEN:
            raise ForeignWrite(_foreign(name, snapshot))
        if found is None and ours is not None and ours.app:
            found = Committed(int(snapshot.summary().get(_SNAPSHOT) or snapshot.snapshotId()), ours)
            continue
        parent = snapshot.parentId()
        if parent is None and since is not None:
            raise ForeignWrite(_rolled_back(name, since))
        snapshot = None if parent is None else table.snapshot(parent)
        if snapshot is None and parent is not None and found is None:
            raise PipelineError(_expired(name, parent))
    return found


def _as_summary(commit: Commit) -> dict[str, str]:
    return {_APP: commit.app, _VERSION: str(commit.version), _STATE: commit.state}


def _carried(last: Committed | None) -> dict[str, str]:
    """Return the metadata and the number of our last commit, for the summary of a maintenance snapshot."""
    if last is None:
        return _as_summary(Commit("", -1, ""))
    return {**_as_summary(last.commit), _SNAPSHOT: str(last.number)}


def _expiring(table: Any, kept: Collection[int], before: float) -> list[int]:  # noqa: ANN401 - an object of Java's
    """Return the snapshots from before the time ``before``, except those in ``kept`` and those of branches and tags."""
    held = {*kept, *(ref.snapshotId() for ref in table.refs().values())}
    found = [(one.snapshotId(), one.timestampMillis()) for one in table.snapshots()]
    return [number for number, made_ms in found if made_ms < before * 1000 and number not in held]


def _metadata(summary: Mapping[str, str]) -> Commit | None:
    """Return our metadata in the summary of a snapshot, or None if the snapshot is not ours."""
    if _APP not in summary:
        return None
    return Commit(summary[_APP], int(summary[_VERSION]), summary[_STATE])


def _foreign(name: str, snapshot: Any) -> str:  # noqa: ANN401 - an object of Java's
    catalog, table = name.split(".", 1)
    return (
        f"{name}: something other than this pipeline has written to the table: snapshot {snapshot.snapshotId()} has "
        f"the operation {snapshot.operation()}. Since then, the table may differ from PostgreSQL. Nothing was added "
        f"to it. Go back to the previous snapshot (CALL {catalog}.system.rollback_to_snapshot('{table}', "
        f"{snapshot.parentId()})), or load the table into a new target. Only the pipeline may write to its tables"
    )


def _rolled_back(name: str, since: int) -> str:
    return (
        f"{name}: the table has lost snapshot {since}, which this pipeline made. Somebody has gone back "
        "to an earlier state, or has created the table again. Nothing was added to it. Go back to that snapshot "
        "(set_current_snapshot), or load the table into a new target"
    )


def _expired(name: str, parent: int) -> str:
    return (
        f"{name}: snapshot {parent} has expired, so nobody can tell which cuts the table contains. Nothing was added "
        "to the table. Load the table into a new target, and let maintenance keep the last snapshot of this "
        "pipeline, for example with a greater `retain_last`"
    )


def _differences(
    known: StructType, wanted: StructType, path: str = ""
) -> tuple[list[tuple[str, str]], list[tuple[str, str, str]]]:
    """Return the fields that ``known`` lacks, with their types, and the fields whose types differ, with both types."""
    have: dict[str, DataType] = {field.name.lower(): field.dataType for field in known}
    added: list[tuple[str, str]] = []
    widened: list[tuple[str, str, str]] = []
    for field in wanted:
        name, kind = f"{path}{quoted(field.name)}", field.dataType
        old = have.get(field.name.lower())
        if old is None:
            added.append((name, kind.simpleString()))
        elif isinstance(kind, StructType) and isinstance(old, StructType):
            more = _differences(old, kind, f"{name}.")
            added, widened = [*added, *more[0]], [*widened, *more[1]]
        elif old.simpleString() != kind.simpleString():
            widened.append((name, old.simpleString(), kind.simpleString()))
    return added, widened


def _are_decimals(known: str, wanted: str) -> bool:
    return known.startswith("decimal") and wanted.startswith("decimal")
