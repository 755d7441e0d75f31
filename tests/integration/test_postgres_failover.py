"""Tests standbys that are promoted while a pipeline streams from the primary or from the standby itself."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from sandbox.postgres import Database, Postgres, Standby
from tests.support.proxy import Proxy
from tests.support.weather import Pipeline, Start, fails, status_if, wait_until


def through(proxy: Proxy) -> Callable[[Database], str]:
    """Return a function that returns the connection string for a database behind ``proxy``."""
    return lambda database: database.conninfo(port=proxy.port)


def survives_failover(pipeline: Pipeline) -> None:
    """Make PostgreSQL copy the slot to standbys, as docs/postgresql.md describes."""
    pipeline.daemon.stop()
    conninfo = pipeline.database.conninfo(replication="database")
    with psycopg.connect(conninfo, autocommit=True) as walsender:
        walsender.execute(f'ALTER_REPLICATION_SLOT "{pipeline.slot}" (FAILOVER true)')
    pipeline.daemon.start()


def wait_until_copied(pipeline: Pipeline, standby: Standby) -> None:
    """Wait until the standby has a permanent copy of the slot. The daemon must advance the original slot for this."""
    with pipeline.database.connect() as primary, standby.connect() as admin:
        sql = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND synced AND NOT temporary"

        def is_copied() -> bool:
            primary.execute("SELECT pg_log_standby_snapshot()")
            return admin.execute(sql, [pipeline.slot]).fetchone() is not None

        wait_until(is_copied, "the slot to be copied")


def stop_copying(standby: Standby) -> None:
    """Make the standby keep its present copy of the slot."""
    with standby.connect() as admin:
        admin.execute("ALTER SYSTEM SET sync_replication_slots = off")
        admin.execute("SELECT pg_reload_conf()")
        sql = "SELECT FROM pg_stat_activity WHERE backend_type = 'slotsync worker'"
        wait_until(lambda: admin.execute(sql).fetchone() is None, "the slotsync worker to end")


def wait_until_replayed(primary: Postgres, standby: Standby) -> None:
    with primary.connect() as source, standby.connect() as target:
        ((lsn,),) = source.execute("SELECT pg_current_wal_lsn()")
        sql = "SELECT pg_last_wal_replay_lsn() >= %s"
        wait_until(lambda: target.execute(sql, [lsn]).fetchone() == (True,), "the standby to replay everything")


def promote(standby: Standby) -> None:
    with standby.connect() as admin:
        admin.execute("SELECT pg_promote()")


@contextmanager
def followed_primary(start: Start, version: int) -> Iterator[tuple[Pipeline, Standby, Proxy]]:
    """Provide a pipeline, a standby that has a copy of its slot, and the proxy that the daemon connects to."""
    with Postgres(version) as primary, Proxy(primary.host, primary.port) as proxy:
        primary.create_database("shop")
        pipeline = start(database=Database(primary, "shop"), conninfo=through(proxy))
        survives_failover(pipeline)
        with primary.standby() as standby:
            wait_until_copied(pipeline, standby)
            yield pipeline, standby, proxy
            pipeline.daemon.kill()


def go_over(pipeline: Pipeline, standby: Standby, proxy: Proxy) -> None:
    """Redirect the proxy to the standby."""
    proxy.target = (standby.host, standby.port)
    proxy.cut()
    pipeline.database = Database(standby, pipeline.database.name)


def test_nothing_is_lost_if_a_standby_with_a_copy_of_the_slot_is_promoted(start: Start) -> None:
    """The copy of the slot is older, so the server sends delivered transactions again, and pgsluice drops them."""
    with followed_primary(start, 17) as (pipeline, standby, proxy):
        stop_copying(standby)
        pipeline.write(50)
        pipeline.wait_until_confirmed()
        wait_until_replayed(pipeline.database.server, standby)
        pipeline.database.server.kill()
        go_over(pipeline, standby, proxy)
        promote(standby)
        pipeline.write()
        pipeline.assert_complete()
        assert resent(pipeline) > 0
        pipeline.daemon.restart()
        pipeline.write()
        pipeline.assert_complete()


def resent(pipeline: Pipeline) -> float:
    found = pipeline.daemon.metric("pgsluice_resent_transactions_total")
    assert found is not None
    return found


@pytest.mark.long
def test_a_promoted_standby_that_lacks_delivered_changes_is_refused(start: Start) -> None:
    """Changes must never be skipped silently, even if the new primary's WAL is already past the delivered position."""
    with followed_primary(start, 18) as (pipeline, standby, proxy):
        pipeline.write()
        wait_until_replayed(pipeline.database.server, standby)
        standby.stop()
        pipeline.write(5)
        pipeline.wait_until_confirmed()
        pipeline.database.server.kill()
        go_over(pipeline, standby, proxy)
        standby.start()
        pipeline.wait_for(state="waiting")
        promote(standby)
        assert pipeline.daemon.wait() == 65, pipeline.daemon.log_text()
        assert re.search("the server's WAL ends at|the server lost changes", pipeline.daemon.log_text())
        with standby.connect("shop") as admin:
            admin.execute("INSERT INTO numbers VALUES (1000)")
            admin.execute("SELECT pg_switch_wal()")
        code, log = fails(pipeline)
        assert (code, "timeline 1 was left at" in log) == (65, True), log
        pipeline.daemon.start("--adopt-slot")
        found = wait_until(lambda: ended(pipeline.changes(16), 1000), "the new history")
        assert [n for epoch, n in found if epoch == 1] == list(range(1, 16))
        anew = [n for epoch, n in found if epoch == 2]
        assert anew == [*range(anew[0], 11), 1000], "the new history begins where the copy of the slot is"


