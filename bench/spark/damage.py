"""Audits the mirror of a table while the table is written to. The second audit has three damaged rows to find."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench import machine
from bench.spark.races import TABLE
from bench.spark.results import Audited, AuditResult
from bench.spark.stage import Stage
from pgsluice_spark import AuditReport

ROWS = 1_000_000
NAME = f"public.{TABLE}"
PAUSE_S = 0.1
WRITTEN = 10_000
"""The writer uses the ids from 1 to ``WRITTEN``. The damaged rows have ids outside this range."""

CHANGED, MISSING, EXTRA = WRITTEN + 1, WRITTEN + 2, -1
DAMAGE = (
    f"UPDATE {{0}} SET note = 'damaged' WHERE id = {CHANGED}",
    f"INSERT INTO {{0}} SELECT {EXTRA}, * EXCEPT (id) FROM {{0}} WHERE id = {MISSING}",
    f"DELETE FROM {{0}} WHERE id = {MISSING}",
)


class Writer(threading.Thread):
    """Commits updates, deletes and inserts continuously."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.commits = 0
        self._stage, self._end = stage, threading.Event()

    def run(self) -> None:
        """Write until :meth:`stop` is called."""
        with self._stage.database.connect() as connection:
            while not self._end.wait(PAUSE_S):
                id = self.commits % WRITTEN + 1  # noqa: A001 - the column's name
                connection.execute(
                    f"""
                    BEGIN;
                    UPDATE {TABLE} SET amount = amount + 1, note = 'commit {self.commits}' WHERE id = {id};
                    DELETE FROM {TABLE} WHERE id = {(id + 50) % WRITTEN + 1};
                    INSERT INTO {TABLE} (id, note) VALUES ({(id + 20) % WRITTEN + 1}, 'again') ON CONFLICT DO NOTHING;
                    COMMIT
                    """.encode()
                )
                self.commits += 1

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self._end.set()
        self.join()


@contextmanager
def writing(stage: Stage) -> Iterator[Writer]:
    """Write to the table until the context ends."""
    writer = Writer(stage)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


def measure(stage: Stage) -> AuditResult:
    """Mirror the table, audit the mirror, damage it, and audit it again. Raise RuntimeError if an audit is wrong."""
    stage.mirror("audited", [NAME])
    moment, audits = machine.begin(), []
    with writing(stage) as writer:
        audits.append(_audit(stage, writer, "undamaged", (0, 0, 0)))
        _damage(stage)
        audits.append(_audit(stage, writer, "a changed value, a missing row, an extra row", (1, 1, 1)))
    return AuditResult(machine.end(moment), audits)


def _audit(stage: Stage, writer: Writer, title: str, expected: tuple[int, int, int]) -> Audited:
    commits, begin = writer.commits, time.monotonic()
    report = stage.pipeline.audit(stage.target("audited"), postgres=stage.database.conninfo())
    seconds = time.monotonic() - begin
    (table,) = report.tables
    found = (table.changed, table.missing, table.extra)
    if found != expected or (any(expected) and _named(report) != {str(one) for one in (CHANGED, MISSING, EXTRA)}):
        raise RuntimeError(f"the audit is wrong: {report}")
    return Audited(title, table.rows, seconds, writer.commits - commits, found)


def _named(report: AuditReport) -> set[str | None]:
    return {one.key["id"] for table in report.tables for one in table.differences}


def _damage(stage: Stage) -> None:
    """Damage the mirror's table, and record its new version in the control table, as the mirror does after a commit."""
    table = f"delta.`{stage.directory / 'audited' / NAME}`"
    for statement in DAMAGE:
        stage.spark.sql(statement.format(table))
    version = stage.spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").collect()[0]["version"]
    stage.spark.sql(
        f"""
        UPDATE delta.`{stage.directory / "audited" / "_pgsluice_cuts"}`
        SET tables = transform_values(tables, (name, one) -> named_struct('version', {version}L,
            'is_finished', one.is_finished, 'status', one.status, 'state', one.state))
        """
    )
