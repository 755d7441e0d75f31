"""The certificate and the token of the HTTP server: files that are refused at the start, and files that change."""

import asyncio
import base64
import os
import ssl
import subprocess
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx2
import pytest
from prometheus_client import CollectorRegistry

from pgsluice.app.http import client
from pgsluice.app.http.access import Access, AccessFiles
from pgsluice.app.http.health import Health
from pgsluice.app.http.server import HttpServer
from pgsluice.errors import ConfigError, PermissionDenied, UnavailableError, UsageError
from tests.support.tls import make_certificate

TOKEN = "0123456789abcdef" * 2


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("other"))


def files(pair: tuple[Path, Path], token: Path | None = None) -> AccessFiles:
    return AccessFiles(str(pair[0]), str(pair[1]), None if token is None else str(token))


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


class TestToken:
    def test_without_a_token_every_request_is_allowed(self) -> None:
        assert Access().allows("")

    @pytest.mark.parametrize(
        "header", [f"Bearer {TOKEN}", f"bearer  {TOKEN}", basic(f"any:{TOKEN}"), basic(f":{TOKEN}")]
    )
    def test_both_ways_to_send_the_token_are_accepted(self, header: str, token_file: Path) -> None:
        assert Access(AccessFiles(token_file=str(token_file))).allows(header)

    @pytest.mark.parametrize(
        "header",
        ["", TOKEN, "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Digest {TOKEN}", "Basic !",
         basic(TOKEN), basic("any:"), f"Basic {TOKEN}", "Bearer \udc80\u00e9"],
    )  # fmt: skip
    def test_other_headers_are_refused(self, header: str, token_file: Path) -> None:
        assert not Access(AccessFiles(token_file=str(token_file))).allows(header)

    def test_a_new_token_is_used_and_an_unusable_file_is_ignored(self, token_file: Path) -> None:
        access = Access(AccessFiles(token_file=str(token_file)))
        token_file.write_text("x" * 20)
        access.look()
        assert access.allows(f"Bearer {'x' * 20}")
        assert not access.allows(f"Bearer {TOKEN}")
        for spoil in (lambda: token_file.write_text("short"), token_file.unlink):
            spoil()
            access.look()
            assert access.allows(f"Bearer {'x' * 20}")

    @pytest.mark.parametrize(
        ("content", "says"),
        [(None, "cannot be read: No such file"), ("", "not a password"), ("short", "fewer than 16 characters")],
    )
    def test_files_without_a_token_are_refused(self, content: str | None, says: str, tmp_path: Path) -> None:
        file = tmp_path / "token"
        if content is not None:
            file.write_text(content)
        with pytest.raises(ConfigError, match=f"http.token_file: .*{says}"):
            Access(AccessFiles(token_file=str(file)))


class TestCertificate:
    def test_missing_files_are_refused(self, pair: tuple[Path, Path], tmp_path: Path) -> None:
        absent = tmp_path / "absent"
        with pytest.raises(ConfigError, match=r"http.tls_cert_file: .*absent cannot be read: No such file"):
            Access(files((absent, pair[1])))
        with pytest.raises(ConfigError, match=r"http.tls_key_file: .*absent cannot be read: No such file"):
            Access(files((pair[0], absent)))

    def test_the_key_of_another_certificate_is_refused(self, pair: tuple[Path, Path], other: tuple[Path, Path]) -> None:
        with pytest.raises(ConfigError, match="is not the key of the certificate in"):
            Access(files((pair[0], other[1])))

    def test_files_without_a_certificate_are_refused(self, pair: tuple[Path, Path], tmp_path: Path) -> None:
        (tmp_path / "text").write_text("hello")
        with pytest.raises(ConfigError, match="are not a certificate and a key in PEM format"):
            Access(files((tmp_path / "text", pair[1])))

    def test_a_key_with_a_password_is_refused(self, pair: tuple[Path, Path], tmp_path: Path) -> None:
        locked = tmp_path / "locked.key"
        command = ["openssl", "rsa", "-aes256", "-passout", "pass:secret", "-in", str(pair[1]), "-out", str(locked)]
        subprocess.run(command, check=True, capture_output=True)
        with pytest.raises(ConfigError, match="or the key has a password"):
            Access(files((pair[0], locked)))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_key_that_cannot_be_read_is_refused(self, pair: tuple[Path, Path], tmp_path: Path) -> None:
        hidden = tmp_path / "hidden"
        hidden.write_bytes(pair[1].read_bytes())
        hidden.chmod(0)
        with pytest.raises(ConfigError, match="Give it the right to read the file"):
            Access(files((pair[0], hidden)))


def health() -> Health:
    return Health(lambda: {"state": "streaming"}, lambda: None, lambda _: None)


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


