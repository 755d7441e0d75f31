"""Tests passwords that change while pgsluice runs. Each new connection must use the current password."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pgsluice.app.wiring import connection_options
from pgsluice.config import Sources
from pgsluice.errors import PermissionDenied
from pgsluice.postgres.catalog import Catalog
from pgsluice.postgres.connection import ReplicationConnection
from pgsluice.postgres.options import ConnectionOptions
from sandbox.postgres import Database, Postgres
from tests.support.replication import replication


@pytest.fixture(scope="module")
def guarded() -> Iterator[Database]:
    """Provide a server that requires a password from one role."""
    with Postgres(17) as server:
        server.write_file(
            "pg_hba.conf", "host all pgsluice 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
        )
        server.restart()
        with server.connect() as admin:
            admin.execute("CREATE ROLE pgsluice LOGIN REPLICATION")
        yield Database(server, "postgres")


@pytest.fixture
def change(guarded: Database, tmp_path: Path) -> Callable[[str], None]:
    """Provide a function that changes the password on the server and in the file."""

    def to(password: str) -> None:
        with guarded.connect() as admin:
            admin.execute(f"ALTER ROLE pgsluice PASSWORD '{password}'".encode())
        (tmp_path / "password").write_text(f"{password}\n")

    return to


@pytest.mark.parametrize("setting", ["password_file", "password_command"])
async def test_each_connection_reads_the_password_again(
    setting: str, guarded: Database, change: Callable[[str], None], tmp_path: Path
) -> None:
    change("first")
    file = str(tmp_path / "password")
    options = options_of(guarded, {setting: file if setting == "password_file" else ["cat", file]})
    async with replication(options) as connection:
        change("second")
        async with Catalog(connection.same_server) as catalog:
            assert await catalog.slot("none") is None
        change("third")
        async with replication(connection.same_server) as another:
            assert (await another.identify_system()).timeline == 1
    (tmp_path / "password").write_text("fourth")
    with pytest.raises(PermissionDenied, match="password authentication failed") as caught:
        await ReplicationConnection.open(options)
    assert "fourth" not in str(caught.value)


def options_of(database: Database, keys: dict[str, object]) -> ConnectionOptions:
    """Return the options that the daemon derives from its settings."""
    settings = {
        "PGSLUICE_NAME": "shop",
        "PGSLUICE_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:9092",
        "PGSLUICE_KAFKA__TOPIC_PREFIX": "shop",
        "PGSLUICE_POSTGRES__DSN": database.conninfo(user="pgsluice"),
        **{
            f"PGSLUICE_POSTGRES__{key.upper()}": value if isinstance(value, str) else json.dumps(value)
            for key, value in keys.items()
        },
    }
    return connection_options(Sources.read(None, settings).settings())
