"""Tests the progress of loads in the status, on the status page, in the metrics and in the log of a real daemon."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

import pytest

from pgsluice.app import cli
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.support.log import restored_logging  # noqa: F401 - a fixture
from tests.support.versions import long
from tests.support.weather import wait_until

pytestmark = pytest.mark.usefixtures("restored_logging")

ROWS, ROWS_PER_S = 4000, 1000

TABLES = f"""
CREATE TABLE small (id int PRIMARY KEY);
INSERT INTO small VALUES (1);
CREATE TABLE large (id int PRIMARY KEY, v text);
INSERT INTO large SELECT n, repeat('x', 100) FROM generate_series(1, {ROWS}) n;
CREATE TABLE forbidden (id int PRIMARY KEY);
CREATE TABLE skipped (id int PRIMARY KEY);
CREATE PUBLICATION pgsluice FOR TABLE small, large, forbidden, skipped;
ANALYZE;
"""

SETTINGS: dict[str, dict[str, Any]] = {
    "snapshot": {"mode": "initial", "max_rows_per_second": ROWS_PER_S},
    "tables": {"rules": [{"match": "public.skipped", "snapshot": "skip"}]},
}


@pytest.fixture(params=[*long(10), 18])
def loading(
    request: pytest.FixtureRequest, new_database: Callable[..., Database], kafka: Kafka
) -> Iterator[tuple[Daemon, Callable[[], None]]]:
    """Provide a daemon that loads tables but cannot read all of them, and a function that grants the missing right."""
    database = new_database(request.param)
    role = f"loader_{database.name}"
    with database.connect() as admin:
        admin.execute(TABLES.encode())
        admin.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
        admin.execute(f"GRANT SELECT ON small, large TO {role}")

    def allow() -> None:
        with database.connect() as admin:
            admin.execute(f"GRANT SELECT ON forbidden TO {role}")

    with Daemon(f"l{uuid4().hex[:10]}", database.conninfo(user=role), kafka.bootstrap_servers, SETTINGS) as daemon:
        yield daemon, allow
    with database.connect() as admin:
        admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def snapshot(daemon: Daemon) -> dict[str, Any]:
    found = daemon.status()["snapshot"]
    assert found is None or isinstance(found, dict)
    return found or {"tables": {}, "not_loaded": []}


def logged(daemon: Daemon, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in daemon.log_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


def test_progress_is_reported_everywhere(
    loading: tuple[Daemon, Callable[[], None]], capsys: pytest.CaptureFixture[str]
) -> None:
    daemon, allow = loading
    wait_until(lambda: 0 < snapshot(daemon).get("rows", 0) < ROWS, "a part of the rows to be loaded")
    now = snapshot(daemon)
    assert now["estimated_rows"] == ROWS + 1
    assert now["tables"]["skipped"] == 1
    assert "public.large" in [table["table"] for table in now["not_loaded"]]

    wait_until(lambda: snapshot(daemon)["tables"].get("loaded") == 2, "the tables that may be read")
    wait_until(lambda: snapshot(daemon)["tables"]["blocked"] == 1, "the table that may not be read")
    (blocked,) = snapshot(daemon)["not_loaded"]
    assert (blocked["table"], blocked["state"]) == ("public.forbidden", "blocked")
    assert "permission denied" in blocked["reason"]
    assert cli.main(["status", "--url", daemon.url]) == 0
    assert "permission denied" in capsys.readouterr().out
    with urlopen(daemon.url) as page:  # noqa: S310 - the URL is our daemon's
        assert "permission denied" in page.read().decode()
    wait_until(lambda: daemon.metric("pgsluice_snapshot_tables", state="loaded") == 2, "the metrics")
    assert daemon.metric("pgsluice_snapshot_tables", state="blocked") == 1
    assert daemon.metric("pgsluice_snapshot_rows") == daemon.metric("pgsluice_snapshot_estimated_rows") == ROWS + 1
    assert (daemon.metric("pgsluice_snapshot_rounds_total", result="placed") or 0) >= 1 + ROWS // ROWS_PER_S

    allow()
    wait_until(lambda: logged(daemon, "tables are loaded"), "all tables to be loaded")
    (begin,), (end,) = logged(daemon, "tables are to be loaded"), logged(daemon, "tables are loaded")
    assert (begin["tables"], begin["estimated_rows"]) == (3, ROWS + 1)
    assert (end["tables"], end["rows"]) == (3, ROWS + 1)
    assert end["seconds"] >= ROWS / ROWS_PER_S - 1, "rows were loaded faster than max_rows_per_second allows"
    order = [line["table"] for line in logged(daemon, "loaded")]
    assert order.index("public.small") < order.index("public.large")


def test_without_snapshots_nothing_is_reported(database: Database, kafka: Kafka) -> None:
    with database.connect() as admin:
        admin.execute(TABLES.encode())
    with Daemon(f"l{uuid4().hex[:10]}", database.conninfo(), kafka.bootstrap_servers) as daemon:
        assert daemon.status()["snapshot"] is None
        assert daemon.metric("pgsluice_snapshot_tables", state="loaded") is None
