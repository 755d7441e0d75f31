"""Reduces the changes of one table in a batch to their net effect, with one record for each key.

Used by :mod:`.mirror`, :mod:`.changelog`, :mod:`.latest` and :mod:`.tail`. For most keys, the last change is enough. If
this change did not send the value of a column, the record has the last value that was sent since the row was inserted
or loaded. If the row is older than the batch, the target may have the value.

A row moves to another key if an update changes its key. If this update does not send all values, the missing ones are
the values that the row had under its former key. So :func:`moved` handles the keys from and to which rows moved, and
also uses the rows that the target has under these keys.

``tests/spark/test_latest.py`` covers this module.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation
from pyspark.sql.types import StructType

from pgsluice_spark.cuts import Position
from pgsluice_spark.lives import BEGIN, POSITION, comparable, follow_moves, is_unknown, lives_of, position, raw_texts
from pgsluice_spark.loads import Interval
from pgsluice_spark.numerics import numeric_keys, shortest
from pgsluice_spark.targets import quoted

OPS: Final = ("c", "u", "d", "r", "t")
"""The operations that are counted.

A truncate does not concern single rows. So if the cuts declare truncates, the caller removes the truncates from the
events. If no cut declares a truncate, but there is one, it is counted, so that the mismatch with the cuts is noticed.
"""

NET: Final = ("key", "op", "cells", "kept", "unchanged", "raw", *POSITION, "ts")
"""The columns of the net effect.

