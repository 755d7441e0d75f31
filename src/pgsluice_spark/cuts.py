"""Cut records. A cut record lists the records of some whole transactions in all topics.

Only :func:`reading_of`, which asks the registry, and :func:`collected`, which runs a query of Spark, do I/O.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark.decode import decoded
from pgsluice_spark.errors import RetentionGap
from pgsluice_spark.names import table_name
from pgsluice_spark.registry import Registry
from pgsluice_spark.schema import Reading, SchemaError, record_reading


class Position(NamedTuple):
    """The position of an event or a mark. Positions can be compared."""

    epoch: int
    lsn: int
    seq: int


_AS_JAVA: Final = str.maketrans("+/", "-_")
"""Translates a topic's id into the form of Kafka's Java client, with which this package asks for topic ids.

The daemon writes topic ids in the form of librdkafka.
"""

Ranges = Mapping[int, Sequence[tuple[int, int]]]
"""Ranges of offsets by partition. Each range has a first offset and an end offset, and the ranges are in order."""


@dataclass(frozen=True, slots=True)
class TopicCut:
    """The changes of a cut in one topic."""

    topic_id: str
    ranges: Mapping[int, tuple[int, int]]
    """The first offset and the end offset in each partition that has records of the cut."""
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark, which says how far a load has read the rows of a table."""

    table: str
    id: str
    state: str
    position: Position
    rows: int
    replaces: bool


@dataclass(frozen=True, slots=True)
class Cut:
    """A whole cut record, or one part of it.

    ``offset`` is the offset of the last part. ``ts_us`` is in microseconds since 1970.
    """

    number: int
    epoch: int
    end_lsn: int
    ts_us: int | None
    offset: int
    part: int
    parts: int
    topics: Mapping[str, TopicCut] = field(default_factory=dict)
    marks: Sequence[Mark] = ()

    @property
    def events(self) -> int:
        """The number of events in the cut, including messages and dead letters."""
        return sum(sum(use.counts.values()) for use in self.topics.values())


def reading_of(registry: Registry, topic: str) -> Reading:
    """Return how the cut records or dead letters in ``topic`` are decoded.

    Raise SchemaError if the registry has no schema for them.
    """
    versions = registry.versions((f"{topic}-value",))
    if not versions:
        raise SchemaError(
            f"the schema registry has no subject {topic}-value: the name of the topic or the registry is wrong, or "
            "pgsluice has not written to the topic yet"
        )
    return record_reading(versions)


def decoded_cuts(records: DataFrame, reading: Reading) -> DataFrame:
    """Return the fields of cut records, and Kafka's ``offset`` and ``timestamp``."""
    cuts = records.select(decoded("value", reading).alias("cut"), "offset", "timestamp")
    return cuts.select("cut.*", "offset", "timestamp")


def collected(cuts: DataFrame) -> list[Cut]:
    """Return the parts of cut records, in the order of the topic."""
    columns: list[str | Column] = ["cut", "epoch", "end_lsn", "offset", "part", "parts", "topics", "snapshots"]
    rows = cuts.select(*columns, F.unix_micros("ts").alias("ts_us")).collect()
    return sorted((_cut(row) for row in rows), key=lambda cut: cut.offset)


def _cut(row: Any) -> Cut:  # noqa: ANN401 - Spark's rows have no types
    return Cut(
        number=row["cut"],
        epoch=row["epoch"],
        end_lsn=row["end_lsn"],
        ts_us=row["ts_us"],
        offset=row["offset"],
        part=row["part"],
        parts=row["parts"],
        topics={topic["topic"]: _topic(topic) for topic in row["topics"]},
        marks=[_mark(mark) for mark in row["snapshots"]],
    )


def _topic(row: Any) -> TopicCut:  # noqa: ANN401 - Spark's rows have no types
    ranges = {at["partition"]: (at["first"], at["next"]) for at in row["offsets"] if at["first"] < at["next"]}
    return TopicCut(row["topic_id"].translate(_AS_JAVA), ranges, dict(row["counts"]))


def _mark(row: Any) -> Mark:  # noqa: ANN401 - Spark's rows have no types
    return Mark(
        table=table_name(row["schema"], row["table"]),
        id=row["id"],
        state=row["state"],
        position=Position(row["epoch"], row["lsn"], row["seq"]),
        rows=row["rows"],
        replaces=row["replaces"],
    )


def joined(parts: Iterable[Cut]) -> list[Cut]:
    """Return the whole cuts among ``parts``. A cut whose last part is missing belongs to a later batch."""
    cuts: list[Cut] = []
    found: list[Cut] = []
    for part in parts:
        found = [part] if part.part == 0 else [*found, part]
        if part.part == part.parts - 1 and len(found) == part.parts:
            cuts.append(_whole(found))
    return cuts


def _whole(parts: Sequence[Cut]) -> Cut:
    topics = {topic: use for part in parts for topic, use in part.topics.items()}
    return replace(parts[-1], part=0, parts=1, topics=topics, marks=parts[0].marks)


def marks_of(cuts: Iterable[Cut], table: str) -> list[Mark]:
    """Return the marks of a table in these cuts."""
    return [mark for cut in cuts for mark in cut.marks if mark.table == table]


def last_of_each_number(cuts: Iterable[Cut]) -> list[Cut]:
    """Return the last cut with each number.

    In at-least-once mode, several cuts may have the same number. The last of them has all changes of the earlier ones.
    """
    counting: list[Cut] = []
    for cut in cuts:
        while counting and counting[-1].number >= cut.number:
            counting.pop()
        counting.append(cut)
    return counting


def check_order(cuts: Sequence[Cut], applied: int | None, topic: str) -> None:
    """Raise RetentionGap if cut records are missing. ``applied`` is the number of the last cut before ``cuts``."""
    for cut in cuts:
        if applied is not None and cut.number > applied + 1:
            raise RetentionGap(
                f"topic {topic}: cut {cut.number} follows cut {applied}. The cut records between them are gone, so "
                "nobody can tell which changes are missing, and this target cannot be continued. Begin a new target "
                "with a new checkpoint, and load its tables with `pgsluice snapshot start`. Let the topic keep its "
                "records for longer than this query is ever stopped."
            )
        applied = cut.number
