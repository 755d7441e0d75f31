"""Tests ``SlotWatch`` on every version, on a standby, and when the server hangs or has lost the slot."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from pgsluice.postgres import slot_watch as module
from pgsluice.postgres.options import Address, ConnectionOptions
from pgsluice.postgres.slot_watch import SlotSample, SlotWatch
from sandbox.postgres import Database, Postgres
from tests.support.proxy import Proxy
from tests.support.replication import SLOT, options_for, streaming
from tests.support.versions import covered

VERSIONS = covered()
WAL_STATUS_SINCE = 13


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "PERIOD_S", 0.05)


@pytest.fixture
def poor_role() -> Iterator[Callable[[Database], ConnectionOptions]]:
    """Provide a function that creates a role with only LOGIN and REPLICATION, and returns its connection options."""
    made: list[tuple[Database, str]] = []

    def make(database: Database) -> ConnectionOptions:
        role = f"poor_{database.name}"
        with database.connect() as admin:
            admin.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
        made.append((database, role))
        return options_for(database, user=role)

    yield make
    for database, role in made:
        with database.connect() as admin:
            admin.execute(f"DROP ROLE {role}")


@asynccontextmanager
async def watching(options: ConnectionOptions, server: Postgres | Proxy) -> AsyncIterator[SlotWatch]:
    """Watch a slot until the block ends."""
    watch = SlotWatch(SLOT, lambda: options)
    watch.follow(Address(server.host, "", server.port))
    task = asyncio.create_task(watch.run(lambda: True, lambda: True))
    try:
        yield watch
        assert not task.done(), "the watch has ended"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def next_sample(watch: SlotWatch) -> SlotSample:
    """Return the next sample that is taken after this call."""
    now = time.monotonic()
    async with asyncio.timeout(180):
        while watch.sample is None or watch.sample.sampled_at < now:  # noqa: ASYNC110 - no event announces a sample
            await asyncio.sleep(0.01)
    return watch.sample


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_slot_is_watched_with_minimal_rights(
    version: int, new_database: Callable[..., Database], poor_role: Callable[[Database], ConnectionOptions]
) -> None:
    database = new_database(version)
    options = poor_role(database)
    with database.connect() as admin:
        admin.execute("CREATE PUBLICATION published")
    async with watching(options, database.server) as watch:
        assert (await next_sample(watch)).slot is None
        async with streaming(database, options):
            sample = await next_sample(watch)
            assert sample.slot is not None
            assert sample.slot.active_pid is not None
            assert sample.slot.wal_status == ("reserved" if version >= WAL_STATUS_SINCE else None)
            assert sample.slot.safe_wal_size is None
            before = sample.retained_bytes
        with database.connect() as admin:
            admin.execute("CREATE TABLE t (n int)")
            ((wal_end,),) = admin.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchall()
            async with asyncio.timeout(180):
                while (sample := await next_sample(watch)).slot is None or sample.slot.active_pid is not None:
                    pass  # the server has not noticed yet that the walsender's client is gone
            assert before is not None
            assert sample.retained_bytes is not None
            assert sample.retained_bytes > before
            assert sample.wal_end is not None
            assert sample.wal_end >= int(wal_end)
            assert abs(sample.timestamp_s - time.time()) < 60
            admin.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
        sample = await next_sample(watch)
        assert (sample.slot, sample.retained_bytes) == (None, None)


async def test_a_slot_on_a_standby_is_watched() -> None:
    with Postgres(17) as primary:
        primary.create_database("shop")
        with primary.connect() as admin:
            admin.execute("CREATE ROLE poor LOGIN REPLICATION")
        with primary.standby() as standby:
            at_standby = Database(standby, "shop")
            _create_slot(primary, at_standby)
            async with watching(options_for(at_standby, user="poor"), standby) as watch:
                sample = await next_sample(watch)
                assert sample.slot is not None
                before = sample.retained_bytes
                assert before is not None
                with primary.connect("shop") as admin:
                    admin.execute("CREATE TABLE t (n int)")
                async with asyncio.timeout(180):
                    while ((await next_sample(watch)).retained_bytes or 0) <= before:
                        pass


def _create_slot(primary: Postgres, at_standby: Database) -> None:
    """Create a slot on the standby. The command waits until the primary logs its running transactions."""
    sql = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
    with ThreadPoolExecutor(1) as beside, at_standby.connect() as connection, primary.connect() as admin:
        created = beside.submit(connection.execute, sql, [SLOT])
        while not created.done():
            admin.execute("SELECT pg_log_standby_snapshot()")
            time.sleep(0.05)
        created.result()


async def test_the_remaining_bytes_and_the_loss_of_a_slot_are_reported() -> None:
    with (
        Postgres(18, {"max_slot_wal_keep_size": "32MB", "max_wal_size": "32MB"}) as server,
        server.database() as database,
        database.connect() as admin,
    ):
        admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        admin.execute("CREATE TABLE t (n int)")
        async with watching(options_for(database), server) as watch:
            sample = await next_sample(watch)
            assert sample.slot is not None
            safe = sample.slot.safe_wal_size
            assert safe is not None
            assert 0 < safe <= 48 << 20
            async with asyncio.timeout(180):
                while (sample := await next_sample(watch)).slot is None or sample.slot.wal_status != "lost":
                    admin.execute("INSERT INTO t VALUES (1)")
                    admin.execute("SELECT pg_switch_wal()")
                    admin.execute("CHECKPOINT")
            assert sample.slot.safe_wal_size is None
            assert sample.retained_bytes is None


class TestAServerThatHangs:
    @pytest.fixture
    def proxy(self, database: Database) -> Iterator[Proxy]:
        with database.connect() as admin:
            admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        with Proxy(database.server.host, database.server.port) as proxy:
            yield proxy
        with database.connect() as admin:
            admin.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])

    async def test_watching_continues_when_the_server_answers(
        self, database: Database, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "DEADLINE_S", 0.5)
        async with watching(options_for(database), proxy) as watch:
            await next_sample(watch)
            proxy.stall()
            stalled_at = time.monotonic()
            await asyncio.sleep(2)
            assert watch.sample is not None
            assert watch.sample.sampled_at < stalled_at + 1
            proxy.cut()
            proxy.resume()
            await next_sample(watch)

    @pytest.mark.parametrize("while_connecting", [False, True])
    async def test_a_stop_does_not_wait_for_the_watch(
        self,
        while_connecting: bool,  # noqa: FBT001 - a parameter of the test
        database: Database,
        proxy: Proxy,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(module, "DEADLINE_S", 3600.0)
        async with watching(options_for(database), proxy) as watch:
            if while_connecting:
                proxy.stall()
            else:
                await next_sample(watch)
                proxy.stall()
            await asyncio.sleep(0.5)
            began = time.monotonic()
        assert time.monotonic() - began < 20

    async def test_a_server_that_cannot_be_reached_is_watched_again_later(
        self, database: Database, proxy: Proxy
    ) -> None:
        async with watching(options_for(database), proxy) as watch:
            await next_sample(watch)
            proxy.cut()
            proxy.target = ("127.0.0.1", 1)
            await asyncio.sleep(0.3)
            seen = watch.sample
            proxy.target = (database.server.host, database.server.port)
            assert await next_sample(watch) is not seen


async def test_the_slot_is_watched_only_when_necessary(database: Database) -> None:
    """Check that the watch keeps no connection if nobody wants samples, or if no session is streaming."""
    is_wanted = is_streaming = True
    watch = SlotWatch(SLOT, lambda: options_for(database))
    task = asyncio.create_task(watch.run(lambda: is_wanted, lambda: is_streaming))
    await asyncio.sleep(0.1)
    assert watch.sample is None, "the watch has no server's address yet"
    watch.follow(Address(database.server.host, "", database.server.port))
    await next_sample(watch)
    is_wanted = False
    async with asyncio.timeout(180):
        while watch.sample is not None:  # noqa: ASYNC110 - no event announces the change
            await asyncio.sleep(0.01)
    assert watch._catalog is None
    is_wanted, is_streaming = True, False
    await next_sample(watch)
    async with asyncio.timeout(180):
        while watch._catalog is not None:  # noqa: ASYNC110 - no event announces the change
            await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_watch_moves_to_another_server(database: Database, new_database: Callable[..., Database]) -> None:
    other = new_database(18)
    with other.connect() as admin:
        admin.execute("SELECT pg_create_logical_replication_slot('elsewhere', 'pgoutput')")
        options = {database.server.port: options_for(database), other.server.port: options_for(other)}
        port = database.server.port
        watch = SlotWatch("elsewhere", lambda: options[port])
        watch.follow(Address(database.server.host, "", port))
        task = asyncio.create_task(watch.run(lambda: True, lambda: True))
        assert (await next_sample(watch)).slot is None
        port = other.server.port
        watch.follow(Address(other.server.host, "", port))
        assert (await next_sample(watch)).slot is not None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        admin.execute("SELECT pg_drop_replication_slot('elsewhere')")


async def test_an_unreadable_password_file_does_not_end_the_watch(database: Database) -> None:
    fails = True

    def options() -> ConnectionOptions:
        if fails:
            raise OSError("no such file")
        return options_for(database)

    watch = SlotWatch(SLOT, options)
    watch.follow(Address(database.server.host, "", database.server.port))
    task = asyncio.create_task(watch.run(lambda: True, lambda: True))
    await asyncio.sleep(0.2)
    assert (watch.sample, task.done()) == (None, False)
    fails = False
    await next_sample(watch)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
