"""Describes where a pipeline's records and schemas are, and reads them.

Used by :mod:`.pipeline` and by the modules that :mod:`.pipeline` uses.

``tests/spark/test_daemon.py`` covers this module.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark.batches import ranges
from pgsluice_spark.brokers import Brokers
from pgsluice_spark.cuts import Cut, Position, Ranges, collected, decoded_cuts, reading_of
from pgsluice_spark.decode import decoded
from pgsluice_spark.names import table_name
from pgsluice_spark.registry import Registry
from pgsluice_spark.source import read_ranges, read_topic

_BACK: Final = 5000
"""The number of cut records that are read first to find all topics. While none of them is a full cut, which lists all
topics, the number is doubled. pgsluice writes at least one full cut a minute."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The Kafka cluster, the topics and the registry that have the records and schemas of a pipeline."""

    spark: SparkSession
    prefix: str
    bootstrap_servers: str
    registry: Registry
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def transactions(self) -> str:
        """The topic of cut records."""
        return f"{self.prefix}.transactions"

    def cuts(self, records: DataFrame) -> DataFrame:
        """Return the cut records in ``records``, which has the columns of Spark's Kafka source."""
        return decoded_cuts(records, reading_of(self.registry, self.transactions))

    def cuts_from(self, offset: int) -> DataFrame:
        """Return the cut records from an offset to the present end of their topic."""
        options = {**self.options, "startingOffsets": json.dumps({self.transactions: {"0": offset}})}
        return self.cuts(read_topic(self.spark, self.transactions, self.bootstrap_servers, options, streaming=False))

    def read(self, spark: SparkSession, topic: str, offsets: Ranges) -> DataFrame:
        """Return the records of a topic at these offsets."""
        return read_ranges(spark, topic, self.bootstrap_servers, self.options, offsets)

    def tables_loaded_after(self, cut: Cut) -> set[str]:
        """Return the tables for which a load that is expected to replace all rows begins after ``cut``.

        Such a load may fail to replace the rows. Then ``replaces`` is false in its mark ``end``, and the table becomes
        partial.
        """
        found = self.cuts_from(cut.offset + 1)
        marks = found.select(F.inline("snapshots")).where("state = 'begin' AND replaces")
        return {table_name(mark["schema"], mark["table"]) for mark in marks.select("schema", "table").collect()}

    def tables_with_dead_letters(self, cuts: Sequence[Cut]) -> Mapping[str, Position]:
        """Return the tables that lack changes of these cuts, because dead letters replace these changes.

        Each table has the position of the last of these changes.
        """
        topic = f"{self.prefix}.dead_letters"
        offsets = ranges(cuts, topic)
        if not offsets:
            return {}
        reading = reading_of(self.registry, topic)
        letters = self.read(self.spark, topic, offsets).select(decoded("value", reading).alias("letter"))
        # Dead letters of rows that a load has read do not matter here. The missing rows are noticed when the load ends,
        # because its rows are counted then.
        changes = letters.where("letter.op != 'r'").select("letter.*")
        last = F.max(F.struct("epoch", "lsn", "seq")).alias("last")
        tables = changes.groupBy("schema", "table").agg(last).collect()
        return {table_name(row["schema"], row["table"]): Position(*row["last"]) for row in tables}

    def topics_of_tables(self, offset: int) -> list[str]:
        """Return the topics of tables, including those that were created after the cut record at ``offset``."""
        brokers = Brokers(self.spark, self.bootstrap_servers, self.options)
        begin = brokers.begin(self.transactions)
        back = _BACK
        while (first := offset - back) > begin and not self._has_full_cut(first, offset):
            back *= 2
        found = collected(self.cuts_from(max(begin, first)))
        return sorted({topic for cut in found for topic in cut.topics if self.is_of_tables(topic)})

    def _has_full_cut(self, first: int, last: int) -> bool:
        """Return whether the first part of a full cut is between these offsets.

        The later parts alone do not list all topics.
        """
        return not self.cuts_from(first).where(f"full AND part = 0 AND offset <= {last}").isEmpty()

    def is_of_tables(self, topic: str) -> bool:
        """Return whether ``topic`` has the changes of tables, and not messages or dead letters."""
        return topic not in (f"{self.prefix}.messages", f"{self.prefix}.dead_letters")
