"""What a target of mirrors and change logs can do. :mod:`.delta` and :mod:`.iceberg` are the targets that exist.

Used by all that writes to a target or reads views of it, so none of them knows the format of a table.
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


class Target(Protocol):
    """A place with one table for each table of PostgreSQL."""

    @property
    def place(self) -> str:
        """Where it is, for messages."""

    @property
    def settings(self) -> Mapping[str, str]:
        """What the sessions that write to it have to be set to."""

    @property
    def requires(self) -> Requirements:
        """What a session must have before it starts."""

    def check_writable(self, spark: SparkSession) -> None:
        """Write something and delete it again; an error of Spark's or Java's if that is not possible."""

    def table(self, spark: SparkSession, name: str, since: int | None = None) -> TargetTable:
        """Return one of its tables, which need not exist yet; ``since``: the number of our last commit, if known."""


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return "`" + name.replace("`", "``") + "`"
