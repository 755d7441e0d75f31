"""Divides the history of each key into lives, and follows rows from one key to another.

Used above all by :mod:`.fold`. The history of a key is divided because several rows can have the key, one after the
other. Each insert, loaded row or delete begins a new life. The present row of a key has the values of the key's last
life, each from the last change that sent the value. If an update gives a row another key, the row continues in a life
of that key.

``tests/spark/test_latest.py`` covers this module.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation
from pyspark.sql.types import ArrayType, DataType, MapType

POSITION: Final = ("epoch", "lsn", "seq")
BEGIN: Final = ("c", "r", "d")
"""The operations that begin a life. After them, values from earlier lives do not matter any more."""


def position() -> Column:
    """Return the column by which changes are ordered."""
    return F.struct(*POSITION)


def is_incomplete_arrival() -> Column:
    """Return whether a change inserts a row that comes from another key, without sending all values of the row."""
    is_arrival = (F.col("op") == "c") & F.array_contains("flags", "key_change")
    return is_arrival & (F.size("unchanged") > 0)


def comparable(value: Column, kind: DataType) -> Column:
    """Return ``value`` in a form that Spark can compare and group by, because it cannot compare maps."""
    if isinstance(kind, MapType):
        return F.array_sort(F.map_entries(value))
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda item: comparable(item, kind.elementType))
    return value


def lives_of(events: DataFrame, fields: Sequence[str]) -> DataFrame:
    """Return the lives of all keys. ``life`` is the position at which a life began. ``cells`` has its values."""
    start = F.when(F.col("op").isin(*BEGIN), F.col("position"))
    before_all = F.struct(
        F.lit(0).alias("epoch"), F.lit(0).cast("long").alias("lsn"), F.lit(-2).cast("long").alias("seq")
    )
    life = F.max(start).over(Window.partitionBy("row").orderBy("position"))
    moves = (F.col("position") == F.col("life")) & F.array_contains("flags", "key_change")
    return (
        events.withColumn("life", F.coalesce(life, before_all))
        .groupBy("row", "life")
        .agg(
            *(F.max_by(name, "position").alias(name) for name in ("key", "op", "ts", "unchanged")),
            F.max("position").alias("position"),
            F.max(moves & (F.col("op") == "c")).alias("is_arrival"),
            F.max(moves & (F.col("op") == "d")).alias("is_departure"),
            F.struct(*(last_cell(name).alias(name) for name in fields)).alias("cells"),
        )
    )


def last_cell(name: str) -> Column:
    """Return the value of a field in the last change that sent it, or null if no change sent it.

    ``is_known`` is false if the schema of that change did not have the field.
    """
    cell = F.struct(
        F.array_contains("fields", name).alias("is_known"),
        F.col("after").getField(name).alias("value"),
        F.try_element_at("raw", F.lit(name)).alias("raw"),
    )
    is_sent = (F.col("op") != "d") & ~F.array_contains("unchanged", name)
    return F.max_by(cell, F.when(is_sent, F.col("position")))


def follow_moves(lives: DataFrame, fields: Sequence[str]) -> DataFrame:
    """Return ``lives``, in which each null cell is filled from the life that the row had under its former key.

    The loop continues with the lives that still have null cells. Each iteration goes back twice as many moves as the
    iteration before.
    """
    lives = _with_origin(lives).localCheckpoint()
    is_open = _has_gap(fields) & F.col("origin").isNotNull()
    found, rest = lives.where(~is_open), lives.where(is_open)
    while not rest.isEmpty():
        rest = _filled(rest, found.unionByName(rest), fields).localCheckpoint()
        found, rest = found.unionByName(rest.where(~is_open)), rest.where(is_open)
    return found.drop("origin")


def _filled(lives: DataFrame, known: DataFrame, fields: Sequence[str]) -> DataFrame:
    """Return ``lives`` with null cells filled from their origins among ``known``.

    The new ``origin`` of a life is the origin of its former origin.
    """
    origins = known.select(
        F.struct("row", "life").alias("origin"), F.col("cells").alias("earlier"), F.col("origin").alias("next")
    )
    cells = {name: (F.col("cells").getField(name), F.col("earlier").getField(name)) for name in fields}
    return (
        lives.join(origins, "origin", "left")
        .withColumn("cells", F.struct(*(F.coalesce(*both).alias(name) for name, both in cells.items())))
        .withColumn("origin", F.col("next"))
        .drop("earlier", "next")
    )


def _with_origin(lives: DataFrame) -> DataFrame:
    """Add ``origin``: the row's key and life before it moved to its present key, or null if it did not move.

    A move consists of a delete and an insert, which have consecutive ``seq`` numbers in the transaction.
    """
    previous = F.lag("life").over(Window.partitionBy("row").orderBy("life"))
    arrival = F.struct("life.epoch", "life.lsn", (F.col("life.seq") + 1).alias("seq"))
    departures = (
        lives.withColumn("previous", previous)
        .where("is_departure AND previous IS NOT NULL")
        .select(
            arrival.alias("life"),
            F.lit(True).alias("is_arrival"),  # noqa: FBT003 - a literal
            F.struct("row", F.col("previous").alias("life")).alias("origin"),
        )
    )
    return lives.join(departures, ["life", "is_arrival"], "left")


def _has_gap(fields: Sequence[str]) -> Column:
    return reduce(or_, (F.col("cells").getField(name).isNull() for name in fields))


def raw_texts(cells: Mapping[str, Column]) -> Column:
    """Return ``raw`` of a row: the texts of those cells that have a text, by the names of the fields."""
    if not cells:
        return F.create_map().cast("map<string, string>")
    texts = F.array(*(F.struct(F.lit(name), cell.getField("raw").alias("text")) for name, cell in cells.items()))
    return F.map_from_entries(F.filter(texts, lambda entry: entry["text"].isNotNull()))


def is_unknown(name: str, cell: Column) -> Column:
    """Return whether a value is unknown, because no change has sent it."""
    is_lost = ~cell.getField("is_known") & F.array_contains("unchanged", name)
    return cell.isNull() | is_lost
