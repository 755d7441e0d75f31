"""Tests how pgsluice handles requests that real servers refuse."""

from collections.abc import Callable, Iterator

import pytest

from pgsluice.errors import ConfigError, PermissionDenied, PgsluiceError, SourceUnavailable
from pgsluice.finding import Verdict
from pgsluice.postgres.checks import check
from pgsluice.postgres.connection import ReplicationConnection
from pgsluice.postgres.options import ConnectionOptions, StreamOptions
from sandbox.postgres import Database, Postgres
from tests.support.replication import PUBLICATION, SLOT, options_for, replication, streaming
from tests.support.versions import covered

# These include the oldest and the newest version. PostgreSQL 16 changed the wording of many messages.
VERSIONS = covered((10, 15, 16, 18))


@pytest.fixture(scope="module", params=VERSIONS)
def guarded(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Provide a server that requires passwords from some roles, and refuses other roles."""
    with Postgres(request.param) as server:
        server.write_file(
            "pg_hba.conf",
            "host all with_password 127.0.0.1/32 md5\n"
            "host replication turned_away 127.0.0.1/32 trust\n"  # this line does not apply to logical replication
            "host all rejected 127.0.0.1/32 reject\n"
            "host all postgres,plain,no_login,ready 127.0.0.1/32 trust\n",
        )
        server.restart()
        with server.connect() as admin:
            admin.execute("CREATE ROLE ready LOGIN REPLICATION")
            admin.execute("CREATE ROLE with_password LOGIN REPLICATION PASSWORD 'right'")
            admin.execute("CREATE ROLE turned_away LOGIN REPLICATION")
            admin.execute("CREATE ROLE rejected LOGIN REPLICATION")
            admin.execute("CREATE ROLE plain LOGIN")
            admin.execute("CREATE ROLE no_login")
            admin.execute("CREATE DATABASE closed")
            admin.execute("REVOKE CONNECT ON DATABASE closed FROM public")
        yield Database(server, "postgres")


@pytest.mark.parametrize(
    ("parameters", "kind", "words"),
    [
        ({"user": "with_password", "password": "wrong"}, PermissionDenied, "check the user, the password"),
        ({"user": "with_password"}, PermissionDenied, "check the user, the password"),
        ({"user": "turned_away"}, PermissionDenied, r"add a line to pg_hba\.conf for the role and the database"),
        ({"user": "rejected"}, PermissionDenied, r"add a line to pg_hba\.conf"),
        ({"user": "nobody"}, PermissionDenied, r"pg_hba\.conf"),
        ({"user": "plain"}, PermissionDenied, "run ALTER ROLE ... REPLICATION"),
        ({"user": "no_login"}, PermissionDenied, "CREATE ROLE ... LOGIN REPLICATION"),
        ({"user": "ready", "dbname": "closed"}, PermissionDenied, "GRANT CONNECT ON DATABASE"),
        ({"user": "ready", "dbname": "nowhere"}, ConfigError, "correct dbname"),
        ({"user": "ready", "options": "-c no.such=1 -c nonsense=1"}, ConfigError, "correct the options"),
        ({"user": "ready", "options": "-c log_min_messages=debug1"}, PermissionDenied, "only a superuser"),
        ({"user": "ready", "sslmode": "require"}, ConfigError, "set ssl = on at the server"),
        ({"user": "ready", "sslmode": "nonsense"}, ConfigError, "correct the connection parameter"),
        ({"user": "ready", "connect_timeout": "soon"}, ConfigError, "correct the connection parameter"),
        ({"user": "ready", "host": "a,b,c", "port": "1,2"}, ConfigError, "correct the connection parameter"),
        ({"user": "with_password", "password": "right", "require_auth": "gss"}, ConfigError, "require_auth"),
        ({"user": "ready", "target_session_attrs": "standby"}, SourceUnavailable, "not in hot standby mode"),
    ],
)
async def test_refused_connections_are_reported_with_a_remedy(
    parameters: dict[str, str], kind: type[PgsluiceError], words: str, guarded: Database
) -> None:
    with pytest.raises(kind, match=words) as caught:
        await ReplicationConnection.open(options_for(guarded, **parameters))
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"host": "127.0.0.1", "port": "1"}, "Connection refused"),
        ({"host": "no-such-host.invalid"}, "failed to resolve host"),
        ({"host": "/no/such/directory"}, "No such file or directory"),
    ],
)
async def test_unreachable_servers_are_retried(parameters: dict[str, str], words: str) -> None:
    with pytest.raises(SourceUnavailable, match=words):
        await ReplicationConnection.open(ConnectionOptions(parameters))


async def test_the_next_host_is_tried(database: Database) -> None:
    port = database.server.port
    async with replication(options_for(database, host="127.0.0.1,127.0.0.1", port=f"1,{port}")) as connection:
        assert (await connection.identify_system()).timeline == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_server_without_room_is_retried(version: int) -> None:
    """This test has its own server, because on a shared server, a walsender of the previous test might still run."""
    with Postgres(version, {"max_wal_senders": "3", "max_replication_slots": "2"}) as server:
        options = options_for(Database(server, "postgres"))
        async with replication(options) as connection, replication(options), replication(options):
            with pytest.raises(SourceUnavailable, match="max_wal_senders"):
                await ReplicationConnection.open(options)
            for slot in ("first", "second"):
                await connection.create_slot(slot)
            with pytest.raises(SourceUnavailable, match=r"53400.* raise max_replication_slots, or drop slots"):
                await connection.create_slot("third")


async def test_a_slot_with_an_invalid_name_is_refused(database: Database) -> None:
    async with replication(options_for(database)) as connection:
        for name in ("Upper", "with-hyphen", ""):
            with pytest.raises(ConfigError, match="1 to 63 of the characters a-z, 0-9 and _"):
                await connection.create_slot(name)


@pytest.mark.parametrize("version", [10, 18])
async def test_slots_of_another_kind_are_refused(version: int, new_database: Callable[..., Database]) -> None:
    database, other = new_database(version), new_database(version)
    with other.connect() as admin:
        admin.execute("SELECT pg_create_logical_replication_slot('elsewhere', 'pgoutput')")
    with database.connect() as admin:
        admin.execute("SELECT pg_create_logical_replication_slot('decoder', 'test_decoding')")
        admin.execute("SELECT pg_create_physical_replication_slot('physical')")
        async with replication(options_for(database)) as connection:
            for slot, words in (
                ("missing", "'missing' does not exist.*run --adopt-slot"),
                ("elsewhere", f"belongs to database '{other.name}', but dbname is '{database.name}'"),
                ("decoder", "has the output plugin test_decoding"),
                ("physical", "is a physical slot"),
            ):
                with pytest.raises(ConfigError, match=words):
                    await connection.start(slot, [PUBLICATION])
        admin.execute("SELECT pg_drop_replication_slot('physical')")


@pytest.mark.parametrize("version", covered([16, 17, 18]))
async def test_with_origin_none_a_two_phase_slot_is_refused_with_a_remedy(
    version: int, new_database: Callable[..., Database]
) -> None:
    database = new_database(version)
    with database.connect() as admin:
        admin.execute("CREATE PUBLICATION published FOR ALL TABLES")
        admin.execute("SELECT pg_create_logical_replication_slot('followed', 'pgoutput', false, true)")
    async with replication(options_for(database)) as connection:
        with pytest.raises(ConfigError, match="TWO_PHASE false"):
            await connection.start(SLOT, [PUBLICATION], StreamOptions(origin="none"))
        if version >= 18:
            await connection.query(f'ALTER_REPLICATION_SLOT "{SLOT}" (TWO_PHASE false)')
            await connection.start(SLOT, [PUBLICATION], StreamOptions(origin="none"))


async def test_before_18_a_failover_slot_cannot_use_two_phase(
    new_database: Callable[..., Database],
) -> None:
    database = new_database(17)
    with database.connect() as admin:
        admin.execute("CREATE PUBLICATION published FOR ALL TABLES")
        admin.execute("SELECT pg_create_logical_replication_slot('followed', 'pgoutput', failover => true)")
    async with replication(options_for(database)) as connection:
        with pytest.raises(ConfigError, match="Give up one of the two"):
            await connection.start(SLOT, [PUBLICATION], StreamOptions(two_phase=True))


@pytest.mark.parametrize("version", [10, 18])
async def test_a_server_that_does_not_decode_is_refused(version: int) -> None:
    with Postgres(version, {"wal_level": "replica"}) as server:
        async with replication(options_for(Database(server, "postgres"))) as connection:
            with pytest.raises(ConfigError, match=r"creating replication slot .* set wal_level = logical"):
                await connection.create_slot(SLOT)


async def test_a_standby_is_waited_for() -> None:
    """Up to PostgreSQL 15, a standby cannot decode."""
    with Postgres(15) as primary, primary.standby() as standby:
        async with replication(options_for(Database(standby, "postgres"))) as connection:
            with pytest.raises(SourceUnavailable, match="the server is a standby"):
                await connection.create_slot(SLOT)


async def test_a_synchronised_slot_is_waited_for() -> None:
    """From PostgreSQL 17 on, a standby may have copies of the primary's slots for use after a failover."""
    with Postgres(17) as primary, primary.standby() as standby:
        async with replication(options_for(Database(primary, "postgres"))) as connection:
            await connection.create_slot(SLOT, failover=True)
        synchronise_slot(primary, standby)
        database = Database(standby, "postgres")
        async with replication(options_for(database)) as connection:
            with pytest.raises(SourceUnavailable, match="a standby's copy of a slot of the primary"):
                await connection.start(SLOT, [PUBLICATION])
        findings = {finding.name: finding for finding in await check(options_for(database), SLOT, [PUBLICATION])}
        assert findings[f"replication slot {SLOT}"].verdict is Verdict.WARN
        with standby.connect() as admin:
            admin.execute("SELECT pg_promote()")
        async with streaming(database) as stream:
            assert await stream.read()


def synchronise_slot(primary: Postgres, standby: Postgres) -> None:
    """Copy the slot manually, because the standby's worker would take ten seconds."""
    with standby.connect() as admin:
        admin.execute("ALTER SYSTEM SET sync_replication_slots = off")
    standby.restart()
    with primary.connect() as source, standby.connect() as target:
        source.execute("CREATE PUBLICATION published FOR ALL TABLES")
        while target.execute("SELECT FROM pg_replication_slots WHERE synced AND NOT temporary").fetchone() is None:
            # The copy is complete when the original is past the position that the standby has seen.
            source.execute("SELECT pg_log_standby_snapshot()")
            source.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [SLOT])
            target.execute("SELECT pg_sync_replication_slots()")
