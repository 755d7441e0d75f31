"""The query of a mirror or a change log, which reads cut records and applies the changes of these cuts.

Used by :mod:`.pipeline`. A batch consists of cuts, and is applied in pieces (see :mod:`.batches`). The changes of a
piece are applied to its tables in parallel, with one commit for each table. Then a row is added to the control table.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from pgsluice_spark.batches import declared, pieces, places, topics
from pgsluice_spark.brokers import MISSING, Brokers
from pgsluice_spark.copies import PARALLELISM, Copies
from pgsluice_spark.cuts import Cut, check_order, collected, joined, last_of_each_number
from pgsluice_spark.errors import PipelineError
from pgsluice_spark.job import TopicJob
from pgsluice_spark.maintenance import Keeper, Maintenance
from pgsluice_spark.origin import Origin
from pgsluice_spark.progress import Progress
from pgsluice_spark.reading import tables_of
from pgsluice_spark.schema import SchemaError, SchemaVersion

RECORDS_MAX: Final = 10_000
"""The maximum number of cut records and markers in one batch. The driver keeps the cut records in memory."""

_LOG: Final = logging.getLogger("pgsluice_spark")


class Query(StreamingQuery):  # type: ignore[misc]  # PySpark's types are not followed
    """A streaming query that raises the errors of :mod:`.errors`."""

    def __init__(self, query: StreamingQuery, applier: "Applier") -> None:
        super().__init__(query._jsq)  # noqa: SLF001 - PySpark has no other way to make one
        self._applier = applier

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Wait until the query ends. Raise the error that ended it."""
        with self._typed_errors():
            ended: bool | None = super().awaitTermination(timeout)
            return ended

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        """Wait until the present content of the topic has been applied."""
        with self._typed_errors():
            super().processAllAvailable()

    @property
    def progress(self) -> Progress | None:
        """The cuts that this query applied last, or None. Spark's own numbers are in ``lastProgress``."""
        return self._applier.progress

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except StreamingQueryException as error:
            cause = self._applier.explain()
            if cause is None:
                raise
            raise cause from error


