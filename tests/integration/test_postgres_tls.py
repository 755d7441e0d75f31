"""Tests PostgreSQL with TLS: all kinds of authentication, the messages about failures, and renewed certificates."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgsluice.errors import ConfigError, PermissionDenied, PgsluiceError, SourceUnavailable
from pgsluice.postgres.catalog import Catalog
from pgsluice.postgres.connection import ReplicationConnection
from sandbox.postgres import Database, Postgres
from tests.support.authority import Authority, expired
from tests.support.replication import options_for, replication
from tests.support.tls import tls_postgres

HBA = """
hostssl all with_certificate 127.0.0.1/32 cert
hostssl all with_password 127.0.0.1/32 scram-sha-256
host all postgres 127.0.0.1/32 trust
"""


class Scene:
    """A server that has a certificate for ``localhost`` and requests certificates from its clients."""

    def __init__(self, server: Postgres, authority: Authority, other: Authority) -> None:
        self.database = Database(server, "postgres")
        self.server = server
        self.authority = authority
        self.other = other

    def parameters(self, **changed: str) -> dict[str, str]:
        """Return the connection parameters with the strictest checks."""
        return {
            "host": "localhost",
            "hostaddr": "127.0.0.1",
            "sslmode": "verify-full",
            "sslrootcert": str(self.authority.certificate),
            **changed,
        }

    def client(
        self, authority: Authority, name: str = "with_certificate", *, is_expired: bool = False
    ) -> dict[str, str]:
        """Return the connection parameters with a new certificate of this authority."""
        certificate, key = authority.issue(name, expires=expired() if is_expired else None)
        return self.parameters(user="with_certificate", sslcert=str(certificate), sslkey=str(key))

    @contextmanager
    def shown(self, certificate: Path, key: Path) -> Iterator[None]:
        """Make the server present another certificate until the block ends, without a restart."""
        before = [(self.server.data_directory / name).read_text() for name in ("server.crt", "server.key")]
        self._show(certificate.read_text(), key.read_text())
        try:
            yield
        finally:
            self._show(*before)

    def _show(self, certificate: str, key: str) -> None:
        self.server.write_file("server.crt", certificate)
        self.server.write_file("server.key", key)
        with self.database.connect() as admin:
            loaded = admin.execute("SELECT pg_conf_load_time()").fetchone()
            admin.execute("SELECT pg_reload_conf()")
            while admin.execute("SELECT pg_conf_load_time()").fetchone() == loaded:
                pass  # the postmaster reads the files before it informs its children


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("tls")
    authority, other = Authority(directory, "ours"), Authority(directory, "other")
    with tls_postgres(17, *authority.issue("server", ["localhost"])) as server:
        server.write_file("clients.crt", authority.certificate.read_text())
        server.write_file("pg_hba.conf", HBA)
        server.settings["ssl_ca_file"] = "clients.crt"
        server.restart()
        with server.connect() as admin:
            admin.execute("CREATE ROLE with_certificate LOGIN REPLICATION")
            admin.execute("CREATE ROLE with_password LOGIN REPLICATION PASSWORD 'right'")
        yield Scene(server, authority, other)


class TestAccepted:
    async def test_a_client_certificate(self, scene: Scene) -> None:
        await assert_connected(scene, scene.client(scene.authority))

    async def test_channel_binding(self, scene: Scene) -> None:
        bound = {"user": "with_password", "password": "right", "channel_binding": "require"}
        await assert_connected(scene, scene.parameters(**bound))

    async def test_direct_negotiation(self, scene: Scene) -> None:
        await assert_connected(scene, scene.parameters(sslnegotiation="direct"))

    async def test_a_client_certificate_that_was_renewed(self, scene: Scene) -> None:
        """The connection options are the same, but the content of the files has changed."""
        parameters = scene.client(scene.authority, is_expired=True)
        with pytest.raises(PermissionDenied, match="certificate"):
            await ReplicationConnection.open(options_for(scene.database, **parameters))
        scene.client(scene.authority)
        await assert_connected(scene, parameters)

    async def test_a_server_certificate_that_was_renewed(self, scene: Scene) -> None:
        """The file of trusted authorities also changes, because another authority has signed the new certificate."""
        authorities = scene.authority.certificate.with_name("renewed.crt")
        authorities.write_text(scene.authority.certificate.read_text())
        parameters = scene.parameters(sslrootcert=str(authorities))
        await assert_connected(scene, parameters)
        with scene.shown(*scene.other.issue("renewed-server", ["localhost"])):
            with pytest.raises(ConfigError, match="certificate verify failed"):
                await ReplicationConnection.open(options_for(scene.database, **parameters))
            authorities.write_text(scene.other.certificate.read_text())
            await assert_connected(scene, parameters)


async def assert_connected(scene: Scene, parameters: dict[str, str]) -> None:
    """Check that both kinds of connections work, and that they use TLS."""
    options = options_for(scene.database, **parameters)
    async with replication(options) as connection, Catalog(options) as catalog:
        assert (await connection.identify_system()).timeline == 1
        assert str((await catalog.server()).tls).startswith("TLSv1.3, ")


class TestRefused:
    async def test_a_server_certificate_of_another_authority(self, scene: Scene) -> None:
        parameters = scene.parameters(sslrootcert=str(scene.other.certificate))
        words = await refused(scene, parameters, ConfigError)
        assert "certificate verify failed" in words
        assert "correct sslrootcert if another authority signed" in words

    async def test_a_server_certificate_for_another_name(self, scene: Scene) -> None:
        words = await refused(scene, scene.parameters(host="db.example.com"), ConfigError)
        assert 'server certificate for "localhost" does not match host name "db.example.com"' in words
        assert "set host to a name" in words

    async def test_a_server_certificate_that_has_expired(self, scene: Scene) -> None:
        with scene.shown(*scene.authority.issue("late", ["localhost"], expires=expired())):
            words = await refused(scene, scene.parameters(), ConfigError)
        assert "renew a certificate that expired" in words

    async def test_a_client_certificate_of_another_authority(self, scene: Scene) -> None:
        words = await refused(scene, scene.client(scene.other), PermissionDenied)
        assert "the server does not accept the client's certificate" in words

    async def test_a_client_certificate_that_has_expired(self, scene: Scene) -> None:
        words = await refused(scene, scene.client(scene.authority, is_expired=True), PermissionDenied)
        assert "expired" in words
        assert "renew the client's certificate" in words

    async def test_a_client_without_a_certificate(self, scene: Scene) -> None:
        words = await refused(scene, scene.parameters(user="with_certificate"), PermissionDenied)
        assert "check sslcert and sslkey" in words

    async def test_a_client_certificate_for_another_role(self, scene: Scene) -> None:
        parameters = scene.client(scene.authority, "somebody")
        words = await refused(scene, parameters, PermissionDenied)
        assert "client certificate whose CN is the role" in words

    async def test_a_key_of_another_certificate(self, scene: Scene) -> None:
        _, other_key = scene.authority.issue("another")
        parameters = {**scene.client(scene.authority), "sslkey": str(other_key)}
        words = await refused(scene, parameters, ConfigError)
        assert "belong together" in words

    async def test_a_key_that_others_may_read(self, scene: Scene) -> None:
        parameters = scene.client(scene.authority)
        _open_to_all(parameters["sslkey"])
        words = await refused(scene, parameters, ConfigError)
        assert "has group or world access" in words
        assert "may be read" in words

    async def test_a_password_without_channel_binding(self, scene: Scene) -> None:
        parameters = {**scene.client(scene.authority), "channel_binding": "require"}
        words = await refused(scene, parameters, ConfigError)
        assert "correct require_auth or channel_binding" in words

    async def test_direct_negotiation_with_a_server_that_is_too_old(self, scene: Scene) -> None:
        """pgsluice retries, because it cannot distinguish this refusal from a server that is stopping."""
        with tls_postgres(16, *scene.authority.issue("old", ["localhost"])) as server:
            old = Scene(server, scene.authority, scene.other)
            words = await refused(old, old.parameters(sslnegotiation="direct"), SourceUnavailable)
        assert "needs a server with PostgreSQL 17 or later" in words


async def refused(scene: Scene, parameters: dict[str, str], kind: type[PgsluiceError]) -> str:
    """Return the message of a failed connection. Check that it is one line and says what to do."""
    options = options_for(scene.database, **parameters)
    with pytest.raises(PgsluiceError) as caught:
        await ReplicationConnection.open(options)
    words = str(caught.value)
    assert type(caught.value) is kind
    assert "\n" not in words
    assert "To do: " in words
    return words


def _open_to_all(file: str) -> None:
    Path(file).chmod(0o644)
