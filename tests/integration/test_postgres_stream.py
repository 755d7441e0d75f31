"""Tests the replication stream of real servers: reads, reports of positions, and all ways in which a stream ends."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

import psycopg
import pytest

from pgsluice.errors import ConfigError, HistoryError, PoisonError, SlotInUse, SourceUnavailable, UnavailableError
from pgsluice.lsn import INVALID_LSN, parse_lsn
from pgsluice.pgoutput.framing import Keepalive
from pgsluice.pgoutput.messages import Commit, Insert
from pgsluice.postgres.options import ConnectionOptions, StreamOptions
from pgsluice.postgres.stream import BATCH_BYTES, BATCH_MESSAGES, ReplicationStream, Timing
from sandbox.postgres import Database, Postgres
from tests.support.replication import (
    PUBLICATION,
    SLOT,
    decode,
    options_for,
    read_inserts,
    read_transactions,
    replication,
    streaming,
)
from tests.support.versions import covered


@pytest.fixture
def published(database: Database) -> Database:
    """Provide a database with an empty published table ``t``."""
    return publish(database)


def publish(database: Database) -> Database:
    with database.connect() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        admin.execute("CREATE PUBLICATION published FOR TABLE t")
    return database


@pytest.fixture
def own_server() -> Iterator[Database]:
    """Provide a database with an empty published table on a server that the test can stop."""
    with Postgres(17) as server:
        yield publish(Database(server, "postgres"))


@pytest.mark.parametrize("option", [StreamOptions(two_phase=True), StreamOptions(binary=True, origin="none")])
async def test_a_stream_starts_with_each_supported_option(published: Database, option: StreamOptions) -> None:
    async with replication(options_for(published)) as connection:
        await connection.create_slot(SLOT)
        stream = await connection.start(SLOT, [PUBLICATION], option)
        with published.connect() as admin:
            admin.execute("INSERT INTO t VALUES (1, 'one')")
        await read_commit(stream)


async def read_commit(stream: ReplicationStream) -> Commit:
    (commit,) = (message for message in await read_transactions(stream) if isinstance(message, Commit))
    return commit


def confirmed(admin: psycopg.Connection) -> int:
    row = admin.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", [SLOT]
    ).fetchone()
    assert row is not None
    return parse_lsn(row[0])


def walsender(admin: psycopg.Connection) -> int:
    row = admin.execute("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", [SLOT]).fetchone()
    assert row is not None
    return int(row[0])


async def until_confirmed(admin: psycopg.Connection, lsn: int) -> None:
    while confirmed(admin) != lsn:  # noqa: ASYNC110 - the server offers no event to wait for
        await asyncio.sleep(0.02)


async def test_batches_are_bounded(published: Database) -> None:
    with published.connect() as admin:
        async with streaming(published) as stream:
            admin.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 5000) g")
            admin.execute("INSERT INTO t SELECT -g, repeat('x', 600000) FROM generate_series(1, 6) g")
            batches, rows = [], 0
            while rows < 5006:
                batches.append(await stream.read())
                rows += sum(isinstance(message, Insert) for message in decode(batches[-1]))
    assert all(1 <= len(batch) <= BATCH_MESSAGES for batch in batches)
    sizes = [[len(frame) for frame in batch if isinstance(frame, bytes)] for batch in batches]
    assert all(sum(batch[:-1]) < BATCH_BYTES for batch in sizes)


async def test_a_cancelled_read_loses_nothing(published: Database) -> None:
    with published.connect() as admin:
        async with streaming(published) as stream:
            rows = []
            for number in range(20):
                reading = asyncio.create_task(stream.read())
                await asyncio.sleep(0)
                admin.execute("INSERT INTO t VALUES (%s)", [number])
                reading.cancel()
                with suppress(asyncio.CancelledError):  # not raised if a keepalive has arrived
                    await reading
                rows += await read_inserts(stream, 1)
    assert [row[0] for row in rows] == [str(number).encode() for number in range(20)]


async def test_a_client_that_does_not_read_stays_connected(published: Database) -> None:
    options = ConnectionOptions({"dsn": published.conninfo()}, wal_sender_timeout_ms=2000)
    with published.connect() as admin:
        async with streaming(published, options) as stream:
            rows = "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 20000) g"
            await asyncio.to_thread(admin.execute, rows)
            pid = walsender(admin)
            await asyncio.sleep(3)
            assert stream.failure is None
            assert walsender(admin) == pid
            waits = admin.execute("SELECT wait_event FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone()
            assert waits == ("WalSenderWriteData",)
            assert len(await read_inserts(stream, 20000)) == 20000


async def test_reports_move_the_slot_only_forwards(published: Database) -> None:
    with published.connect() as admin:
        async with streaming(published) as stream:
            start = confirmed(admin)
            admin.execute("INSERT INTO t VALUES (1)")
            commit = await read_commit(stream)
            assert confirmed(admin) == start
            stream.report(commit.end_lsn, commit.end_lsn)
            await until_confirmed(admin, commit.end_lsn)
            stream.report(start, start)
            await asyncio.sleep(0.3)  # enough for several status updates
            assert confirmed(admin) == commit.end_lsn


async def test_a_stopped_stream_has_reported_and_leaves_a_usable_connection(published: Database) -> None:
    with published.connect() as admin:
        options = ConnectionOptions({"dsn": published.conninfo()}, status_interval_s=60)
        async with replication(options) as connection:
            await connection.create_slot(SLOT)
            stream = await connection.start(SLOT, [PUBLICATION])
            admin.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 10000) g")
            commit = await read_commit(stream)
            admin.execute("INSERT INTO t SELECT -g, 'x' FROM generate_series(1, 10000) g")  # these rows are not read
            stream.report(commit.end_lsn, commit.end_lsn)
            await stream.stop()
            slot = await connection.slot(SLOT)
            assert slot is not None
            assert slot.active_pid is None
            assert slot.confirmed_flush_lsn == commit.end_lsn
        async with streaming(published) as stream:
            assert len(await read_inserts(stream, 10000)) == 10000


async def test_a_slot_has_one_reader(published: Database) -> None:
    async with streaming(published), replication(options_for(published)) as second:
        with pytest.raises(SlotInUse, match=r"active for PID \d+"):
            await second.start(SLOT, [PUBLICATION])
        with pytest.raises(
            UnavailableError, match=r"is in use, so it was not dropped .*active for PID.* Stop the pgsluice"
        ):
            await second.drop_slot(SLOT)


async def test_a_server_that_shuts_down_waits_for_the_last_report(own_server: Database) -> None:
    with own_server.connect() as admin:
        async with streaming(own_server) as stream:
            admin.execute("INSERT INTO t VALUES (1)")
            await read_commit(stream)
            stopping = asyncio.create_task(asyncio.to_thread(own_server.server.stop))
            with pytest.raises(SourceUnavailable):
                await confirm_all(stream)
            await stopping


async def confirm_all(stream: ReplicationStream) -> None:
    while True:
        ends = [frame.wal_end for frame in await stream.read() if isinstance(frame, Keepalive)]
        stream.report(max(ends, default=0), max(ends, default=0))


async def test_a_server_that_shuts_down_can_be_released_without_a_report(own_server: Database) -> None:
    with own_server.connect() as admin:
        async with streaming(own_server) as stream:
            start = confirmed(admin)
            admin.execute("INSERT INTO t VALUES (1)")
            await read_commit(stream)
            stopping = asyncio.create_task(asyncio.to_thread(own_server.server.stop))
            with pytest.raises(SourceUnavailable):
                await release(stream)
            await stopping
    own_server.server.start()
    with own_server.connect() as admin:
        assert confirmed(admin) == start
    async with streaming(own_server) as stream:
        assert await read_inserts(stream, 1) == [[b"1", None]]


async def release(stream: ReplicationStream) -> None:
    """Answer requests for a reply as the pipeline does when it has nothing new to deliver."""
    last = INVALID_LSN
    while True:
        for frame in await stream.read():
            if isinstance(frame, Keepalive) and frame.reply_requested:
                if frame.wal_end == last:
                    stream.answer_shutdown(last)
                last = frame.wal_end


@pytest.mark.parametrize("reads", [True, False])
async def test_the_end_of_the_server_is_detected(reads: bool, own_server: Database) -> None:  # noqa: FBT001 - a parameter of the test
    async with streaming(own_server) as stream:
        reading = asyncio.create_task(read_for_ever(stream)) if reads else None
        own_server.server.kill()
        await stream.ended.wait()
        assert isinstance(stream.failure, SourceUnavailable)
        with pytest.raises(SourceUnavailable, match="the connection to PostgreSQL broke"):
            await (reading or stream.read())


async def read_for_ever(stream: ReplicationStream) -> None:
    while True:
        await stream.read()


async def test_a_terminated_walsender_is_retried(published: Database) -> None:
    with published.connect() as admin:
        async with streaming(published) as stream:
            admin.execute("SELECT pg_terminate_backend(%s)", [walsender(admin)])
            with pytest.raises(SourceUnavailable, match="terminating connection due to administrator command"):
                await read_for_ever(stream)
            with pytest.raises(SourceUnavailable, match="terminating connection due to administrator command"):
                await stream.read()


async def test_a_silent_server_ends_the_stream(published: Database) -> None:
    with published.connect() as admin:
        async with streaming(published) as stream:
            stream._timing = Timing(status_interval_s=0.05, probe_after_s=0.1, alone_after_s=60, give_up_after_s=0.5)
            pid = walsender(admin)
            os.kill(pid, signal.SIGSTOP)
            try:
                with pytest.raises(SourceUnavailable, match="sent nothing for"):
                    await read_for_ever(stream)
            finally:
                os.kill(pid, signal.SIGCONT)


async def test_a_silent_server_that_answers_probes_does_not_end_the_stream(published: Database) -> None:
    async with streaming(published) as stream:
        # The limit is much longer than an answer takes, even on a busy machine.
        stream._timing = Timing(status_interval_s=0.05, probe_after_s=0.1, alone_after_s=60, give_up_after_s=4)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read_for_ever(stream), 5)


@pytest.mark.parametrize("version", covered())
async def test_a_missing_publication_stops(version: int, new_database: Callable[..., Database]) -> None:
    database = publish(new_database(version))
    with database.connect() as admin:
        async with streaming(database, publications=[PUBLICATION, "too_late"]) as stream:
            admin.execute("INSERT INTO t VALUES (1)")
            admin.execute("CREATE PUBLICATION too_late")  # after the row was written
            with pytest.raises(ConfigError, match=r'"too_late".*create the publication with CREATE PUBLICATION'):
                await read_for_ever(stream)


async def test_publications_that_disagree_about_columns_stop(published: Database) -> None:
    with published.connect() as admin:
        admin.execute("CREATE PUBLICATION narrow FOR TABLE t (id)")
        async with streaming(published, publications=[PUBLICATION, "narrow"]) as stream:
            admin.execute("INSERT INTO t VALUES (1)")
            with pytest.raises(ConfigError, match=r"0A000.*agree about each table's columns"):
                await read_for_ever(stream)


async def test_a_row_filter_that_fails_is_poison_and_the_message_hides_the_row(published: Database) -> None:
    with published.connect() as admin:
        admin.execute("CREATE PUBLICATION filtered FOR TABLE t WHERE (1 / id > 0) WITH (publish = 'insert')")
        async with streaming(published, publications=["filtered"]) as stream:
            admin.execute("INSERT INTO t VALUES (0, 'secret')")
            with pytest.raises(PoisonError, match=r"at [0-9A-F]+/[0-9A-F]+ .*DivisionByZero") as caught:
                await read_for_ever(stream)
    assert "secret" not in str(caught.value)


async def test_an_internal_error_at_a_change_is_poison(published: Database) -> None:
    """The row filter fails, because no text search configuration has the row's id as its oid."""
    condition = "to_tsvector(id::regconfig, v) IS NOT NULL"
    with published.connect() as admin:
        admin.execute(f"CREATE PUBLICATION filtered FOR TABLE t WHERE ({condition}) WITH (publish = 'insert')".encode())
        async with streaming(published, publications=["filtered"]) as stream:
            admin.execute("INSERT INTO t VALUES (0, 'secret')")
            with pytest.raises(PoisonError, match=r"at [0-9A-F]+/[0-9A-F]+ .*SQLSTATE XX000") as caught:
                await read_for_ever(stream)
    assert "secret" not in str(caught.value)


