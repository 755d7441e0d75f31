"""Compares a table of PostgreSQL with its copy in the mirror, and finds the rows and values that differ.

Used by :mod:`.audit`. A table with a key is joined with its copy by the key. For a table without a key, the module
counts how often each row occurs on each side, and compares the counts.

``tests/spark/test_audit.py`` covers this module.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation
from pyspark.sql.types import StringType

from pgsluice_spark.postgres import SourceTable
from pgsluice_spark.report import DIFFERENT, EQUAL, Difference, TableReport
from pgsluice_spark.values import Pair

_KINDS: Final = ("value", "missing", "extra")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table on both sides, and the columns that are not compared, each with the reason."""

    side: SourceTable
    pairs: Sequence[Pair]
    exceptions: Mapping[str, str]

    @classmethod
    def of(cls, names: Mapping[str, str], rows: DataFrame, side: SourceTable) -> "Columns":
        """Return the columns. ``names`` has PostgreSQL's name for each field in the topic's newest schema."""
        kinds = {field.name.lower(): field.dataType for field in rows.schema}
        known = {name: (type_, arrays) for name, type_, arrays in side.columns}
        pairs = [
            Pair(number, column, field, *known[column], kinds.get(field.lower(), StringType()))
            for number, (field, column) in enumerate(names.items())
            if column in known
        ]
        reasons = {pair.column: reason for pair in pairs if (reason := pair.exception(side.version))}
        gone = {column: "PostgreSQL does not have it any more" for column in names.values() if column not in known}
        new = {name: "it is not in the topic's schema" for name in known if name not in names.values()}
        return cls(side, pairs, {**reasons, **gone, **new})

    @property
    def compared(self) -> list[Pair]:
        """The columns whose values are compared."""
        return [pair for pair in self.pairs if pair.column not in self.exceptions]

    def source(self, rows: DataFrame) -> DataFrame:
        """Return PostgreSQL's rows."""
        selected = [expression for pair in self.pairs for expression in pair.selected()]
        return self.side.read(rows.sparkSession, selected)

    def mirror(self, rows: DataFrame) -> DataFrame:
        """Return the mirror's rows with all columns. Columns that the mirror does not have yet are null."""
        have = {name.lower() for name in rows.columns}
        lacking = {pair.field: F.lit(None).cast("string") for pair in self.pairs if pair.field.lower() not in have}
        return rows.withColumns(lacking) if lacking else rows


def compared(table: str, rows: DataFrame, key: Sequence[str], columns: Columns, differences: int) -> TableReport:
    """Compare a table.

    ``rows`` are the rows of the mirror, and ``key`` has the fields of the key. The report names at most
    ``differences`` rows that differ.
    """
    begin = time.monotonic()
    keyed = [pair for pair in columns.pairs if pair.field in key]
    both = _joined(rows, keyed, columns) if keyed else _counted(rows, columns)
    seen = Observation()
    counts = [F.sum("in_postgres").alias("rows"), F.sum("in_mirror").alias("mirror_rows")]
    each = [F.sum(F.when(F.col("kind") == kind, F.col("count")).otherwise(0)).alias(kind) for kind in _KINDS]
    found = both.observe(seen, *counts, *each).where("kind IS NOT NULL").localCheckpoint()
    number = {name: count or 0 for name, count in seen.get.items()}
    named = found.limit(differences).collect()
    return TableReport(
        table,
        DIFFERENT if any(number[kind] for kind in _KINDS) else EQUAL,
        rows=number["rows"],
        mirror_rows=number["mirror_rows"],
        changed=number["value"],
        missing=number["missing"],
        extra=number["extra"],
        seconds=time.monotonic() - begin,
        differences=[one for row in named for one in _differences(row)][:differences],
        exceptions=columns.exceptions,
    )


def _joined(rows: DataFrame, keyed: Sequence[Pair], columns: Columns) -> DataFrame:
    """Return all rows of a table with a key. Each row has the sides that contain it, and the values that differ."""
    ours = columns.source(rows).withColumns({"pkey": _numbered(keyed, Pair.key), "in_postgres": F.lit(1)})
    theirs = columns.mirror(rows).select(F.struct("*").alias("m"), _numbered(keyed, Pair.mirrored_key).alias("mkey"))
    both = ours.join(theirs.withColumn("in_mirror", F.lit(1)), F.col("pkey") == F.col("mkey"), "full_outer")
    changes = [F.when(pair.differs("m"), _change(pair)) for pair in columns.compared]
    kind = (
        F.when(F.col("in_mirror").isNull(), "missing")
        .when(F.col("in_postgres").isNull(), "extra")
        .when(F.size("changes") > 0, "value")
    )
    return both.withColumn("changes", F.array_compact(F.array(*changes))).select(
        F.coalesce("in_postgres", F.lit(0)).alias("in_postgres"),
        F.coalesce("in_mirror", F.lit(0)).alias("in_mirror"),
        kind.alias("kind"),
        F.lit(1).alias("count"),
        _shown(keyed, lambda pair: F.coalesce(pair.text(), pair.shown("m"))).alias("row"),
        "changes",
    )


def _counted(rows: DataFrame, columns: Columns) -> DataFrame:
    """Return the distinct rows of a table without a key, and how often each row occurs on each side."""
    pairs = columns.compared
    ours = columns.source(rows).select(
        _numbered(pairs, Pair.cell).alias("cells"),
        _shown(pairs, Pair.text).alias("row"),
        F.lit(1).alias("in_postgres"),
        F.lit(0).alias("in_mirror"),
    )
    theirs = columns.mirror(rows).select(F.struct("*").alias("m"))
    mirrored = theirs.select(
        _numbered(pairs, lambda pair: pair.mirrored_cell("m")).alias("cells"),
        _shown(pairs, lambda pair: pair.shown("m")).alias("row"),
        F.lit(0).alias("in_postgres"),
        F.lit(1).alias("in_mirror"),
    )
    sums = [F.sum(name).alias(name) for name in ("in_postgres", "in_mirror")]
    both = ours.unionAll(mirrored).groupBy("cells").agg(*sums, F.min("row").alias("row"))
    more = F.col("in_postgres") - F.col("in_mirror")
    return both.select(
        "in_postgres",
        "in_mirror",
        F.when(more > 0, "missing").when(more < 0, "extra").alias("kind"),
        F.abs(more).alias("count"),
        "row",
        F.array().cast("array<struct<column: string, postgres: string, mirror: string>>").alias("changes"),
    )


def _numbered(pairs: Sequence[Pair], value: Callable[[Pair], Column]) -> Column:
    return F.struct(*(value(pair).alias(f"k{pair.number}") for pair in pairs))


def _shown(pairs: Sequence[Pair], text: Callable[[Pair], Column]) -> Column:
    return F.array(*(F.struct(F.lit(pair.column).alias("name"), text(pair).alias("text")) for pair in pairs))


def _change(pair: Pair) -> Column:
    return F.struct(F.lit(pair.column).alias("column"), pair.text().alias("postgres"), pair.shown("m").alias("mirror"))


def _differences(row: Any) -> list[Difference]:  # noqa: ANN401 - Spark's rows have no types
    key = {part["name"]: part["text"] for part in row["row"]}
    if row["kind"] != "value":
        return [Difference(row["kind"], key)]
    return [Difference("value", key, one["column"], one["postgres"], one["mirror"]) for one in row["changes"]]
