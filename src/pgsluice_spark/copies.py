"""Tracks the copies of tables in a target: the state of each copy, and the rows of the control table.

Used by :mod:`.query`, :mod:`.job`, :mod:`.pipeline` and :mod:`.maintenance`.

``tests/spark/test_query.py`` covers this module.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from pyspark.sql import SparkSession

from pgsluice_spark.control import NAME as CONTROL
from pgsluice_spark.control import ControlTable, Entry, TableEntry
from pgsluice_spark.cuts import Cut, Position, marks_of
from pgsluice_spark.errors import PipelineError, TopicRecreated
from pgsluice_spark.loads import TableState, advanced, lacking, lost
from pgsluice_spark.names import is_chosen
from pgsluice_spark.origin import Origin
from pgsluice_spark.rows import SYSTEM, is_before
from pgsluice_spark.targets import Commit, Target, TargetTable
from pgsluice_spark.work import Prepared, Work

PARALLELISM: Final = 8
"""The number of topics that are applied at the same time."""

Prepare = Callable[[Work, TargetTable], Prepared]


class Copies:
    """The tables of a target: the state of each table, and the control table."""

    def __init__(
        self, origin: Origin, target: Target, patterns: Sequence[str], prepare: Prepare, *, keeps_all: bool = False
    ) -> None:
        """Choose the tables by ``patterns``.

        When a load ends, the rows that it did not read again are obsolete. They are deleted unless ``keeps_all`` is
        true, as it is for change logs. Raise TypeError if ``patterns`` is a text.
        """
        if isinstance(patterns, str):
            raise TypeError(f"tables must be a list of names or patterns, such as [{patterns!r}], and not a text")
        self._transactions, self._target, self._patterns, self._prepare = origin.transactions, target, patterns, prepare
        self._keeps_all = keeps_all
        self._kind = "changelog" if keeps_all else "mirror"
        self._spark = origin.spark
        self._idle: deque[SparkSession] = deque()
        """Sessions that no thread uses at present. They are kept for later threads, because creating one takes time."""
        self.control = ControlTable(target.table(_session(origin.spark, target), CONTROL))
        self._tables: dict[str, TableEntry] = {}
        self._checked: set[str] = set()
        """The tables whose last commit was read from the target."""
        self.app = ""
        self.entry: Entry | None = None
        """The last row of the control table."""

    def open(self, app: str) -> None:
        """Read the state of the target. ``app`` is the id of the topic of cut records."""
        self.entry = self.control.last()
        if self.entry is not None:
            self._check_app(self.entry.topic_id, app)
            self._tables = {name: self._continued(name, table) for name, table in self.entry.tables.items()}
        self.app = app

    def _continued(self, name: str, table: TableEntry) -> TableEntry:
        """Return the entry with which this query continues a table.

        The changes of a table that is not chosen are not read. If a later query chooses the table again, it continues
        after these changes. So only a load makes the copy complete again.
        """
        state = self._own(table.state)
        return TableEntry(table.version, state if self.is_chosen(name) else lost(state))

    def _own(self, state: TableState) -> TableState:
        """Return a state that the target has. Raise PipelineError if it belongs to the other kind of query."""
        if state.kind not in ("", self._kind):
            raise PipelineError(
                f"{self._target.place} was filled by `{state.kind}`, and `{self._kind}` would damage its tables. "
                "Nothing was applied. Start this query with another target and another checkpoint"
            )
        return replace(state, kind=self._kind)

    def _check_app(self, known: str, app: str) -> None:
        if known != app:
            raise TopicRecreated(
                f"{self._target.place} was filled from another topic {self._transactions} (id {known}, now {app}): "
                "the topic was deleted and created again, or this is another pipeline. So the offsets in the target "
                "are not valid for this topic. Nothing was applied. Begin a new target with a new checkpoint, and load "
                "its tables with `pgsluice snapshot start`"
            )

    def is_chosen(self, table: str) -> bool:
        """Return whether a table is to be copied."""
        return is_chosen(table, self._patterns)

    def applied(self, spark: SparkSession, table: str) -> int:
        """Return the offset of the last cut record that was applied to a table.

        After a crash, the table may contain more cuts than the control table says.
        """
        offset = -1 if self.entry is None else self.entry.offset
        if table not in self._checked:
            last = self.table(spark, table).last()
            if last is not None:
                self._check_app(last.commit.app, self.app)
                if last.commit.version > offset:
                    self._tables[table] = TableEntry(last.number, self._own(TableState.from_json(last.commit.state)))
            self._checked.add(table)
        return max(offset, self.state(table).offset)

    def state(self, table: str) -> TableState:
        """Return the state of a table."""
        return self._tables[table].state if table in self._tables else TableState(kind=self._kind)

    def prepare(self, spark: SparkSession, work: Work) -> Prepared:
        """Read and count the changes of a table."""
        return self._prepare(work, self.table(spark, work.table))

    def table(self, spark: SparkSession, table: str) -> TargetTable:
        """Return a table of the target. The returned object has the number of our last commit, if it is known."""
        return self._target.table(spark, table, self._version(table))

    def applied_to(self, table: str, state: TableState, version: int | None) -> None:
        """Note the present state of a table. ``version`` is the number of its commit, or None if there was none."""
        self._tables[table] = TableEntry(self._version(table) if version is None else version, state)

    def without(self, table: str, cuts: Sequence[Cut]) -> TableState:
        """Return the state of a table after these cuts if its changes in them are lost."""
        return advanced(lost(self.state(table)), cuts, (), {})[0]

    def _version(self, table: str) -> int | None:
        return self._tables[table].version if table in self._tables else None

    def finish(self, cuts: Sequence[Cut], missing: Mapping[str, Position]) -> None:
        """Bring the tables that had no changes to the end of these cuts, then add a row to the control table.

        ``missing`` has the tables that lack changes of these cuts, with the position of the last one.
        """
        self._follow_all(cuts)
        for table in filter(self.is_chosen, missing):
            self.applied_to(table, lacking(self.state(table), marks_of(cuts, table), missing[table]), None)
        last = cuts[-1]
        if any(table.state.offset > last.offset for table in self._tables.values()):
            return  # after a crash, some tables are ahead of these cuts, so the tables do not have one common state
        self.entry = Entry(last.number, last.epoch, last.end_lsn, last.ts_us, last.offset, self.app, dict(self._tables))
        self.control.add(self.entry)

    def _follow_all(self, cuts: Sequence[Cut]) -> None:
        states = {name: table.state for name, table in self._tables.items() if self.is_chosen(name)}
        old = {name for name, state in states.items() if state.epoch != cuts[-1].epoch}
        repeated = {name for name, state in states.items() if state.load and cuts[0].number <= state.cut}
        marked = {mark.table for cut in cuts for mark in cut.marks if self.is_chosen(mark.table)}
        with self.session() as spark:
            for table in sorted(old | repeated | marked):
                offset = self.applied(spark, table)
                if pending := [cut for cut in cuts if cut.offset > offset]:
                    self._follow(spark, table, pending)

    def _follow(self, spark: SparkSession, table: str, cuts: Sequence[Cut]) -> None:
        state, gone = advanced(self.state(table), cuts, marks_of(cuts, table), {})
        target = self.table(spark, table)
        version = None
        if gone is not None and not self._keeps_all and target.exists:
            commit = Commit(self.app, state.offset, state.to_json())
            version = target.delete(is_before(f"{SYSTEM}.", gone), commit)
        self.applied_to(table, state, version)

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        """Yield a session that no other thread uses until the context ends."""
        try:
            spark = self._idle.pop()
        except IndexError:
            spark = _session(self._spark, self._target)
        try:
            yield spark
        finally:
            self._idle.append(spark)


def _session(spark: SparkSession, target: Target) -> SparkSession:
    """Return a new session with the settings of ``spark`` and of the target. Those of ``spark`` take precedence."""
    session, own = spark.newSession(), target.settings
    for name, value in {**own, **spark.conf.getAll}.items():
        if name in own or spark.conf.isModifiable(name):
            session.conf.set(name, value)
    return session
