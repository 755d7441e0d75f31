"""Records of one Kafka topic, as Spark's Kafka source gives them.

Used by :mod:`.changes` and :mod:`.marks`. Only records of committed cuts are read.

https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession

_OWN_OPTIONS: Final = frozenset(
    ("subscribe", "subscribepattern", "assign", "kafka.bootstrap.servers", "kafka.isolation.level")
)
"""Options of Spark's Kafka source (their names are not case-sensitive) that :func:`read_topic` sets."""


def read_topic(
    spark: SparkSession, topic: str, bootstrap_servers: str, options: Mapping[str, str], *, streaming: bool
) -> DataFrame:
    """Return the records of ``topic``, as a stream or as a batch; ``options`` are further ones of Spark's source."""
    taken = sorted(name for name in options if name.lower() in _OWN_OPTIONS)
    if taken:
        raise ValueError(f"pgsluice_spark sets {', '.join(taken)} itself; leave it out of kafka_options")
    reader = spark.readStream if streaming else spark.read
    # A stream that began at Spark's default, the end, would lack every row that has not changed since.
    defaults = {"startingOffsets": "earliest"}
    own = {
        "subscribe": topic,
        "kafka.bootstrap.servers": bootstrap_servers,
        "kafka.isolation.level": "read_committed",
    }
    return reader.format("kafka").options(**{**defaults, **options, **own}).load()
