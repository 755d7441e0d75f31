"""The client of a registry server: the meaning of each answer, and a server that behaves badly."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pgsluice.errors import ConfigError, PermissionDenied, PgsluiceError, PoisonError, RegistryUnavailable
from pgsluice.registry.rest import Conflict, RestClient, RestOptions
from tests.support.registry_server import Fault, RegistryServer
from tests.support.tls import make_certificate

TEXT = '{"type":"string"}'
LONG = '{"type":"long"}'


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        yield running


@pytest.fixture
async def client(server: RegistryServer) -> AsyncIterator[RestClient]:
    async with await RestClient.open(RestOptions(server.url, timeout_s=5)) as opened:
        yield opened


async def test_the_client_can_make_every_request(client: RestClient) -> None:
    assert await client.look_up("a", TEXT) is None
    identifier = await client.register("a", TEXT)
    assert await client.look_up("a", TEXT) == identifier
    assert await client.look_up("a", LONG) is None
    assert await client.subjects() == ["a"]
    assert (await client.level(), await client.subject_level("a"), await client.mode()) == (
        "BACKWARD",
        None,
        "READWRITE",
    )
    await client.set_level("a", "NONE")
    assert await client.subject_level("a") == "NONE"
    await client.set_level("a", None)
    assert await client.subject_level("a") is None


async def test_a_subject_without_a_level_has_the_registrys_level(server: RegistryServer, client: RestClient) -> None:
    server.faults = [Fault("GET /config/a", status=200, body={"alias": "b"})]
    assert await client.subject_level("a") == "BACKWARD"


async def test_an_incompatible_schema_is_reported(client: RestClient) -> None:
    await client.register("a", TEXT)
    with pytest.raises(Conflict, match="incompatible with an earlier schema"):
        await client.register("a", LONG)


@pytest.mark.parametrize(
    ("status", "code", "kind", "sentence"),
    [
        (401, 401, PermissionDenied, "Check username and password"),
        (403, 40301, PermissionDenied, "needs the right to read and write this subject"),
        (404, 404, ConfigError, "has to be the base of Confluent's API"),
        (301, 301, ConfigError, "Set schema_registry.url to the address"),
        (405, 405, ConfigError, "has to be the base of Confluent's API"),
        (404, 40401, RegistryUnavailable, "code 40401"),
        (422, 42205, ConfigError, "Set the mode to READWRITE"),
        (422, 42201, PoisonError, "can never take this schema"),
        (422, 42203, ConfigError, "does not know this compatibility level or mode"),
        (422, 42204, ConfigError, "does not know this compatibility level or mode"),
        (413, 413, PoisonError, "can never take this schema"),
        (408, 408, RegistryUnavailable, "HTTP 408"),
        (429, 429, RegistryUnavailable, "HTTP 429"),
        (500, 50001, RegistryUnavailable, "code 50001"),
        (503, 503, RegistryUnavailable, "HTTP 503"),
    ],
)
async def test_an_error_of_the_server_is_explained(
    server: RegistryServer, client: RestClient, status: int, code: int, kind: type[PgsluiceError], sentence: str
) -> None:
    server.faults = [Fault(status=status, body={"error_code": code, "message": "in its words"})]
    with pytest.raises(kind, match=f"Registering a schema of subject a: .*'in its words'.*{sentence}"):
        await client.register("a", TEXT)


async def test_a_conflict_outside_of_a_registration_is_retried(server: RegistryServer, client: RestClient) -> None:
    server.faults = [Fault(status=409, body={"error_code": 409, "message": "in its words"})]
    with pytest.raises(RegistryUnavailable, match=r"Setting the compatibility of subject a to NONE: .*'in its words'"):
        await client.set_level("a", "NONE")


async def test_an_error_page_for_people_is_shortened(server: RegistryServer, client: RestClient) -> None:
    server.faults = [Fault(status=502, body=b"<html>" + b"x" * 10_000)]
    with pytest.raises(RegistryUnavailable, match="HTTP 502") as caught:
        await client.register("a", TEXT)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b'{"id": "x"}',
        b'{"id": true}',
        b'{"id": 0}',
        b'{"id": 2147483648}',
        b"{}",
        b'"x"',
        b"null",
        b"",
    ],
)
async def test_answers_of_other_programs_are_refused(server: RegistryServer, client: RestClient, body: bytes) -> None:
    server.faults = [Fault(status=200, body=body)]
    with pytest.raises(RegistryUnavailable, match=r"schema_registry\.url"):
        await client.register("a", TEXT)


async def test_a_server_that_cannot_be_reached_is_retried() -> None:
    async with await RestClient.open(RestOptions("http://127.0.0.1:9")) as client:
        with pytest.raises(RegistryUnavailable, match="no answer"):
            await client.subjects()


async def test_an_answer_that_cannot_be_decompressed_is_reported() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n[]")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        async with await RestClient.open(RestOptions(f"http://127.0.0.1:{port}")) as client:
            with pytest.raises(RegistryUnavailable, match="no answer"):
                await client.subjects()


async def test_a_missing_answer_is_reported(server: RegistryServer) -> None:
    server.faults = [Fault(delay_s=3)]
    async with await RestClient.open(RestOptions(server.url, timeout_s=0.2)) as client:
        with pytest.raises(RegistryUnavailable, match="no answer"):
            await client.subjects()


async def test_a_request_can_be_cancelled(server: RegistryServer, client: RestClient) -> None:
    server.faults = [Fault(delay_s=3)]
    asking = asyncio.create_task(client.subjects())
    await asyncio.sleep(0.05)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    server.faults = []
    assert await client.subjects() == []


async def test_several_addresses_are_tried_in_turn(server: RegistryServer) -> None:
    with RegistryServer() as tired:
        tired.faults = [Fault(status=503)]
        options = RestOptions(f"http://127.0.0.1:9, {tired.url},{server.url}")
        async with await RestClient.open(options) as client:
            assert await client.subjects() == []
        assert tired.requests == server.requests == ["GET /subjects"]


async def test_the_results_of_requests_are_reported(server: RegistryServer) -> None:
    told: list[str] = []
    options = RestOptions(server.url, answered=lambda result, seconds: told.append(f"{result} {seconds < 5}"))
    async with await RestClient.open(options) as client:
        await client.subjects()
        server.faults = [Fault(status=503)]
        with pytest.raises(RegistryUnavailable):
            await client.subjects()
    assert told == ["ok True", "503 True"]


class TestCredentials:
    @pytest.mark.parametrize(
        ("options", "header"),
        [
            ({"username": "us", "password": "se:cret"}, "Basic dXM6c2U6Y3JldA=="),
            ({"username": "us"}, "Basic dXM6"),
            ({"token": "se-cret"}, "Bearer se-cret"),
        ],
    )
    async def test_credentials_are_sent(self, server: RegistryServer, options: dict[str, str], header: str) -> None:
        server.authorization = header
        async with await RestClient.open(RestOptions(server.url, **options)) as client:  # type: ignore[arg-type]
            assert await client.register("a", TEXT) == 1
        assert "cret" not in repr(RestOptions(server.url, **options))  # type: ignore[arg-type]

    @pytest.mark.parametrize("token", ["hunter2\n", "hunter2 ", "hunter2\u00e9", ""])
    async def test_a_token_that_no_header_can_have_is_refused(self, server: RegistryServer, token: str) -> None:
        with pytest.raises(ConfigError, match=r"schema_registry\.token has a blank") as caught:
            await RestClient.open(RestOptions(server.url, token=token))
        assert "hunter2" not in str(caught.value)

    async def test_wrong_credentials_are_reported(self, server: RegistryServer) -> None:
        server.authorization = "Basic x"
        wrong = RestOptions(server.url, username="u", password="hunter2")  # noqa: S106 - only for this test
        async with await RestClient.open(wrong) as client:
            with pytest.raises(PermissionDenied) as caught:
                await client.register("a", TEXT)
        assert "hunter2" not in str(caught.value)


async def test_a_tls_alert_that_no_setting_causes_is_retried() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x15\x03\x03\x00\x02\x02\x50")  # fatal: internal_error
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        async with await RestClient.open(RestOptions(f"https://127.0.0.1:{port}")) as client:
            with pytest.raises(RegistryUnavailable, match="internal error"):
                await client.subjects()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    certificate, key = make_certificate(tmp_path_factory.mktemp("tls"))
    return str(certificate), str(key)


class TestTls:
    @pytest.fixture
    def tls_server(self, files: tuple[str, str]) -> Iterator[RegistryServer]:
        """Provide a server that has a certificate, and requires the same certificate from its clients."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        context.load_verify_locations(files[0])
        context.verify_mode = ssl.CERT_REQUIRED
        with RegistryServer(context) as running:
            yield running

    async def test_a_private_authority_and_a_client_certificate_can_be_used(
        self, tls_server: RegistryServer, files: tuple[str, str]
    ) -> None:
        options = RestOptions(tls_server.url, ca_file=files[0], cert_file=files[0], key_file=files[1])
        async with await RestClient.open(options) as client:
            assert await client.register("a", TEXT) == 1

    async def test_a_missing_client_certificate_is_reported(
        self, tls_server: RegistryServer, files: tuple[str, str]
    ) -> None:
        async with await RestClient.open(RestOptions(tls_server.url, ca_file=files[0])) as client:
            with pytest.raises(ConfigError, match=r"refuses the TLS connection.*cert_file"):
                await client.register("a", TEXT)

    async def test_an_untrusted_authority_is_reported(self, tls_server: RegistryServer) -> None:
        async with await RestClient.open(RestOptions(tls_server.url)) as client:
            with pytest.raises(ConfigError, match=r"not trusted.*ca_file"):
                await client.register("a", TEXT)

    async def test_files_that_cannot_be_used_are_reported(self, files: tuple[str, str], tmp_path: Path) -> None:
        rubbish = tmp_path / "rubbish"
        rubbish.write_text("rubbish")
        for options in (
            RestOptions("https://localhost", ca_file=str(rubbish)),
            RestOptions("https://localhost", ca_file=str(tmp_path / "absent")),
            RestOptions("https://localhost", cert_file=files[0], key_file=str(rubbish)),
        ):
            with pytest.raises(ConfigError, match="Check ca_file, cert_file and key_file"):
                await RestClient.open(options)
