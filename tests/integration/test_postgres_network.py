"""Tests connections between PostgreSQL and pgsluice that are cut or stalled at any byte, slow, or silent."""

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
import pytest

from pgsluice.errors import RetryableError
from pgsluice.pgoutput.decoder import Decoder
from pgsluice.pgoutput.framing import MESSAGE_AT
from pgsluice.pgoutput.messages import Commit, Insert
from pgsluice.postgres import async_libpq
from pgsluice.postgres import catalog as catalog_module
from pgsluice.postgres.options import ConnectionOptions
from pgsluice.postgres.source import PostgresSource, SourceOptions
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from tests.support.proxy import Direction, Proxy
from tests.support.tls import make_certificate, tls_postgres
from tests.support.versions import long
from tests.support.weather import Start, wait_until

CUTS = 150
STALLS = 4
SEED = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """Provide a server that offers TLS."""
    with tls_postgres(18, *make_certificate(tmp_path_factory.mktemp("tls"))) as server:
        yield server


@pytest.fixture
def followed(server: Postgres) -> Iterator[Database]:
    """Provide a database with a published table."""
    with server.database() as database, database.connect() as admin:
        admin.execute("CREATE TABLE t (n int PRIMARY KEY, filler text)")
        admin.execute("CREATE PUBLICATION published FOR TABLE t")
        yield database


@pytest.fixture
def proxy(server: Postgres) -> Iterator[Proxy]:
    """Provide a proxy in front of the server."""
    with Proxy(server.host, server.port) as proxy:
        yield proxy


def options_through(proxy: Proxy, database: Database, **parameters: str) -> ConnectionOptions:
    return ConnectionOptions(
        {"dsn": database.conninfo(port=proxy.port), **parameters}, wal_sender_timeout_ms=400, status_interval_s=0.05
    )


class Follower:
    """Reads the stream as a pipeline does: keeps each complete transaction once, and then confirms the transaction."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.rows: list[int] = []
        self.delivered = 0
        self.sessions = 0
        self.resent = 0

    async def follow(self, count: int) -> None:
        """Run one session until ``count`` rows are kept, or until the connection breaks."""
        source = await PostgresSource.open(self.options)
        try:
            if await source.slot_position() is None:
                self.delivered = await source.create_slot()
            stream = await source.start()
            self.sessions += 1
            decoder, rows = Decoder(), []
            while len(self.rows) < count:
                for frame in await stream.read():
                    if not isinstance(frame, bytes):
                        continue
                    message = decoder.decode(frame[MESSAGE_AT:])
                    if isinstance(message, Insert):
                        (value, _) = message.new
                        assert isinstance(value, bytes)
                        rows.append(int(value))
                    elif isinstance(message, Commit):
                        self._keep(rows, message.end_lsn)
                        rows = []
                        stream.report(self.delivered, self.delivered)
        finally:
            await source.close()

    def _keep(self, rows: list[int], end_lsn: int) -> None:
        if end_lsn > self.delivered:
            self.rows += rows
            self.delivered = end_lsn
        else:
            self.resent += 1


@pytest.mark.parametrize("sslmode", ["disable", *long("require")])
async def test_connections_cut_at_any_byte_lose_or_repeat_nothing(
    sslmode: str, followed: Database, proxy: Proxy
) -> None:
    weather = random.Random(SEED)
    follower = Follower(SourceOptions(options_through(proxy, followed, sslmode=sslmode), "cut", ["published"]))
    await follower.follow(0)
    written = 0
    with followed.connect() as admin:
        for _ in range(CUTS):
            if written - len(follower.rows) < 200:
                written = write(admin, written, weather)
            proxy.cut_after(round(10 ** weather.uniform(0, 5)), weather.choice(("to_server", "to_client")))
            try:
                await follower.follow(written)
            except RetryableError:
                proxy.resume()
    proxy.resume()
    while len(follower.rows) < written:
        try:
            await follower.follow(written)
        except RetryableError:
            await asyncio.sleep(0.05)  # the server has not noticed yet that the former connection is gone
    assert follower.rows == list(range(written))
    assert follower.sessions > CUTS / 4, "too few cuts came in the middle of the stream"


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
async def test_a_stall_at_any_byte_is_detected(
    direction: Direction, followed: Database, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections stay open, and TCP reports no error."""
    monkeypatch.setattr(async_libpq, "ANSWER_TIMEOUT_S", 1.0)
    monkeypatch.setattr(catalog_module, "ANSWER_TIMEOUT_S", 1.0)
    weather = random.Random(SEED)
    options = options_through(proxy, followed, connect_timeout="2")
    follower = Follower(SourceOptions(options, "stalled", ["published"]))
    await follower.follow(0)
    written = 0
    with followed.connect() as admin:
        for _ in range(STALLS):
            written = write(admin, written, weather)
            proxy.stall_after(round(10 ** weather.uniform(2, 4)), direction)
            with pytest.raises(RetryableError):
                await follower.follow(written + 1)
            proxy.cut()
            proxy.resume()
    while len(follower.rows) < written:
        try:
            await follower.follow(written)
        except RetryableError:
            await asyncio.sleep(0.05)  # the server has not noticed yet that the former connection is gone
    assert follower.rows == list(range(written))


