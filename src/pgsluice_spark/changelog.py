"""Keeps all changes of a table in a change log. Each piece of a batch (some whole cuts) is appended in one commit.

Used by :mod:`.pipeline`. The rows of a log are the changes that :func:`.read_changes` returns, each of them once. So
:func:`.latest` can compute the table from its log.

``tests/spark/test_query.py`` covers this module.
"""

from dataclasses import replace

from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark.fold import count_of, located
from pgsluice_spark.loads import TableState, advanced, intervals
from pgsluice_spark.targets import Commit, TargetTable
from pgsluice_spark.work import Prepared, Work

_IS_FIRST: str = "op != 't' OR partition = 0"
"""Selects the changes to keep. A truncate has a record in every partition, but the log keeps only one of them."""


def prepare(work: Work, table: TargetTable) -> Prepared:
    """Read the changes of ``work``. Return their counts and the function that commits them."""
    loads = intervals(work.state, work.marks)
    changes = located(work.events.where(_IS_FIRST), work.repeated).localCheckpoint()
    rows = [count_of(load).alias(f"load_{n}") for n, load in enumerate(loads)]
    ops = changes.groupBy("op").agg(F.count("*").alias("count"), *rows).collect()
    counted = {load.id: sum(row[f"load_{n}"] for row in ops) for n, load in enumerate(loads)}
    before = replace(work.state, key=work.state.key or work.reading.newest_key)
    state, _ = advanced(before, work.cuts, work.marks, counted)

    def commit() -> tuple[TableState, int | None]:
        if not ops:
            return state, None
        rows = changes.where("is_live").drop("position", "is_live")
        return state, table.extend(rows, Commit(work.app, state.offset, state.to_json()))

    return Prepared({row["op"]: row["count"] for row in ops}, commit)
