"""The interface of targets for mirrors and change logs.

:mod:`.delta`, :mod:`.iceberg` and :mod:`.parquet` implement it.

All modules that write to a target or read views of it use this interface, so they do not depend on the format of a
table.

``tests/spark/test_mirror.py`` covers this module.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Commit:
    """The metadata of a commit.

    ``app`` and ``version`` identify the commit, so that it is made only once. ``state`` is the table's state as text.
    """

    app: str
    version: int
    state: str


@dataclass(frozen=True, slots=True)
class Merge:
    """The parts of a merge statement, with ``s`` for the source and ``t`` for the table."""

    source: DataFrame
    condition: str
    clauses: Sequence[str]


@dataclass(frozen=True, slots=True)
class Committed:
    """Our last commit: its number in the target, and its metadata."""

    number: int
    commit: Commit


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The parameters of a table's maintenance.

    The states of the commits in ``kept`` remain readable, and so do all states since ``before``, which is a time in
    seconds since 1970. ``before`` is ``keep_s`` seconds ago. The table's log has to keep the file lists of these states
    for another ``needed_s`` seconds, because later maintenance needs the lists.
    """

    kept: frozenset[int]
    before: float
    keep_s: int
    needed_s: int
    compact: bool


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a session needs: a class from a package, and settings. If a setting is empty here, any value is allowed."""

    class_name: str
    package: str
    settings: Mapping[str, str]


class TargetTable(Protocol):
    """One table of a target.

    Each method that takes a ``commit`` makes one atomic commit with this metadata, and returns the number of the commit
    in the target. Such a method raises ForeignWrite if another program has written to the table since our last commit,
    and PipelineError if another query of this package has written to it. A session commits to only one table at a time.
    """

    @property
    def spark(self) -> SparkSession:
        """The session that reads and writes the table."""

    @property
    def sql(self) -> str:
        """The table's name in SQL."""

    @property
    def exists(self) -> bool:
        """Whether the table has been created."""

    def read(self, version: int | None = None) -> DataFrame:
        """Return the table's rows after the commit with this number, or after the last commit."""

    def create(self, schema: StructType, rows: DataFrame, commit: Commit) -> int:
        """Create the table with this schema and these rows."""

    def fit(self, schema: StructType) -> None:
        """Add missing columns and widen types, so that the table has this schema."""

    def append(self, rows: DataFrame, commit: Commit) -> int:
        """Add rows."""

    def extend(self, rows: DataFrame, commit: Commit) -> int:
        """Add rows, which may have columns, fields and wider types that the table lacks."""

    def overwrite(self, rows: DataFrame, commit: Commit) -> int:
        """Replace all rows by ``rows``."""

    def merge(self, merge: Merge, commit: Commit) -> int:
        """Merge rows into the table."""

    def delete(self, condition: str, commit: Commit) -> int:
        """Delete rows."""

    def last(self) -> Committed | None:
        """Return our last commit, or None. Raise ForeignWrite if another program has changed rows after it."""

    def forget(self, condition: str) -> None:
        """Delete rows without changing our last commit's number and state."""

    def maintain(self, upkeep: Upkeep) -> None:
        """Compact the files, and delete files that are not needed any more. Our last commit keeps its number."""

    def get_property(self, name: str) -> str | None:
        """Return the value of a property of the table, or None if the property is not set."""

    def set_property(self, name: str, value: str) -> None:
        """Set a property of the table."""


class Target(Protocol):
    """A location with one table for each table of PostgreSQL."""

    @property
    def place(self) -> str:
        """The location of the target, for messages."""

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of the sessions that write to the target."""

    @property
    def is_mutable(self) -> bool:
        """Whether rows and files can be replaced. Mirrors and maintenance need this."""

    @property
    def requires(self) -> Requirements:
        """The class and the settings that a session must have before it starts."""

    def check_writable(self, spark: SparkSession) -> None:
        """Write test data and delete it again. Raise the error of Spark or Java if this is not possible."""

    def table(self, spark: SparkSession, name: str, since: int | None = None) -> TargetTable:
        """Return a table of the target, which need not exist yet.

        ``since`` is the number of our last commit, if it is known.
        """


def refusal(place: str) -> str:
    """Return the message for an operation that replaces rows or files, if the target cannot replace any."""
    return (
        f"{place} has files that are never replaced, so it takes change logs only, without maintenance. Nothing was "
        "written. Use Delta or Iceberg for mirrors, and for change logs with maintenance"
    )


def vanished(place: str) -> str:
    """Return the message for a table that was removed, or that has lost our last commit."""
    return (
        f"{place}: the table, or its last commits, were removed. Nothing was added to it. Restore it from a copy, or "
        "begin a new target and load its tables with `pgsluice snapshot start`"
    )


def property_of(table: TargetTable, name: str) -> str | None:
    """Return a property of a table, read with SQL, or None if it is not set."""
    rows = table.spark.sql(f"SHOW TBLPROPERTIES {table.sql}").collect()
    return {row["key"]: row["value"] for row in rows}.get(name)


def set_properties(table: TargetTable, properties: Mapping[str, str]) -> None:
    """Set properties of a table with SQL."""
    settings = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    table.spark.sql(f"ALTER TABLE {table.sql} SET TBLPROPERTIES ({settings})")


def quoted(name: str) -> str:
    """Return a name, quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"