``op`` is ``u`` or ``d``. ``kept`` names the columns whose values are kept from the target. ``unchanged`` names the
columns whose values are unknown. ``raw`` is the same as in an event.
"""


BROADCAST_MAX: Final = 100_000
"""The maximum number of keys that are broadcast. A key takes about 150 bytes of the driver's memory, and eight topics
may be applied at the same time, so this limits the memory to about 120 MB."""

OF_LIVES: Final = ("row", "position", "op", "flags", "key", "ts", "unchanged", "fields", "after", "raw")
"""The columns of an event that are needed to follow rows from key to key."""


def located(events: DataFrame, floor: Position | None) -> DataFrame:
    """Add the columns ``position`` and ``is_live``, which says whether the position is after ``floor``."""
    is_live = F.lit(True) if floor is None else position() > literal(floor)  # noqa: FBT003 - a literal
    return events.withColumns({"position": position(), "is_live": is_live})


def placed(events: DataFrame, floor: Position | None) -> DataFrame:
    """Add the columns that :func:`located` adds, and ``row``, which identifies the key."""
    key, row = events.schema["key"].dataType, events.schema["after"].dataType
    assert isinstance(key, StructType), "keys are records"
    assert isinstance(row, StructType), "rows are records"
    numeric = numeric_keys(key, row)
    values = {part: F.expr(shortest(f"key.{quoted(part)}")) for part in numeric}
    parts = (
        values.get(part.name, comparable(F.col("key").getField(part.name), part.dataType)).alias(part.name)
        for part in key
    )
    return located(events, floor).withColumn("row", F.struct(*parts))


def literal(place: Position) -> Column:
    """Return a position as a column of Spark."""
    kinds = zip(POSITION, place, ("int", "long", "long"), strict=True)
    return F.struct(*(F.lit(number).cast(kind).alias(name) for name, number, kind in kinds))


def folded(
    events: DataFrame, fields: Sequence[str], followed: Sequence[str], intervals: Sequence[Interval]
) -> DataFrame:
    """Return one record for each key, with the columns of ``NET`` and some others.

    For the fields in ``followed``, all changes of a key are searched for the last value that was sent. All other fields
    have the value of the key's last change. This is much cheaper than a search, and is correct if the last change sent
    the value.

    ``named`` has the fields that the last change did not send. ``counts`` has the number of events of each op, and
    ``rows`` the number of ``r`` events in each of ``intervals``. ``is_moving`` says that a row moved from or to this
    key. ``has_gap`` says that a row moved to this key, and that some of its values were sent only under its former key.
    """
    row = events.schema["row"].dataType.fieldNames()
    parts = [F.col("row").getField(name).alias(f"part_{number}") for number, name in enumerate(row)]
    live = events.withColumn("at", F.when(F.col("is_live"), F.col("position")))
    begin = F.max(F.when(F.col("op").isin(*BEGIN), F.col("at")))
    is_move = F.array_contains("flags", "key_change") & F.col("at").isNotNull()
    keys = live.groupBy(*parts).agg(  # Spark sorts by single columns faster than by a struct
        F.max_by(F.struct("key", "op", "ts", "unchanged", "after", "raw"), "at").alias("last"),
        F.max("at").alias("position"),
        begin.alias("begin"),
        F.max(F.when(is_move & (F.col("op") == "c"), F.col("at"))).alias("arrival"),
        F.coalesce(F.max(is_move), F.lit(False)).alias("is_moving"),  # noqa: FBT003 - a literal
        F.struct(*(F.count_if(F.col("op") == op).alias(op) for op in OPS)).alias("counts"),
        F.array(*(count_of(interval) for interval in intervals)).cast("array<long>").alias("rows"),
        *(_cell(name).alias(f"cell_{number}") for number, name in enumerate(followed)),
    )
    identity = F.struct(*(F.col(f"part_{number}").alias(name) for number, name in enumerate(row)))
    return _net(keys.withColumn("row", identity), fields, followed)


def unfolded(events: DataFrame, fields: Sequence[str], intervals: Sequence[Interval]) -> DataFrame:
    """Return one record for each event, in the form of :func:`folded`.

    Use this function only if no two events have the same key, or if the table has no key.
    """
    none = _none()
    row, key = (F.col(name) if name in events.columns else F.lit(None).alias(name) for name in ("row", "key"))
    return events.select(
        row,
        key,
        F.lit("u").alias("op"),
        F.struct(*(F.col("after").getField(name).alias(name) for name in fields)).alias("cells"),
        none.alias("kept"),
        "unchanged",
        _raw_of_new_row("raw").alias("raw"),
        "position.*",
        "ts",
        "is_live",
        none.alias("named"),
        F.struct(*((F.col("op") == op).cast("long").alias(op) for op in OPS)).alias("counts"),
        F.array(*(_is_in(interval).cast("long") for interval in intervals)).cast("array<long>").alias("rows"),
    )


def count_of(interval: Interval) -> Column:
    """Return the number of ``r`` events of a load."""
    return F.count_if(_is_in(interval))


def _is_in(interval: Interval) -> Column:
    is_inside = (F.col("op") == "r") & (F.col("position") > literal(interval.begin))
    return is_inside if interval.end is None else is_inside & (F.col("position") < literal(interval.end))


def _cell(name: str) -> Column:
    """Return the last value that was sent for a field, and the position of the change that sent the value."""
    is_sent = (F.col("op") != "d") & ~F.array_contains("unchanged", name)
    at = F.when(is_sent, F.col("at"))
    cell = F.struct(
        at.alias("at"),
        F.array_contains("fields", name).alias("is_known"),
        F.col("after").getField(name).alias("value"),
        F.try_element_at("raw", F.lit(name)).alias("raw"),
    )
    return F.max_by(cell, at)


def _net(keys: DataFrame, fields: Sequence[str], followed: Sequence[str]) -> DataFrame:
    is_old = F.col("begin").isNull()
    is_there = F.col("last.op") != "d"
    cells = {name: _current(F.col(f"cell_{number}")) for number, name in enumerate(followed)}
    gaps = _names({name: cell.isNull() & is_there for name, cell in cells.items()})
    is_lost = {n: ~cell.getField("is_known") & F.array_contains("last.unchanged", n) for n, cell in cells.items()}
    lost = _names(is_lost)
    known = {name: F.when(~is_lost[name], cell) for name, cell in cells.items()}
    values = {name: known[name].getField("value") if name in known else F.col("last.after")[name] for name in fields}
    return keys.select(
        "row",
        "last.key",
        F.when(is_there, F.lit("u")).otherwise(F.lit("d")).alias("op"),
        F.when(is_old, gaps).otherwise(_none()).alias("kept"),
        F.concat(F.when(is_old, _none()).otherwise(gaps), lost).alias("unchanged"),
        F.map_concat(_raw_of_new_row("last.raw", followed), raw_texts(known)).alias("raw"),
        "position.*",
        "last.ts",
        F.struct(*(value.alias(name) for name, value in values.items())).alias("cells"),
        F.col("position").isNotNull().alias("is_live"),
        "is_moving",
        (is_there & (F.col("arrival") == F.col("begin")) & (F.size(gaps) > 0)).alias("has_gap"),
        F.when(is_there, F.col("last.unchanged")).otherwise(_none()).alias("named"),
        "counts",
        "rows",
    )


def _none() -> Column:
    return F.array().cast("array<string>")


def _names(conditions: Mapping[str, Column]) -> Column:
    """Return the names whose conditions are true."""
    names = [F.when(condition, F.lit(name)) for name, condition in conditions.items()]
    return F.array_compact(F.array(*names).cast("array<string>"))


def _raw_of_new_row(raw: str, without: Sequence[str] = ()) -> Column:
    """Return those texts of ``raw`` that belong to the new row, except those of the fields in ``without``."""
    return F.map_filter(raw, lambda name, _: ~name.contains(".") & ~name.isin(*without))


def _current(cell: Column) -> Column:
    """Return a cell, or null if its value was sent before the present row was inserted or loaded."""
    return F.when(F.col("begin").isNull() | (cell.getField("at") >= F.col("begin")), cell)


def broadcast_if_few(keys: DataFrame) -> DataFrame:
    """Return ``keys`` with the hint that a join broadcasts them, unless they are more than BROADCAST_MAX.

    Spark does not know how many keys there are. Without the hint, it would shuffle all rows of a target even if there
    is only one key. A broadcast takes memory of the driver for each key.
    """
    return F.broadcast(keys) if keys.count() <= BROADCAST_MAX else keys


def moved(events: DataFrame, keys: DataFrame, target: DataFrame, fields: Sequence[str]) -> DataFrame:
    """Return the net effect for ``keys``, even if rows moved from or to these keys.

    If a move did not send a value, the row keeps the value from before the move. ``target`` has the rows of the target
    as if they were ``r`` events, with the columns of ``OF_LIVES``.
    """
    row = broadcast_if_few(keys.select("row"))
    own = events.where("is_live").join(row, "row", "left_semi")
    known = target.join(row, "row", "left_semi")
    lives = follow_moves(lives_of(own.select(*known.columns).union(known), fields), fields)
    rows = lives.groupBy("row").agg(F.max_by(F.struct("*"), "life").alias("last")).select("last.*")
    cells = {name: F.col("cells").getField(name) for name in fields}
    is_there = F.col("op") != "d"
    unknown = F.array(*(F.when(is_there & is_unknown(name, cell), F.lit(name)) for name, cell in cells.items()))
    known = {name: F.when(~is_unknown(name, cell), cell) for name, cell in cells.items()}
    return rows.select(
        "row",
        "key",
        F.when(is_there, F.lit("u")).otherwise(F.lit("d")).alias("op"),
        F.struct(*(cell.getField("value").alias(name) for name, cell in known.items())).alias("cells"),
        F.array().cast("array<string>").alias("kept"),
        F.array_compact(unknown).alias("unchanged"),
        raw_texts(known).alias("raw"),
        "position.*",
        "ts",
    )
