"""A broker with a TLS listener for each kind of authentication, and listeners that present a wrong certificate."""

from pathlib import Path

from sandbox.broker import Listener
from sandbox.kafka import Kafka
from tests.support.authority import Authority, expired
from tests.support.token_issuer import AUDIENCE, TokenIssuer

HOSTS = ["localhost", "127.0.0.1"]
_OAUTHBEARER = "org.apache.kafka.common.security.oauthbearer"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
PASSWORD = "right"  # noqa: S105 - a password for tests

LISTENERS = (
    Listener("TLS", "SSL"),
    Listener("MUTUAL", "SSL"),
    Listener("SCRAM", "SASL_SSL"),
    Listener("OAUTH", "SASL_SSL"),
    Listener("EXPIRED", "SSL"),
    Listener("ELSEWHERE", "SSL"),
)


class TlsKafka(Kafka):
    """The broker. ``authority`` signs the certificates of the broker and of the clients that the broker trusts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory, "ours")
        self.other = Authority(directory, "other")
        self.tokens = TokenIssuer()
        self._keys = directory / "keys.json"
        self._keys.write_text(self.tokens.public_keys())
        self.renew(self.authority)
        settings = {
            **_store("tls", self._store("broker")),
            **_store("mutual", self._store("broker")),
            **_trust("mutual", self._store("trusted")),
            **_store("scram", self._store("broker")),
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.scram.scram-sha-512.sasl.jaas.config": SCRAM,
            **_store("oauth", self._store("broker")),
            **_oauth(self._keys),
            **_store("expired", self._keep("late", *self.authority.issue("late", HOSTS, expires=expired()))),
            **_store("elsewhere", self._keep("elsewhere", *self.authority.issue("elsewhere", ["kafka.example.com"]))),
        }
        users = ["--add-scram", f"SCRAM-SHA-512=[name=pgsluice,password={PASSWORD}]"]
        java = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._keys.as_uri()}"]
        super().__init__(settings=settings, listeners=LISTENERS, format_options=users, java_options=java)

    def renew(self, authority: Authority) -> None:
        """Give the broker a certificate of this authority. The broker uses it after its next start.

        After that start, the listener MUTUAL trusts only clients whose certificates this authority has signed.
        """
        self._keep("broker", *authority.issue("broker", HOSTS))
        self._store("trusted").write_bytes(authority.certificate.read_bytes())

    def properties(self, listener: str, **changed: str) -> dict[str, str]:
        """Return a client's properties for a listener, without credentials.

        ``changed`` adds or overrides properties. In their names, underscores stand for dots.
        """
        protocol = next(each.protocol for each in LISTENERS if each.name == listener)
        return {
            "security.protocol": protocol,
            "ssl.ca.location": str(self.authority.certificate),
            **{name.replace("_", "."): value for name, value in changed.items()},
        }

    def client(self, authority: Authority, **changed: str) -> dict[str, str]:
        """Return a client's properties for the listener MUTUAL, with a client certificate of this authority."""
        certificate, key = authority.issue("client")
        files = {"ssl_certificate_location": str(certificate), "ssl_key_location": str(key)}
        return self.properties("MUTUAL", **files, **changed)

    def _keep(self, name: str, certificate: Path, key: Path) -> Path:
        """Write a certificate and its key into one file, because a broker expects this form."""
        file = self._store(name)
        file.write_bytes(key.read_bytes() + certificate.read_bytes())
        return file

    def _store(self, name: str) -> Path:
        return self.directory / f"{name}.pem"


def _store(listener: str, file: Path) -> dict[str, str]:
    prefix = f"listener.name.{listener}.ssl.keystore"
    return {f"{prefix}.type": "PEM", f"{prefix}.location": str(file)}


def _trust(listener: str, file: Path) -> dict[str, str]:
    prefix = f"listener.name.{listener}.ssl"
    trusted = {f"{prefix}.truststore.type": "PEM", f"{prefix}.truststore.location": str(file)}
    return {**trusted, f"{prefix}.client.auth": "required"}


def _oauth(keys: Path) -> dict[str, str]:
    prefix, handler = "listener.name.oauth", f"{_OAUTHBEARER}.OAuthBearerValidatorCallbackHandler"
    return {
        f"{prefix}.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{prefix}.oauthbearer.sasl.jaas.config": f"{_OAUTHBEARER}.OAuthBearerLoginModule required;",
        f"{prefix}.oauthbearer.sasl.server.callback.handler.class": handler,
        f"{prefix}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        f"{prefix}.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
    }
