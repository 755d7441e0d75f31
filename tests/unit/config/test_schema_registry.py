from pathlib import Path
from typing import Literal

import pytest

from pgsluice.errors import ConfigError, RegistryUnavailable
from tests.support.settings import problems, settings

URL = "https://registry.example.com:8081"


def test_a_server_needs_an_address() -> None:
    assert problems(schema_registry={"type": "confluent"}) == [
        (("schema_registry", "url"), 'is needed with type = "confluent"')
    ]
    assert settings(schema_registry={"type": "confluent", "url": URL}).schema_registry.url == URL


@pytest.mark.parametrize(
    "url",
    [
        "registry:8081",
        "ftp://registry",
        "http://",
        "http://a,b",
        "http://a:x",
        "http://a?b",
        "http://a:65536",
        "http://a b",
        "http://a/\x7f",
    ],
)
def test_invalid_addresses_are_refused(url: str) -> None:
    ((path, sentence),) = problems(schema_registry={"url": url})
    assert path == ("schema_registry", "url")
    assert "must be addresses like" in sentence


def test_a_secret_in_an_address_is_not_repeated() -> None:
    ((_, sentence),) = problems(schema_registry={"url": "http://user:hunter2@registry"})
    assert "has a user in it" in sentence
    assert "hunter2" not in sentence


def test_secrets_are_read_for_every_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    registry = settings(schema_registry={"token_file": str(file)}).schema_registry
    assert (registry.secret("token"), registry.secret("password")) == ("first", None)
    file.write_text("second\n")
    assert registry.secret("token") == "second"
    file.unlink()
    with pytest.raises(ConfigError, match=r"schema_registry.token_file: .* cannot be read"):
        registry.secret("token")
    assert settings().schema_registry.secret("token") is None


@pytest.mark.parametrize(("secret", "user"), [("password", {"username": "pgsluice"}), ("token", {})])
def test_a_command_gives_the_secret_of_each_connection(
    secret: Literal["password", "token"], user: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("first\n")
    keys = {**user, f"{secret}_command": ["cat", str(file)]}
    registry = settings(schema_registry=keys).schema_registry
    assert registry.secret(secret) == "first"
    file.write_text("second\n")
    assert registry.secret(secret) == "second"
    file.unlink()
    with pytest.raises(RegistryUnavailable, match=rf"schema_registry\.{secret}_command: cat failed with exit code 1"):
        registry.secret(secret)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"username": "u", "password": "x", "password_command": ["true"]},
            "is set together with schema_registry.password",
        ),
        ({"token": "x", "token_command": ["true"]}, "is set together with schema_registry.token"),
        ({"password_command": ["true"]}, "needs schema_registry.username"),
        ({"username": "u", "token_command": ["true"]}, "is set together with schema_registry.username"),
        ({"username": "a:b"}, "has a colon"),
        (
            {"username": "u", "password": "x", "password_file": "/dev/null"},
            "is set together with schema_registry.password",
        ),
        ({"token": "x", "token_file": "/dev/null"}, "is set together with schema_registry.token"),
        ({"token_file": "/absent"}, "/absent cannot be read"),
        ({"password": "x"}, "needs schema_registry.username"),
        ({"username": "x", "token": "y"}, "is set together with schema_registry.username"),
        ({"key_file": "key.pem"}, "needs the certificate"),
    ],
)
def test_settings_that_exclude_each_other(keys: dict[str, object], sentence: str) -> None:
    ((_, found),) = problems(schema_registry=keys)
    assert sentence in found


def test_an_unknown_type_of_server_is_refused() -> None:
    assert problems(schema_registry={"type": "karapace"}) == [(("schema_registry", "type"), "literal_error")]


@pytest.mark.parametrize("url", ["http://u:hunter2\u2100@db", "http://u:hunter2@[db"])
def test_an_address_of_a_registry_that_cannot_be_taken_apart_is_not_quoted(url: str) -> None:
    ((_, problem),) = problems(schema_registry={"type": "confluent", "url": url})
    assert "hunter2" not in problem
