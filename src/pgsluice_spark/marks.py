"""Reads marks from the topic of cut records. A mark says how far the rows of a table have been read.

:func:`.latest` uses the marks.
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark.cuts import decoded_cuts, reading_of
from pgsluice_spark.registry import Registry
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

    ``topic`` is the topic of cut records, ``<prefix>.transactions``. The columns are the fields of a mark: ``topic``
    (the table's topic), ``schema``, ``table``, ``id``, ``state``, ``epoch``, ``lsn``, ``seq``, ``rows`` and
    ``replaces``.
    """
    reading = reading_of(registry, topic)
    records = read_topic(spark, topic, bootstrap_servers, kafka_options or {}, streaming=streaming)
    return decoded_cuts(records, reading).select(F.inline("snapshots"))
