"""Row changes of one table as a DataFrame with native types, read from the table's Kafka topic.

What a job starts with. Only records of committed cuts are read, each decoded with the schema that wrote it.

https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html
"""

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark.decode import decoded, fields, undecodable_key
from pgsluice_spark.registry import Registry
from pgsluice_spark.schema import Reading, SchemaError, SchemaVersion, ambiguous_names, key_reading, value_reading

_POSITION: Final = ("topic", "partition", "offset", "timestamp")

_OWN_OPTIONS: Final = frozenset(
    ("subscribe", "subscribepattern", "assign", "kafka.bootstrap.servers", "kafka.isolation.level")
)
"""Options of Spark's Kafka source (their names are not case-sensitive) that :func:`read_changes` sets."""


def read_changes(  # noqa: PLR0913 - all but the first two by name
    spark: SparkSession,
    topic: str,
    *,
    bootstrap_servers: str,
    registry: Registry,
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
    """
    versions = registry.versions((f"{topic}-value", f"{topic}-key"))
    values = _values(versions, topic)
    keys = _keys(versions, topic)
    for reading in filter(None, (values, keys)):
        _check_names(spark, topic, reading)
    records = _records(spark, topic, bootstrap_servers, kafka_options or {}, streaming=streaming)
    if not tombstones:
        records = records.where(F.col("value").isNotNull())
    changes = records.select(
        _change(values, keys).alias("change"),
        *([] if keys is None else [decoded("key", keys).alias("key")]),
        fields(values).alias("fields"),
        *_POSITION,
    )
    return changes.select("change.*", *changes.columns[1:])


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
    return key_reading(found) if found else None


def _check_names(spark: SparkSession, topic: str, reading: Reading) -> None:
    names = ambiguous_names(reading)
    if names and spark.conf.get("spark.sql.caseSensitive") != "true":
        raise SchemaError(
            f"columns of {topic} differ only in case ({', '.join(names)}), and Spark does not tell them apart "
            "unless spark.sql.caseSensitive is true: set it in the session of this query"
        )


def _records(
    spark: SparkSession, topic: str, bootstrap_servers: str, options: Mapping[str, str], *, streaming: bool
) -> DataFrame:
    taken = sorted(name for name in options if name.lower() in _OWN_OPTIONS)
    if taken:
        raise ValueError(f"read_changes sets {', '.join(taken)} itself; leave it out of kafka_options")
    reader = spark.readStream if streaming else spark.read
    # A stream that began at Spark's default, the end, would lack every row that has not changed since.
    defaults = {"startingOffsets": "earliest"}
    own = {
        "subscribe": topic,
        "kafka.bootstrap.servers": bootstrap_servers,
        "kafka.isolation.level": "read_committed",
    }
    return reader.format("kafka").options(**{**defaults, **options, **own}).load()


def _change(values: Reading, keys: Reading | None) -> Column:
    change = decoded("value", values)
    if keys is not None:
        return change
    # A key where there was none when the query was planned is a new schema like any other.
    return F.when(F.col("key").isNotNull(), undecodable_key()).otherwise(change)
