"""Decodes the records of one topic into changes, with the schemas of the topic's tables.

Used by :mod:`.changes`, :mod:`.job`, :mod:`.work`, :mod:`.audit` and :mod:`.doctor`.

``tests/spark/test_changes.py`` covers this module.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark.decode import decoded, fields, is_written_with, undecodable_key
from pgsluice_spark.schema import (
    Reading,
    SchemaError,
    SchemaVersion,
    ambiguous_names,
    field_names,
    record_reading,
    table_of,
    value_reading,
)

_POSITION: Final = ("topic", "partition", "offset", "timestamp")
_KEPT: Final = 1024
"""The number of tables for which the :class:`TopicReading` is cached."""


@dataclass(frozen=True, slots=True)
class TopicReading:
    """How a topic, or one of its tables, is decoded. ``others`` are the schemas of tables that are left out."""

    topic: str
    values: Reading
    keys: Reading | None
    others: Sequence[SchemaVersion] = ()
    newest_key: tuple[str, ...] = ()
    """The columns of the key in its newest schema."""

    def changes(self, records: DataFrame, *, tombstones: bool = False) -> DataFrame:
        """Return the changes in ``records``, which has the columns of Spark's Kafka source."""
        if self.others:
            records = records.where(~_is_of_another_table(self.others))
        if not tombstones:
            records = records.where(F.col("value").isNotNull())
        changes = records.select(
            self._change().alias("change"),
            *([] if self.keys is None else [decoded("key", self.keys).alias("key")]),
            fields(self.values).alias("fields"),
            *_POSITION,
        )
        return changes.select("change.*", *changes.columns[1:])

    def check_names(self, spark: SparkSession) -> None:
        """Raise SchemaError if columns have names that Spark cannot distinguish in this session."""
        for reading in filter(None, (self.values, self.keys)):
            names = ambiguous_names(reading)
            if names and spark.conf.get("spark.sql.caseSensitive") != "true":
                raise SchemaError(
                    f"columns of {self.topic} differ only in case ({', '.join(names)}), and Spark can distinguish them "
                    "only if spark.sql.caseSensitive is true: set it in the session of this query"
                )

    def _change(self) -> Column:
        change = decoded("value", self.values)
        if self.keys is not None:
            return change
        # The table had no key when the query was planned. So if a record has a key, the schema of this key is unknown.
        return F.when(F.col("key").isNotNull(), undecodable_key()).otherwise(change)


@lru_cache(maxsize=_KEPT)
def topic_reading(versions: tuple[SchemaVersion, ...], topic: str, table: str | None = None) -> TopicReading:
    """Return how to decode a topic, or only one ``table`` in it. ``versions`` are the schemas of the topic."""
    others = [] if table is None else _others(versions, topic, table)
    left_out = set(others)
    own = [version for version in versions if version not in left_out]
    return TopicReading(topic, _values(own, topic), _keys(own, topic), others, _newest_key(own, topic))


def tables_of(versions: Sequence[SchemaVersion]) -> list[str]:
    """Return the tables to which these schemas belong."""
    return sorted({table_of(version) for version in versions})


def _others(versions: Sequence[SchemaVersion], topic: str, table: str) -> list[SchemaVersion]:
    """Return the schemas of all tables except ``table``. Raise SchemaError if ``table`` has no schema."""
    tables = tables_of(versions)
    if tables and table not in tables:
        raise SchemaError(f"topic {topic} has no table {table}, only {', '.join(tables)}")
    return [version for version in versions if table_of(version) != table]


def _values(versions: Sequence[SchemaVersion], topic: str) -> Reading:
    found = [version for version in versions if version.subject == f"{topic}-value"]
    if not found:
        raise SchemaError(
            f"the schema registry has no subject {topic}-value: the name of the topic or the registry is "
            "wrong, or no row has been written to the topic yet"
        )
    return value_reading(found)


def _keys(versions: Sequence[SchemaVersion], topic: str) -> Reading | None:
    """Return how keys are decoded, or None if the table has no keys."""
    found = [version for version in versions if version.subject == f"{topic}-key"]
    return record_reading(found) if found else None


def _newest_key(versions: Sequence[SchemaVersion], topic: str) -> tuple[str, ...]:
    found = [version for version in versions if version.subject == f"{topic}-key"]
    return field_names(found[-1]) if found else ()


def _is_of_another_table(others: Sequence[SchemaVersion]) -> Column:
    """Return whether a record was written with one of these schemas. For a tombstone, its key decides."""
    identifiers = [version.id for version in others]
    return F.when(F.col("value").isNotNull(), is_written_with("value", identifiers)).otherwise(
        is_written_with("key", identifiers)
    )
