"""Tests Kafka with TLS: all kinds of authentication, the messages about failures, and renewed certificates."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from pgsluice.errors import ConfigError, PermissionDenied, PgsluiceError, SinkUnavailable
from pgsluice.kafka import topics as topics_module
from pgsluice.kafka.client import ClientErrors, ClientOptions
from pgsluice.kafka.msk import token_callback
from pgsluice.kafka.topics import Topics
from sandbox.daemon import Daemon
from sandbox.postgres import Database
from sandbox.program import Role
from tests.support.authority import expired
from tests.support.tls_kafka import PASSWORD, TlsKafka
from tests.support.token_issuer import CLIENT_ID, CLIENT_SECRET
from tests.support.weather import Pipeline, configured, prepare, wait_until

SCRAM = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "pgsluice"}
REFUSED_S = 2.0
"""How long the tests wait for a broker that will not answer. A refusal arrives immediately."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsKafka]:
    with TlsKafka(tmp_path_factory.mktemp("tls")) as kafka:
        yield kafka


def connect(
    broker: TlsKafka, listener: str, properties: dict[str, str], credentials: dict[str, Any] | None = None
) -> None:
    """Request the list of brokers, as the daemon does. Raise PgsluiceError if that fails."""
    servers = {"bootstrap.servers": broker.addresses(listener)}
    options = ClientOptions({**servers, **properties}, "pgsluice-test", credentials=lambda: credentials or {})
    with closing(Topics(options, threading.Event())) as topics:
        assert topics.brokers() == [1]


class TestAccepted:
    def test_tls(self, broker: TlsKafka) -> None:
        connect(broker, "TLS", broker.properties("TLS"))

    def test_a_client_certificate(self, broker: TlsKafka) -> None:
        connect(broker, "MUTUAL", broker.client(broker.authority))

    def test_a_password(self, broker: TlsKafka) -> None:
        connect(broker, "SCRAM", broker.properties("SCRAM", **SCRAM, sasl_password=PASSWORD))


class TestRefused:
    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(topics_module, "REQUEST_S", REFUSED_S)

    def test_a_broker_certificate_of_another_authority(self, broker: TlsKafka) -> None:
        properties = broker.properties("TLS", ssl_ca_location=str(broker.other.certificate))
        words = refused(broker, "TLS", properties, SinkUnavailable)
        assert "signed by an authority that is not in ssl.ca.location" in words

    def test_a_broker_certificate_for_another_name(self, broker: TlsKafka) -> None:
        words = refused(broker, "ELSEWHERE", broker.properties("ELSEWHERE"), SinkUnavailable)
        assert "names another host" in words

    def test_a_broker_certificate_that_has_expired(self, broker: TlsKafka) -> None:
        words = refused(broker, "EXPIRED", broker.properties("EXPIRED"), SinkUnavailable)
        assert "The broker's certificate has expired" in words

    def test_a_client_certificate_of_another_authority(self, broker: TlsKafka) -> None:
        words = refused(broker, "MUTUAL", broker.client(broker.other), SinkUnavailable)
        assert "The broker does not accept the client's certificate" in words

    def test_a_client_certificate_that_has_expired(self, broker: TlsKafka) -> None:
        certificate, key = broker.authority.issue("late-client", expires=expired())
        files = {"ssl_certificate_location": str(certificate), "ssl_key_location": str(key)}
        words = refused(broker, "MUTUAL", broker.properties("MUTUAL", **files), SinkUnavailable)
        assert "renew a certificate that has expired" in words

    def test_a_client_without_a_certificate(self, broker: TlsKafka) -> None:
        words = refused(broker, "MUTUAL", broker.properties("MUTUAL"), SinkUnavailable)
        assert "or received none" in words

    def test_a_wrong_password(self, broker: TlsKafka) -> None:
        properties = broker.properties("SCRAM", **SCRAM, sasl_password="wrong-secret")  # noqa: S106 - a password for tests
        words = refused(broker, "SCRAM", properties, PermissionDenied)
        assert "Check the credentials under kafka.client" in words
        assert "wrong-secret" not in words

    @pytest.mark.parametrize("changed", [{"ssl_ca_location": "/nowhere/ca.crt"}, {"ssl_key_location": "/nowhere/key"}])
    def test_files_that_are_missing(self, changed: dict[str, str], broker: TlsKafka) -> None:
        words = refused(broker, "TLS", broker.properties("TLS", **changed), ConfigError)
        assert "Check the files under kafka.client" in words

    def test_a_key_of_another_certificate(self, broker: TlsKafka) -> None:
        _, key = broker.authority.issue("another")
        words = refused(
            broker, "MUTUAL", {**broker.client(broker.authority), "ssl.key.location": str(key)}, ConfigError
        )
        assert "belong together" in words


def refused(
    broker: TlsKafka,
    listener: str,
    properties: dict[str, str],
    kind: type[PgsluiceError],
    credentials: dict[str, Any] | None = None,
) -> str:
    """Return the message of a failed connection."""
    with pytest.raises(PgsluiceError) as caught:
        connect(broker, listener, properties, credentials)
    assert type(caught.value) is kind, caught.value
    return str(caught.value)


