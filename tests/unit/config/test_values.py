"""The types of settings: the values that each type accepts, and its message about other values."""

from typing import Any

import pytest
from pydantic import SecretStr, TypeAdapter, ValidationError

from pgsluice.avro.choices import Choice
from pgsluice.config.problems import KeyProblems, Path
from pgsluice.config.values import (
    COMPRESSION,
    ClientProperties,
    ColumnTypes,
    Names,
    Parameters,
    ReplicationFactor,
    Secret,
    TopicConfig,
    no_uri,
    no_user,
    reveal,
)


def read(kind: Any, value: object) -> Any:  # noqa: ANN401 - any type of a value
    return TypeAdapter(kind).validate_python(value)


def refused_keys(error: ValidationError) -> list[Path]:
    """Return those keys of one value about which KeyProblems reports a problem."""
    (found,) = error.errors()
    cause = found["ctx"]["error"]
    assert isinstance(cause, KeyProblems)
    return [path for path, _ in cause.found]


def test_numbers_and_booleans_in_a_table_of_texts_become_texts() -> None:
    assert read(TopicConfig, {"a": "x", "b": 1, "c": True, "d": 0.5}) == {"a": "x", "b": "1", "c": "true", "d": "0.5"}


def test_a_table_names_each_key_that_has_something_else() -> None:
    with pytest.raises(ValidationError) as found:
        read(TopicConfig, {"a": [1], "b": "x", "c": {}})
    assert refused_keys(found.value) == [("a",), ("c",)]
    with pytest.raises(ValidationError, match="must be a table of names and values"):
        read(TopicConfig, "x")


def test_parameters_of_libpq_hide_what_is_secret() -> None:
    found = read(Parameters, {"connect_timeout": 3, "sslpassword": "hunter2"})
    assert "hunter2" not in str(found)
    assert reveal(found) == {"connect_timeout": "3", "sslpassword": "hunter2"}


def test_a_secret_is_not_empty() -> None:
    assert read(Secret, "x") == SecretStr("x")
    with pytest.raises(ValidationError, match="is empty: write the secret"):
        read(Secret, "")
    with pytest.raises(ValidationError, match="is empty: write the secret"):
        read(Parameters, {"sslpassword": ""})


def test_clients_compress_by_default() -> None:
    assert reveal(read(ClientProperties, {})) == COMPRESSION
    assert reveal(read(ClientProperties, {"compression.type": "zstd"})) == {"compression.type": "zstd"}


def test_types_can_be_chosen_by_column() -> None:
    assert read(ColumnTypes, {"price": "string"}) == {"price": Choice.parse("string")}
    with pytest.raises(ValidationError) as found:
        read(ColumnTypes, {"price": "strong", "note": "string"})
    assert refused_keys(found.value) == [("price",)]


def test_names_are_unique() -> None:
    assert read(Names, ["a", "b"]) == ["a", "b"]
    with pytest.raises(ValidationError, match="names a more than once"):
        read(Names, ["a", "b", "a"])


def test_a_replication_factor_of_0_is_refused() -> None:
    assert [read(ReplicationFactor, one) for one in (-1, 1)] == [-1, 1]
    with pytest.raises(ValidationError, match="at least 1"):
        read(ReplicationFactor, 0)


@pytest.mark.parametrize("host", ["db", "db1,db2", "/run/postgresql", "@abstract"])
def test_names_of_hosts_are_accepted(host: str) -> None:
    assert no_uri(host) == host


@pytest.mark.parametrize("host", ["postgresql://db", "me@db", "db,me@db"])
def test_values_that_contain_more_than_a_host_are_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r"write it as postgres\.|set postgres\."):
        no_uri(host)


def test_servers_have_no_user() -> None:
    assert no_user("kafka:9092") == "kafka:9092"
    with pytest.raises(ValueError, match=r"sasl\.username"):
        no_user("me:secret@kafka:9092")
