"""Reads the row changes of one table from its Kafka topic, as a DataFrame with native types.

Users' jobs begin with :func:`read_changes`. It reads only records of committed cuts, and decodes each record with the
schema with which it was written.
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from pgsluice_spark.reading import topic_reading
from pgsluice_spark.registry import Registry
from pgsluice_spark.source import read_topic


def read_changes(  # noqa: PLR0913 - all but the first two are passed by name
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

    The columns are those of the change event, then ``key`` (if the table has one), ``fields``, and Kafka's ``topic``,
    ``partition``, ``offset`` and ``timestamp``. ``fields`` has the names of the row's fields in the schema with which
    the record was written. The row's other fields are null, because this schema does not have them.

    The function uses the schemas that ``registry`` has when it is called. A record with a later schema ends the query
    with an error that names this schema. To continue, call the function again and start from the same checkpoint.

    If several tables share the topic, ``table`` selects the changes of one table. The name is written as in the
    namespace of the table's schemas, such as ``public.orders``.
    """
    versions = tuple(registry.versions((f"{topic}-value", f"{topic}-key")))
    reading = topic_reading(versions, topic, table)
    reading.check_names(spark)
    records = read_topic(spark, topic, bootstrap_servers, kafka_options or {}, streaming=streaming)
    return reading.changes(records, tombstones=tombstones)
