"""Tests the metrics of a daemon: the documented names, the lag in many situations, and the slot without a reader."""

import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from sandbox.program import Program
from tests.support.weather import Pipeline, Start, configured, wait_until

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """Provide a server that a test can stop."""
    with Postgres(17) as server:
        yield server


def lag_seconds(daemon: Program) -> float:
    found = daemon.metric("pgsluice_lag_seconds")
    assert found is not None, "pgsluice_lag_seconds has no value"
    return found


def is_sampled(daemon: Program) -> bool:
    return has(daemon, "pgsluice_slot_sampled_timestamp_seconds")


def has(daemon: Program, name: str) -> bool:
    return daemon.metric(name) is not None


def assert_growing(daemon: Program) -> None:
    before, began = lag_seconds(daemon), time.monotonic()
    wait_until(lambda: lag_seconds(daemon) > before + 2, "the lag to grow")
    assert lag_seconds(daemon) < before + time.monotonic() - began + 10, "the lag grew faster than time passed"


def test_metrics_have_the_documented_names_labels_and_values(start: Start) -> None:
    pipeline = start()
    daemon = pipeline.daemon
    pipeline.write(7)
    pipeline.wait_until_confirmed()
    wait_until(lambda: daemon.metric("pgsluice_slot_active") == 1, "the slot to be sampled")
    wait_until(lambda: daemon.metric("pgsluice_slot_decoded_bytes_total"), "statistics of the slot")
    assert daemon.metric("pgsluice_slot_xmin_age_transactions") is not None
    lines = [line for line in daemon.metrics().splitlines() if not line.startswith("#")]
    documented = dict(re.findall(r"^\| `(\w+)` \| \w+ \| (.*?) ?\| ", DOCUMENT.read_text(), re.MULTILINE))
    for line in lines:
        name, labels, value = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line).groups()  # type: ignore[union-attr]
        base = re.sub(r"_(?:bucket|count|sum)$", "", name)
        known = {"pipeline", *re.findall(r"`(\w+)`", documented[base]), *(["le"] if base != name else [])}
        assert set(re.findall(r'(\w+)="', labels)) == known - ({"le"} if not name.endswith("_bucket") else set()), line
        assert f'pipeline="{daemon.name}"' in labels
        assert value != "NaN"
    topic = f"{daemon.name}.public.numbers"
    assert daemon.metric("pgsluice_topic_events_total", topic=topic, op="c") == 7
    assert daemon.metric("pgsluice_state", state="streaming") == 1
    wait_until(lambda: lag_seconds(daemon) == 0, "no lag")
    wait_until(lambda: daemon.metric("pgsluice_source_lag_seconds") == 0, "no lag behind the source")
    assert {daemon.metric("pgsluice_stage_lag_bytes", stage=one) for one in ("receive", "deliver", "confirm")} >= {0}
    assert daemon.metric("pgsluice_event_loop_delay_seconds_count")
    status = daemon.status()
    assert (status["lag_seconds"], status["slot_status"]["active"]) == (0, True)
    assert status["slot_status"]["wal_status"] == "reserved"


@pytest.mark.parametrize("version", [10, 14, 18])
def test_an_idle_server_causes_no_lag(version: int, start: Start) -> None:
    """The lag must also be zero if the WAL ends at the beginning of a segment or of a page."""
    pipeline = start(version=version)
    pipeline.write()
    with pipeline.database.connect() as admin:
        for statement in ("SELECT pg_switch_wal()", "CHECKPOINT", "CREATE TABLE unpublished ()"):
            admin.execute(statement)
            time.sleep(2)  # enough for a heartbeat and a sample, which would show a lag
            wait_until(lambda: lag_seconds(pipeline.daemon) == 0, statement)
    assert pipeline.daemon.metric("pgsluice_slot_xmin_age_transactions") is not None
    assert (pipeline.daemon.metric("pgsluice_slot_decoded_bytes_total") is None) == (version < 14)


@pytest.mark.long
def test_the_lag_grows_while_kafka_is_away(own_kafka: Kafka, start: Start) -> None:
    pipeline = start(broker=own_kafka)
    daemon = pipeline.daemon
    pipeline.write()
    pipeline.wait_until_confirmed()
    own_kafka.stop()
    pipeline.write_at_once(100)
    wait_until(lambda: lag_seconds(daemon) > 2, "the lag to grow")
    assert_growing(daemon)
    daemon.stop()
    daemon.start(wait=False)
    wait_until(lambda: is_sampled(daemon), "the slot to be sampled by a process that has no session")
    assert daemon.metric("pgsluice_slot_active") == 0
    assert (daemon.metric("pgsluice_slot_retained_bytes") or 0) > 0
    wait_until(lambda: daemon.metric("pgsluice_lag_bytes"), "the lag in bytes")
    assert_growing(daemon)
    retained = daemon.metric("pgsluice_slot_retained_bytes")
    with pipeline.database.connect() as admin:
        admin.execute("SELECT pg_switch_wal()")
    pipeline.write_at_once(100)
    wait_until(lambda: daemon.metric("pgsluice_slot_retained_bytes") != retained, "another sample of the slot")
    own_kafka.start()
    wait_until(lambda: daemon.metric("pgsluice_active"), "a session")
    wait_until(lambda: lag_seconds(daemon) == 0, "everything to be delivered")
    pipeline.assert_complete()


