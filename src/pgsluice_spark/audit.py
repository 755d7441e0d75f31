"""Audits a mirror: compares its tables with PostgreSQL's, value by value. Both sides may change meanwhile.

Used by :mod:`.pipeline`. PostgreSQL is read at a snapshot S. The mirror is read at a cut C, which is the last cut in
its control table. The audit then reads the later changes from the topics, and applies those that S sees to the mirror's
rows. Both sides then have the same state of the database, so any difference between them is an error. They have the
same state for these reasons:

*S sees every transaction up to C.* PostgreSQL sends a transaction as soon as its commit record is in the WAL. Snapshots
see the transaction only later, when it has left the list of running transactions. If the commit has to wait for a
synchronous standby, the snapshots may see it much later. So the audit reads C first. At that time, every transaction up
to C has written its commit record. Such a transaction either is visible to all later snapshots, or still holds the lock
on its own id. The audit reads these locks (``pg_locks``), and takes S when every transaction that held such a lock has
released it. The audit does not wait for two kinds of transactions, because these cannot be in the middle of their
commit: transactions of sessions whose state is ``idle in transaction``, and prepared transactions while no session runs
a COMMIT PREPARED. Neither kind has written its commit record yet, so C does not contain these transactions.

*The topics contain everything that S sees.* A transaction that S sees inserted its commit record into the WAL before S
was taken. So the record is before the insert position of the WAL, which the audit reads after it has taken S. The audit
waits for a cut whose ``end_lsn`` has reached this position. The write position (``pg_current_wal_lsn``) would be too
low, because snapshots see an asynchronous commit before its commit record is written from memory to the WAL's file. On
an idle server, the insert position may be just after the header of a new page. The walsender never reports such a
position, so the audit subtracts the length of the header.

*The transaction id in each record, ``xid``, decides whether S sees a change.* It is the id of the top-level
transaction. The ids in ``pg_current_snapshot()`` also belong to top-level transactions, so subtransactions do not
matter. The records of a prepared transaction have the id under which it was prepared, and S lists this id as running
unless COMMIT PREPARED had ended before S was taken. Records have the lower 32 bits of an id, but S has all 64 bits. Of
all 64-bit ids with these lower bits, the audit uses the one nearest to S's ``xmax``. This is correct, because the ids
that PostgreSQL uses at the same time never differ by more than 2^31, and the transactions between C and S ended only a
short time ago.

*Changes that S does not see can simply be left out.* If S sees a transaction that changed a row, it also sees all
earlier transactions that changed this row or another row with the same key. The earlier transactions held the lock of
the row, so they had to end first.

*Rows that a load has read (``r``) after C are left out.* They belong to no transaction. A table that is ``loaded`` at C
does not need them, because all changes after C are in the topics. Tables that are not loaded at C, or that become
``stale`` after C, are not compared, and the report gives the reason.

*Nobody truncates or alters the tables during the audit.* Snapshots do not hide the effects of TRUNCATE and of some
forms of ALTER TABLE. So the audit locks the tables (ACCESS SHARE, as SELECT does) before it takes S, and keeps the
locks until it ends. TRUNCATE and ALTER TABLE have to wait until then.

*All sessions read at the same snapshot.* S is exported, and every session with which Spark reads imports S first
(``sessionInitStatement``). S is a snapshot of the primary, because snapshots on a standby list no running transactions.

https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-PG-SNAPSHOT
https://spark.apache.org/docs/latest/sql-data-sources-jdbc.html
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from pgsluice_spark.batches import declared, ranges
from pgsluice_spark.compare import Columns, compared
from pgsluice_spark.control import NAME, ControlTable, Entry, View
from pgsluice_spark.cuts import Cut, collected, joined, last_of_each_number, marks_of
from pgsluice_spark.errors import NoSuchView, PipelineError, TableRefused
from pgsluice_spark.loads import LOADED, PARTIAL, STALE
from pgsluice_spark.names import is_chosen, postgres_name
from pgsluice_spark.origin import Origin
from pgsluice_spark.postgres import Snapshot, Source, SourceTable, connected
from pgsluice_spark.reading import tables_of, topic_reading
from pgsluice_spark.report import REFUSED, AuditReport, TableReport
from pgsluice_spark.rows import target_schema
from pgsluice_spark.schema import SchemaVersion, columns_of, table_of
from pgsluice_spark.tail import caught_up
from pgsluice_spark.targets import Target
from pgsluice_spark.work import Work

_POLL_S: Final = 1.0
_PARALLELISM: Final = 4
"""The number of tables that are compared at the same time."""

_UNFINISHED: Final[Mapping[str, str]] = {
    "unloaded": "no load of the table has begun since the mirror began",
    "loading": "its rows are being read",
    "partial": "the mirror lacks some of its rows or changes",
    "stale": "it has values that were not sent, for example because it was altered",
    "gap": "changes may be missing, because a new epoch has begun, records were lost, or the mirror left it out",
}


def run(
    origin: Origin, target: Target, postgres: str, tables: Sequence[str], *, differences: int, wait_s: float
) -> AuditReport:
    """Compare the tables of a mirror with PostgreSQL's tables. See :meth:`.Pipeline.audit`."""
    begin, spark = time.monotonic(), origin.spark
    entry = _last_entry(spark, target)
    found = {name: table.state.status for name, table in entry.tables.items() if is_chosen(name, tables)}
    absent = [name for name in tables if name not in found and not set(name) & set("*?[")]
    with connected(spark, source := Source.parse(postgres)) as session:
        session.check_primary()
        session.wait_for_commits(wait_s)
        relations = {name: session.relation(*postgres_name(name)) for name in found}
        session.begin([relation[2] for relation in relations.values() if relation is not None])
        snapshot = session.snapshot()
        cuts = _Cuts(origin, entry).until(snapshot.wal_lsn, wait_s)
        sides = {
            name: session.table(source, snapshot, relation)
            for name, relation in relations.items()
            if relation is not None
        }
        job = _Job(origin, snapshot, View(spark, target, entry), entry, cuts, differences)
        with ThreadPoolExecutor(_PARALLELISM) as pool:
            reports = list(pool.map(lambda name: job.report(name, sides.get(name)), sorted(found)))
    reports += [TableReport(name, REFUSED, "the mirror has no such table") for name in absent]
    seconds = time.monotonic() - begin
    return AuditReport(entry.cut, entry.epoch, entry.end_lsn, snapshot.text, snapshot.wal_lsn, seconds, reports)


