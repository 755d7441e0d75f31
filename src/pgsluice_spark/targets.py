"""What a target of mirrors and change logs can do. :mod:`.delta` and :mod:`.iceberg` are the targets that exist.

Used by all that writes to a target or reads views of it, so none of them knows the format of a table.

``tests/spark/test_mirror.py`` covers it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit says of itself: ``version`` is that of the application, ``state`` text that it leaves behind."""

    app: str
    version: int
    state: str


@dataclass(frozen=True, slots=True)
class Merge:
    """What a merge statement consists of, with ``s`` for the source and ``t`` for the table."""

    source: DataFrame
    condition: str
    clauses: Sequence[str]


@dataclass(frozen=True, slots=True)
class Committed:
    """Our last commit: the number by which the target knows it, and what it says."""

    number: int
    commit: Commit


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What the maintenance of a table does.

    The states behind the commits ``kept`` remain readable, and all that are younger than ``before``, in seconds since
    1970. That is ``keep_s`` ago, and the next maintenance needs what is in the table ``needed_s`` longer than that.
    """

    kept: frozenset[int]
    before: float
    keep_s: int
    needed_s: int
    compact: bool


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a session must have: a class from a package, and settings (an empty value stands for any)."""

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
        """Whether the table has been made."""

    def read(self, version: int | None = None) -> DataFrame:
        """Return its rows, as of the commit with this number or the last one."""

    def fit(self, schema: StructType) -> None:
        """Make the table, or give it the columns and the wider types that it lacks."""

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
        """Return our last commit, None if there is none; ForeignWrite if something else has changed rows after it."""

    def forget(self, condition: str) -> None:
        """Delete rows so that our last commit stays what it is."""

    def maintain(self, upkeep: Upkeep) -> None:
        """Compact the files, and delete those that are not needed any longer; our last commit stays what it is."""

    def get_property(self, name: str) -> str | None:
        """Return a property of the table that we have set."""

    def set_property(self, name: str, value: str) -> None:
        """Set a property of the table."""


class Target(Protocol):
    """A place with one table for each table of PostgreSQL."""

    @property
    def place(self) -> str:
        """Where it is, for messages."""

    @property
    def settings(self) -> Mapping[str, str]:
        """What the sessions that write to it have to be set to."""

    @property
    def is_mutable(self) -> bool:
        """Whether rows and files can be replaced, which mirrors and maintenance do."""

    @property
    def requires(self) -> Requirements:
        """What a session must have before it starts."""

    def check_writable(self, spark: SparkSession) -> None:
        """Write something and delete it again; an error of Spark's or Java's if that is not possible."""

    def table(self, spark: SparkSession, name: str, since: int | None = None) -> TargetTable:
        """Return one of its tables, which need not exist yet; ``since``: the number of our last commit, if known."""


def refusal(place: str) -> str:
    """Return what is said where a target would have to replace rows or files and cannot."""
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
    """Return a name as SQL has it."""
    return "`" + name.replace("`", "``") + "`"
