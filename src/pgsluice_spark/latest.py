"""Computes the present rows of tables from their changes.

The function :func:`latest` takes a batch. It is for jobs that keep a change log and need the table itself.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_, or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation
from pyspark.sql.types import StructType

from pgsluice_spark.fold import NET, OF_LIVES, folded, moved
from pgsluice_spark.lives import POSITION, comparable, is_incomplete_arrival, position

_TABLE: Final = ["schema", "table"]


def latest(changes: DataFrame, marks: DataFrame | None = None) -> DataFrame:
    """Return one record for each row that exists after ``changes``, a batch in the form of ``read_changes``.

    The columns are ``schema``, ``table``, ``key``, ``after`` (the row), ``unchanged``, ``raw``, and ``epoch``, ``lsn``,
    ``seq``, ``ts`` of the row's last change. ``unchanged`` names the fields whose value is in none of the changes. For
    these fields, null means "unknown".

    ``marks``, a batch in the form of ``read_marks``, say which loads have read their table to the end. Rows that are
    older than the beginning of such a load, and that the load did not read again, are left out: they were deleted,
    although the changes do not contain the delete. They are left out only if all rows of the load are among the
    changes, and if ``replaces`` is true in the load's mark ``end``.

    Marks also say that a table was altered in such a way that its rows have values that were never sent. An example is
    a column that was dropped and added again. If a change after such a mark leaves a column ``unchanged``, the column's
    value is unknown, even if a change before the mark sent a value.

    ``changes`` may have duplicates and any order. Spark reads them more than once, so they must not change meanwhile.
    They have to contain everything since the beginning of a load, or since the table's first row. If retention has
    deleted changes, the result does not show their effects. The key has to be unique at every moment, which a
    deferrable constraint does not ensure. If the columns of the key change, an error is raised.
    """
    if "key" not in changes.columns:
        raise ValueError("these changes have no key column: without a key, rows cannot be identified")
    fields = changes.schema["after"].dataType.fieldNames()
    events = _events(changes)
    if marks is not None:
        events = _without_former_values(events, marks)
    rows = _net(events, changes, fields).where("op != 'd'")
    return _rows(rows if marks is None else _without_replaced(rows, changes, marks))


def _net(events: DataFrame, changes: DataFrame, fields: Sequence[str]) -> DataFrame:
    """Return the net effect of each row's changes: the columns of ``fold.NET``, and ``row``."""
    facts = changes.agg(
        F.array_distinct(F.flatten(F.collect_set("unchanged"))).alias("unchanged"),
        F.coalesce(F.bool_or(is_incomplete_arrival()), F.lit(False)).alias("has_gaps"),  # noqa: FBT003 - a literal
    ).first()
    assert facts is not None, "an aggregation without groups has one row"
    keys = folded(events, fields, [name for name in fields if name in facts["unchanged"]], ())
    columns = ("row", *NET)
    if not facts["has_gaps"]:
        return keys.select(*columns)
    keys = keys.localCheckpoint()
    apart = moved(events, keys.where("is_moving"), events.limit(0).select(*OF_LIVES), fields)
    return keys.where("NOT is_moving").select(*columns).unionByName(apart.select(*columns))


def _events(changes: DataFrame) -> DataFrame:
    """Return the changes of rows after the last truncate of their table, with their ``position`` and ``row``."""
    key = changes.schema["key"].dataType
    assert isinstance(key, StructType), "keys are records"
    placed = changes.withColumn("position", position())
    return (
        placed.where(F.col("op").isin("c", "u", "d", "r"))
        .join(F.broadcast(_tables(placed, key.fieldNames())), _TABLE)
        .where("truncated IS NULL OR position > truncated")
        .withColumns({"row": _identity(key), "is_live": F.lit(True)})  # noqa: FBT003 - a literal
    )