def _last_entry(spark: SparkSession, target: Target) -> Entry:
    entry = ControlTable(target.table(spark, NAME)).last()
    if entry is None:
        raise NoSuchView(f"{target.place} has no state of the database. Nothing was compared. Start the mirror first")
    return entry


@dataclass(frozen=True, slots=True)
class _Place:
    """A topic that has the changes of a table, and the schemas in the topic."""

    topic: str
    versions: tuple[SchemaVersion, ...]

    def newest(self, table: str) -> SchemaVersion:
        """Return the newest schema of the table's rows."""
        return [one for one in self.versions if one.subject == f"{self.topic}-value" and table_of(one) == table][-1]


@dataclass(frozen=True, slots=True)
class _Tail:
    """The cuts after the mirror's last cut, and the topics of all tables."""

    cuts: Sequence[Cut]
    topics: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Cuts:
    """Reads the cuts that follow the mirror's last cut."""

    origin: Origin
    entry: Entry

    def until(self, lsn: int, wait_s: float) -> _Tail:
        """Wait until the cuts reach ``lsn``, and return the cuts after the mirror's cut."""
        end = time.monotonic() + wait_s
        cuts = self._following_cuts()
        while (cuts[-1].end_lsn if cuts else self.entry.end_lsn) < lsn:
            if time.monotonic() > end:
                raise PipelineError(
                    f"the stream has not reached PostgreSQL's present position within {wait_s:g} s. Nothing was "
                    "compared. Check whether pgsluice runs and how far it is behind (pgsluice_lag_seconds), or give a "
                    "longer wait"
                )
            time.sleep(_POLL_S)
            cuts = self._following_cuts()
        if any(cut.epoch != self.entry.epoch for cut in cuts):
            raise PipelineError(
                "a new epoch has begun after the mirror's last cut. Nothing was compared. Repeat the audit when the "
                "mirror has the new epoch"
            )
        return _Tail(cuts, self.origin.topics_of_tables(self.entry.offset))

    def _following_cuts(self) -> list[Cut]:
        return last_of_each_number(joined(collected(self.origin.cuts_from(self.entry.offset + 1))))


