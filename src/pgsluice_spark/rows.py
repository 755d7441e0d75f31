"""The rows of a mirror: their columns, and the statement that applies a batch to them.

Used by :mod:`.mirror`, :mod:`.copies`, :mod:`.audit`, :mod:`.tail` and :mod:`.values`.

``tests/spark/test_mirror.py`` covers this module.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation
from pyspark.sql.types import ArrayType, DataType, IntegralType, MapType, StringType, StructField, StructType

from pgsluice_spark.cuts import Position
from pgsluice_spark.errors import TableRefused
from pgsluice_spark.lives import POSITION
from pgsluice_spark.numerics import numeric_keys, shortest, text_in_row
from pgsluice_spark.targets import Merge, quoted

SYSTEM: Final = "_pgsluice"
"""The struct column that the mirror adds to each table.

It has the position and the time of the row's last change, the names of fields whose values are unknown, and the texts
of values that their types cannot hold.
"""

_PLAIN: Final = re.compile(r"[A-Za-z0-9 ._:/@+-]{1,100}")
"""Matches the strings that are used as bounds. Their length is limited, because they become part of a statement."""

_SYSTEM_TYPE: Final = "epoch int, lsn long, seq long, ts timestamp, unchanged array<string>, raw map<string, string>"


def target_schema(row: StructType) -> StructType:
    """Return the columns of a target: the columns of the row, and our own column."""
    if SYSTEM in (name.lower() for name in row.fieldNames()):
        raise TableRefused(f"a table has a column {SYSTEM}, but the mirror needs this name. Rename the column")
    fields = [StructField(field.name, field.dataType) for field in row]
    return StructType([*fields, StructField(SYSTEM, StructType.fromDDL(_SYSTEM_TYPE))])


def remaining(net: DataFrame, gone: Position | None) -> DataFrame:
    """Return the rows of ``net`` for a target without rows: those that are not deleted, and not before ``gone``.

    A value that would be kept from the target's row is unknown, because the target has no such row.
    """
    there = net.where("op != 'd'")
    if gone is not None:
        there = there.where(f"NOT {is_before('', gone)}")
    return there.alias("s").select("cells.*", F.expr(_system_sql("concat(s.kept, s.unchanged)", "s.raw")).alias(SYSTEM))


def is_before(prefix: str, place: Position) -> str:
    """Return a condition in SQL that is true if the position in the columns with this prefix is before ``place``."""
    epoch, lsn, seq = (f"{prefix}{name}" for name in POSITION)
    return (
        f"({epoch} < {place.epoch} OR {epoch} = {place.epoch} AND "
        f"({lsn} < {place.lsn} OR {lsn} = {place.lsn} AND {seq} < {place.seq}))"
    )


@dataclass(frozen=True, slots=True)
class Effect:
    """The net effect of a piece of a batch on the rows of a table."""

    net: DataFrame
    fields: Sequence[str]
    key: Sequence[str]
    """The columns by which the rows of the target are found. There are none if the table has no key."""
    kept: Collection[str]
    """The names that occur in the column ``kept`` of ``net``."""
    bounds: Mapping[str, tuple[Any, Any]]
    """The least and the greatest value of each of :func:`bounded_columns`."""


def bounded_columns(key: Sequence[str], kinds: StructType, row: StructType) -> list[str]:
    """Return the columns of the key that are integers or strings, both in the key and in the row.

    Other types may have another order in the row. For example, a numeric can be a string in the key and a decimal in
    the row.
    """
    of_row = {field.name: field.dataType for field in row}
    return [
        part.name
        for part in kinds
        for kind in (IntegralType, StringType)
        if part.name in key and isinstance(part.dataType, kind) and isinstance(of_row.get(part.name), kind)
    ]


def merge_of(effect: Effect, gone: Position | None, *, sweeps: bool) -> Merge:
    """Return the statement that applies a piece of a batch.

    Rows whose last change is before ``gone`` are deleted. ``sweeps`` says whether the target may have such rows.
    """
    net, fields = effect.net, effect.fields
    source = (
        net if gone is None else net.withColumn("op", F.when(F.expr(is_before("", gone)), "d").otherwise(F.col("op")))
    )
    equal = _equal_keys(effect.key, net.schema["key"].dataType, net.schema["cells"].dataType) if effect.key else ()
    # without a key, all rows are new
    condition = " AND ".join([*equal, *_within(effect.bounds)]) or "false"
    clauses = [
        "WHEN MATCHED AND s.op = 'd' THEN DELETE",
        f"WHEN MATCHED THEN UPDATE SET {', '.join(_assignments(fields, effect.kept))}",
        f"WHEN NOT MATCHED AND s.op != 'd' THEN INSERT {_insert(fields)}",
    ]
    if gone is not None and sweeps:
        clauses.append(f"WHEN NOT MATCHED BY SOURCE AND {is_before(f't.{SYSTEM}.', gone)} THEN DELETE")
    return Merge(source, condition, clauses)


def _equal_keys(names: Sequence[str], key: StructType, row: StructType) -> Iterator[str]:
    """Yield conditions which together are true if the row ``t`` of the target has the key of the record ``s``."""
    kinds, numeric = {part.name: part.dataType for part in key}, numeric_keys(key, row)
    for name in names:
        theirs, ours = f"t.{quoted(name)}", f"s.key.{quoted(name)}"
        if name in numeric:
            theirs = text_in_row("t.", name, f"t.{SYSTEM}.raw", numeric[name])
            yield f"{shortest(theirs)} = {shortest(ours)}"
        else:
            yield f"{comparable_sql(theirs, kinds[name])} = {comparable_sql(ours, kinds[name])}"


def _within(bounds: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    """Yield conditions that follow from the equality of the keys.

    They let the target skip files whose keys are all below or above those of the piece. So the time for a piece of a
    first load does not grow with the number of rows that were loaded before.
    """
    for name, (least, greatest) in bounds.items():
        for comparison, value in ((">=", least), ("<=", greatest)):
            if _is_literal(value):
                yield f"t.{quoted(name)} {comparison} {_literal(value)}"


def _is_literal(value: object) -> bool:
    """Return whether a value can be written in SQL independently of Spark's settings for escapes."""
    return isinstance(value, int) or (isinstance(value, str) and _PLAIN.fullmatch(value) is not None)