class TestTokens:
    def test_the_daemon_with_oidc(self, broker: TlsKafka, new_database: Callable[..., Database]) -> None:
        with broker.tokens.endpoint() as url:
            client = oidc(broker, url, CLIENT_SECRET)
            with daemon(broker, new_database(), "OAUTH", {"client": client}) as pipeline:
                pipeline.write()
                pipeline.wait_until_confirmed()
                assert broker.tokens.given > 0
                assert CLIENT_SECRET not in pipeline.daemon.log_text()

    def test_a_token_endpoint_that_is_down(self, broker: TlsKafka, new_database: Callable[..., Database]) -> None:
        database = new_database()
        with ExitStack() as stack:
            url = stack.enter_context(broker.tokens.endpoint())
            client = oidc(broker, url, CLIENT_SECRET)
            with daemon(broker, database, "OAUTH", {"client": client}) as pipeline:
                pipeline.write()
                pipeline.wait_until_confirmed()
                stack.close()
                with database.connect() as connection:
                    connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
                wait_until(lambda: "gets no token" in pipeline.daemon.log_text(), "the reason")
                stack.enter_context(broker.tokens.endpoint(urlsplit(url).port or 0))
                pipeline.write()
                pipeline.wait_until_confirmed()

    def test_a_wrong_secret(self, broker: TlsKafka, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(topics_module, "REQUEST_S", REFUSED_S)
        with broker.tokens.endpoint() as url:
            words = refused(broker, "OAUTH", oidc(broker, url, "wrong-secret"), PermissionDenied)
        assert "Check the credentials under kafka.client" in words
        assert "wrong-secret" not in words

    def test_the_broker_receives_the_token_of_msk(self, broker: TlsKafka, monkeypatch: pytest.MonkeyPatch) -> None:
        """The broker is not one of Amazon's, so it refuses the token. This shows that it has received the token."""
        pytest.importorskip("aws_msk_iam_sasl_signer")
        monkeypatch.setattr(topics_module, "REQUEST_S", REFUSED_S)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-secret")
        given = []

        def callback(config: str) -> tuple[str, float]:
            given.append(token_callback("eu-central-1", ClientErrors())(config))
            return given[-1]

        properties = {**broker.properties("OAUTH"), "sasl.mechanism": "OAUTHBEARER"}
        words = refused(broker, "OAUTH", properties, PermissionDenied, {"oauth_cb": callback})
        assert given
        assert "aws-secret" not in words


def oidc(broker: TlsKafka, url: str, secret: str) -> dict[str, str]:
    """Return the properties with which librdkafka itself requests tokens."""
    return {
        **broker.properties("OAUTH"),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.secret": secret,
        "sasl.oauthbearer.token.endpoint.url": url,
    }


def test_a_password_command_that_fails_at_first(
    broker: TlsKafka, new_database: Callable[..., Database], tmp_path: Path
) -> None:
    file = tmp_path / "password"
    kafka = {"client": broker.properties("SCRAM", **SCRAM), "password_command": ["cat", str(file)]}
    with daemon(broker, new_database(), "SCRAM", kafka, wait=False) as pipeline:
        wait_until(lambda: "kafka.password_command: " in pipeline.daemon.log_text(), "the failure")
        file.write_text(f"{PASSWORD}\n")
        pipeline.daemon.wait_until_ready("active")
        pipeline.write()
        pipeline.wait_until_confirmed()


@pytest.mark.long
def test_a_changed_password_is_read_again(
    broker: TlsKafka, new_database: Callable[..., Database], tmp_path: Path
) -> None:
    """The password is wrong when the daemon starts."""
    file = tmp_path / "password"
    file.write_text("wrong-secret\n")
    client = broker.properties("SCRAM", **SCRAM)
    kafka = {"client": client, "password_command": ["cat", str(file)]}
    with daemon(broker, new_database(), "SCRAM", kafka, wait=False) as pipeline:
        wait_until(lambda: "invalid credentials" in pipeline.daemon.log_text(), "the refusal")
        assert "kafka.password_command" in pipeline.daemon.log_text()
        file.write_text(f"{PASSWORD}\n")
        pipeline.daemon.wait_until_ready("active")
        pipeline.write()
        pipeline.wait_until_confirmed()
        assert "wrong-secret" not in pipeline.daemon.log_text()


@contextmanager
def daemon(
    broker: TlsKafka, database: Database, listener: str, kafka: dict[str, Any], *, wait: bool = True
) -> Iterator[Pipeline]:
    """Run the daemon with these settings of ``[kafka]``."""
    prepare(database)
    addresses, settings = broker.addresses(listener), configured({"kafka": kafka})
    role: Role | None = "active" if wait else None
    with Daemon(f"w{uuid4().hex[:8]}", database.conninfo(), addresses, settings, wait_for=role) as running:
        yield Pipeline(database, broker, running)


@pytest.mark.long
def test_renewed_certificates_are_used_without_a_restart(
    new_database: Callable[..., Database], broker: TlsKafka
) -> None:
    """The broker's certificate is renewed before that of pgsluice.

    The new certificates are signed by another authority, so the broker and pgsluice refuse each other in between.
    """
    database, authorities = new_database(), broker.directory / "renewed.crt"
    authorities.write_bytes(broker.authority.certificate.read_bytes())
    client = broker.client(broker.authority, ssl_ca_location=str(authorities))
    with daemon(broker, database, "MUTUAL", {"client": client}) as pipeline:
        pipeline.write()
        pipeline.wait_until_confirmed()
        broker.stop()
        broker.renew(broker.other)
        broker.start()
        with database.connect() as connection:
            connection.execute("ALTER TABLE numbers ADD word text")  # so that the registry also writes
        pipeline.write()
        wait_until(lambda: "certificate verify failed" in pipeline.daemon.log_text(), "the refusal")
        broker.client(broker.other)
        authorities.write_bytes(broker.other.certificate.read_bytes())
        pipeline.wait_until_confirmed()
        broker.client(broker.other)  # the current certificate still works, but the new one must be used
        wait_until(lambda: "A new session begins, which reads them" in pipeline.daemon.log_text(), "the new session")
        pipeline.write()
        pipeline.wait_until_confirmed()
        pipeline.assert_complete()
