from pathlib import Path

import pytest

from pgsluice.config import libpq


def test_a_dsn_is_a_connection_string_or_a_uri() -> None:
    expected = {"host": "db", "password": "a b"}
    assert libpq.parse_dsn("host=db password='a b'") == expected
    assert libpq.parse_dsn("postgresql://:a%20b@db") == expected


def test_a_dsn_that_cannot_be_read_is_not_repeated() -> None:
    with pytest.raises(ValueError, match="is neither a connection string of libpq") as caught:
        libpq.check_dsn("password=hunter2 hunter2")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_dsn_may_not_set_reserved_parameters() -> None:
    with pytest.raises(ValueError, match="may not set replication: the connection is always"):
        libpq.check_dsn("host=db replication=database")
    libpq.check_dsn("host=db")


def test_a_primary_is_named_by_its_host() -> None:
    libpq.check_primary("postgresql://primary")
    libpq.check_primary("service=primary")
    with pytest.raises(ValueError, match=r"^names no host"):
        libpq.check_primary("port=5433")
    with pytest.raises(ValueError, match="may not set replication"):
        libpq.check_primary("host=primary replication=database")


def test_a_primary_inherits_all_parameters_of_its_standby_but_the_address() -> None:
    standby = {"host": "a,b", "port": "5433,5434", "target_session_attrs": "standby", "user": "u", "password": "p"}
    assert libpq.of_primary(standby, "host=c user=v") == {"host": "c", "user": "v", "password": "p"}
    assert standby["host"] == "a,b"


def test_the_effective_values_come_from_libpq(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "services").write_text("[shop]\nhost=db\nport=6432\nsslmode=verify-full\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.setenv("PGSSLMODE", "require")
    found = libpq.in_effect({"service": "shop", "port": "7432"})
    assert (found["host"], found["port"], found["sslmode"]) == ("db", "7432", "verify-full")
    assert libpq.in_effect({"host": "db", "target_session_attrs": "read-write"})["sslmode"] == "require"
    assert libpq.in_effect({"service": "absent", "host": "db"}) == {"service": "absent", "host": "db"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("host", "has its own key: write it as postgres.host"),
        (
            "application_name",
            "cannot be set: connections are named after the pipeline: change its name (`name`) instead",
        ),
        ("gsencmode", "is not a connection parameter of libpq: did you mean gssencmode?"),
        ("work_mem", "is not a connection parameter of libpq"),
    ],
)
def test_parameters_that_are_refused(name: str, reason: str) -> None:
    assert libpq.refusal(name) == reason


@pytest.mark.parametrize("name", ["passfile", "service", "require_auth", "krbsrvname", "sslpassword", "options"])
def test_every_way_to_authenticate_can_be_configured(name: str) -> None:
    assert libpq.refusal(name) == ""
