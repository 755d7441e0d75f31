"""Keeps a copy of a table up to date: applies the net effect of the changes in a piece of a batch, in one commit.

Used by :mod:`.pipeline` and :mod:`.tail`. :func:`prepare` reads and counts the changes. Nothing is written before the
caller has compared the counts with those that the cut records declare.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation
from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

from pgsluice_spark.cuts import Position
from pgsluice_spark.errors import TableRefused
from pgsluice_spark.fold import NET, OF_LIVES, OPS, folded, located, moved, placed, unfolded
from pgsluice_spark.lives import POSITION
from pgsluice_spark.loads import Interval, TableState, advanced, intervals, lost
from pgsluice_spark.names import load_command
from pgsluice_spark.numerics import numeric_keys, text_in_row
from pgsluice_spark.rows import SYSTEM, Effect, bounded_columns, is_before, lacks, merge_of, remaining, target_schema
from pgsluice_spark.targets import Commit, TargetTable, quoted
from pgsluice_spark.work import Prepared, Work

_INFINITE: Final = (DateType, TimestampType, TimestampNTZType)
"""The types of key columns that have infinities in PostgreSQL."""


def prepare(work: Work, table: TargetTable) -> Prepared:
    """Read the changes of ``work``. Return their counts and the function that commits them.

    If the mirror cannot follow the changes, but a load begins in these cuts, the copy begins again with this load.
    """
    try:
        return _prepare(work, table)
    except TableRefused:
        begins = [mark.position for mark in work.marks if mark.state == "begin" and mark.replaces]
        if not begins:
            raise
        return _prepare(replace(work, state=replace(lost(work.state), key=()), since=begins[-1]), table)


def _prepare(work: Work, table: TargetTable) -> Prepared:
    truncated, truncates = truncates_of(work, work.events)
    emptied = max(filter(None, (truncated, work.since)), default=None)
    floor = max(filter(None, (emptied, work.repeated)), default=None)
    piece = _Piece(work, table, emptied)
    if work.reading.keys is None:
        return _prepare_without_key(piece, floor, truncates)
    return _prepare_with_key(piece, floor, truncates)


def _without_truncates(work: Work) -> DataFrame:
    """Return the changes of single rows. A filter makes Spark decode each record twice, so use it only if necessary."""
    return work.events.where("op != 't'") if work.declared.get("t") else work.events


def truncates_of(work: Work, events: DataFrame) -> tuple[Position | None, Mapping[str, int]]:
    """Return the position of the last truncate that was not applied before, and the number of all truncates.

    ``events`` has the events of ``work`` to consider. A truncate has a record in every partition, but is counted once.
    """
    if not work.declared.get("t"):
        return None, {}
    found = (
        events.where("op = 't'")
        .select(F.struct(*POSITION).alias("position"))
        .agg(F.max("position").alias("last"), F.count_distinct("position").alias("count"))
        .first()
    )
    assert found is not None, "an aggregation without groups has one row"
    if not found["count"]:
        return None, {}
    last = Position(*found["last"])
    return None if work.is_repeated(last) else last, {"t": found["count"]}


def _prepare_with_key(piece: "_Piece", floor: Position | None, truncates: Mapping[str, int]) -> Prepared:
    work = piece.work
    key = work.state.key or work.reading.newest_key
    loads = intervals(work.state, work.marks)
    events = placed(_with_keys(_without_truncates(work)), floor)
    fields = work.row_type.fieldNames()
    events, keys = _reduced(events, fields, work.declared, loads)
    bounded = bounded_columns(key, keys.schema["key"].dataType, work.row_type)
    facts = keys.agg(*_facts(key, keys.schema["row"].dataType.fieldNames(), len(loads)), *_limits(bounded)).first()
    assert facts is not None, "an aggregation without groups has one row"
    if facts["others"]:
        raise TableRefused(_other_key(work.table, key))
    followed = sorted(_named(keys).intersection(fields)) if facts["lack_values"] else []
    if followed:
        keys = folded(events, fields, followed, loads).localCheckpoint()
    piece = replace(
        piece,
        net=_net(piece, events, keys, has_gaps=bool(followed) and not keys.where("has_gap").isEmpty()),
        kept=followed,
        bounds={name: facts[f"limits_{n}"] for n, name in enumerate(bounded)},
        state=replace(work.state, key=key),
    )
    return _prepared(piece, facts, loads, truncates)


def _reduced(
    events: DataFrame, fields: Sequence[str], declared: Mapping[str, int], loads: Sequence[Interval]
) -> tuple[DataFrame, DataFrame]:
    """Return the events, and one record for each key.

    If rows were only loaded and inserted, each event is likely to have a key that no other event has. If this is true
    of all events, they need not be sorted.
    """
    if set(declared) <= {"c", "r"}:
        events = events.select(*OF_LIVES, "is_live").localCheckpoint()
        if not _has_repeated_key(events):
            return events, unfolded(events, fields, loads)
    return events, folded(events, fields, (), loads).localCheckpoint()


def _has_repeated_key(events: DataFrame) -> bool:
    return not events.groupBy("row").count().where("count > 1").isEmpty()


def _with_keys(events: DataFrame) -> DataFrame:
    """Fill in the key columns of rows from their keys, so that the merge finds the rows of the target by these columns.

    An infinite date or timestamp is null in a row. In a key, it is the lowest or highest value of its type.
    """
    rows, key = events.schema["after"].dataType, events.schema["key"].dataType
    after = F.col("after")
    for part in key:
        if isinstance(part.dataType, _INFINITE) and part.name in rows.fieldNames():
            of_key = F.col("key").getField(part.name).cast(rows[part.name].dataType)
            after = after.withField(quoted(part.name), F.coalesce(F.col("after").getField(part.name), of_key))
    return events.withColumn("after", after)


def _facts(key: Sequence[str], columns: Sequence[str], loads: int) -> list[Column]:
    sums = [F.coalesce(F.sum(f"counts.{op}"), F.lit(0)).alias(op) for op in OPS]
    rows = [F.coalesce(F.sum(F.col("rows")[n]), F.lit(0)).alias(f"load_{n}") for n in range(loads)]
    lacks = {name: F.col("row").getField(name).isNull() for name in columns}
    is_other = reduce(or_, [lacks[name] if name in key else ~lacks[name] for name in columns], F.lit(False))  # noqa: FBT003 - a literal
    return [
        *sums,
        *rows,
        F.count_if(F.size("named") > 0).alias("lack_values"),
        F.count_if("is_live").alias("live"),
        F.count_if(F.col("is_live") & is_other).alias("others"),
    ]


def _named(keys: DataFrame) -> set[str]:
    """Return the fields that the last change of some key did not send.

    Few batches have such keys. To collect names for all batches would be slow, because Spark does not compile
    aggregations that collect values.
    """
    return {found["name"] for found in keys.select(F.explode("named").alias("name")).distinct().collect()}


def _limits(columns: Sequence[str]) -> list[Column]:
    """Return the least and the greatest value of these columns of the key."""
    values = [F.col("key").getField(name) for name in columns]
    return [F.struct(F.min(value), F.max(value)).alias(f"limits_{n}") for n, value in enumerate(values)]


def _other_key(table: str, key: Sequence[str]) -> str:
    return (
        f"table {table} no longer has the key ({', '.join(key)}), so the mirror cannot identify its rows any more. "
        "Nothing of this batch was applied. If the table has another key now, load it with "
        f"`{load_command([table])}`, then start this query again: the copy will begin again with that load. Otherwise "
        "leave the table out of `tables`"
    )


def _net(piece: "_Piece", events: DataFrame, keys: DataFrame, *, has_gaps: bool) -> DataFrame:
    """Return the records to merge, one for each changed key."""
    live = keys.where("is_live")
    if not has_gaps:
        return live.select(*NET)
    fields = piece.work.row_type.fieldNames()
    target = as_events(piece.table.read(), events) if piece.table.exists and piece.emptied is None else events.limit(0)
    apart = moved(events, live.where("is_moving"), target.select(*OF_LIVES), fields).select(*NET)
    return live.where("NOT is_moving").select(*NET).unionByName(apart)


def as_events(rows: DataFrame, events: DataFrame) -> DataFrame:
    """Return the rows of a target as if each were an ``r`` event at the position of its last change.

    ``fields`` names only the columns whose values the row has, because a later change may leave out the other values.
    """
    have = {name.lower() for name in rows.columns}
    after = events.schema["after"].dataType
    kinds = {field.name: field.dataType for field in after}
    columns = {
        name: F.col(quoted(name)).cast(kind) if name.lower() in have else F.lit(None).cast(kind)
        for name, kind in kinds.items()
    }
    key = events.schema["key"].dataType
    texts = {
        name: F.expr(text_in_row("", name, f"{SYSTEM}.raw", scale))
        for name, scale in numeric_keys(key, after).items()
        if name.lower() in have
    }
    sent = [F.when(~F.expr(lacks("", name)), F.lit(name)) for name in kinds if name.lower() in have]
    known = rows.select(
        F.struct(
            *(texts.get(part.name, columns[part.name]).cast(part.dataType).alias(part.name) for part in key)
        ).alias("key"),
        F.struct(*(column.alias(name) for name, column in columns.items())).alias("after"),
        *(F.col(f"{SYSTEM}.{name}").alias(name) for name in (*POSITION, "ts", "unchanged", "raw")),
        F.lit("r").alias("op"),
        F.array().cast("array<string>").alias("flags"),
        F.array_compact(F.array(*sent).cast("array<string>")).alias("fields"),
    )
    return placed(known, None)


@dataclass(frozen=True, slots=True)
class _Piece:
    """The changes to commit. ``net`` is their net effect, and ``rows`` has the number of ``r`` events of each load.

    If ``emptied`` is a position, no earlier row is left: the table was truncated there, or the copy begins again there.
    ``kept`` has the columns in which some rows keep the target's value. ``bounds`` has the least and the greatest value
    of some columns of the key.
    """

    work: Work
    table: TargetTable
    emptied: Position | None
    net: DataFrame | None = None
    kept: Sequence[str] = ()
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    state: TableState = field(default_factory=TableState)
    is_empty: bool = True


def _commit(piece: _Piece) -> tuple[TableState, int | None]:
    """Apply a piece of a batch in one commit. Return the table's state after it, and the number of the commit."""
    work, net = piece.work, piece.net
    assert net is not None, "the piece was prepared"
    state, gone = advanced(piece.state, work.cuts, work.marks, piece.rows)
    if piece.is_empty and gone is None:
        return state, None
    schema, commit = target_schema(work.row_type), Commit(work.app, state.offset, state.to_json())
    if not piece.table.exists:
        return state, piece.table.create(schema, remaining(net, gone), commit)
    piece.table.fit(schema)
    if piece.emptied is not None:
        return state, piece.table.overwrite(remaining(net, gone), commit)
    sweeps = _has_before(piece.table, gone)
    if not (state.key or sweeps):  # no row of the target is updated or deleted
        return state, piece.table.append(remaining(net, gone), commit)
    effect = Effect(net, work.row_type.fieldNames(), state.key, piece.kept, piece.bounds)
    return state, piece.table.merge(merge_of(effect, gone, sweeps=sweeps), commit)


