"""Marks: how far the rows that tables already had have been read, from the topic of cut records.

:func:`.latest` takes them.
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark.decode import decoded
from pgsluice_spark.registry import Registry
from pgsluice_spark.schema import SchemaError, record_reading
from pgsluice_spark.source import read_topic


def read_marks(
    spark: SparkSession,
    topic: str,
    *,
    bootstrap_servers: str,
    registry: Registry,
    kafka_options: Mapping[str, str] | None = None,
    streaming: bool = True,
) -> DataFrame:
    """Return the marks in ``topic``, as a stream or (``streaming=False``) as a batch.

    ``topic`` is that of the cut records, ``<prefix>.transactions``. The columns are those of a mark: ``topic`` (the
    table's), ``schema``, ``table``, ``id``, ``state``, ``epoch``, ``lsn``, ``seq``, ``rows`` and ``replaces``.
    """
    versions = registry.versions((f"{topic}-value",))
    if not versions:
        raise SchemaError(
            f"the schema registry has no subject {topic}-value: the name of the topic or the registry is wrong, or "
            "pgsluice has not written a cut record yet"
        )
    records = read_topic(spark, topic, bootstrap_servers, kafka_options or {}, streaming=streaming)
    cuts = records.select(decoded("value", record_reading(versions)).alias("cut"))
    return cuts.select(F.inline("cut.snapshots"))
