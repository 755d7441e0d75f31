import pytest
from psycopg.conninfo import conninfo_to_dict

from pgsluice.errors import ConfigError
from pgsluice.postgres.options import SESSION_SETTINGS, ConnectionOptions


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


def test_a_dead_peer_is_noticed_unless_the_user_knows_better() -> None:
    found = parameters(ConnectionOptions({"keepalives_idle": "60", "connect_timeout": "3"}))
    assert found["keepalives_idle"] == "60"
    assert found["tcp_user_timeout"] == "30000"
    assert found["connect_timeout"] == "3"


@pytest.mark.parametrize("dsn", ["host=db port=1 user=me", "postgresql://me@db:1"])
def test_a_dsn_is_taken_apart_and_single_parameters_outrank_it(dsn: str) -> None:
    found = parameters(ConnectionOptions({"dsn": dsn, "port": "2"}, application_name="it's me"))
    assert (found["host"], found["port"], found["user"]) == ("db", "2", "me")
    assert found["application_name"] == "it's me"


def test_overrides_come_last() -> None:
    assert parameters(ConnectionOptions({"replication": "off"}), replication="database")["replication"] == "database"


@pytest.mark.parametrize("given", [{"dsn": "password=hunter2 what"}, {"no_such_parameter": "hunter2"}])
def test_what_libpq_does_not_understand_is_not_repeated(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        ConnectionOptions(given).conninfo()
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
