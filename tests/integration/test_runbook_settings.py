"""Tests the runbook's messages about settings: pgsluice refuses wrong settings, and streams with correct ones.

Every start uses real servers, because pgsluice can check some settings only with a server.
"""

import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.log import restored_logging  # noqa: F401 - a fixture
from tests.support.registry_server import Fault, RegistryServer
from tests.support.runbook import Scene, Stage, rows
from tests.support.tls import make_certificate

pytestmark = pytest.mark.usefixtures("restored_logging")


@dataclass(frozen=True, slots=True)
class Wrong:
    """Settings that prevent a start, and the exit code. A path that begins with ``@`` is in the test's directory."""

    message: str
    code: int
    settings: Mapping[str, Mapping[str, Any]]


CERTIFICATES = {"tls_cert_file": "@server.crt", "tls_key_file": "@server.key"}

WRONG = (
    Wrong("postgres.password_file: …", 78, {"postgres": {"password_file": "@none"}}),
    Wrong("… cannot be started: …. Correct the command", 78, {"postgres": {"password_command": ["/no/such/program"]}}),
    Wrong(
        "… printed more than … bytes. Let it print the secret only",
        78,
        {"postgres": {"password_command": ["/bin/sh", "-c", "yes | head -c 200000"]}},
    ),
    Wrong(
        "Let the command print the secret, and nothing before it",
        78,
        {"postgres": {"password_command": ["/bin/sh", "-c", "echo"]}},
    ),
    Wrong("Publication … does not exist in this database", 78, {"postgres": {"publications": ["missing"]}}),
    Wrong("PostgreSQL refused the connection: …. To do: …", 77, {"postgres": {"user": "nobody_there"}}),
    Wrong("http.token_file: …", 78, {"http": {"token_file": "@none"}}),
    Wrong("http.…: … …", 78, {"http": {"tls_cert_file": "@none", "tls_key_file": "@server.key"}}),
    Wrong(
        "http.tls_key_file: … is not the key of the certificate in …",
        78,
        {"http": {**CERTIFICATES, "tls_key_file": "@other.key"}},
    ),
    Wrong(
        "http.tls_cert_file: … and … are not a certificate and a key in PEM format",
        78,
        {"http": {**CERTIFICATES, "tls_key_file": "@server.crt"}},
    ),
    Wrong("kafka.password_file: …", 78, {"kafka": {"password_file": "@none"}}),
    Wrong("librdkafka refuses a property: …", 78, {"kafka": {"client": {"linger.ms": "soon"}}}),
    Wrong(
        "schema_registry.token has a blank, a line break or a character beyond ASCII, or is empty",
        78,
        {"schema_registry": {"type": "confluent", "url": "http://127.0.0.1:1", "token": "two words"}},
    ),
    Wrong(
        "The schema registry's client cannot be set up",
        78,
        {"schema_registry": {"type": "confluent", "url": "https://127.0.0.1:1", "ca_file": "@server.key"}},
    ),
    Wrong(
        "schema_registry.…_file: …",
        78,
        {"schema_registry": {"type": "confluent", "url": "http://127.0.0.1:1", "password_file": "@none"}},
    ),
    Wrong(
        "The directory for transactions that do not fit into memory cannot be used",
        78,
        {"buffer": {"spill_dir": "/proc/none"}},
    ),
)


@pytest.fixture(scope="module")
def scene(stage: Stage) -> Scene:
    """Provide a stopped pipeline whose slot and topics exist."""
    scene = stage.scene()
    scene.deliver()
    scene.daemon.stop_well()
    scene.pipeline.write(3)
    return scene


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a directory with a certificate, its key, and the key of another certificate."""
    directory = tmp_path_factory.mktemp("files")
    other = tmp_path_factory.mktemp("other")
    make_certificate(directory)
    make_certificate(other)[1].rename(directory / "other.key")
    return directory


def placed(value: object, files: Path) -> object:
    return str(files / value[1:]) if isinstance(value, str) and value.startswith("@") else value


@contextmanager
def changed(scene: Scene, settings: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Use additional settings until the block ends."""
    before = scene.daemon.settings
    sections = {**before, **{name: {**before.get(name, {}), **keys} for name, keys in settings.items()}}
    scene.daemon.settings = sections
    scene.begin()
    try:
        yield
    finally:
        scene.daemon.settings = before


def assert_refused(scene: Scene, message: str, code: int) -> None:
    scene.start_in_vain()
    row = rows()[message]
    assert row.is_in(scene.said()), scene.said()
    assert scene.ended() == code
    assert row.codes in {(), (code,)} or code in row.codes


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.message)
def test_a_start_is_refused(wrong: Wrong, scene: Scene, files: Path) -> None:
    settings = {
        section: {key: placed(value, files) for key, value in keys.items()} for section, keys in wrong.settings.items()
    }
    with changed(scene, settings):
        assert_refused(scene, wrong.message, wrong.code)


def test_an_address_in_use(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        with changed(scene, {"http": {"listen": listen}}):
            assert_refused(scene, IN_USE, 78)


IN_USE = "Cannot listen on …"

REGISTRY_FAULTS: Mapping[str, tuple[int, Fault]] = {
    "Check username and password, or the token, under schema_registry": (77, Fault(status=401)),
    "The user of schema_registry needs the right to read and write this subject": (77, Fault(status=403)),
    "schema_registry.url has to be the base of Confluent's API": (78, Fault(status=404, body=b"<html>")),
    "Set schema_registry.url to the address that it redirects to": (78, Fault(status=301)),
}


@pytest.mark.parametrize("message", REGISTRY_FAULTS)
def test_a_registry_refuses(message: str, scene: Scene) -> None:
    """Use a test server that answers like a registry or proxy that is not set up for pgsluice."""
    code, fault = REGISTRY_FAULTS[message]
    with RegistryServer() as server:
        server.faults = [fault]
        with changed(scene, registry_at(server)):
            assert_refused(scene, message, code)


def registry_at(server: RegistryServer, **other: str) -> dict[str, dict[str, Any]]:
    return {"schema_registry": {"type": "confluent", "url": server.url, **other}}


UNTRUSTED = "its certificate is not trusted: name its authority in schema_registry.ca_file"
CLIENT_CERTIFICATE = "it refuses the TLS connection, perhaps because it requires a client certificate"


@pytest.mark.parametrize("message", [UNTRUSTED, CLIENT_CERTIFICATE])
def test_a_registry_with_wrong_tls_files_is_refused(message: str, scene: Scene, files: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "server.crt", files / "server.key")
    trusted = {}
    if message == CLIENT_CERTIFICATE:
        context.load_verify_locations(files / "server.crt")
        context.verify_mode = ssl.CERT_REQUIRED
        trusted = {"ca_file": str(files / "server.crt")}
    with RegistryServer(context) as server, changed(scene, registry_at(server, **trusted)):
        assert_refused(scene, message, 78)


def test_a_start_with_the_right_settings_streams_and_nothing_was_lost(scene: Scene) -> None:
    """Check that the pipeline continues at its former position after all refused starts. This test must run last."""
    scene.daemon.start()
    scene.pipeline.write(3)
    scene.assert_nothing_is_lost()


MESSAGES = (
    *(wrong.message for wrong in WRONG),
    IN_USE,
    *REGISTRY_FAULTS,
    UNTRUSTED,
    CLIENT_CERTIFICATE,
)
