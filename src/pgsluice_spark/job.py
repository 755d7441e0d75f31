"""Reads the changes that some cuts contain for one topic, and applies them to the copies of the topic's tables.

Used by :mod:`.query`. For each topic, a cut record declares how many events of each op the cut has, but not how many
belong to each table. So the changes of all tables of a topic are counted before the first table is committed.

``tests/spark/test_query.py`` covers this module.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark.batches import declared, ranges
from pgsluice_spark.brokers import MISSING, TopicNow
from pgsluice_spark.copies import Copies
from pgsluice_spark.cuts import Cut, Ranges, marks_of
from pgsluice_spark.errors import (
    CountMismatch,
    PipelineError,
    RetentionGap,
    TableRefused,
    TopicMissing,
    TopicRecreated,
)
from pgsluice_spark.lives import POSITION
from pgsluice_spark.names import load_command
from pgsluice_spark.origin import Origin
from pgsluice_spark.reading import tables_of, topic_reading
from pgsluice_spark.schema import SchemaVersion
from pgsluice_spark.work import Prepared, Work

_LOG: Final = logging.getLogger("pgsluice_spark")


class TopicJob:
    """Applies the changes of some cuts in one topic. One thread uses it."""

    def __init__(
        self,
        origin: Origin,
        copies: Copies,
        topic: str,
        cuts: Sequence[Cut],
        versions: tuple[SchemaVersion, ...],
        found: TopicNow,
    ) -> None:
        self._origin, self._copies, self._topic, self._cuts, self._now = origin, copies, topic, cuts, found
        self._readings = {table: topic_reading(versions, topic, table) for table in tables_of(versions)}
        self._chosen = [table for table in self._readings if copies.is_chosen(table)]

    @property
    def tables(self) -> Sequence[str]:
        """The tables that this job applies."""
        return self._chosen

    def leave(self, table: str) -> None:
        """Do not apply a table, because it has changes in another topic. Its events here are still counted."""
        self._chosen.remove(table)

    def has_lost_records(self) -> bool:
        """Return whether the topic was deleted, or lacks some of the records of the cuts."""
        if any(map(self._is_of_a_former_topic, self._cuts)):
            return True
        offsets = self._offsets(self._cuts)
        if offsets == ranges(self._cuts, self._topic):
            return False
        with self._copies.session() as spark:
            counts = _sum([self._count(spark, table, offsets) for table in self._readings]) if offsets else {}
        return self._mismatch(self._cuts, offsets, counts) is not None

    def may_have_changes(self, table: str) -> bool:
        """Return whether the cuts have, or had, changes of a table in this topic."""
        if self.has_lost_records():
            return True
        offsets = self._offsets(self._cuts)
        if not offsets:
            return False
        with self._copies.session() as spark:
            return not self._readings[table].changes(self._origin.read(spark, self._topic, offsets)).isEmpty()

    def run(self) -> None:
        """Read all tables, compare the counts, and only then commit the tables, one after the other."""
        with self._copies.session() as spark:
            pending: dict[int, list[str]] = {}
            for table in self._chosen:
                pending.setdefault(self._copies.applied(spark, table), []).append(table)
            for offset, tables in sorted(pending.items()):
                self._apply(spark, [cut for cut in self._cuts if cut.offset > offset], tables)

    def _apply(self, spark: SparkSession, cuts: Sequence[Cut], tables: Sequence[str]) -> None:
        gone = [cut for cut in cuts if self._is_of_a_former_topic(cut)]
        if gone:
            self._go_on_behind(spark, cuts, gone, tables, self._former_topic(gone[-1]))
            return
        offsets = self._offsets(cuts)
        found = self._read(spark, cuts, tables, offsets) if offsets else Found({}, {})
        error = self._mismatch(cuts, offsets, found.counts)
        if error is not None:
            lost = [cut for cut in cuts if self._may_lack_records(cut)]
            self._go_on_behind(spark, cuts, lost, tables, error)
            return
        for table, prepared in found.tables.items():
            self._copies.applied_to(table, *prepared.commit())

    def _read(self, spark: SparkSession, cuts: Sequence[Cut], tables: Sequence[str], offsets: Ranges) -> "Found":
        """Prepare the changes of ``tables``, and count the events of all tables.

        If there are more events than the cuts declare, prepare the changes again without duplicates.
        """
        says = declared(cuts, self._topic)
        rest = [self._count(spark, table, offsets) for table in self._readings if table not in tables]
        for distinct in (False, True):
            found = {table: self._prepared(spark, cuts, table, offsets, distinct=distinct) for table in tables}
            counts = _sum([*(one.counts for one in found.values()), *rest])
            if not any(count > says.get(op, 0) for op, count in counts.items()):
                break
        return Found(found, counts)

    def _go_on_behind(
        self,
        spark: SparkSession,
        cuts: Sequence[Cut],
        lost: Sequence[Cut],
        tables: Sequence[str],
        error: PipelineError,
    ) -> None:
        """Skip all cuts up to the last one in ``lost``, and apply the cuts after it.

        This is allowed only if a load begins after the skipped cuts, because such a load makes the records of these
        cuts unnecessary. Otherwise raise ``error``. If several tables share the topic, the load of one of them is
        enough, because others may not exist any more. The tables that are not loaded lack changes.
        """
        loaded = self._origin.tables_loaded_after(lost[-1]) if lost else set()
        if loaded.isdisjoint(self._chosen):
            raise error
        if lacking := sorted(set(tables) - loaded):
            _LOG.warning(
                "topic %s has lost changes, and a load of other tables makes up for theirs. The copies of %s may lack "
                "changes until these tables are loaded, and their status says so",
                self._topic,
                ", ".join(lacking),
            )
        skipped = [cut for cut in cuts if cut.offset <= lost[-1].offset]
        for table in tables:
            self._copies.applied_to(table, self._copies.without(table, skipped), None)
        self._apply(spark, [cut for cut in cuts if cut.offset > lost[-1].offset], tables)

    def _is_of_a_former_topic(self, cut: Cut) -> bool:
        use = cut.topics.get(self._topic)
        if use is None or not use.ranges:
            return False
        # A topic never loses partitions, so a topic that lacks some is another one, even if cut records name no ids.
        return use.topic_id not in ("", self._now.id) or not use.ranges.keys() <= self._now.begins.keys()

    def _may_lack_records(self, cut: Cut) -> bool:
        use = cut.topics.get(self._topic)
        return use is not None and any(first < self._now.begins[at] for at, (first, _) in use.ranges.items())

    def _former_topic(self, cut: Cut) -> PipelineError:
        kind, what = (TopicMissing, "") if self._now is MISSING else (TopicRecreated, " and created again")
        return kind(
            f"topic {self._topic} was deleted{what} after cut {cut.number}, so the changes of this cut are gone. "
            f"Nothing of the batch was applied. {self._remedy()}"
        )

    def _remedy(self) -> str:
        remedy = (
            f"Load the tables with `{load_command(self._chosen)}`, then start this query again: it will continue with "
            "that load"
        )
        if len(self._chosen) == 1:
            return remedy
        return (
            f"{remedy}. Leave out tables that do not exist any more. The copies of tables that you do not load may "
            "lack these changes, and their status says so"
        )

    def _prepared(
        self, spark: SparkSession, cuts: Sequence[Cut], table: str, offsets: Ranges, *, distinct: bool
    ) -> Prepared:
        reading = self._readings[table]
        reading.check_names(spark)
        work = Work(
            app=self._copies.app,
            table=table,
            cuts=cuts,
            marks=marks_of(cuts, table),
            state=self._copies.state(table),
            reading=reading,
            declared=declared(cuts, self._topic),
            records=lambda: self._origin.read(spark, self._topic, offsets),
            distinct=distinct,
        )
        try:
            return self._copies.prepare(spark, work)
        except TableRefused:
            if table not in self._origin.tables_loaded_after(cuts[-1]):
                raise
            return Prepared(self._count(spark, table, offsets), lambda: (self._copies.without(table, cuts), None))

    def _offsets(self, cuts: Sequence[Cut]) -> Ranges:
        """Return the offsets of the topic's records in ``cuts``, as far as Kafka still has these records."""
        found: dict[int, Sequence[tuple[int, int]]] = {}
        for partition, known in ranges(cuts, self._topic).items():
            begin = self._now.begins[partition]
            if kept := [(max(first, begin), end) for first, end in known if end > begin]:
                found[partition] = kept
        return found

    def _count(self, spark: SparkSession, table: str, offsets: Ranges) -> Mapping[str, int]:
        """Count the events of a table that is not copied, or whose copy already has these events."""
        changes = self._readings[table].changes(self._origin.read(spark, self._topic, offsets))
        counts = changes.groupBy("op").agg(F.count_distinct(*POSITION).alias("count"))
        return {row["op"]: row["count"] for row in counts.collect()}

    def _mismatch(self, cuts: Sequence[Cut], offsets: Ranges, counts: Mapping[str, int]) -> PipelineError | None:
        """Return an error unless the topic contains the events that the cuts declare."""
        says = declared(cuts, self._topic)
        if counts == says:
            return None
        where = "; ".join(f"partition {at}: {known[0][0]} to {known[-1][1] - 1}" for at, known in offsets.items())
        found = f"and the topic has {_text(counts)}{f' (offsets in {where})' if where else ''}"
        between = f"in cuts {cuts[0].number} to {cuts[-1].number}"
        if offsets != ranges(cuts, self._topic):
            return RetentionGap(
                f"topic {self._topic}: retention has deleted changes {between} before they were read. The cuts declare "
                f"{_text(says)}, {found}. None of these changes were applied. {self._remedy()}. Let topics keep their "
                "records for longer than this query is ever stopped"
            )
        return CountMismatch(
            f"topic {self._topic}: the cut records declare {_text(says)} {between}, {found}. None of these changes "
            "were applied. Either the topic is compacted, or something other than pgsluice writes to it or deletes "
            "its records. Find out the reason. Then begin a new target with a new checkpoint, and load the topic's "
            "tables with `pgsluice snapshot start`"
        )


@dataclass(frozen=True, slots=True)
class Found:
    """What some cuts wrote to a topic: the prepared changes of each table, and the number of events of each op."""

    tables: Mapping[str, Prepared]
    counts: Mapping[str, int]


def _sum(found: Sequence[Mapping[str, int]]) -> dict[str, int]:
    ops = {op for counts in found for op in counts}
    return {op: sum(counts.get(op, 0) for counts in found) for op in ops}


def _text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {op}" for op, count in sorted(counts.items())) or "nothing"
