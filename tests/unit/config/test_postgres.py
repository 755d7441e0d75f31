from pathlib import Path

import pytest

from pgsluice.config import Duration
from pgsluice.errors import ConfigError, SourceUnavailable
from tests.support.settings import problems, settings


def test_connection_keys_take_precedence_over_the_dsn() -> None:
    postgres = settings(
        postgres={
            "dsn": "postgresql://u:p@old:5433/shop?connect_timeout=3",
            "host": "new",
            "password": "secret",
            "parameters": {"keepalives_idle": 10, "keepalives": True, "sslpassword": "hush"},
        }
    ).postgres
    assert postgres.libpq_parameters() == {
        "user": "u", "password": "secret", "host": "new", "port": "5433", "dbname": "shop",
        "connect_timeout": "3", "keepalives_idle": "10", "keepalives": "true", "sslpassword": "hush",
    }  # fmt: skip


def test_the_password_file_is_read_for_every_connection(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    postgres = settings(postgres={"dsn": "password=old", "password_file": str(file)}).postgres
    assert (postgres.libpq_parameters(), postgres.secret()) == ({}, "first")
    file.write_text("second\n")
    assert postgres.secret() == "second"
    file.unlink()
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        postgres.secret()


def test_the_password_command_runs_for_every_connection(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    postgres = settings(postgres={"dsn": "password=old", "password_command": ["cat", str(file)]}).postgres
    assert (postgres.libpq_parameters(), postgres.secret()) == ({}, "first")
    file.write_text("second\n")
    assert postgres.secret() == "second"
    file.unlink()
    with pytest.raises(SourceUnavailable, match=r"postgres\.password_command: cat failed with exit code 1"):
        postgres.secret()
    assert settings().postgres.secret() is None


@pytest.mark.parametrize("other", [{"password": "a"}, {"password_file": "/etc/hostname"}])
def test_a_password_command_must_be_alone(other: dict[str, str]) -> None:
    (key,) = other
    assert problems(postgres={**other, "password_command": ["true"]}) == [
        (("postgres", "password_command"), f"is set together with postgres.{key}: keep one of the two")
    ]


def test_a_password_file_must_be_readable_and_alone(tmp_path: Path) -> None:
    file = tmp_path / "password"
    assert problems(postgres={"password_file": str(file)}) == [
        (("postgres", "password_file"), f"{file} cannot be read: No such file or directory")
    ]
    file.write_text("secret")
    both = {"password": "a", "password_file": str(file)}
    assert problems(postgres=both) == [
        (("postgres", "password_file"), "is set together with postgres.password: keep one of the two")
    ]


def test_a_dsn_is_checked() -> None:
    (((*path,), sentence),) = problems(postgres={"dsn": "hunter2"})
    assert path == ["postgres", "dsn"]
    assert sentence.startswith("is neither a connection string")
    assert settings(postgres={"dsn": "host=a"}).postgres.libpq_parameters() == {"host": "a"}


def test_every_parameter_that_is_wrong_is_reported() -> None:
    assert problems(postgres={"parameters": {"host": "a", "port": [1], "keepalives": []}}) == [
        (("postgres", "parameters", "host"), "has its own key: write it as postgres.host"),
        (("postgres", "parameters", "port"), "has its own key: write it as postgres.port"),
        (("postgres", "parameters", "keepalives"), "must be a text, a number, true or false"),
    ]
    assert problems(kafka={"client": "acks=1"}) == [(("kafka", "client"), "must be a table of names and values")]


def test_status_updates_are_three_times_as_frequent_as_needed() -> None:
    postgres = {"wal_sender_timeout": "6s", "status_interval": "2s"}
    assert settings(postgres=postgres).postgres.status_interval == Duration(2_000)
    assert problems(postgres={"wal_sender_timeout": "6s"}) == [
        (
            ("postgres", "status_interval"),
            "is 5s, more than a third of wal_sender_timeout (6s): set it to 2s or less",
        )
    ]
    assert [path for path, _ in problems(postgres={"wal_sender_timeout": "6"})] == [("postgres", "wal_sender_timeout")]


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("port", True, "int_type"),
        ("port", 0, "greater_than_equal"),
        ("port", 65_536, "less_than_equal"),
        ("host", "", "string_too_short"),
        ("create_slot", 1, "bool_type"),
        ("create_slot", "true", "bool_type"),
        ("publications", [], "too_short"),
        ("publications", ["a", "b", "a"], "names a more than once"),
        ("sslmode", "on", "literal_error"),
    ],
)
def test_invalid_values_are_refused(key: str, value: object, kind: str) -> None:
    assert problems(postgres={key: value}) == [(("postgres", key), kind)]


@pytest.mark.parametrize("host", ["postgresql://u:hunter2@db/shop", "db1,postgres://db2"])
def test_a_uri_is_not_a_host(host: str) -> None:
    assert problems(postgres={"host": host}) == [(("postgres", "host"), "is a URI: write it as postgres.dsn")]


def test_a_host_must_not_contain_a_user() -> None:
    assert problems(postgres={"host": "db1,u:hunter2@db2"}) == [
        (("postgres", "host"), "has a user in it: set postgres.user and postgres.password instead")
    ]
    assert settings(postgres={"host": "db1,@abstract"}).postgres.host == "db1,@abstract"