def _literal(value: str | int) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def comparable_sql(value: str, kind: DataType) -> str:
    """Return ``value`` in a form that Spark can compare, because it cannot compare maps."""
    if isinstance(kind, MapType):
        return f"array_sort(map_entries({value}))"
    if isinstance(kind, ArrayType):
        return f"transform({value}, item -> {comparable_sql('item', kind.elementType)})"
    return value


def _assignments(fields: Sequence[str], kept: Collection[str]) -> list[str]:
    values = [f"t.{quoted(name)} = {_assigned(name, kept)}" for name in fields]
    known = f"t.{SYSTEM}"
    if not kept:
        return [*values, f"{known} = {_system_sql('s.unchanged', 's.raw')}"]
    raw = f"map_concat(map_filter({known}.raw, (name, text) -> array_contains(s.kept, name)), s.raw)"
    unchanged = f"concat(array_compact(array({', '.join(map(_unknown, kept))})), s.unchanged)"
    return [*values, f"{known} = {_system_sql(unchanged, raw)}"]


def _unknown(name: str) -> str:
    """Return the name of a column if its value is kept from the target's row, but this row lacks the value."""
    return f"CASE WHEN array_contains(s.kept, {_text(name)}) AND {lacks('t.', name)} THEN {_text(name)} END"


def lacks(row: str, name: str) -> str:
    """Return a condition in SQL that is true if a row of a target lacks a value that is not null in PostgreSQL.

    PostgreSQL leaves out only values that are not null. So if it has left out a value, and the column is null although
    there is no text for it, the target has never received the value. For example, the column may be new in the target.
    """
    return f"({row}{quoted(name)} IS NULL AND NOT map_contains_key({row}{SYSTEM}.raw, {_text(name)}))"


def _assigned(name: str, kept: Collection[str]) -> str:
    sent = f"s.cells.{quoted(name)}"
    if name not in kept:
        return sent
    return f"CASE WHEN array_contains(s.kept, {_text(name)}) THEN t.{quoted(name)} ELSE {sent} END"


def _insert(fields: Sequence[str]) -> str:
    """Return the part of the statement for rows that the target lacks.

    A value that would be kept from the target's row is unknown, because the target has no such row.
    """
    columns = ", ".join(quoted(name) for name in (*fields, SYSTEM))
    values = ", ".join(f"s.cells.{quoted(name)}" for name in fields)
    return f"({columns}) VALUES ({values}, {_system_sql('concat(s.kept, s.unchanged)', 's.raw')})"


def _system_sql(unchanged: str, raw: str) -> str:
    position = ", ".join(f"'{name}', s.{name}" for name in (*POSITION, "ts"))
    return f"named_struct({position}, 'unchanged', {unchanged}, 'raw', {raw})"


def _text(name: str) -> str:
    """Return a field's name as a literal. The name consists of letters, digits and underscores."""
    return f"'{name}'"
