import ssl

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgsluice.errors import ConfigError
from pgsluice.postgres.options import SESSION_SETTINGS, ConnectionOptions, StreamOptions


def parameters(
    options: ConnectionOptions, settings: dict[str, str] | None = None, replication: str = "off"
) -> dict[str, object]:
    return dict(conninfo_to_dict(options.conninfo(settings, replication=replication)))


def test_a_session_has_our_settings_last() -> None:
    found = parameters(ConnectionOptions({"options": "-c geqo=off -c TimeZone=CET"}), {"lock_timeout": "5"})
    words = str(found["options"]).split()
    assert words[:4] == ["-c", "geqo=off", "-c", "TimeZone=CET"]
    assert words[5::2] == [f"{name}={value}" for name, value in (SESSION_SETTINGS | {"lock_timeout": "5"}).items()]
    assert set(words[4::2]) == {"-c"}
    assert found["client_encoding"] == "UTF8"
    assert found["application_name"] == "pgsluice"


def test_parameters_of_the_user_replace_our_defaults() -> None:
    found = parameters(ConnectionOptions({"keepalives_idle": "60", "connect_timeout": "3"}))
    assert found["keepalives_idle"] == "60"
    assert found["tcp_user_timeout"] == "30000"
    assert found["connect_timeout"] == "3"


@pytest.mark.parametrize("dsn", ["host=db port=1 user=me", "postgresql://me@db:1"])
def test_single_parameters_take_precedence_over_a_dsn(dsn: str) -> None:
    found = parameters(ConnectionOptions({"dsn": dsn, "port": "2"}, application_name="it's me"))
    assert (found["host"], found["port"], found["user"]) == ("db", "2", "me")
    assert found["application_name"] == "it's me"


def test_the_authorities_of_the_system_are_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace ``system`` by the file's name, because the OpenSSL in psycopg's wheels would not find the file."""
    file = ssl.get_default_verify_paths().cafile
    found = parameters(ConnectionOptions({"dsn": "sslrootcert=system"}))
    assert (found["sslrootcert"], found["sslmode"]) == (file, "verify-full")
    assert "sslrootcert" not in parameters(ConnectionOptions({}))
    monkeypatch.setenv("PGSSLROOTCERT", "system")
    assert parameters(ConnectionOptions({}))["sslrootcert"] == file


def test_libpq_refuses_the_authorities_of_the_system_in_a_weak_mode() -> None:
    found = parameters(ConnectionOptions({"sslrootcert": "system", "sslmode": "require"}))
    assert (found["sslrootcert"], found["sslmode"]) == ("system", "require")


def test_arguments_replace_configured_parameters() -> None:
    assert parameters(ConnectionOptions({"replication": "off"}), replication="database")["replication"] == "database"


@pytest.mark.parametrize("given", [{"dsn": "password=hunter2 what"}, {"no_such_parameter": "hunter2"}])
def test_an_invalid_dsn_is_not_repeated(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        ConnectionOptions(given).conninfo()
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("options", "version", "asked"),
    [
        (StreamOptions(), 130023, {}),
        (StreamOptions(), 140023, {"streaming": "on"}),
        (StreamOptions(streaming="parallel"), 150018, {"streaming": "on"}),
        (StreamOptions(streaming="parallel"), 160014, {"streaming": "parallel"}),
        (StreamOptions(streaming="off"), 180004, {}),
        (StreamOptions(messages=True), 180004, {"messages": "true"}),
        (
            StreamOptions(two_phase=True, binary=True),
            150018,
            {"streaming": "on", "two_phase": "true", "binary": "true"},
        ),
        (StreamOptions(origin="none"), 160014, {"streaming": "on", "origin": "none"}),
    ],
)
def test_options_that_a_server_supports_are_used(options: StreamOptions, version: int, asked: dict[str, str]) -> None:
    assert options.of_server(version) == asked


@pytest.mark.parametrize(
    ("options", "version", "words"),
    [
        (StreamOptions(two_phase=True), 140023, "postgres.two_phase = true needs PostgreSQL 15 or later; .* is 14"),
        (StreamOptions(binary=True), 130023, "postgres.binary = true needs PostgreSQL 14"),
        (StreamOptions(messages=True), 130023, "postgres.messages = true needs PostgreSQL 14"),
        (StreamOptions(origin="none"), 150018, 'postgres.origin = "none" needs PostgreSQL 16'),
    ],
)
def test_options_that_a_server_does_not_support_are_refused(options: StreamOptions, version: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        options.of_server(version)
