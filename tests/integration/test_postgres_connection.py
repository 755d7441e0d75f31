"""Tests the replication connection with real servers: session settings, slots, timelines, TLS."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from pgsluice.errors import ConfigError, SlotInUse, SourceUnavailable
from pgsluice.postgres import connection as connection_module
from pgsluice.postgres.catalog import Catalog
from pgsluice.postgres.connection import ReplicationConnection
from sandbox.postgres import Database, Postgres
from tests.support.replication import SLOT, options_for, read_inserts, replication, streaming
from tests.support.tls import make_certificate, tls_postgres
from tests.support.versions import covered

# The commands, settings or catalogs of the walsender differ between these versions.
VERSIONS = covered()

HOSTILE_SETTINGS = {
    "DateStyle": "'German, DMY'",
    "IntervalStyle": "sql_standard",
    "TimeZone": "'America/New_York'",
    "extra_float_digits": "-10",
    "bytea_output": "escape",
    "lc_monetary": "'C.UTF-8'",
    "search_path": "nowhere",
    "quote_all_identifiers": "on",
    "client_min_messages": "error",
    "client_encoding": "LATIN1",
    "statement_timeout": "1234567",
    "lock_timeout": "1234567",
    "idle_in_transaction_session_timeout": "1234567",
}
HOSTILE_FROM_12 = {"wal_sender_timeout": "1234567"}
HOSTILE_FROM_14 = {"idle_session_timeout": "1234567"}
HOSTILE_FROM_17 = {"transaction_timeout": "1234567"}

PINNED = {
    "DateStyle": "ISO, DMY",  # DMY affects only how dates are read; ISO writes the year first
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "search_path": "",
    "quote_all_identifiers": "off",
    "client_min_messages": "notice",
    "client_encoding": "UTF8",
    "application_name": "pgsluice",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}


def hostile_settings(version: int) -> dict[str, str]:
    settings = dict(HOSTILE_SETTINGS)
    for since, later in ((12, HOSTILE_FROM_12), (14, HOSTILE_FROM_14), (17, HOSTILE_FROM_17)):
        settings |= later if version >= since else {}
    return settings


@pytest.fixture
def hostile_database(new_database: Callable[..., Database]) -> Callable[[int], tuple[Database, str]]:
    """Provide a function that creates a database and a role. The settings of both change the text of all values."""

    def make(version: int) -> tuple[Database, str]:
        database = new_database(version)
        role = f"hostile_{database.name}"
        with database.connect() as admin:
            admin.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
            for name, value in hostile_settings(version).items():
                admin.execute(f"ALTER DATABASE {database.name} SET {name} = {value}")
                admin.execute(f"ALTER ROLE {role} SET {name} = {value}")
        return database, role

    return make


@pytest.mark.parametrize("version", VERSIONS)
async def test_our_settings_take_precedence(
    version: int,
    hostile_database: Callable[[int], tuple[Database, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database, role = hostile_database(version)
    # libpq turns these variables into parameters, which take precedence over options.
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    monkeypatch.setenv("PGDATESTYLE", "Postgres, DMY")
    users = "-c bytea_output=escape -c geqo=off -c TimeZone=Asia/Tokyo"
    async with replication(options_for(database, user=role, options=users)) as connection:

        async def setting(name: str) -> str | None:
            ((value,),) = await connection.query(f"SELECT current_setting('{name}')")
            return value

        assert {name: await setting(name) for name in PINNED} == PINNED
        assert await setting("geqo") == "off"
        assert await setting("wal_sender_timeout") == ("15s" if version >= 12 else "1min")
        if version >= 14:
            assert await setting("idle_session_timeout") == "0"
        if version >= 17:
            assert await setting("transaction_timeout") == "0"


@pytest.mark.parametrize("version", covered([10, 13, 18]))
async def test_values_have_one_text_form(version: int, hostile_database: Callable[[int], tuple[Database, str]]) -> None:
    database, role = hostile_database(version)
    with database.connect() as admin:
        admin.execute(
            "CREATE TABLE public.t (ts timestamptz, d date, i interval, b bytea, f float8, m money, c regclass)"
        )
        admin.execute("CREATE PUBLICATION published FOR TABLE public.t")
        async with streaming(database, options_for(database, user=role)) as stream:
            admin.execute(
                "INSERT INTO public.t VALUES ('2020-01-06 13:00:00+01', '2020-01-06', '1 year 2 days 3 hours',"
                r" '\x00ff', 0.1::float8 + 0.2, 1234.5, 'public.t')"
            )
            (row,) = await read_inserts(stream, 1)
    assert float(row.pop(4) or b"") == 0.1 + 0.2  # up to version 11, servers write more digits than necessary
    assert row == [
        b"2020-01-06 12:00:00+00",
        b"2020-01-06",
        b"P1Y2DT3H",
        rb"\x00ff",
        b"$1,234.50",
        b"public.t",
    ]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_slot_is_created_and_dropped(version: int, new_database: Callable[..., Database]) -> None:
    database = new_database(version)
    async with replication(options_for(database)) as connection:
        identity = await connection.identify_system()
        assert identity.timeline == 1
        assert await connection.timeline_history(1) == []
        assert await connection.slot(SLOT) is None
        consistent_point = await connection.create_slot(SLOT)
        slot = await connection.slot(SLOT)
        assert slot is not None
        assert (slot.name, slot.plugin, slot.database) == (SLOT, "pgoutput", database.name)
        assert slot.confirmed_flush_lsn == consistent_point > slot.restart_lsn > 0
        assert not slot.two_phase
        assert slot.invalidation is None
        assert slot.active_pid is None
        with pytest.raises(SlotInUse, match="created it at the same time"):
            await connection.create_slot(SLOT)
        await connection.drop_slot(SLOT)
        assert await connection.slot(SLOT) is None
        with pytest.raises(ConfigError, match=f"dropping replication slot '{SLOT}': .* does not exist"):
            await connection.drop_slot(SLOT)


async def test_a_slot_can_survive_a_failover_from_17(new_database: Callable[..., Database]) -> None:
    async with replication(options_for(new_database(17))) as connection:
        await connection.create_slot(SLOT, failover=True)
        slot = await connection.slot(SLOT)
        assert slot is not None
        assert slot.failover
        assert not slot.synced
    async with replication(options_for(new_database(16))) as connection:
        with pytest.raises(ConfigError, match="need PostgreSQL 17"):
            await connection.create_slot(SLOT, failover=True)


@pytest.mark.parametrize("version", [10, 18])
async def test_slot_creation_says_which_prepared_transaction_it_waits_for(
    version: int, new_database: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = new_database(version)
    with database.connect() as other:
        other.execute("CREATE TABLE t (id int)")
        other.execute("BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'left over'")
        (blocker,) = await create_slot_blocked(
            database, lambda: other.execute("ROLLBACK PREPARED 'left over'"), monkeypatch
        )
    start = f"prepared transaction 'left over' of postgres in database {database.name}, prepared 20"
    assert blocker.startswith(start)


async def test_slot_creation_says_which_process_it_waits_for(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.connect(autocommit=False) as other:
        other.execute("CREATE TABLE t (id int)")
        (blocker,) = await create_slot_blocked(database, other.rollback, monkeypatch)
        pid = other.info.backend_pid
    assert blocker == f"a transaction of process {pid} (role postgres, database {database.name})"


async def create_slot_blocked(
    database: Database, unblock: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> set[str]:
    """Create a slot. Unblock its creation as soon as a blocker has been named. Return all named blockers."""
    monkeypatch.setattr(connection_module, "SLOT_CREATION_REPORT_S", 0.02)
    options, named, found = options_for(database), asyncio.Event(), set()
    async with replication(options) as connection, Catalog(options) as catalog:

        async def blockers(backend_pid: int) -> list[str]:
            answer = await catalog.slot_creation_blockers(backend_pid)
            found.update(answer)
            if answer:
                named.set()
            return answer

        with structlog.testing.capture_logs() as logs:
            creation = asyncio.create_task(connection.create_slot(SLOT, blockers=blockers))
            await named.wait()
            await asyncio.sleep(0)  # so that the line is logged
            unblock()
            await creation
    event = {"event": "slot creation waits for running transactions to end", "slot": SLOT, "log_level": "warning"}
    assert {**event, "waits_for": list(found)} in logs
    return found


@pytest.mark.parametrize("explained", [True, False])
async def test_slot_creation_continues_if_the_blocker_is_unknown(
    database: Database, monkeypatch: pytest.MonkeyPatch, *, explained: bool
) -> None:
    monkeypatch.setattr(connection_module, "SLOT_CREATION_REPORT_S", 0.02)
    asked = asyncio.Event()

    async def blockers(_: int) -> list[str]:
        asked.set()
        raise SourceUnavailable("no answer")

    with database.connect(autocommit=False) as other:
        other.execute("CREATE TABLE t (id int)")
        async with replication(options_for(database)) as connection:
            creation = asyncio.create_task(connection.create_slot(SLOT, blockers=blockers if explained else None))
            with structlog.testing.capture_logs() as logs:
                while not logs:  # noqa: ASYNC110 - the captured log offers nothing to await
                    await asyncio.sleep(0.01)
            other.rollback()
            await creation
    assert asked.is_set() == explained
    assert logs[0]["waits_for"] == []


@pytest.mark.parametrize("version", [10, 18])
async def test_slot_creation_can_be_cancelled(version: int, new_database: Callable[..., Database]) -> None:
    database = new_database(version)
    options = options_for(database)
    with database.connect(autocommit=False) as other:
        other.execute("CREATE TABLE t (id int)")
        async with replication(options) as connection, replication(options) as observer:
            creation = asyncio.create_task(connection.create_slot(SLOT))
            while await observer.slot(SLOT) is None:
                pass
            creation.cancel()
            with pytest.raises(asyncio.CancelledError):
                await creation
            assert await connection.slot(SLOT) is None


async def test_names_with_special_characters(database: Database) -> None:
    names = ['Mixed "quotes"', "it's, with a comma", r"back\slash", "ümläut", "select"]
    with database.connect() as admin:
        for number, name in enumerate(names):
            quoted = '"' + name.replace('"', '""') + '"'
            admin.execute(f"CREATE TABLE t{number} (id int)")
            admin.execute(f"CREATE PUBLICATION {quoted} FOR TABLE t{number}")
        async with streaming(database, publications=names) as stream:
            for number in range(len(names)):
                admin.execute(f"INSERT INTO t{number} VALUES ({number})")
            rows = await read_inserts(stream, len(names))
    assert rows == [[str(number).encode()] for number in range(len(names))]
    async with Catalog(options_for(database)) as catalog:
        assert await catalog.missing_publications([*names, "nosuch"]) == ["nosuch"]


async def test_a_promotion_creates_a_timeline_with_a_history() -> None:
    with Postgres(17) as primary, primary.standby() as standby:
        with standby.connect() as admin:
            admin.execute("SELECT pg_promote()")
        database = Database(standby, "postgres")
        async with replication(options_for(database)) as connection:
            identity = await connection.identify_system()
            (switch,) = await connection.timeline_history(identity.timeline)
    assert identity.timeline == 2
    assert switch.timeline == 1
    assert 0 < switch.switch_lsn <= identity.xlogpos


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Provide a certificate for ``localhost`` and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def tls_server(tls: tuple[Path, Path]) -> Iterator[Database]:
    """Provide a server with the certificate of ``tls``."""
    with tls_postgres(17, *tls) as server:
        yield Database(server, "postgres")


async def test_the_authorities_of_the_system_are_trusted(
    tls_server: Database, tls: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tls[0]))  # as if the system trusted the certificate
    async with Catalog(options_for(tls_server, host="localhost", sslrootcert="system")) as catalog:
        assert str((await catalog.server()).tls).startswith("TLSv1.3, ")


async def test_connections_use_tls(tls_server: Database, tls: tuple[Path, Path]) -> None:
    options = options_for(tls_server, host="localhost", sslmode="verify-full", sslrootcert=str(tls[0]))
    async with Catalog(options) as catalog:
        assert str((await catalog.server()).tls).startswith("TLSv1.3, ")
    with tls_server.connect() as admin:
        admin.execute("CREATE TABLE t (v text)")
        admin.execute("CREATE PUBLICATION published FOR TABLE t")
        async with streaming(tls_server, options) as stream:
            sizes = [1, 8_000, 16_384, 20_000, 3_000_000, 5, 100_000]  # around the size of a TLS record
            for size in sizes:
                admin.execute("INSERT INTO t VALUES (repeat('x', %s))", [size])
            rows = await read_inserts(stream, len(sizes))
    assert [len(value or b"") for (value,) in rows] == sizes


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"host": "127.0.0.1"}, "does not match host name"),
        ({"host": "localhost", "sslrootcert": "/nowhere/ca.crt"}, "does not exist"),
        ({"host": "localhost", "sslrootcert": "system"}, "certificate verify failed"),
    ],
)
async def test_a_server_without_a_trusted_certificate_is_refused(
    parameters: dict[str, str], reason: str, tls_server: Database, tls: tuple[Path, Path]
) -> None:
    options = options_for(tls_server, **{"sslmode": "verify-full", "sslrootcert": str(tls[0]), **parameters})
    with pytest.raises(ConfigError, match=reason):
        await ReplicationConnection.open(options)
