"""Tests rights that are withdrawn while pgsluice streams.

The session continues, because PostgreSQL checks these rights only when a session begins. The next session must report
the missing right.
"""

import asyncio
from collections.abc import Iterator

import pytest
from psycopg import Connection

from pgsluice.errors import PermissionDenied
from pgsluice.postgres.options import ConnectionOptions
from pgsluice.postgres.source import PostgresSource, SourceOptions
from sandbox.postgres import Database, Postgres
from tests.support.replication import read_inserts
from tests.support.weather import Start

ROLE = "follower"
PASSWORD = "first"  # noqa: S105 - a password for tests

HBA = "host all postgres 127.0.0.1/32 trust\n"
OURS = f"host all {ROLE} 127.0.0.1/32 md5\n"

WITHDRAWN = {
    f"ALTER ROLE {ROLE} NOREPLICATION": "ALTER ROLE ... REPLICATION",
    f"ALTER ROLE {ROLE} NOLOGIN": "not permitted to log in",
    f"ALTER ROLE {ROLE} PASSWORD 'second'": "check the user, the password",
    "REVOKE CONNECT ON DATABASE {database} FROM public": "GRANT CONNECT ON DATABASE",
    "": r"add a line to pg_hba\.conf",
}


@pytest.fixture(scope="module", params=[10, 18])
def server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """Provide a server that requires a password from the role."""
    with Postgres(request.param) as server:
        server.write_file("pg_hba.conf", HBA + OURS)
        server.restart()
        yield server


@pytest.fixture
def guarded(server: Postgres) -> Iterator[Database]:
    """Provide a database from which the role can stream, until a test withdraws a right."""
    with server.database() as database, server.connect() as admin:
        admin.execute(f"CREATE ROLE {ROLE} LOGIN REPLICATION PASSWORD '{PASSWORD}'")
        yield database
        admin.execute(f"DROP ROLE {ROLE}")
        allow(server, admin, HBA + OURS)


def allow(server: Postgres, admin: Connection, rules: str) -> None:
    server.write_file("pg_hba.conf", rules)
    admin.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize("withdrawal", WITHDRAWN)
async def test_the_stream_continues_and_the_next_session_reports_the_missing_right(
    withdrawal: str, guarded: Database
) -> None:
    connection = ConnectionOptions({"dsn": guarded.conninfo(user=ROLE, password=PASSWORD)}, status_interval_s=0.1)
    options = SourceOptions(connection, "rights", ["published"])
    with guarded.connect() as admin:
        admin.execute("CREATE TABLE t (n int PRIMARY KEY)")
        admin.execute("CREATE PUBLICATION published FOR TABLE t")
        source = await PostgresSource.open(options)
        await source.create_slot()
        stream = await source.start()
        admin.execute("INSERT INTO t VALUES (1)")
        assert await read_inserts(stream, 1) == [[b"1"]]
        if withdrawal:
            admin.execute(withdrawal.format(database=guarded.name))
        else:
            allow(guarded.server, admin, HBA)
            await asyncio.sleep(0.5)  # the server reads the new rules with some delay
        admin.execute("INSERT INTO t VALUES (2)")
        assert await read_inserts(stream, 1) == [[b"2"]]
        assert await source.flushed_lsn() > 0
        await source.close()
        with pytest.raises(PermissionDenied, match=WITHDRAWN[withdrawal]) as caught:
            await PostgresSource.open(options)
    assert PASSWORD not in str(caught.value)


def test_a_withdrawn_right_stops_the_daemon_at_its_next_session(guarded: Database, start: Start) -> None:
    pipeline = start(database=guarded, conninfo=lambda database: database.conninfo(user=ROLE, password=PASSWORD))
    pipeline.write()
    with guarded.connect() as admin:
        admin.execute(f"ALTER ROLE {ROLE} PASSWORD 'second'")
        pipeline.write()
        pipeline.assert_complete()
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [ROLE])
    assert pipeline.daemon.wait() == 77
    assert "check the user, the password" in pipeline.daemon.log_text()
