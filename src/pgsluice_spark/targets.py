"""The interface of targets for mirrors and change logs.

:mod:`.delta`, :mod:`.iceberg` and :mod:`.parquet` implement it.

All modules that write to a target or read views of it use this interface, so none of them knows the format of a table.

``tests/spark/test_mirror.py`` covers it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Commit:
    """The metadata of a commit. ``version`` is the application's, and ``state`` is a text for the next commit."""

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

    The states of the commits ``kept`` remain readable, and all states that are younger than ``before``, in seconds
    since 1970. That time is ``keep_s`` ago. The next maintenance needs the table's files for ``needed_s`` longer.
    """

    kept: frozenset[int]
    before: float
    keep_s: int
    needed_s: int
    compact: bool


@dataclass(frozen=True, slots=True)
class Requirements:
    """The requirements of a session: a class from a package, and settings (an empty value allows any)."""

    class_name: str
    package: str
    settings: Mapping[str, str]


class TargetTable(Protocol):
    """One table of a target.

    Each writing method makes one commit, all of it or nothing, and returns its number. The commit carries what
    ``commit`` says. It is refused if something else has written to the table since our last commit (ForeignWrite), or
    if another query has (PipelineError). Each table has a session of its own while it commits.
    """

    @property
    def spark(self) -> SparkSession:
        """The session that reads and writes."""

    @property
    def sql(self) -> str:
        """Its name in SQL."""

    @property
    def exists(self) -> bool:
        """Whether the table has been created."""

    def read(self, version: int | None = None) -> DataFrame:
        """Return its rows as of the commit with this number, or of the last commit."""

    def fit(self, schema: StructType) -> None:
        """Create the table, or give it the columns and the wider types that it lacks."""

    def append(self, rows: DataFrame, commit: Commit) -> int:
        """Add rows."""

    def extend(self, rows: DataFrame, commit: Commit) -> int:
        """Add rows, which may have columns, fields and wider types that the table lacks."""

    def overwrite(self, rows: DataFrame, commit: Commit) -> int:
        """Replace all rows by others."""

    def merge(self, merge: Merge, commit: Commit) -> int:
        """Merge rows into the table."""

    def delete(self, condition: str, commit: Commit) -> int:
        """Delete rows."""

    def last(self) -> Committed | None:
        """Return our last commit, or None. Raise ForeignWrite if something else has changed rows after it."""

    def forget(self, condition: str) -> None:
        """Delete rows without changing our last commit's number and state."""

    def maintain(self, upkeep: Upkeep) -> None:
        """Compact the files, and delete those that are not needed any longer. Our last commit stays what it is."""

    def get_property(self, name: str) -> str | None:
        """Return a property of the table that we have set."""

    def set_property(self, name: str, value: str) -> None:
        """Set a property of the table."""


class Target(Protocol):
    """A location with one table for each table of PostgreSQL."""

    @property
    def place(self) -> str:
        """Its place, for messages."""

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of the sessions that write to it."""

    @property
    def is_mutable(self) -> bool:
        """Whether rows and files can be replaced, which mirrors and maintenance do."""

    @property
    def requires(self) -> Requirements:
        """What a session must have before it starts."""

    def check_writable(self, spark: SparkSession) -> None:
        """Write test data and delete it again. Raise an error of Spark's or Java's if that is not possible."""

    def table(self, spark: SparkSession, name: str, since: int | None = None) -> TargetTable:
        """Return one of its tables, which need not exist yet. ``since``: the number of our last commit, if known."""


def refusal(place: str) -> str:
    """Return the message for a target that would have to replace rows or files and cannot."""
    return (
        f"{place} has files that are never replaced, so it takes change logs only, without maintenance. Nothing was "
        "written. Use Delta or Iceberg for mirrors, and for change logs with maintenance"
    )


def property_of(table: TargetTable, name: str) -> str | None:
    """Return a property of a table that SQL knows."""
    rows = table.spark.sql(f"SHOW TBLPROPERTIES {table.sql}").collect()
    return {row["key"]: row["value"] for row in rows}.get(name)


def set_properties(table: TargetTable, properties: Mapping[str, str]) -> None:
    """Set properties of a table that SQL knows."""
    settings = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    table.spark.sql(f"ALTER TABLE {table.sql} SET TBLPROPERTIES ({settings})")


def quoted(name: str) -> str:
    """Return a name, quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"
