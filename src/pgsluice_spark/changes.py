"""Row changes of one table as a DataFrame with native types, read from the table's Kafka topic.

What a job starts with. Only records of committed cuts are read, each decoded with the schema that wrote it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark.decode import decoded, fields, is_written_with, undecodable_key
from pgsluice_spark.registry import Registry
from pgsluice_spark.schema import (
    Reading,
    SchemaError,
    SchemaVersion,
    ambiguous_names,
    record_reading,
    table_of,
    value_reading,
)
from pgsluice_spark.source import read_topic

_POSITION: Final = ("topic", "partition", "offset", "timestamp")


def read_changes(  # noqa: PLR0913 - all but the first two by name
    spark: SparkSession,
    topic: str,
    *,
    bootstrap_servers: str,
    registry: Registry,
    table: str | None = None,
    kafka_options: Mapping[str, str] | None = None,
    tombstones: bool = False,
    streaming: bool = True,
) -> DataFrame:
    """Return the changes in ``topic``, as a stream or (``streaming=False``) as a batch.

    The columns are those of the change event, then ``key`` (if the table has one), ``fields``, and Kafka's
    ``topic``, ``partition``, ``offset`` and ``timestamp``. ``fields`` are those of the row in the schema that
    wrote the record: others are null because they did not exist.

    The schemas are those that ``registry`` has when this is called. A record with a later one ends the query
    with an error that names it; calling this again and starting from the same checkpoint goes on there.

    ``table``: only the changes of this one, for a topic that several tables share. It is schema and table as the
    namespace of the schemas has them, such as ``public.orders``.
    """
    versions = registry.versions((f"{topic}-value", f"{topic}-key"))
    others = [] if table is None else _others(versions, topic, table)
    versions = [version for version in versions if version not in others]
    values = _values(versions, topic)
    keys = _keys(versions, topic)
    for reading in filter(None, (values, keys)):
        _check_names(spark, topic, reading)
    records = read_topic(spark, topic, bootstrap_servers, kafka_options or {}, streaming=streaming)
    if others:
        records = records.where(~_is_of_another_table(others))
    if not tombstones:
        records = records.where(F.col("value").isNotNull())
    changes = records.select(
        _change(values, keys).alias("change"),
        *([] if keys is None else [decoded("key", keys).alias("key")]),
        fields(values).alias("fields"),
        *_POSITION,
    )
    return changes.select("change.*", *changes.columns[1:])


def _others(versions: Sequence[SchemaVersion], topic: str, table: str) -> list[SchemaVersion]:
    """Return the schemas that are of other tables than this one; SchemaError if all are."""
    tables = {table_of(version) for version in versions}
    if tables and table not in tables:
        raise SchemaError(f"topic {topic} has no table {table}, only {', '.join(sorted(tables))}")
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
    """Return how keys are decoded; None when the table has none."""
    found = [version for version in versions if version.subject == f"{topic}-key"]
    return record_reading(found) if found else None


def _is_of_another_table(others: Sequence[SchemaVersion]) -> Column:
    """Return whether a record was written with one of these schemas; a tombstone has only that of its key."""
    identifiers = [version.id for version in others]
    return F.when(F.col("value").isNotNull(), is_written_with("value", identifiers)).otherwise(
        is_written_with("key", identifiers)
    )


def _check_names(spark: SparkSession, topic: str, reading: Reading) -> None:
    names = ambiguous_names(reading)
    if names and spark.conf.get("spark.sql.caseSensitive") != "true":
        raise SchemaError(
            f"columns of {topic} differ only in case ({', '.join(names)}), and Spark does not tell them apart "
            "unless spark.sql.caseSensitive is true: set it in the session of this query"
        )


def _change(values: Reading, keys: Reading | None) -> Column:
    change = decoded("value", values)
    if keys is not None:
        return change
    # A key where there was none when the query was planned is a new schema like any other.
    return F.when(F.col("key").isNotNull(), undecodable_key()).otherwise(change)