def _has_before(table: TargetTable, gone: Position | None) -> bool:
    """Return whether the target has a row whose last change is before ``gone``.

    After a first load, it usually has no such row.
    """
    return gone is not None and not table.read().where(is_before(f"{SYSTEM}.", gone)).isEmpty()


def _prepare_without_key(piece: _Piece, floor: Position | None, truncates: Mapping[str, int]) -> Prepared:
    """Prepare the changes of a table without a key. New rows are appended, and updates and deletes are refused."""
    work = piece.work
    loads = intervals(work.state, work.marks)
    rows = unfolded(located(_without_truncates(work), floor), work.row_type.fieldNames(), loads).localCheckpoint()
    facts = rows.agg(*_facts((), (), len(loads))).first()
    assert facts is not None, "an aggregation without groups has one row"
    if facts["u"] or facts["d"]:
        raise TableRefused(
            f"table {work.table} has no key, so the mirror cannot find the rows that were updated or deleted. "
            "Nothing of this batch was applied. Either leave the table out of `tables` (`changelog` accepts tables "
            f"without a key), or give it a primary key and load it with `{load_command([work.table])}`. Then "
            "start this query again: the copy will begin again with that load"
        )
    piece = replace(piece, net=rows.where("is_live").select(*NET), state=work.state)
    return _prepared(piece, facts, loads, truncates)


def _prepared(piece: _Piece, facts: Row, loads: Sequence[Interval], truncates: Mapping[str, int]) -> Prepared:
    rows = {load.id: facts[f"load_{n}"] for n, load in enumerate(loads)}
    counted = replace(piece, rows=rows, is_empty=not facts["live"] and piece.emptied is None)
    counts = {op: facts[op] for op in OPS if facts[op]}
    return Prepared({**counts, **truncates}, lambda: _commit(counted))