@dataclass(frozen=True)
class _Job:
    """Compares tables. Several threads use it at the same time."""

    origin: Origin
    snapshot: Snapshot
    view: View
    entry: Entry
    tail: _Tail
    differences: int
    places: Mapping[str, Sequence[_Place]] = field(init=False)
    """The topics of each table. There are several if the table's topic was changed in the settings."""
    lacking: set[str] = field(init=False)
    """The tables that lack changes after the mirror's last cut, because dead letters replace these changes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", self._places())
        object.__setattr__(self, "lacking", self.origin.tables_with_dead_letters(self.tail.cuts))

    def _places(self) -> dict[str, list[_Place]]:
        found: dict[str, list[_Place]] = {}
        for topic in self.tail.topics:
            place = _Place(topic, tuple(self.origin.registry.versions((f"{topic}-value", f"{topic}-key"))))
            for table in tables_of(place.versions):
                found.setdefault(table, []).append(place)
        return found

    def report(self, table: str, side: SourceTable | None) -> TableReport:
        """Compare a table, and return the result, or the reason why the table cannot be compared."""
        status = self._status(table)
        if status != LOADED:
            return TableReport(table, status, _UNFINISHED[status])
        if side is None:
            return TableReport(table, REFUSED, "PostgreSQL has no such table")
        if side.refusal:
            return TableReport(table, REFUSED, side.refusal)
        if table not in self.places:
            return self._report_of_empty(table, side)
        try:
            place = self._place(table)
            rows, key = self._mirror(table, place)
        except TableRefused as error:
            return TableReport(table, REFUSED, str(error))
        columns = Columns.of(columns_of(place.newest(table)), rows, side)
        return compared(table, rows, key, columns, self.differences)

    def _report_of_empty(self, table: str, side: SourceTable) -> TableReport:
        """Compare a table that has no topic. No change of such a table was ever sent, so both sides should be empty."""
        if table in self.view:
            return TableReport(table, REFUSED, "no cut record names its topic, so its columns are not known")
        names = {f"c{number}": name for number, (name, _, _) in enumerate(side.columns)}
        row_type = StructType([StructField(name, StringType()) for name in names])
        rows = self.origin.spark.createDataFrame([], target_schema(row_type))
        return compared(table, rows, (), Columns.of(names, rows, side), self.differences)

    def _status(self, table: str) -> str:
        if any(mark.state == "stale" for mark in marks_of(self.tail.cuts, table)):
            return STALE
        return PARTIAL if table in self.lacking else self.entry.tables[table].state.status

    def _place(self, table: str) -> _Place:
        """Return the topic that has the table's changes after the mirror's last cut.

        If there are no such changes, return the topic with the table's newest schema.
        """
        places = self.places[table]
        if len(places) > 1:
            used = [place for place in places if self._has_changes(table, place)]
            if len(used) > 1:
                raise TableRefused(
                    "its topic has changed after the mirror's last cut. Repeat the audit when the mirror has passed "
                    "this change"
                )
            places = used or places
        return max(places, key=lambda place: place.newest(table).id)

    def _has_changes(self, table: str, place: _Place) -> bool:
        offsets = ranges(self.tail.cuts, place.topic)
        if not offsets:
            return False
        reading = topic_reading(place.versions, place.topic, table)
        return not reading.changes(self.origin.read(self.origin.spark, place.topic, offsets)).isEmpty()

    def _mirror(self, table: str, place: _Place) -> tuple[DataFrame, Sequence[str]]:
        """Return the mirror's rows in their state at the snapshot, and the columns of their key."""
        topic = place.topic
        reading = topic_reading(place.versions, topic, table)
        reading.check_names(self.origin.spark)
        state, cuts, spark = self.entry.tables[table].state, self.tail.cuts, self.origin.spark
        offsets = ranges(cuts, topic)
        work = Work(
            app=self.entry.topic_id,
            table=table,
            cuts=cuts,
            marks=(),
            state=state,
            reading=reading,
            declared=declared(cuts, topic),
            records=lambda: self.origin.read(spark, topic, offsets) if offsets else _no_records(spark),
            distinct=True,
        )
        key = state.key or reading.newest_key
        rows = self.view[table] if table in self.view else spark.createDataFrame([], target_schema(work.row_type))
        return (caught_up(rows, work, self.snapshot, key) if offsets else rows), key


def _no_records(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(
        [], "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
    )
