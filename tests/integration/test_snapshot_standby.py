"""Tests a pipeline that streams from a standby and loads tables from the primary."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from pgsluice.app import cli
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres, Standby
from tests.integration.test_snapshots import (
    SETTINGS,
    Writers,
    check,
    events_of,
    filled,
    marks,
    position,
    prepared,
    read_until,
    wait_until_loaded,
)
from tests.support.log import restored_logging  # noqa: F401 - a fixture
from tests.support.versions import long
from tests.support.weather import Pipeline, status_if, wait_until

pytestmark = pytest.mark.usefixtures("restored_logging")

ROLE = "follower"


@contextmanager
def standby_of(version: int) -> Iterator[tuple[Database, Standby]]:
    """Provide a database with the table ``items``, and a standby of its server. ROLE has the necessary rights."""
    with Postgres(version) as primary:
        primary.create_database("shop")
        shop = prepared(Database(primary, "shop"))
        with shop.connect() as admin:
            admin.execute(f"CREATE ROLE {ROLE} LOGIN REPLICATION; GRANT SELECT ON items TO {ROLE}")
        with primary.standby() as standby:
            yield shop, standby


@contextmanager
def following(shop: Database, standby: Standby, kafka: Kafka, primary: str | None) -> Iterator[Pipeline]:
    """Provide a pipeline that streams from the standby until the block ends. Its ``write`` methods use the primary."""
    settings: dict[str, dict[str, Any]] = {**SETTINGS, "snapshot": {**SETTINGS["snapshot"], "primary": primary}}
    conninfo = standby.conninfo("shop", user=ROLE)
    with Daemon(f"f{uuid4().hex[:10]}", conninfo, kafka.bootstrap_servers, settings, at_once=False) as daemon:
        daemon.start(wait=False)
        with shop.connect() as admin:

            def is_streaming() -> bool:
                admin.execute("SELECT pg_log_standby_snapshot()")
                assert daemon.alive, daemon.log_text()
                return status_if(daemon, {"state": "streaming"}) is not None

            wait_until(is_streaming, "the slot to be created")
        yield Pipeline(shop, kafka, daemon)


def blocked(pipeline: Pipeline) -> str:
    """Wait until the table cannot be read, and return the reason."""

    def reason() -> str | None:
        status = status_if(pipeline.daemon, {"state": "streaming"}) or {}
        found = status.get("snapshot") or {"not_loaded": []}
        return next((one["reason"] for one in found["not_loaded"] if one["state"] == "blocked"), None)

    return str(wait_until(reason, "the table to be blocked"))


def delivers(pipeline: Pipeline, server: Postgres) -> bool:
    """Insert a row on the server, and return whether exactly this change is delivered."""
    with server.connect("shop") as admin:
        admin.execute("INSERT INTO items VALUES (-2, 0, 'alone')")
        row = admin.execute("SELECT pg_current_wal_flush_lsn() - '0/0'").fetchone()
        assert row is not None
        found = events_of(read_until(pipeline, int(row[0])))
        admin.execute("DELETE FROM items WHERE id = -2")
    return [(event["op"], event["after"]["id"]) for event in found] == [("c", -2)]


@pytest.mark.parametrize("version", [*long(16), 18])
def test_rows_are_read_on_the_primary_and_changes_on_its_standby(version: int, kafka: Kafka) -> None:
    with standby_of(version) as (shop, standby):
        address = f"host={shop.server.host} port={shop.server.port}"
        settings = {"kafka": {"topics": {"partitions": 1}}}
        with Daemon(f"w{uuid4().hex[:10]}", shop.conninfo(), kafka.bootstrap_servers, settings) as daemon:
            whole = Pipeline(shop, kafka, daemon)
            filled(shop)
            with Writers(shop, seed=version).at_work(), following(shop, standby, kafka, address) as loading:
                wait_until_loaded(loading)
                cuts = check(loading, whole, position(shop))
                (end,) = [mark for cut in cuts for mark in marks(cut, "end")]
                assert end["rows"] == sum(event["op"] == "r" for event in events_of(cuts)) > 0


def test_a_pipeline_continues_when_its_standby_is_promoted(kafka: Kafka) -> None:
    """Check also that new tables are not loaded as long as the settings name the former primary."""
    with standby_of(18) as (shop, standby):
        address = f"host={shop.server.host} port={shop.server.port}"
        with following(shop, standby, kafka, address) as pipeline:
            wait_until_loaded(pipeline)
            with standby.connect() as admin:
                admin.execute("SELECT pg_promote()")
            with standby.connect("shop") as admin:
                admin.execute("CREATE TABLE later (n int PRIMARY KEY); INSERT INTO later VALUES (1)")
                admin.execute(f"ALTER PUBLICATION pgsluice ADD TABLE later; GRANT SELECT ON later TO {ROLE}")
            reason = blocked(pipeline)
            assert "is on timeline 1, but the stream is on timeline 2: a standby was promoted" in reason
            assert "remove snapshot.primary" in reason
            assert delivers(pipeline, standby)
            assert pipeline.daemon.stop() == 0
            del pipeline.daemon.settings["snapshot"]["primary"]
            pipeline.daemon.start()
            wait_until(lambda: pipeline.daemon.log_text().count('"loaded"') == 2, "the new table to be loaded")


@pytest.mark.long
def test_a_setting_that_names_another_server_blocks_loads(kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that changes are still delivered, and that ``pgsluice check`` and commands report the wrong setting."""
    with standby_of(17) as (shop, standby), Postgres(16) as other:
        for primary, reason, finding in (
            (None, "Tables cannot be loaded from a standby.", "the server is a standby"),
            (f"host={standby.host} port={standby.port}", "names is a standby", "names is a standby"),
            (f"host={shop.server.host} port={shop.server.port} user=nobody", "snapshot.primary: Postgre", '"nobody"'),
            (f"host={other.host} port={other.port} dbname=postgres user=postgres", "belongs to the", "belongs to the"),
        ):
            with following(shop, standby, kafka, primary) as pipeline:
                assert reason in blocked(pipeline)
                assert delivers(pipeline, shop.server)
                configuration = str(pipeline.daemon.config_file)
                assert cli.main(["snapshot", "start", "-c", configuration, "public.items"]) == 65
                assert reason in capsys.readouterr().err
                cli.main(["check", "-c", configuration])
                assert finding in capsys.readouterr().out
                # the reason is logged once for the tables, and once for the command
                assert pipeline.daemon.log_text().count(reason) == 2
