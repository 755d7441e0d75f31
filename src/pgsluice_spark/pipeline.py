"""A pipeline of pgsluice in Spark: its cuts, the changes of its tables, and copies of the tables in a lake.

``tests/spark/test_mirror.py`` covers this module.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.errors import IllegalArgumentException, PySparkValueError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from pgsluice_spark import audit, changelog, doctor, mirror
from pgsluice_spark.brokers import Brokers
from pgsluice_spark.changes import read_changes
from pgsluice_spark.copies import Copies
from pgsluice_spark.diagnosis import Diagnosis
from pgsluice_spark.lag import Lag, lag_of
from pgsluice_spark.maintenance import Maintenance
from pgsluice_spark.origin import Origin
from pgsluice_spark.query import RECORDS_MAX, Applier, Query
from pgsluice_spark.registry import Registry
from pgsluice_spark.report import AuditReport
from pgsluice_spark.source import read_topic
from pgsluice_spark.targets import Target, refusal

AVAILABLE_NOW: Final = "available now"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The topics of one pipeline. ``kafka_options`` are options of Spark's Kafka source, for example for security."""

    spark: SparkSession
    prefix: str
    bootstrap_servers: str
    registry: Registry
    kafka_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def cuts(self, *, streaming: bool = True) -> DataFrame:
        """Return the cut records, as a stream or (``streaming=False``) as a batch."""
        return self._origin.cuts(self._cut_records({}, streaming=streaming))

    def changes(self, table: str, *, topic: str | None = None, streaming: bool = True) -> DataFrame:
        """Return the changes of a table, as :func:`.read_changes` does.

        ``topic`` is the table's topic, if it has another name than ``<prefix>.<table>``.
        """
        return read_changes(
            self.spark,
            topic or f"{self.prefix}.{table}",
            bootstrap_servers=self.bootstrap_servers,
            registry=self.registry,
            table=table,
            kafka_options=self.kafka_options,
            streaming=streaming,
        )

    def mirror(
        self,
        target: Target,
        *,
        tables: Sequence[str],
        checkpoint: str,
        trigger: str = "10 seconds",
        max_events: int = 5_000_000,
        maintenance: Maintenance | None = None,
    ) -> Query:
        """Start a query that keeps the tables of ``target`` equal to PostgreSQL's tables, and return the query.

        ``tables`` has names or patterns, such as ``public.*``. ``trigger`` is the time between batches, or ``"available
        now"`` to stop at the present end of the topics. ``max_events`` is the maximum number of changes that are
        applied together. A larger cut is applied alone. ``maintenance`` says how the target is maintained between
        batches. None means that it is not maintained.

        The target records the applied cuts, so the checkpoint may be deleted at any time. Only one query may write to a
        target. Raise ValueError if the target supports only change logs, or if ``trigger`` is not an interval.
        """
        _check_mutable(target)
        copies = Copies(self._origin, target, tables, mirror.prepare)
        return self._start(Applier(self._origin, copies, max_events, maintenance), checkpoint, trigger)

    def changelog(
        self,
        target: Target,
        *,
        tables: Sequence[str],
        checkpoint: str,
        trigger: str = "10 seconds",
        max_events: int = 5_000_000,
        maintenance: Maintenance | None = None,
    ) -> Query:
        """Start a query that keeps all changes of the tables in ``target``, each of them once, and return the query.

        The arguments are the same as for :meth:`mirror`, but ``target`` may also be :class:`.Parquet`. Each table of
        the target has the columns of :func:`.read_changes`.
        """
        if maintenance is not None:
            _check_mutable(target)
        copies = Copies(self._origin, target, tables, changelog.prepare, keeps_all=True)
        return self._start(Applier(self._origin, copies, max_events, maintenance), checkpoint, trigger)

    def audit(
        self,
        target: Target,
        *,
        postgres: str,
        tables: Sequence[str] = ("*",),
        differences: int = 20,
        wait_s: float = 120,
    ) -> AuditReport:
        """Compare the tables of a mirror with PostgreSQL's tables, value by value, and return a report.

        ``postgres`` is the connection string of the primary, in libpq's form (``host=... dbname=... user=...``) or as a
        JDBC URL. ``differences`` is the maximum number of rows that the report names for each table. ``wait_s`` limits
        each of two waits: until transactions in the middle of their commit have ended, and until the stream has reached
        PostgreSQL's position. Both sides may change during the audit. A TRUNCATE or ALTER TABLE of these tables has to
        wait until the audit has ended.
        """
        return audit.run(self._origin, target, postgres, tables, differences=differences, wait_s=wait_s)

    def lag(self, target: Target) -> Lag:
        """Return the lag of a mirror or a change log behind the topics."""
        return lag_of(self._origin, target)

    def doctor(
        self, target: Target | None = None, *, postgres: str | None = None, tables: Sequence[str] = ("*",)
    ) -> Diagnosis:
        """Look for problems that would keep a mirror or a change log from running, and return them with remedies.

        ``target`` and ``postgres`` are checked if they are given. The checks change nothing, except that they write a
        file or a table to the target and delete it again.
        """
        return doctor.run(doctor.Patient(self._origin, target, postgres, tables))

    def _start(self, applier: Applier, checkpoint: str, trigger: str) -> Query:
        Brokers(self.spark, self.bootstrap_servers, self.kafka_options).topic_ids([self._origin.transactions])
        cuts = self._cut_records({"maxOffsetsPerTrigger": str(RECORDS_MAX)}, streaming=True)
        writer = cuts.writeStream.option("checkpointLocation", checkpoint).foreachBatch(applier)
        return Query(_timed(writer, trigger).start(), applier)

    def _cut_records(self, options: Mapping[str, str], *, streaming: bool) -> DataFrame:
        merged = {**self.kafka_options, **options}
        return read_topic(self.spark, self._origin.transactions, self.bootstrap_servers, merged, streaming=streaming)

    @property
    def _origin(self) -> Origin:
        return Origin(self.spark, self.prefix, self.bootstrap_servers, self.registry, self.kafka_options)


def _check_mutable(target: Target) -> None:
    if not target.is_mutable:
        raise ValueError(refusal(target.place))


def _timed(writer: DataStreamWriter, trigger: str) -> DataStreamWriter:
    if trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    try:
        return writer.trigger(processingTime=trigger)
    except (IllegalArgumentException, PySparkValueError):
        raise ValueError(
            f"trigger {trigger!r} is neither an interval such as '10 seconds' nor '{AVAILABLE_NOW}'"
        ) from None
