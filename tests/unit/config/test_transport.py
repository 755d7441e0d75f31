from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pgsluice.config import transport
from pgsluice.config.loading import load
from pgsluice.finding import Finding, Verdict

SAFE_KAFKA = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.password": "hunter2"}


@pytest.fixture(autouse=True)
def _no_libpq_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGSSLMODE", "PGSERVICE", "PGGSSENCMODE", "PGCHANNELBINDING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "pg_service.conf"))


def findings(
    servers: str = "127.0.0.1:9092", properties: Mapping[str, str] | None = None, **settings: str
) -> list[Finding]:
    flags = {f"kafka.client.{name}": value for name, value in (properties or {}).items()}
    flags |= {name.replace("__", "."): value for name, value in settings.items()}
    flags |= {"name": "shop", "kafka.topic_prefix": "shop", "kafka.bootstrap_servers": servers}
    return transport.findings(load(None, {}, [f"{name}={value}" for name, value in flags.items()]))


def test_local_connections_need_no_encryption() -> None:
    assert findings("localhost:9092,[::1]:9092, 127.8.0.1", postgres__host="localhost") == []
    assert findings(postgres__dsn="host=/run/postgresql,127.0.0.1,@abstract,::1,LOCALHOST") == []
    assert findings(postgres__dsn="dbname=shop") == []
    assert findings(schema_registry__url="http://127.0.0.1:8081", schema_registry__username="u") == []


# -- PostgreSQL ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer", "require"])
def test_tls_modes_that_do_not_verify_the_server_cause_a_warning(mode: str) -> None:
    (finding,) = findings(postgres__host="db.example.com", postgres__sslmode=mode)
    assert (finding.name, finding.verdict) == ("postgres transport", Verdict.WARN)
    assert finding.detail.startswith(f"sslmode is {mode}: ")
    assert "db.example.com" in finding.detail
    assert 'postgres.sslmode = "verify-full"' in finding.remedy


def test_the_primary_where_rows_are_read_is_a_server_as_well() -> None:
    (finding,) = findings(postgres__host="localhost", snapshot__primary="host=db.example.com")
    assert finding.name == "primary transport"
    assert findings(postgres__sslmode="verify-full", snapshot__primary="host=db.example.com") == []


def test_a_mode_that_is_not_set_is_that_of_libpq(monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = findings(postgres__host="db")
    assert finding.detail.startswith("sslmode is prefer: ")
    monkeypatch.setenv("PGSSLMODE", "require")
    (finding,) = findings(postgres__host="db")
    assert finding.detail.startswith("sslmode is require: ")
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    assert findings(postgres__host="db") == []


def test_service_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "pg_service.conf").write_text("[safe]\nhost=db\nsslmode=verify-full\n[open]\nhost=db\n")
    assert findings(postgres__dsn="service=safe") == []
    (finding,) = findings(postgres__dsn="service=open")
    assert "db" in finding.detail
    assert findings(postgres__dsn="service=absent") == []
    assert len(findings(postgres__dsn="service=absent host=db")) == 1


@pytest.mark.parametrize(
    "parameters",
    [
        {"postgres__sslmode": "verify-ca"},
        {"postgres__sslmode": "verify-full"},
        {"postgres__dsn": "sslmode=verify-full"},
        {"postgres__dsn": "gssencmode=require"},
        {"postgres__parameters__channel_binding": "require"},
    ],
)
def test_verified_connections_cause_no_warning(parameters: dict[str, Any]) -> None:
    assert findings(postgres__host="db", **parameters) == []


def test_the_hosts_that_are_elsewhere_are_named() -> None:
    (finding,) = findings(postgres__dsn="host=db1,localhost,db2,db3 hostaddr=10.0.0.1,127.0.0.1,::1,")
    assert "to db1, db3" in finding.detail


def test_hosts_that_are_uris_by_mistake_keep_their_passwords() -> None:
    (finding,) = findings(postgres__dsn="host=postgresql://u:hunter2@db/shop")
    assert "to postgresql://***@db/shop" in finding.detail


# -- Kafka ---------------------------------------------------------------------------------------


def kafka(properties: dict[str, str], servers: str = "kafka:9092") -> list[Finding]:
    return findings(servers, properties)


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({}, "security.protocol is PLAINTEXT: changes travel unencrypted to kafka"),
        ({"security.protocol": "plaintext"}, "security.protocol is PLAINTEXT"),
        (
            {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"},
            "security.protocol is SASL_PLAINTEXT: the credentials and changes travel unencrypted to kafka",
        ),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "OAUTHBEARER"},
            "the credentials and changes travel unencrypted",
        ),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}, ": changes travel unencrypted"),
        ({"security.protocol": "SASL_PLAINTEXT"}, ": changes travel unencrypted"),
        ({"security.protocol": "SSL", "enable.ssl.certificate.verification": "F"}, "are not verified"),
        ({**SAFE_KAFKA, "enable.ssl.certificate.verification": "false"}, "are not verified"),
        ({**SAFE_KAFKA, "ssl.endpoint.identification.algorithm": "None"}, "the names in the certificates of kafka"),
    ],
)
def test_open_kafka_connections_cause_a_warning(properties: dict[str, str], words: str) -> None:
    (finding,) = kafka(properties)
    assert (finding.name, finding.verdict) == ("kafka transport", Verdict.WARN)
    assert words in finding.detail
    assert finding.remedy


def test_verified_kafka_connections_cause_no_warning() -> None:
    assert kafka(SAFE_KAFKA) == []
    assert kafka({"security.protocol": "ssl", "enable.ssl.certificate.verification": "true"}) == []


def test_brokers_that_are_elsewhere_are_named() -> None:
    (finding,) = kafka({}, "localhost:9092, SSL://k1:9092,[2001:db8::1]:9092,k2,[broken:9092")
    assert "to k1, 2001:db8::1, k2, [broken:9092" in finding.detail


def test_the_address_of_a_token_endpoint_is_checked() -> None:
    url = "sasl.oauthbearer.token.endpoint.url"
    (finding,) = kafka({**SAFE_KAFKA, url: "http://id:hunter2@login.example.com/token"})
    assert "unencrypted to login.example.com" in finding.detail
    assert "hunter2" not in finding.detail
    assert kafka({**SAFE_KAFKA, url: "https://login.example.com"}) == []
    assert kafka({**SAFE_KAFKA, url: "http://localhost/token"}) == []


# -- the schema registry -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "schemas travel unencrypted to r1, r2"),
        ({"username": "u", "password": "hunter2"}, "the credentials and schemas travel unencrypted to r1, r2"),
        ({"token": "hunter2"}, "the credentials and schemas travel unencrypted to r1, r2"),
        ({"token_command": '["print-token"]'}, "the credentials and schemas travel unencrypted to r1, r2"),
    ],
)
def test_registries_without_tls_cause_a_warning(settings: dict[str, str], words: str) -> None:
    url = "http://r1:8081,https://safe:8081,http://[::1]:8081,http://r2"
    given: dict[str, Any] = {f"schema_registry__{name}": value for name, value in settings.items()}
    (finding,) = findings(schema_registry__url=url, **given)
    assert (finding.name, finding.verdict) == ("schema registry transport", Verdict.WARN)
    assert words in finding.detail
    assert "https://" in finding.remedy
    assert findings(schema_registry__url="https://r1:8081", **given) == []