def _without_former_values(events: DataFrame, marks: DataFrame) -> DataFrame:
    """Empty ``fields`` in changes before the last alteration of their table, so that their values are not used later.

    The mark ``stale`` comes some seconds after the alteration, and the exact time of the alteration is not known. So a
    value that was sent in these seconds is treated like a value from before the alteration.
    """
    altered = marks.where("state = 'stale'").groupBy(*_TABLE).agg(F.max(position()).alias("altered"))
    none = F.array().cast("array<string>")
    return (
        events.join(F.broadcast(altered), _TABLE, "left")
        .withColumn("fields", F.when(F.col("position") < F.col("altered"), none).otherwise(F.col("fields")))
        .drop("altered")
    )


def _tables(placed: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return one record for each table. ``truncated`` is the position of its last truncate.

    ``seen`` has, for each column of the key, the last position at which a key had this column.
    """
    seen = (F.max(F.when(F.col("key").getField(name).isNotNull(), F.col("position"))).alias(name) for name in names)
    truncated = F.max(F.when(F.col("op") == "t", F.col("position")))
    return placed.groupBy(*_TABLE).agg(truncated.alias("truncated"), F.struct(*seen).alias("seen"))


def _identity(key: StructType) -> Column:
    """Return the identity of a row. The expression raises an error if a key lacks columns of the table's key."""
    names = key.fieldNames()
    parts = [F.col("key").getField(name) for name in names]
    lacking = [part.isNull() & _is_in_use(name) for name, part in zip(names, parts, strict=True)]
    missing = reduce(or_, lacking, reduce(and_, (part.isNull() for part in parts)))
    sentence = F.format_string(
        "topic %s, partition %d, offset %d: the key lacks columns (%s). During these changes, the table got another "
        "key or lost its key, so its rows cannot be followed: use the changes since a later load",
        "topic",
        "partition",
        "offset",
        F.lit(", ".join(names)),
    )
    columns = (comparable(part, field.dataType).alias(field.name) for part, field in zip(parts, key, strict=True))
    return F.when(missing, F.raise_error(sentence)).otherwise(F.struct(*_TABLE, F.struct(*columns).alias("key")))


def _is_in_use(name: str) -> Column:
    """Return whether the table's key has had this column since the last truncate, or ever if there was no truncate."""
    last = F.col("seen").getField(name)
    return last.isNotNull() & (F.col("truncated").isNull() | (last > F.col("truncated")))


def _without_replaced(rows: DataFrame, changes: DataFrame, marks: DataFrame) -> DataFrame:
    """Leave out the rows that are older than the last complete load of their table."""
    loads = _complete_loads(changes, marks).groupBy(*_TABLE).agg(F.max("begin").alias("begin"))
    return (
        rows.withColumns({name: F.col("row").getField(name) for name in _TABLE})
        .join(F.broadcast(loads), _TABLE, "left")
        .where(F.col("begin").isNull() | (position() > F.col("begin")))
    )


def _complete_loads(changes: DataFrame, marks: DataFrame) -> DataFrame:
    """Return the loads that replace the rows of their tables, and whose rows are all among the changes."""
    begins = marks.where("state = 'begin'").select("id", position().alias("begin"))
    ends = marks.where("state = 'end' AND replaces").select(*_TABLE, "id", position().alias("end"), "rows")
    loads = ends.join(begins, "id").distinct()
    read = changes.where("op = 'r'").select(*_TABLE, position().alias("position"))
    found = (
        read.join(F.broadcast(loads), _TABLE)
        .where("position > begin AND position < end")
        .groupBy("id")
        .agg(F.count_distinct("position").alias("found"))
    )
    return loads.join(found, "id", "left").where("rows = coalesce(found, 0)")


def _rows(rows: DataFrame) -> DataFrame:
    """Return the columns of :func:`latest`.

    The values of fields in ``kept`` are unknown as well, because there is no target from which to keep them.
    """
    return rows.select(
        "row.schema",
        "row.table",
        "key",
        F.col("cells").alias("after"),
        F.concat("kept", "unchanged").alias("unchanged"),
        "raw",
        *POSITION,
        "ts",
    )