async def test_text_that_is_not_utf8_is_poison(postgres_server: Callable[..., Postgres]) -> None:
    server = postgres_server()
    with server.connect() as admin:
        admin.execute("CREATE DATABASE ascii TEMPLATE template0 ENCODING 'SQL_ASCII'")
    database = publish(Database(server, "ascii"))
    try:
        with database.connect() as admin:
            async with streaming(database) as stream:
                admin.execute(r"INSERT INTO t VALUES (1, E'\xff')")
                with pytest.raises(PoisonError, match="not valid in the database's encoding"):
                    await read_for_ever(stream)
    finally:
        server.drop_database("ascii")


@pytest.mark.parametrize("version", covered([13, 16, 18]))
async def test_an_invalidated_slot_is_a_broken_history(version: int) -> None:
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with Postgres(version, settings) as server:
        database = publish(Database(server, "postgres"))
        with database.connect() as admin:
            async with streaming(database) as stream:
                await stream.stop()
                for number in range(6):
                    admin.execute("INSERT INTO t VALUES (%s)", [number])
                    admin.execute("SELECT pg_switch_wal()")
                admin.execute("CHECKPOINT")
            with pytest.raises(HistoryError, match=f"invalidated replication slot '{SLOT}' \\(wal_removed\\)"):
                async with streaming(database):
                    pass
