"""The control table of a target. Each row names one commit of each table.

The commits in a row together are one state of the database. A row is added when all tables have all changes up to the
end of a cut. :func:`consistent_view` reads the tables at the commits in one row, so a reader never sees only a part of
a transaction.

``tests/spark/test_mirror.py`` covers this module.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark.errors import NoSuchView
from pgsluice_spark.loads import LOADED, TableState
from pgsluice_spark.report import lsn_number
from pgsluice_spark.targets import Commit, Target, TargetTable

NAME: Final = "_pgsluice_cuts"

_MAINTAINED: Final = "pgsluice.maintained"
"""The property of the control table that has the time of the last maintenance."""

_SCHEMA: Final = (
    "cut long, epoch int, end_lsn long, ts_us long, offset long, topic_id string, "
    "tables map<string, struct<version: long, is_finished: boolean, status: string, state: string>>"
)


@dataclass(frozen=True, slots=True)
class TableEntry:
    """The entry of one table: the number of its last commit (None before the first commit), and its state."""

    version: int | None
    state: TableState


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the control table."""

    cut: int
    epoch: int
    end_lsn: int
    ts_us: int | None
    offset: int
    topic_id: str
    tables: Mapping[str, TableEntry]


class View(Mapping[str, DataFrame]):
    """All tables of a target, in their state at one cut.

    ``view["public.orders"]`` is a DataFrame. ``status`` has the status of each table. A table that is ``loaded`` equals
    PostgreSQL's table at this cut. Any other status says why the two tables may differ. ``unfinished`` names the tables
    that are not ``loaded``.
    """

    def __init__(self, spark: SparkSession, target: Target, entry: Entry) -> None:
        self.cut, self.epoch, self.end_lsn = entry.cut, entry.epoch, entry.end_lsn
        self.ts = None if entry.ts_us is None else datetime.fromtimestamp(entry.ts_us / 1e6, UTC)
        self.status = {name: table.state.status for name, table in entry.tables.items()}
        self._versions = {name: one.version for name, one in entry.tables.items() if one.version is not None}
        self._tables = {name: target.table(spark, name) for name in self._versions}

    @property
    def unfinished(self) -> list[str]:
        """The tables that do not equal PostgreSQL's tables."""
        return sorted(name for name, status in self.status.items() if status != LOADED)

    @property
    def versions(self) -> Mapping[str, int]:
        """The number of each table's commit.

        For Delta, this is the table's version, for Iceberg the id of a snapshot, and for Parquet the offset of a cut
        record.
        """
        return self._versions

    def __getitem__(self, table: str) -> DataFrame:
        return self._tables[table].read(self._versions[table])

    def __iter__(self) -> Iterator[str]:
        return iter(self._versions)

    def __len__(self) -> int:
        return len(self._versions)


def consistent_view(spark: SparkSession, target: Target, at: int | str | datetime | None = None) -> View:
    """Return all tables of a mirror in their state at the end of one cut.

    ``at`` is the number of a cut, an LSN (``"0/16B3748"``) or a time (with a time zone). The view shows the last state
    that is not after ``at``. If ``at`` is None, it shows the newest state. Raise NoSuchView if there is no such state,
    and ValueError if ``at`` is a text that is not an LSN.
    """
    control = ControlTable(target.table(spark, NAME))
    entry = control.last(_condition(at))
    if entry is None:
        raise NoSuchView(_no_state(target, control, at))
    return View(spark, target, entry)


def _no_state(target: Target, control: "ControlTable", at: int | str | datetime | None) -> str:
    first = control.first()
    if first is None:
        reason = "No state has been written to it yet"
    else:
        time = "no time" if first.ts_us is None else datetime.fromtimestamp(first.ts_us / 1e6, UTC).isoformat()
        reason = (
            f"The oldest state that can be read is cut {first.cut} ({time}). Earlier states were not mirrored, or "
            "maintenance has deleted them. Request a later state"
        )
    return (
        f"{target.place} has no state of the database{'' if at is None else f' as of {at} or before'}. {reason}. The "
        f"existing states are listed in the table {control.sql}"
    )


def _condition(at: int | str | datetime | None) -> str:
    if at is None:
        return "true"
    if isinstance(at, datetime):
        return f"ts_us <= {int(at.astimezone(UTC).timestamp() * 1e6)}"
    return f"cut <= {at}" if isinstance(at, int) else f"end_lsn <= {lsn_number(at)}"


@dataclass(frozen=True, slots=True)
class ControlTable:
    """The control table."""

    table: TargetTable

    @property
    def sql(self) -> str:
        """The table's name in SQL."""
        return self.table.sql

    def last(self, condition: str = "true") -> Entry | None:
        """Return the last row for which ``condition`` is true, or None if there is none."""
        if not self.table.exists:
            return None
        rows = self.table.read().where(condition).orderBy(F.desc("offset")).limit(1).collect()
        return _entry(rows[0]) if rows else None

    def first(self) -> Entry | None:
        """Return the first row, or None if there is none."""
        rows = self.table.read().orderBy("offset").limit(1).collect() if self.table.exists else []
        return _entry(rows[0]) if rows else None

    def forget(self, before: float) -> None:
        """Delete old rows. Keep the last row up to the time ``before`` (in seconds since 1970), and all later rows."""
        rows = self.table.read().where(f"ts_us <= {int(before * 1e6)}")
        found = rows.agg(F.max("offset")).collect()[0][0]
        if found is not None and self.table.read().where(f"offset < {found}").head() is not None:
            self.table.forget(f"offset < {found}")

    def versions(self) -> Mapping[str, frozenset[int]]:
        """Return the versions that the rows name, by table."""
        rows = self.table.read().select(F.explode("tables").alias("table", "entry"))
        found = rows.groupBy("table").agg(F.collect_set("entry.version").alias("versions")).collect()
        return {row["table"]: frozenset(row["versions"]) for row in found if row["versions"]}

    @property
    def maintained(self) -> float:
        """When the target was last maintained, in seconds since 1970, or 0 if it never was."""
        return float(self.table.get_property(_MAINTAINED) or 0)

    def note_maintained(self, at: float) -> None:
        """Store the time at which the target was maintained."""
        self.table.set_property(_MAINTAINED, str(at))

    def add(self, entry: Entry) -> None:
        """Add a row, unless the table has it already."""
        tables = {
            name: (one.version, one.state.status == LOADED, one.state.status, one.state.to_json())
            for name, one in entry.tables.items()
        }
        row = (entry.cut, entry.epoch, entry.end_lsn, entry.ts_us, entry.offset, entry.topic_id, tables)
        rows = self.table.spark.createDataFrame([row], _SCHEMA)
        self.table.append(rows.coalesce(1), Commit(entry.topic_id, entry.offset, ""))


def _entry(row: Any) -> Entry:  # noqa: ANN401 - Spark's rows have no types
    tables: Sequence[tuple[str, Any]] = list(row["tables"].items())
    return Entry(
        cut=row["cut"],
        epoch=row["epoch"],
        end_lsn=row["end_lsn"],
        ts_us=row["ts_us"],
        offset=row["offset"],
        topic_id=row["topic_id"],
        tables={name: TableEntry(one["version"], TableState.from_json(one["state"])) for name, one in tables},
    )
