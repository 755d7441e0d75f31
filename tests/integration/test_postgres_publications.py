"""Tests publications that change or are dropped, and a row filter that fails for a row.

The remedies in the messages must work.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.versions import covered
from tests.support.weather import Pipeline, Start, fails

MANUAL = Path(__file__).parents[2] / "docs" / "postgresql.md"


def execute(pipeline: Pipeline, *statements: str) -> None:
    with pipeline.database.connect() as admin:
        for statement in statements:
            admin.execute(statement)


def numbers(changes: list[dict[str, Any]], epoch: int) -> list[int]:
    return [change["after"]["n"] for change in changes if change["epoch"] == epoch]


@pytest.mark.parametrize("version", [14, 18])
def test_tables_can_be_added_and_dropped_while_the_daemon_streams(version: int, start: Start) -> None:
    pipeline = start(version=version)
    execute(
        pipeline,
        "CREATE TABLE other (n int PRIMARY KEY)",
        "DROP PUBLICATION pgsluice; CREATE PUBLICATION pgsluice FOR TABLE other",
    )
    pipeline.write(3)  # these rows are not published
    execute(pipeline, "ALTER PUBLICATION pgsluice ADD TABLE numbers")
    pipeline.write(3)
    execute(pipeline, "ALTER PUBLICATION pgsluice DROP TABLE numbers")
    pipeline.write(3)  # these rows are not published
    execute(pipeline, "ALTER PUBLICATION pgsluice SET TABLE numbers, other")
    pipeline.write(3)
    assert pipeline.read(6) == [4, 5, 6, 10, 11, 12]


def test_a_row_filter_can_change_while_the_daemon_streams(start: Start) -> None:
    pipeline = start(version=15)
    execute(pipeline, "DROP PUBLICATION pgsluice; CREATE PUBLICATION pgsluice FOR TABLE numbers WHERE (n % 2 = 0)")
    pipeline.write(4)
    execute(pipeline, "ALTER PUBLICATION pgsluice SET TABLE numbers WHERE (n % 2 = 1)")
    pipeline.write(4)
    execute(pipeline, "ALTER PUBLICATION pgsluice SET TABLE numbers")
    pipeline.write(2)
    assert pipeline.read(6) == [2, 4, 5, 7, 9, 10]


@pytest.mark.parametrize("version", covered([14, 17, 18]))
def test_a_dropped_publication_stops_the_daemon(version: int, start: Start) -> None:
    """PostgreSQL up to 17 refuses to continue. From 18 on, it only warns, and omits the changes, so pgsluice stops."""
    pipeline = start(version=version)
    pipeline.write(3)
    execute(pipeline, "DROP PUBLICATION pgsluice")
    pipeline.write(3)  # these rows are lost, because no publication includes the table
    assert pipeline.daemon.wait() == 78
    assert 'publication "pgsluice"' in pipeline.daemon.why_it_stopped()
    code, log = fails(pipeline)
    assert (code, "does not exist" in log) == (78, True), log
    execute(pipeline, "CREATE PUBLICATION pgsluice FOR ALL TABLES")
    pipeline.write(3)
    code, log = fails(pipeline)
    assert (code, "(1) create the publication with CREATE PUBLICATION, (2) drop the slot" in log) == (78, True), log
    assert "PostgreSQL decodes with the catalog as it was at the slot's position" in log
    execute(pipeline, f"SELECT pg_drop_replication_slot('{pipeline.slot}')")
    pipeline.daemon.start("--adopt-slot")
    pipeline.write(3)
    changes = pipeline.changes(6)
    assert (numbers(changes, 1), numbers(changes, 2)) == ([1, 2, 3], [10, 11, 12])


@pytest.mark.parametrize(
    "transaction",
    [
        "BEGIN; INSERT INTO numbers VALUES (98); INSERT INTO numbers VALUES (99); COMMIT",
        "BEGIN; INSERT INTO numbers VALUES (98); SAVEPOINT a; INSERT INTO numbers VALUES (99); RELEASE a; COMMIT",
        "BEGIN; INSERT INTO numbers VALUES (99); PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'",
    ],
    ids=["plain", "under a savepoint", "prepared"],
)
def test_a_row_that_the_server_cannot_send_can_be_skipped(transaction: str, start: Start) -> None:
    """All earlier transactions must be delivered. The documented remedy must skip only the row's transaction."""
    pipeline = start(version=17)
    execute(
        pipeline,
        "CREATE EXTENSION pg_walinspect",
        "DROP PUBLICATION pgsluice; CREATE PUBLICATION pgsluice FOR TABLE numbers WHERE (1 / (n - 99) < 5)",
    )
    pipeline.write(3)
    pipeline.wait_until_confirmed()
    pipeline.daemon.stop()
    pipeline.write(3)
    execute(pipeline, *transaction.split("; "))
    pipeline.write(3)
    code, log = fails(pipeline)
    assert code == 65, log
    found = re.search(r"cannot send a change at ([0-9A-F]+/[0-9A-F]+) from slot", log)
    assert found is not None, log
    assert fails(pipeline)[0] == 65, "the server did not fail at the row again"
    with pipeline.database.connect() as admin:
        admin.execute(way_out(pipeline.slot, found[1]).encode())
    pipeline.daemon.start("--adopt-slot")
    pipeline.write(3)
    changes = pipeline.changes(12)
    assert (numbers(changes, 1), numbers(changes, 2)) == ([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12])


def way_out(slot: str, change: str) -> str:
    """Return the statement in docs/postgresql.md that skips a change."""
    (statement,) = re.findall(r"SELECT pg_replication_slot_advance[^;]*;", MANUAL.read_text())
    return str(statement).replace("pgsluice_shop", slot).replace("0/1500028", change)
