"""The present rows of a table, worked out from its changes.

A batch function for jobs that keep a change log and want the table itself. The history of a key falls into
lives: one begins with each insert, snapshot row or delete. A row consists of the values of its key's last
life, each from the last change that sent it; a row that moved to another key goes on in another life.
"""

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

_POSITION: Final = ("epoch", "lsn", "seq")
_BEGIN: Final = ("c", "r", "d")
"""The operations after which nothing of an earlier row counts any more."""


def latest(changes: DataFrame) -> DataFrame:
    """Return one record for each row that exists after ``changes``, a batch in the form of ``read_changes``.

    Columns: ``key``, ``after`` (the row), ``unchanged`` (fields whose value none of the changes sent: their
    null means "unknown"), ``raw``, and ``epoch``, ``lsn``, ``seq``, ``ts`` of the row's last change.

    ``changes`` may have duplicates and come in any order, but must stay the same while this reads them (more
    than once), and must hold everything since the snapshot or the table's first row: what retention deleted
    is missing here too. The key must be unique at every moment, so not a deferrable constraint, and
    must not have got other columns in between; the latter is an error.
    """
    if "key" not in changes.columns:
        raise ValueError("these changes have no key column: without a key, rows cannot be told apart")
    fields = changes.schema["after"].dataType.fieldNames()
    lives = _lives(_events(changes), fields)
    if not changes.where(_is_incomplete_arrival()).isEmpty():
        lives = _follow_moves(lives, fields)
    rows = lives.groupBy("key").agg(F.max_by(F.struct("*"), "life").alias("last")).select("last.*")
    return _rows(rows.where("op != 'd'"), fields)


def _is_incomplete_arrival() -> Column:
    is_arrival = (F.col("op") == "c") & F.array_contains("flags", "key_change")
    return is_arrival & (F.size("unchanged") > 0)


def _events(changes: DataFrame) -> DataFrame:
    """Return the changes of rows after the last truncate, with their ``position``."""
    placed = changes.withColumn("position", F.struct(*_POSITION))
    truncate = placed.where("op = 't'").agg(F.max("position").alias("truncated"))
    return (
        placed.where(F.col("op").isin("c", "u", "d", "r"))
        .crossJoin(F.broadcast(truncate))
        .where("truncated IS NULL OR position > truncated")
        .withColumn("key", _checked_key(changes.schema["key"].dataType.fieldNames()))
    )


def _checked_key(names: Sequence[str]) -> Column:
    key = F.col("key")
    missing = reduce(or_, (key.getField(name).isNull() for name in names), key.isNull())
    sentence = F.format_string(
        "topic %s, partition %d, offset %d: the key lacks columns (%s). The table got another key, or none, in "
        "the course of these changes, so its rows cannot be followed; take the changes since a later snapshot",
        "topic",
        "partition",
        "offset",
        F.lit(", ".join(names)),
    )
    return F.when(missing, F.raise_error(sentence)).otherwise(key)


def _lives(events: DataFrame, fields: Sequence[str]) -> DataFrame:
    """Return the lives of all keys: ``life`` is the position each began at, ``cells`` its last values."""
    start = F.when(F.col("op").isin(*_BEGIN), F.col("position"))
    before_all = F.struct(
        F.lit(0).alias("epoch"), F.lit(0).cast("long").alias("lsn"), F.lit(-2).cast("long").alias("seq")
    )
    life = F.max(start).over(Window.partitionBy("key").orderBy("position"))
    moves = (F.col("position") == F.col("life")) & F.array_contains("flags", "key_change")
    return (
        events.withColumn("life", F.coalesce(life, before_all))
        .groupBy("key", "life")
        .agg(
            *(F.max_by(name, "position").alias(name) for name in ("op", "ts", "unchanged")),
            F.max("position").alias("position"),
            F.max(moves & (F.col("op") == "c")).alias("is_arrival"),
            F.max(moves & (F.col("op") == "d")).alias("is_departure"),
            F.struct(*(_last_cell(name).alias(name) for name in fields)).alias("cells"),
        )
    )


def _last_cell(name: str) -> Column:
    """Return the value of a field in the last change that does not leave it as it was.

    Null when there is none. ``is_known`` is false when the schema of that change did not have the field.
    """
    cell = F.struct(
        F.array_contains("fields", name).alias("is_known"),
        F.col("after").getField(name).alias("value"),
        F.try_element_at("raw", F.lit(name)).alias("raw"),
    )
    is_sent = (F.col("op") != "d") & ~F.array_contains("unchanged", name)
    return F.max_by(cell, F.when(is_sent, F.col("position")))


def _follow_moves(lives: DataFrame, fields: Sequence[str]) -> DataFrame:
    """Return ``lives`` with the cells that are null taken from the life that each came from.

    Each round takes from twice as far back as the one before.
    """
    lives = _with_origin(lives).localCheckpoint()
    while not lives.where(_has_gap(fields) & F.col("origin").isNotNull()).isEmpty():
        origins = lives.select(
            F.struct("key", "life").alias("origin"), F.col("cells").alias("earlier"), F.col("origin").alias("next")
        )
        filled = [
            F.coalesce(F.col("cells").getField(name), F.col("earlier").getField(name)).alias(name) for name in fields
        ]
        lives = (
            lives.join(origins, "origin", "left")
            .withColumn("cells", F.struct(*filled))
            .withColumn("origin", F.col("next"))
            .drop("earlier", "next")
            .localCheckpoint()
        )
    return lives.drop("origin")


def _with_origin(lives: DataFrame) -> DataFrame:
    """Add ``origin``: key and life that a row had before it moved here; null when it did not.

    The two records of a move stand one after the other in their transaction.
    """
    previous = F.lag("life").over(Window.partitionBy("key").orderBy("life"))
    arrival = F.struct("life.epoch", "life.lsn", (F.col("life.seq") + 1).alias("seq"))
    departures = (
        lives.withColumn("previous", previous)
        .where("is_departure AND previous IS NOT NULL")
        .select(
            arrival.alias("life"),
            F.lit(True).alias("is_arrival"),  # noqa: FBT003 - a literal
            F.struct("key", F.col("previous").alias("life")).alias("origin"),
        )
    )
    return lives.join(departures, ["life", "is_arrival"], "left")


def _has_gap(fields: Sequence[str]) -> Column:
    return reduce(or_, (F.col("cells").getField(name).isNull() for name in fields))


def _rows(lives: DataFrame, fields: Sequence[str]) -> DataFrame:
    cells = {name: F.col("cells").getField(name) for name in fields}
    unknown = (F.when(_is_unknown(name, cell), F.lit(name)) for name, cell in cells.items())
    texts = F.array(*(F.struct(F.lit(name), cell.getField("raw").alias("text")) for name, cell in cells.items()))
    return lives.select(
        "key",
        F.struct(*(cell.getField("value").alias(name) for name, cell in cells.items())).alias("after"),
        F.array_compact(F.array(*unknown)).alias("unchanged"),
        F.map_from_entries(F.filter(texts, lambda entry: entry["text"].isNotNull())).alias("raw"),
        "position.*",
        "ts",
    )


def _is_unknown(name: str, cell: Column) -> Column:
    """Return whether the last changes leave a value as it was, and what it was has not been sent."""
    is_lost = ~cell.getField("is_known") & F.array_contains("unchanged", name)
    return cell.isNull() | is_lost
