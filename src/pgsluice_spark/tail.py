"""Brings the rows of a mirror to the state that a snapshot of PostgreSQL sees.

Of the changes after the mirror's last cut, this module applies those that the snapshot sees. Used by :mod:`.audit`,
which explains why the result equals the table at the snapshot.

``tests/spark/test_audit.py`` covers this module.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documentation

from pgsluice_spark.errors import TableRefused
from pgsluice_spark.fold import OF_LIVES, broadcast_if_few, located, moved, placed
from pgsluice_spark.mirror import as_events, truncates_of
from pgsluice_spark.postgres import Snapshot
from pgsluice_spark.rows import SYSTEM
from pgsluice_spark.work import Work


def caught_up(rows: DataFrame, work: Work, snapshot: Snapshot, key: Sequence[str]) -> DataFrame:
    """Return ``rows`` with the changes of ``work`` that the snapshot sees.

    In the result, the column ``_pgsluice`` has only the fields ``unchanged`` and ``raw``. Raise TableRefused if rows of
    a table without a key were updated or deleted.
    """
    seen = work.events.where("op != 'r'").where(snapshot.sees(F.col("xid"))).localCheckpoint()
    truncated, _ = truncates_of(work, seen)
    floor = max(filter(None, (truncated, work.repeated)), default=None)
    kept = rows if truncated is None else rows.limit(0)
    if not key:
        return _with_inserts(kept, located(seen.where("op != 't'"), floor).where("is_live"), work.table)
    events = placed(seen.where("op != 't'"), floor)
    fields = work.row_type.fieldNames()
    known = as_events(kept, events)
    keys = events.where("is_live").select("row").distinct().localCheckpoint()
    changed = moved(events, keys, known.select(*OF_LIVES), fields).where("op != 'd'")
    there = known.join(broadcast_if_few(keys), "row", "left_anti")
    return there.select("after.*", _system()).unionByName(changed.select("cells.*", _system()))


def _with_inserts(rows: DataFrame, events: DataFrame, table: str) -> DataFrame:
    """Return ``rows`` and the inserted rows."""
    if not events.where("op != 'c'").isEmpty():
        raise TableRefused(
            f"table {table} has no key, and some of its rows were updated or deleted after the mirror's last cut"
        )
    return rows.unionByName(events.select("after.*", _system()), allowMissingColumns=True)


def _system() -> Column:
    return F.struct("unchanged", "raw").alias(SYSTEM)
