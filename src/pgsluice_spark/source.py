"""Reads the records of one Kafka topic with Spark's Kafka source.

Used by :mod:`.changes`, :mod:`.marks`, :mod:`.origin` and :mod:`.pipeline`. Only records of committed cuts are read.

``tests/spark/test_changes.py`` covers this module.

https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html
"""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark.cuts import Ranges

_OWN_OPTIONS: Final = frozenset(
    ("subscribe", "subscribepattern", "assign", "kafka.bootstrap.servers", "kafka.isolation.level")
)
"""The options of Spark's Kafka source that this module sets. The names of options are not case-sensitive."""
_DEFAULTS: Final = {"kafka.fetch.max.wait.ms": "20"}
"""Our defaults for options. If a consumer asks for records at the end of a topic, the broker waits for further records,
by default for half a second. Spark makes such a request in each batch, although the batch needs no further records."""
_OF_STREAMS: Final = frozenset(("maxoffsetspertrigger", "minoffsetspertrigger", "startingtimestamp", "endingtimestamp"))
"""The options that do not apply to a batch with fixed offsets."""
_GAPS_MAX: Final = 64
"""Up to this number of gaps, a separate condition leaves out each gap. If there are more gaps, a join leaves out the
narrow ones."""
_NARROW: Final = 16
"""The maximum number of offsets in a narrow gap. Most gaps are narrow: they contain only a transaction's marker."""


def read_topic(
    spark: SparkSession, topic: str, bootstrap_servers: str, options: Mapping[str, str], *, streaming: bool
) -> DataFrame:
    """Return the records of ``topic``, as a stream or as a batch. ``options`` are further options of Spark's source."""
    check_options(options)
    reader = spark.readStream if streaming else spark.read
    # By default, Spark begins a stream at the end of the topic. Such a stream would lack all rows that do not change
    # afterwards.
    defaults = {"startingOffsets": "earliest", **_DEFAULTS}
    own = {
        "subscribe": topic,
        "kafka.bootstrap.servers": bootstrap_servers,
        "kafka.isolation.level": "read_committed",
    }
    return reader.format("kafka").options(**{**defaults, **options, **own}).load()


def check_options(options: Mapping[str, str]) -> None:
    """Raise ValueError if ``options`` has an option that the user must not set."""
    taken = sorted(name for name in options if name.lower() in _OWN_OPTIONS)
    if taken:
        raise ValueError(f"pgsluice_spark sets {', '.join(taken)} itself; leave it out of kafka_options")


def read_ranges(
    spark: SparkSession, topic: str, bootstrap_servers: str, options: Mapping[str, str], ranges: Ranges
) -> DataFrame:
    """Return the records of ``topic`` at these offsets, and no others, as a batch."""
    check_options(options)
    own = {
        "assign": json.dumps({topic: list(ranges)}),
        "kafka.bootstrap.servers": bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
        "startingOffsets": json.dumps({topic: {partition: known[0][0] for partition, known in ranges.items()}}),
        "endingOffsets": json.dumps({topic: {partition: known[-1][1] for partition, known in ranges.items()}}),
    }
    kept = {name: value for name, value in options.items() if name.lower() not in _OF_STREAMS}
    return _without_gaps(spark.read.format("kafka").options(**{**_DEFAULTS, **kept, **own}).load(), ranges)


def _without_gaps(records: DataFrame, ranges: Ranges) -> DataFrame:
    """Leave out the offsets between ranges: markers, and, in at-least-once mode, records that belong to no cut."""
    gaps = [
        (partition, before[1], after[0]) for partition, known in ranges.items() for before, after in pairwise(known)
    ]
    if len(gaps) > _GAPS_MAX:
        narrow = [gap for gap in gaps if gap[2] - gap[1] <= _NARROW]
        gaps = [gap for gap in gaps if gap[2] - gap[1] > _NARROW]
        offsets = [(partition, offset) for partition, first, end in narrow for offset in range(first, end)]
        marked = records.sparkSession.createDataFrame(offsets, "partition int, offset long")
        records = records.join(F.broadcast(marked), ["partition", "offset"], "left_anti")
    for partition, first, end in gaps:
        at = F.col("offset")
        records = records.where(~((F.col("partition") == partition) & (at >= first) & (at < end)))
    return records