@pytest.mark.long
def test_the_lag_grows_while_postgresql_is_away(own_postgres: Postgres, start: Start) -> None:
    pipeline = start(server=own_postgres)
    daemon = pipeline.daemon
    pipeline.write()
    pipeline.wait_until_confirmed()
    wait_until(lambda: is_sampled(daemon), "the slot to be sampled")
    own_postgres.stop()
    wait_until(lambda: daemon.metric("pgsluice_active") == 0, "the end of the session")
    wait_until(lambda: lag_seconds(daemon) > 30, "the lag to grow")
    seen = daemon.metric("pgsluice_slot_sampled_timestamp_seconds")
    assert_growing(daemon)
    assert daemon.metric("pgsluice_slot_sampled_timestamp_seconds") == seen
    own_postgres.start()
    wait_until(lambda: lag_seconds(daemon) == 0, "the lag to end")
    wait_until(lambda: daemon.metric("pgsluice_slot_sampled_timestamp_seconds") != seen, "a sample of the slot")


def test_a_standby_leaves_lag_and_slot_to_the_owner(start: Start) -> None:
    owner = start()
    with Daemon(
        owner.daemon.name,
        owner.database.conninfo(),
        owner.kafka.bootstrap_servers,
        configured(None),
        wait_for="any",
    ) as standby:
        wait_until(lambda: standby.metric("pgsluice_state", state="standby"), "the standby")
        wait_until(lambda: is_sampled(owner.daemon), "the slot to be sampled")
        for name in ("pgsluice_lag_seconds", "pgsluice_lag_bytes", "pgsluice_slot_active"):
            wait_until(partial(has, owner.daemon, name), f"{name} of the owner")
            assert standby.metric(name) is None
        status = standby.status()
        assert (status["lag_seconds"], status["lag_bytes"], status["slot_status"]) == (None, None, None)
        owner.daemon.stop()
        standby.wait_until_ready("active")
        wait_until(lambda: is_sampled(standby), "the slot to be sampled by its new owner")
        wait_until(lambda: lag_seconds(standby) == 0, "no lag")


def test_the_lag_of_older_changes_is_measured_from_their_commits(start: Start) -> None:
    pipeline = start({"delivery": {"cut_bytes": "64KiB", "inflight_max": "256KiB", "heartbeat": "500ms"}})
    pipeline.write()
    pipeline.wait_until_confirmed()
    pipeline.daemon.stop()
    pipeline.write_at_once(2000, width=2000)
    time.sleep(5)
    oldest = 0.0
    pipeline.daemon.start(wait=False)
    end = time.monotonic() + 30
    while oldest < 5 and time.monotonic() < end:
        oldest = max(oldest, _status_lag(pipeline))
        time.sleep(0.01)
    assert oldest >= 5
    wait_until(lambda: lag_seconds(pipeline.daemon) == 0, "no lag")


def _status_lag(pipeline: Pipeline) -> float:
    """Return the current lag from the status, because the metric can be a second old."""
    code, _ = pipeline.daemon._get("/livez")
    return float(pipeline.daemon.status()["lag_seconds"] or 0) if code else 0.0


@pytest.mark.long
def test_a_slot_that_is_dropped_while_kafka_is_away_is_noticed(
    own_kafka: Kafka, own_postgres: Postgres, start: Start
) -> None:
    """Only the metrics show that the slot is missing, because every session ends before it checks the slot."""
    own_postgres.create_database("shop")
    pipeline = start(broker=own_kafka, database=Database(own_postgres, "shop"))
    pipeline.daemon.stop()
    own_kafka.stop()
    pipeline.daemon.start(wait=False)
    wait_until(lambda: pipeline.daemon.metric("pgsluice_slot_exists") == 1, "the slot to be sampled")
    with pipeline.database.connect() as admin:
        admin.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.slot])
    wait_until(lambda: pipeline.daemon.metric("pgsluice_slot_exists") == 0, "the slot to be reported as missing")
    assert pipeline.daemon.metric("pgsluice_slot_active") is None
    pipeline.daemon.kill()
    own_kafka.start()


def test_sampling_the_slot_leaves_enough_connections_for_a_session(start: Start) -> None:
    """The role may have only two connections, which are just enough for a session."""
    with Postgres(17) as server:
        server.create_database("shop")
        with server.connect() as admin:
            admin.execute("CREATE ROLE poor LOGIN REPLICATION CONNECTION LIMIT 2")
        database = Database(server, "shop")
        pipeline = start(database=database, conninfo=lambda database: database.conninfo(user="poor"))
        for _ in range(4):
            with server.connect() as admin:
                admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'poor'")
            pipeline.write()
            pipeline.wait_until_confirmed()
            time.sleep(2)
        pipeline.assert_complete()