async def test_a_short_stall_does_not_end_the_session(followed: Database, proxy: Proxy) -> None:
    follower = Follower(SourceOptions(options_through(proxy, followed), "patient", ["published"]))
    await follower.follow(0)
    with followed.connect() as admin:
        written = write(admin, 0, random.Random(SEED))
    proxy.stall_after(20_000, "to_client")
    following = asyncio.create_task(follower.follow(written))
    await asyncio.sleep(0.3)
    proxy.resume()
    await following
    assert follower.rows == list(range(written))
    assert follower.sessions == 2


def write(admin: psycopg.Connection, written: int, weather: random.Random) -> int:
    """Insert rows in transactions of different sizes."""
    for _ in range(10):
        count = weather.randint(1, 40)
        sql = "INSERT INTO t SELECT n, repeat('x', %s) FROM generate_series(%s::int, %s) AS n"
        admin.execute(sql, [weather.randint(0, 500), written, written + count - 1])
        written += count
    return written


def test_the_daemon_delivers_everything_once_on_a_bad_network(followed: Database, proxy: Proxy, start: Start) -> None:
    pipeline = start(database=followed, conninfo=lambda database: database.conninfo(port=proxy.port))
    weather = random.Random(SEED)
    with pipeline.busy():
        for _ in range(8):
            proxy.cut_after(round(10 ** weather.uniform(2, 5)), weather.choice(("to_server", "to_client")))
            time.sleep(weather.uniform(0, 1))
    proxy.resume()
    pipeline.write()
    pipeline.assert_complete()


def test_the_walsender_stays_connected_while_kafka_accepts_nothing(
    followed: Database, own_kafka: Kafka, start: Start
) -> None:
    """pgsluice must send status updates although it reads nothing for much longer than wal_sender_timeout."""
    settings: dict[str, dict[str, Any]] = {
        "postgres": {"wal_sender_timeout": "1s", "status_interval": "300ms"},
        "delivery": {"cut_bytes": "64KiB", "inflight_max": "256KiB"},
    }
    pipeline = start(settings, database=followed, broker=own_kafka)
    pipeline.write()
    pipeline.wait_until_confirmed()
    own_kafka.pause()
    for _ in range(8):
        pipeline.write_at_once(500, width=2000)
    time.sleep(5)
    own_kafka.resume()
    pipeline.write()
    pipeline.assert_complete()
    assert pipeline.daemon.metric("pgsluice_sessions_total") == 1


def walsender_if_free(database: Database) -> psycopg.Connection | None:
    """Open a replication connection. Return None if the server has no free walsender."""
    try:
        return psycopg.connect(database.conninfo(replication="database"), autocommit=True)
    except psycopg.OperationalError:
        return None


def test_a_server_that_is_full_is_waited_for(start: Start) -> None:
    with Postgres(17, {"max_wal_senders": "1", "max_connections": "6"}) as server:
        server.create_database("shop")
        shop = Database(server, "shop")
        pipeline = start(database=shop)
        pipeline.write()
        pipeline.wait_until_confirmed()
        pipeline.daemon.stop()
        with wait_until(lambda: walsender_if_free(shop), "the daemon's walsender to leave"):
            pipeline.daemon.start(wait=False)
            wait_until(lambda: "raise max_wal_senders or max_connections" in pipeline.daemon.log_text(), "the reason")
        with ExitStack() as taken:
            with suppress(psycopg.OperationalError):
                while True:
                    taken.enter_context(shop.connect())
            wait_until(lambda: "too many clients" in pipeline.daemon.log_text(), "the reason")
            pipeline.wait_for(state="waiting")
        pipeline.wait_for(state="streaming")
        pipeline.write()
        pipeline.assert_complete()