class TestServer:
    @pytest.mark.parametrize("path", ["/", "/status", "/metrics", "/subjects", "/nothing"])
    async def test_everything_but_the_probes_needs_the_token(self, path: str, token_file: Path) -> None:
        server = HttpServer("127.0.0.1:0", health(), CollectorRegistry(), files=AccessFiles(token_file=str(token_file)))
        await server.start()
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as asking:
            refused = await asking.get(path)
            allowed = await asking.get(path, headers={"Authorization": f"Bearer {TOKEN}"})
            probes = [(await asking.get(probe)).status_code for probe in ("/livez", "/readyz", "/readyz?role=active")]
        await server.stop()
        assert refused.status_code == 401
        assert refused.json() == {"error_code": 401, "message": "HTTP 401 Unauthorized"}
        assert refused.headers["WWW-Authenticate"].startswith("Bearer")
        assert allowed.status_code != 401
        assert probes == [200, 200, 200]

    async def test_a_renewed_certificate_is_used_for_new_connections(
        self, pair: tuple[Path, Path], other: tuple[Path, Path], tmp_path: Path
    ) -> None:
        served = tmp_path / "served.crt", tmp_path / "served.key"
        _copy(pair, served)
        server = HttpServer("127.0.0.1:0", health(), CollectorRegistry(), files=files(served))
        await server.start()
        url = f"https://localhost:{server.port}/livez"
        async with httpx2.AsyncClient(verify=trusting(pair[0])) as asking:
            assert (await asking.get(url)).text == "ok\n"
            served[0].write_bytes(other[0].read_bytes())  # the key is not renewed yet
            server._access.look()
        async with httpx2.AsyncClient(verify=trusting(pair[0])) as asking:
            assert (await asking.get(url)).text == "ok\n"
        _copy(other, served)
        server._access.look()
        async with httpx2.AsyncClient(verify=trusting(other[0])) as asking:
            assert (await asking.get(url)).text == "ok\n"
        await server.stop()


def _copy(pair: tuple[Path, Path], to: tuple[Path, Path]) -> None:
    for source, target in zip(pair, to, strict=True):
        target.write_bytes(source.read_bytes())


class TestClient:
    """``pgsluice status`` and ``pgsluice health`` as clients of a daemon."""

    @pytest.fixture
    async def url(self, pair: tuple[Path, Path], token_file: Path) -> AsyncIterator[str]:
        server = HttpServer("127.0.0.1:0", health(), CollectorRegistry(), files=files(pair, token_file))
        await server.start()
        yield f"https://127.0.0.1:{server.port}"
        await server.stop()

    async def test_a_client_with_certificate_and_token_is_answered(
        self, url: str, pair: tuple[Path, Path], token_file: Path
    ) -> None:
        answer = await ask(url, "/status", token_file=str(token_file), cert_file=str(pair[0]))
        assert answer == (200, '{"state": "streaming"}')

    async def test_a_client_without_the_token_is_refused(self, url: str, pair: tuple[Path, Path]) -> None:
        assert await ask(url, "/livez", cert_file=str(pair[0])) == (200, "ok\n")
        with pytest.raises(PermissionDenied, match=r"Set http\.token_file"):
            await ask(url, "/status", cert_file=str(pair[0]))

    async def test_a_server_with_another_certificate_gets_no_token(self, url: str, other: tuple[Path, Path]) -> None:
        with pytest.raises(UnavailableError, match=r"another certificate than http\.tls_cert_file"):
            await ask(url, "/status", cert_file=str(other[0]))

    async def test_without_the_certificate_the_server_needs_a_trusted_authority(self, url: str) -> None:
        with pytest.raises(UnavailableError, match="certificate verify failed"):
            await ask(url, "/status")

    async def test_a_client_reports_files_that_cannot_be_used(
        self, url: str, pair: tuple[Path, Path], tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigError, match=r"http.token_file: "):
            await ask(url, "/status", cert_file=str(pair[0]), token_file=str(tmp_path / "absent"))
        (tmp_path / "text").write_text("hello")
        for file in ("absent", "text"):
            with pytest.raises(ConfigError, match=r"http.tls_cert_file: "):
                await ask(url, "/status", cert_file=str(tmp_path / file))

    @pytest.mark.parametrize("url", ["ftp://x", "https://", "https://x:y", "http://[x"])
    async def test_invalid_urls_are_refused(self, url: str) -> None:
        with pytest.raises(UsageError, match="must look like"):
            await ask(url, "/status")


async def ask(url: str, path: str, **files: str) -> tuple[int, str]:
    """Send a request from another thread, because the server runs in this thread."""
    return await asyncio.to_thread(partial(client.ask, url, path, **files))