class Applier:
    """Applies batches of cut records to a target. One thread calls it at a time."""

    def __init__(
        self,
        origin: Origin,
        copies: Copies,
        max_events: int,
        maintenance: Maintenance | None,
    ) -> None:
        self._origin, self._max_events = origin, max_events
        self._brokers = Brokers(origin.spark, origin.bootstrap_servers, origin.options)
        self._copies = copies
        self._keeper = None if maintenance is None else Keeper(copies, maintenance)
        self._is_open = False
        self.error: PipelineError | SchemaError | None = None
        self.progress: Progress | None = None

    def __call__(self, batch: DataFrame, _number: int) -> None:
        """Apply the cut records of a batch."""
        try:
            self._apply(batch)
            if self._keeper is not None:
                self._keeper.run_if_due()
        except (PipelineError, SchemaError) as error:
            self.error = error
            raise

    def explain(self) -> PipelineError | SchemaError | None:
        """Return the error that ended the query, or None if it is not one of :mod:`.errors`.

        If the topic of cut records no longer has the offsets in the checkpoint, Spark itself fails, with an error that
        depends on its version. So if no error was recorded, check the topic.
        """
        if self.error is not None:
            return self.error
        try:
            self._check_topic()
        except PipelineError as error:
            return error
        return None

    def _check_topic(self) -> None:
        """Raise an error if the target cannot continue with the first cut that the topic still has."""
        topic = self._origin.transactions
        self._copies.open(self._brokers.topic_ids([topic])[topic])
        begin, done = self._brokers.begin(topic), self._copies.entry
        if done is not None and begin > done.offset:
            first = self._origin.cuts_from(begin).orderBy("offset").limit(1)
            check_order(collected(first), done.cut, topic)

    def _apply(self, batch: DataFrame) -> None:
        topic = self._origin.transactions
        if not self._is_open:
            self._copies.open(self._brokers.topic_ids([topic])[topic])
            self._is_open = True
        parts, done = collected(self._origin.cuts(batch)), self._copies.entry
        applied = None if done is None else done.cut
        for earlier in self._skipped(parts):
            applied = self._apply_parts(earlier, applied)
        self._apply_parts(parts, applied)

    def _skipped(self, parts: Sequence[Cut]) -> Iterator[list[Cut]]:
        """Yield the parts of cut records between the target's last cut and a batch, a limited number at a time.

        There are such cuts if the target was restored from a backup, because the checkpoint is then newer. At the start
        of a query, they are searched for even if no number is missing, because cuts may have been repeated.
        """
        topic, done = self._origin.transactions, self._copies.entry
        if done is None or not parts or (self.progress is not None and parts[0].number <= done.cut + 1):
            return
        end = parts[0].offset
        for first in range(max(done.offset + 1, self._brokers.begin(topic)), end, RECORDS_MAX):
            offsets = {0: [(first, min(first + RECORDS_MAX, end))]}
            yield collected(self._origin.cuts(self._origin.read(self._origin.spark, topic, offsets)))

    def _apply_parts(self, parts: Sequence[Cut], applied: int | None) -> int | None:
        """Apply the whole cuts among ``parts``, and return the number of the last cut.

        ``applied`` is the number of the last cut before them.
        """
        cuts, done = last_of_each_number(self._whole(parts)), self._copies.entry
        if done is not None:
            cuts = [cut for cut in cuts if cut.offset > done.offset]
        check_order(cuts, applied, self._origin.transactions)
        versions = self._versions(cuts)
        for piece in pieces(cuts, self._max_events):
            self._apply_piece(piece, versions)
        return cuts[-1].number if cuts else applied

    def _whole(self, parts: Sequence[Cut]) -> list[Cut]:
        """Return whole cuts. If parts of the first cut were in the previous batch, read these parts again."""
        if parts and parts[0].part:
            first = parts[0]
            earlier = {0: [(first.offset - first.part, first.offset)]}
            before = self._origin.read(self._origin.spark, self._origin.transactions, earlier)
            parts = [*collected(self._origin.cuts(before)), *parts]
        return joined(parts)

    def _versions(self, cuts: Sequence[Cut]) -> Mapping[str, tuple[SchemaVersion, ...]]:
        """Return all schemas of each topic that the cuts wrote to. The changes in the cuts have these schemas."""
        used = [topic for topic in topics(cuts) if self._origin.is_of_tables(topic)]
        subjects = [f"{topic}-{part}" for topic in used for part in ("value", "key")]
        found = self._origin.registry.versions(subjects) if subjects else []
        return {
            topic: tuple(one for one in found if one.subject in (f"{topic}-value", f"{topic}-key")) for topic in used
        }

    def _apply_piece(self, cuts: Sequence[Cut], versions: Mapping[str, tuple[SchemaVersion, ...]]) -> None:
        begin = time.monotonic()
        jobs = self._jobs(cuts, versions)
        for table, among in _in_several_topics(jobs).items():
            # The table's topic was changed in the settings. It may change between two of these cuts.
            having = [job for job in among if job.may_have_changes(table)] or among[:1]
            if len(having) > 1 and len(cuts) == 1:
                having = _only(having, cuts[0], table)
            if len(having) > 1:
                self._apply_halves(cuts, versions)
                return
            for job in among:
                if job is not having[0]:
                    job.leave(table)
        with ThreadPoolExecutor(PARALLELISM) as pool:
            running = [pool.submit(job.run) for job in jobs]
        for one in running:
            one.result()
        self._copies.finish(cuts, self._origin.tables_with_dead_letters(cuts))
        self.progress = Progress.of(cuts, len(jobs), time.monotonic() - begin, time.time())
        _LOG.info("%s", self.progress)

    def _apply_halves(self, cuts: Sequence[Cut], versions: Mapping[str, tuple[SchemaVersion, ...]]) -> None:
        """Apply the cuts in two pieces, because a piece must not have changes of a table in several topics."""
        middle = len(cuts) // 2
        self._apply_piece(cuts[:middle], versions)
        self._apply_piece(cuts[middle:], versions)

    def _jobs(self, cuts: Sequence[Cut], versions: Mapping[str, tuple[SchemaVersion, ...]]) -> list[TopicJob]:
        """Return a job for each topic that may have changes of chosen tables. Other topics need not exist any more."""
        used = [topic for topic in topics(cuts) if self._origin.is_of_tables(topic)]
        chosen = [topic for topic in used if any(map(self._copies.is_chosen, tables_of(versions[topic])))]
        unknown = [topic for topic in used if not versions[topic] and declared(cuts, topic)]
        asked = [*chosen, *unknown]
        now = self._brokers.topics(places(cuts, asked)) if asked else {}
        for topic in unknown:
            if now[topic] is not MISSING:
                raise SchemaError(_no_schema(topic, cuts))
        return [TopicJob(self._origin, self._copies, topic, cuts, versions[topic], now[topic]) for topic in chosen]


def _no_schema(topic: str, cuts: Sequence[Cut]) -> str:
    return (
        f"the schema registry has no subject {topic}-value, although cuts {cuts[0].number} to {cuts[-1].number} have "
        "changes in this topic. So it is not known to which table they belong, and none of these cuts was applied. "
        "Check whether it is the registry that pgsluice uses, and whether it has lost subjects"
    )


def _in_several_topics(jobs: Sequence[TopicJob]) -> Mapping[str, list[TopicJob]]:
    """Return the tables that several topics have schemas of, with the jobs of these topics."""
    found: dict[str, list[TopicJob]] = {}
    for job in jobs:
        for table in job.tables:
            found.setdefault(table, []).append(job)
    return {table: among for table, among in found.items() if len(among) > 1}


def _only(jobs: Sequence[TopicJob], cut: Cut, table: str) -> list[TopicJob]:
    """Return the job that applies a table, if several topics may have changes of the table in this cut.

    If a topic has lost records, these may have been changes of this table. So the job of this topic has to decide
    whether the table can continue.
    """
    lacking = [job for job in jobs if job.has_lost_records()]
    if not lacking:
        raise PipelineError(
            f"cut {cut.number} has changes of table {table} in several topics, which pgsluice never writes. Nothing of "
            "this cut was applied. Find out what else writes to these topics"
        )
    return lacking[:1]
