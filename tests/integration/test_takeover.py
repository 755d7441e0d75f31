"""Tests two daemons on one pipeline: the second takes over when the first fails, and then keeps the first out."""

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import pytest

from sandbox.daemon import Daemon
from sandbox.postgres import Database
from sandbox.program import Role
from tests.support.kafka import end_of
from tests.support.proxy import Direction, Proxy
from tests.support.weather import Pipeline, Start, wait_until

log = logging.getLogger(__name__)

WAL_SENDER_TIMEOUT_S = 4

ROLES: tuple[Role, ...] = ("any", "active")

SETTINGS: dict[str, dict[str, Any]] = {
    "postgres": {"wal_sender_timeout": f"{WAL_SENDER_TIMEOUT_S}s", "status_interval": "1s"},
    "delivery": {"heartbeat": "200ms", "cut_bytes": "64KiB"},
}


class Pair:
    """An owner that is connected to PostgreSQL through a proxy, and its standby."""

    def __init__(self, owner: Pipeline, standby: Pipeline, proxy: Proxy) -> None:
        self.owner = owner
        self.standby = standby
        self.proxy = proxy

    def assert_complete(self) -> None:
        """Check that every number is delivered once and in order, by one of the daemons."""
        self.owner.write()
        self.standby.expect(self.owner)
        self.standby.assert_complete()


@pytest.fixture
def pair(start: Start) -> Iterator[Pair]:
    with Proxy() as proxy:

        def through_proxy(database: Database) -> str:
            proxy.target = (database.server.host, database.server.port)
            return database.conninfo(port=proxy.port)

        owner = start(SETTINGS, conninfo=through_proxy)
        dsn, brokers, settings = owner.database.conninfo(), owner.kafka.bootstrap_servers, owner.daemon.settings
        with Daemon(owner.daemon.name, dsn, brokers, settings, wait_for="any") as daemon:
            standby = Pipeline(owner.database, owner.kafka, daemon)
            standby.wait_for(state="standby")
            yield Pair(owner, standby, proxy)


@contextmanager
def taken_over(former: Pipeline, by: Pipeline) -> Iterator[None]:
    """Wait until ``by`` takes over, after the block has disabled ``former``. The test's log says how long that took."""
    began = time.monotonic()
    yield
    by.wait_for(state="streaming")
    log.info("taken over from %s in %.1f s", former.daemon.url, time.monotonic() - began)


class TestAStandby:
    def test_a_standby_does_not_disturb_and_takes_over_within_seconds(self, pair: Pair) -> None:
        with pair.owner.busy():
            time.sleep(3)
            assert [pair.standby.daemon.readiness(role) for role in ROLES] == [200, 503]
            assert [pair.owner.daemon.readiness(role) for role in ROLES] == [200, 200]
            assert "warning" not in pair.owner.daemon.log_text()
            with taken_over(pair.owner, by=pair.standby):
                pair.owner.daemon.kill()
            assert [pair.standby.daemon.readiness(role) for role in ROLES] == [200, 200]
        pair.assert_complete()

    def test_a_daemon_configured_for_another_server_does_not_disturb(self, pair: Pair) -> None:
        daemon = pair.owner.daemon
        with pair.standby.database.server.database() as elsewhere, pair.owner.busy():
            with elsewhere.connect() as connection:
                connection.execute("CREATE PUBLICATION pgsluice FOR ALL TABLES")
            settings = {**daemon.settings, "postgres": {**daemon.settings["postgres"], "slot": "another"}}
            brokers = pair.owner.kafka.bootstrap_servers
            with Daemon(daemon.name, elsewhere.conninfo(), brokers, settings, wait_for=None) as lost:
                assert lost.wait() == 65
                assert "but postgres.slot is 'another'" in lost.log_text()
        assert "warning" not in daemon.log_text()
        pair.assert_complete()

    def test_a_suspended_owner_is_replaced(self, pair: Pair) -> None:
        """Check also that the former owner becomes the standby when it continues."""
        with pair.owner.busy():
            for former, other in ((pair.owner, pair.standby), (pair.standby, pair.owner)):
                with taken_over(former, by=other):
                    former.daemon.send(signal.SIGSTOP)
                former.daemon.send(signal.SIGCONT)
                former.wait_for(state="standby")
                assert other.daemon.status()["state"] == "streaming"
        pair.assert_complete()

    @pytest.mark.long
    @pytest.mark.parametrize("direction", [None, "to_server"])
    def test_an_owner_cut_off_only_from_postgresql_is_replaced(self, pair: Pair, direction: Direction | None) -> None:
        with pair.owner.busy():
            with taken_over(pair.owner, by=pair.standby):
                pair.proxy.drop(direction)
            wait_until(lambda: pair.owner.daemon.readiness() != HTTPStatus.OK, "the former owner to be unready")
            pair.proxy.resume()
            pair.proxy.cut()
            pair.owner.wait_for(state="standby")
        pair.assert_complete()

    @pytest.mark.long
    def test_an_owner_in_the_middle_of_a_large_transaction_is_replaced(self, pair: Pair) -> None:
        pair.owner.write()
        assert pair.owner.read(10)
        topic = f"{pair.owner.daemon.name}.public.numbers"
        before = end_of(pair.owner.kafka, topic)
        with taken_over(pair.owner, by=pair.standby):
            pair.owner.write_at_once(100_000)
            wait_until(lambda: end_of(pair.owner.kafka, topic) > before, "rows of the transaction")
            pair.owner.daemon.send(signal.SIGSTOP)
        pair.owner.daemon.send(signal.SIGCONT)
        pair.owner.wait_for(state="standby")
        pair.assert_complete()
