"""Tests faults and bad input with real servers: pgsluice waits, or stops with the right message."""

import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from tests.support.weather import SETTINGS, Pipeline, Start, fails


@pytest.fixture
def own_kafka() -> Iterator[Kafka]:
    """Provide a broker that the test can stop."""
    with Kafka() as kafka:
        yield kafka


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """Provide a server that the test can stop. The server uses fsync, because some tests make it crash."""
    with Postgres(17, {"fsync": "on"}) as server:
        yield server


class TestStopAndStart:
    def test_delivered_changes_are_not_repeated_and_later_changes_are_not_lost(self, start: Start) -> None:
        pipeline = start()
        pipeline.write()
        pipeline.wait_until_confirmed()
        assert pipeline.daemon.stop() == 0
        pipeline.write()
        pipeline.daemon.start()
        pipeline.write()
        pipeline.assert_complete()

    def test_a_stop_in_the_middle_of_the_stream_loses_nothing(self, start: Start) -> None:
        pipeline = start()
        for _ in range(3):
            pipeline.write_at_once(2000)
            pipeline.daemon.restart()
        pipeline.assert_complete()

    def test_kill_9_loses_and_repeats_nothing(self, start: Start) -> None:
        pipeline = start()
        for _ in range(3):
            pipeline.write(50)
            pipeline.daemon.kill()
            pipeline.write(5)
            pipeline.daemon.start()
        pipeline.assert_complete()

    def test_a_large_transaction_gets_a_kafka_transaction_of_its_own(self, start: Start) -> None:
        pipeline = start({"delivery": {"cut_bytes": "64KiB", "heartbeat": "500ms"}})
        pipeline.write(3)
        pipeline.write_at_once(5000)
        pipeline.write(3)
        pipeline.assert_complete()

    def test_a_stop_while_a_large_transaction_is_written_blocks_no_reader(self, start: Start) -> None:
        pipeline = start({"delivery": {"cut_bytes": "16KiB", "heartbeat": "500ms"}})
        pipeline.write(3)
        pipeline.write_at_once(20_000)
        assert pipeline.daemon.stop() == 0
        pipeline.daemon.start()
        pipeline.assert_complete()


class TestKafkaIsAway:
    @pytest.mark.long
    def test_a_start_waits_for_kafka_and_says_so_once(self, own_kafka: Kafka, start: Start) -> None:
        pipeline = start(broker=own_kafka)
        pipeline.daemon.stop()
        own_kafka.stop()
        pipeline.write()
        before = len(pipeline.daemon.log_text())
        pipeline.daemon.start(wait=False)
        time.sleep(5)
        own_kafka.start()
        pipeline.daemon.wait_until_ready()
        pipeline.write()
        pipeline.assert_complete()
        assert pipeline.daemon.log_text()[before:].count("Kafka cannot be reached") == 1

    def test_delivery_continues_after_an_outage_of_kafka(self, own_kafka: Kafka, start: Start) -> None:
        pipeline = start(broker=own_kafka)
        pipeline.write()
        pipeline.wait_until_confirmed()
        own_kafka.kill()
        pipeline.write(200)
        time.sleep(20)
        own_kafka.start()
        pipeline.write()
        pipeline.assert_complete()

    def test_a_stop_during_an_outage_of_kafka_exits_with_75_and_loses_nothing(
        self, own_kafka: Kafka, start: Start
    ) -> None:
        pipeline = start({"shutdown": {"drain_timeout": "2s"}}, broker=own_kafka)
        pipeline.write()
        pipeline.wait_until_confirmed()
        own_kafka.pause()
        pipeline.write()
        time.sleep(1)
        assert pipeline.daemon.stop() == 75
        assert "could not be delivered within shutdown.drain_timeout" in pipeline.daemon.why_it_stopped()
        own_kafka.resume()
        pipeline.daemon.start()
        pipeline.assert_complete()


class TestPostgresIsAway:
    @pytest.mark.parametrize("mode", ["fast", "immediate"])
    def test_the_daemon_reconnects_to_a_restarted_server(self, own_postgres: Postgres, start: Start, mode: Any) -> None:  # noqa: ANN401 - one of a Literal's values
        pipeline = start(server=own_postgres)
        for _ in range(2):
            pipeline.write(20)
            own_postgres.restart(mode)
        pipeline.write()
        pipeline.wait_for(state="streaming")
        pipeline.assert_complete()

    @pytest.mark.long
    def test_a_server_can_shut_down_while_kafka_is_down(
        self, own_postgres: Postgres, own_kafka: Kafka, start: Start
    ) -> None:
        pipeline = start(server=own_postgres, broker=own_kafka)
        pipeline.write()
        pipeline.wait_until_confirmed()
        own_kafka.kill()
        pipeline.write()
        own_postgres.stop("fast")
        own_kafka.start()
        own_postgres.start()
        pipeline.write()
        pipeline.assert_complete()

    def test_the_daemon_waits_for_a_server_that_has_not_started(self, own_postgres: Postgres, start: Start) -> None:
        pipeline = start(server=own_postgres)
        pipeline.write()
        pipeline.daemon.stop()
        own_postgres.stop()
        pipeline.daemon.start(wait=False)
        pipeline.wait_for(state="waiting")
        own_postgres.start()
        pipeline.wait_for(state="streaming")
        pipeline.assert_complete()

    def test_an_idle_slot_does_not_hold_back_wal_while_others_write(
        self, start: Start, new_database: Callable[..., Database]
    ) -> None:
        pipeline = start()
        with new_database().connect() as connection:
            connection.execute("CREATE TABLE other AS SELECT generate_series(1, 10000) AS n")
        pipeline.wait_until_confirmed()


