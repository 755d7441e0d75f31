"""The rows of a mirror: their columns, and the statement that applies a batch to them.

Used by :mod:`.mirror`.

``tests/spark/test_mirror.py`` covers this module.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from pgsluice_spark.cuts import Position
from pgsluice_spark.errors import TableRefused
from pgsluice_spark.lives import POSITION
from pgsluice_spark.targets import Merge, quoted

SYSTEM: Final = "_pgsluice"
"""The column that has the position of the row's last change, and the names of fields whose values are unknown."""

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


def merge_of(net: DataFrame, fields: Sequence[str], key: Sequence[str], gone: Position | None) -> Merge:
    """Return the statement that applies a piece of a batch.

    ``net`` has the net effect of the piece. Rows whose last change is before ``gone`` are deleted.
    """
    source = (
        net if gone is None else net.withColumn("op", F.when(F.expr(is_before("", gone)), "d").otherwise(F.col("op")))
    )
    kinds = {part.name: part.dataType for part in net.schema["key"].dataType} if key else {}
    equal = [
        f"{comparable_sql(f't.{quoted(name)}', kinds[name])} = {comparable_sql(f's.key.{quoted(name)}', kinds[name])}"
        for name in key
    ]
    condition = " AND ".join(equal) or "false"  # without a key, all rows are new
    clauses = [
        "WHEN MATCHED AND s.op = 'd' THEN DELETE",
        f"WHEN MATCHED THEN UPDATE SET {', '.join(_assignments(fields))}",
        f"WHEN NOT MATCHED AND s.op != 'd' THEN INSERT {_insert(fields)}",
    ]
    if gone is not None:
        clauses.append(f"WHEN NOT MATCHED BY SOURCE AND {is_before(f't.{SYSTEM}.', gone)} THEN DELETE")
    return Merge(source, condition, clauses)


def comparable_sql(value: str, kind: DataType) -> str:
    """Return ``value`` in a form that Spark can compare, because it cannot compare maps."""
    if isinstance(kind, MapType):
        return f"array_sort(map_entries({value}))"
    if isinstance(kind, ArrayType):
        return f"transform({value}, item -> {comparable_sql('item', kind.elementType)})"
    return value


def _assignments(fields: Sequence[str]) -> list[str]:
    values = [
        f"t.{quoted(name)} = CASE WHEN array_contains(s.kept, {_text(name)}) THEN t.{quoted(name)} "
        f"ELSE s.cells.{quoted(name)} END"
        for name in fields
    ]
    known = f"t.{SYSTEM}"
    raw = f"map_concat(map_filter({known}.raw, (name, text) -> array_contains(s.kept, name)), s.raw)"
    unchanged = f"concat(array_intersect({known}.unchanged, s.kept), s.unchanged)"
    return [*values, f"{known} = {_system_sql(unchanged, raw)}"]


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