def ended(changes: list[dict[str, Any]], last: int) -> list[tuple[int, int]]:
    """Return the epoch and the number of each change, or an empty list if the change ``last`` has not arrived."""
    found = [(change["epoch"], change["after"]["n"]) for change in changes]
    return found if found[-1:] == [(2, last)] else []


@contextmanager
def followed_standby(start: Start, version: int) -> Iterator[tuple[Pipeline, Standby]]:
    """Provide a pipeline with a slot on a standby, and the standby. The pipeline's writers use the primary."""
    with Postgres(version) as primary:
        primary.create_database("shop")
        with primary.standby() as standby, following(start, Database(primary, "shop"), standby) as pipeline:
            yield pipeline, standby


@contextmanager
def following(start: Start, shop: Database, standby: Standby) -> Iterator[Pipeline]:
    pipeline = start(database=shop, conninfo=lambda _: standby.conninfo("shop"), wait=False)
    with shop.connect() as admin:

        def is_streaming() -> bool:
            admin.execute("SELECT pg_log_standby_snapshot()")
            return status_if(pipeline.daemon, {"state": "streaming"}) is not None

        wait_until(is_streaming, "the slot to be created")
    yield pipeline
    if pipeline.daemon.alive:
        pipeline.daemon.kill()


@pytest.mark.parametrize("version", [16, 18])
def test_a_standby_is_followed_and_promoted(version: int, start: Start) -> None:
    with followed_standby(start, version) as (pipeline, standby):
        pipeline.write()
        pipeline.assert_complete()
        with pipeline.busy():
            wait_until(lambda: len(pipeline.committed()) > 100, "some work")
        wait_until_replayed(pipeline.database.server, standby)
        pipeline.database.server.kill()
        promote(standby)
        pipeline.database = Database(standby, "shop")
        pipeline.write()
        pipeline.wait_until_confirmed()
        pipeline.daemon.restart()
        pipeline.wait_for(state="streaming")
        pipeline.write()
        pipeline.assert_complete()


def test_a_pipeline_on_a_standby_survives_the_promotion_of_its_upstream(start: Start) -> None:
    """The daemon's server stays a standby, but the promotion moves it to another timeline."""
    with Postgres(17) as primary:
        primary.create_database("shop")
        with (
            primary.standby() as upstream,
            upstream.standby() as standby,
            following(start, Database(primary, "shop"), standby) as pipeline,
        ):
            pipeline.write()
            pipeline.assert_complete()
            wait_until_replayed(primary, standby)
            primary.kill()
            promote(upstream)
            pipeline.database = Database(upstream, "shop")
            pipeline.write()
            pipeline.assert_complete()
            assert "The standby has gone over from timeline 1 to 2" in pipeline.daemon.log_text()
            pipeline.daemon.restart()
            pipeline.write()
            pipeline.assert_complete()


def test_a_slot_that_the_primary_invalidates_on_its_standby(start: Start) -> None:
    with followed_standby(start, 16) as (pipeline, _):
        primary = pipeline.database.server
        pipeline.write()
        pipeline.assert_complete()
        primary.settings["wal_level"] = "replica"
        primary.restart()
        assert pipeline.daemon.wait() == 65, pipeline.daemon.log_text()
        log = pipeline.daemon.log_text()
        assert "PostgreSQL has invalidated replication slot" in log
        pipeline.write()
        code, log = fails(pipeline)
        assert code == 65, log


@pytest.mark.long
def test_an_idle_standby_causes_no_lag(start: Start) -> None:
    """The lag must also be zero if the standby's WAL ends at the beginning of a segment or of a page.

    The metrics must also show how much WAL the standby keeps for the slot.
    """
    with followed_standby(start, 17) as (pipeline, _):
        daemon = pipeline.daemon
        with pipeline.database.connect() as primary:
            for statement in ("INSERT INTO numbers VALUES (1)", "SELECT pg_switch_wal()", "CHECKPOINT"):
                primary.execute(statement)
                time.sleep(5)
                wait_until(lambda: daemon.metric("pgsluice_lag_seconds") == 0, statement)
        wait_until(lambda: daemon.metric("pgsluice_slot_active") == 1, "the slot to be sampled")
        assert daemon.metric("pgsluice_slot_retained_bytes") is not None
        assert daemon.metric("pgsluice_slot_wal_status", status="reserved") == 1