class TestAStandby:
    def test_a_standby_does_not_disturb_the_owner_and_takes_over(self, start: Start) -> None:
        owner = start()
        owner.write()
        settings = {**SETTINGS, **owner.daemon.settings}
        dsn, brokers = owner.database.conninfo(), owner.kafka.bootstrap_servers
        with Daemon(owner.daemon.name, dsn, brokers, settings, wait_for="any") as daemon:
            standby = Pipeline(owner.database, owner.kafka, daemon)
            standby.wait_for(state="standby")
            owner.write()
            assert owner.daemon.status()["state"] == "streaming"
            owner.wait_until_confirmed()
            owner.daemon.kill()
            standby.wait_for(state="streaming")
            owner.write()
            owner.wait_until_confirmed()
            assert standby.read(30) == list(range(1, 31))


class TestItStopsWithASentence:
    def test_a_slot_without_a_checkpoint(self, start: Start) -> None:
        pipeline = start()
        pipeline.daemon.stop()
        name = f"w{uuid4().hex[:10]}"
        with pipeline.database.connect() as connection:
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [f"pgsluice_{name}"])
        dsn, brokers = pipeline.database.conninfo(), pipeline.kafka.bootstrap_servers
        with Daemon(name, dsn, brokers, SETTINGS, wait_for=None) as daemon:
            assert daemon.wait() == 65
            assert "there is no checkpoint for it in Kafka" in daemon.log_text()
            daemon.start("--adopt-slot")
            adopted = Pipeline(pipeline.database, pipeline.kafka, daemon)
            adopted.wait_for(state="streaming", epoch=1)
            adopted.write()
            adopted.assert_complete()

    def test_a_slot_that_was_dropped(self, start: Start) -> None:
        pipeline = start()
        pipeline.write(5)
        pipeline.wait_until_confirmed()
        pipeline.daemon.stop()
        with pipeline.database.connect() as connection:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.slot])
        code, log = fails(pipeline)
        assert (code, "does not exist on this server" in log) == (65, True)
        pipeline.daemon.start("--adopt-slot")
        pipeline.wait_for(state="streaming", epoch=2)
        pipeline.write(5)
        found = pipeline.changes(10)
        assert [change["epoch"] for change in found] == [1] * 5 + [2] * 5

    def test_a_slot_that_somebody_advanced(self, start: Start) -> None:
        pipeline = start()
        pipeline.write(5)
        pipeline.wait_until_confirmed()
        pipeline.daemon.stop()
        pipeline.write(5)
        with pipeline.database.connect() as connection:
            connection.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [pipeline.slot])
        code, log = fails(pipeline)
        assert (code, "Somebody else advanced or re-created the slot" in log) == (65, True)

    def test_a_prefix_that_belongs_to_another_pipeline(self, start: Start) -> None:
        pipeline = start()
        pipeline.daemon.stop()
        settings = {"kafka": {**SETTINGS["kafka"], "topic_prefix": pipeline.daemon.name}}
        dsn, brokers = pipeline.database.conninfo(), pipeline.kafka.bootstrap_servers
        with Daemon(f"w{uuid4().hex[:10]}", dsn, brokers, settings, wait_for=None) as daemon:
            assert daemon.wait() == 78
            assert f"The topics under this prefix belong to pipeline '{pipeline.daemon.name}'" in daemon.log_text()
            daemon.settings["kafka"]["topic_prefix"] = daemon.name
            daemon.start()
            other = Pipeline(pipeline.database, pipeline.kafka, daemon)
            other.wait_for(state="streaming")
            other.write()
            other.assert_complete()

    def test_a_record_that_kafka_rejects(self, start: Start) -> None:
        pipeline = start()
        with pipeline.database.connect() as connection:
            connection.execute("ALTER TABLE numbers ADD t text")
            connection.execute(
                "INSERT INTO numbers SELECT 1, string_agg(md5(n::text), '') FROM generate_series(1, 100000) AS n"
            )
        assert pipeline.daemon.wait() == 65
        log = pipeline.daemon.log_text()
        assert "max.message.bytes" in log
        assert pipeline.daemon.name in log
        assert "c4ca4238a0b923820dcc509a6f75849b" not in log

    @pytest.mark.parametrize(
        ("postgres", "code", "sentence"),
        [
            ({"publications": ["missing"]}, 78, "'missing' does not exist"),
            ({"create_slot": False}, 78, "postgres.create_slot is false"),
            ({"user": "nobody_there"}, 77, "nobody_there"),
            ({"dbname": "nowhere"}, 78, "nowhere"),
        ],
    )
    def test_problems_in_postgresql(self, start: Start, postgres: dict[str, Any], code: int, sentence: str) -> None:
        pipeline = start({"postgres": postgres}, wait=False)
        assert pipeline.daemon.wait() == code, pipeline.daemon.log_text()
        assert sentence in pipeline.daemon.log_text()

    def test_a_slot_of_another_plugin(self, start: Start) -> None:
        pipeline = start({"postgres": {"slot": f"other_{uuid4().hex[:8]}"}}, wait=False)
        pipeline.daemon.kill()
        slot = pipeline.daemon.settings["postgres"]["slot"]
        with pipeline.database.connect() as connection:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [slot]
            )
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [slot])
        code, log = fails(pipeline)
        assert (code, "test_decoding" in log) == (78, True), log
