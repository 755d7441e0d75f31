from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from pgsluice.config import Duration, Settings
from pgsluice.config.problems import KeyProblems
from pgsluice.errors import ConfigError

KAFKA: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:9092", "topic_prefix": "shop"}


def settings(**tables: Any) -> Settings:  # noqa: ANN401 - any setting
    kafka = KAFKA | tables.pop("kafka", {})
    return Settings.model_validate({"version": 1, "name": "shop", "kafka": kafka, **tables})


def problems(**tables: Any) -> list[tuple[tuple[str | int, ...], str]]:  # noqa: ANN401 - any setting
    with pytest.raises(ValidationError) as caught:
        settings(**tables)
    found: list[tuple[tuple[str | int, ...], str]] = []
    for error in caught.value.errors():
        reason = error.get("ctx", {}).get("error")
        if isinstance(reason, KeyProblems):
            found += [((*error["loc"], *path), sentence) for path, sentence in reason.found]
        else:
            found.append((error["loc"], str(reason or error["type"])))
    return found


def test_little_needs_to_be_said() -> None:
    least = settings()
    assert least.slot_name == "pgsluice_shop"
    assert least.postgres.publications == ["pgsluice"]
    assert least.postgres.libpq_parameters() == {}
    assert least.kafka.librdkafka_properties() == {"bootstrap.servers": "127.0.0.1:9092", "compression.type": "lz4"}
    assert least.tables.numeric.avro == "string"
    assert least.kafka.timestamp == "produce"


def test_settings_never_change_and_do_not_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAME", "other")
    one = settings()
    assert one.name == "shop"
    with pytest.raises(ValidationError, match="frozen"):
        one.name = "other"


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({"postgres": {"password": ""}}, ("postgres", "password")),
        ({"postgres": {"dsn": ""}}, ("postgres", "dsn")),
        ({"postgres": {"parameters": {"sslpassword": ""}}}, ("postgres", "parameters", "sslpassword")),
        ({"kafka": {"client": {"sasl.password": ""}}}, ("kafka", "client", "sasl.password")),
        ({"schema_registry": {"token": ""}}, ("schema_registry", "token")),
    ],
)
def test_an_empty_secret_is_a_mistake(section: dict[str, Any], path: tuple[str, ...]) -> None:
    assert (path, "is empty: write the secret, or leave the setting out") in problems(**section)


def test_a_slot_of_another_name() -> None:
    assert settings(postgres={"slot": "legacy"}).slot_name == "legacy"


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
    assert postgres.libpq_parameters() == {"password": "first"}
    file.write_text("second\n")
    assert postgres.libpq_parameters() == {"password": "second"}
    file.unlink()
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        postgres.libpq_parameters()


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


def test_a_primary_has_what_is_not_said_from_its_standby() -> None:
    assert settings().primary_parameters() is None
    found = settings(postgres={"host": "standby", "dbname": "shop"}, snapshot={"primary": "host=primary password=x"})
    assert found.primary_parameters() == {"host": "primary", "dbname": "shop", "password": "x"}
    assert "password=x" not in repr(found)
    (((*path,), sentence),) = problems(snapshot={"primary": "dbname=shop"})
    assert path == ["snapshot", "primary"]
    assert "names no host" in sentence


def test_a_dsn_is_checked() -> None:
    (((*path,), sentence),) = problems(postgres={"dsn": "hunter2"})
    assert path == ["postgres", "dsn"]
    assert sentence.startswith("is neither a connection string")
    assert settings(postgres={"dsn": "host=a"}).postgres.libpq_parameters() == {"host": "a"}


def test_all_that_is_wrong_with_a_table_of_properties_is_found() -> None:
    assert problems(postgres={"parameters": {"host": "a", "port": [1], "keepalives": []}}) == [
        (("postgres", "parameters", "host"), "has its own key: write it as postgres.host"),
        (("postgres", "parameters", "port"), "has its own key: write it as postgres.port"),
        (("postgres", "parameters", "keepalives"), "must be a text, a number, true or false"),
    ]
    assert problems(kafka={"client": "acks=1"}) == [(("kafka", "client"), "must be a table of names and values")]
    (path, sentence), *_ = problems(kafka={"client": {"acks": 1, "partitioner": "random"}})
    assert path == ("kafka", "client", "acks")
    assert sentence.startswith("cannot be set: ")


def test_values_of_properties_become_texts() -> None:
    client = {"linger.ms": 5, "socket.keepalive.enable": True, "compression.type": "zstd", "sasl.password": "hush"}
    assert settings(kafka={"client": client}).kafka.librdkafka_properties() == {
        "bootstrap.servers": "127.0.0.1:9092",
        "linger.ms": "5",
        "socket.keepalive.enable": "true",
        "compression.type": "zstd",
        "sasl.password": "hush",
    }
    config = {"min.insync.replicas": 2}
    assert settings(kafka={"topics": {"config": config}}).kafka.topics.config == {"min.insync.replicas": "2"}


def test_secrets_never_print() -> None:
    one = settings(
        postgres={"dsn": "password=hunter1", "password": "hunter2", "parameters": {"sslpassword": "hunter3"}},
        kafka={"client": {"sasl.password": "hunter4", "ssl.key.pem": "hunter5"}},
    )
    for text in (repr(one), str(one), one.model_dump_json(), repr(one.kafka.client)):
        assert "hunter" not in text
    assert isinstance(one.kafka.client["sasl.password"], SecretStr)


def test_errors_do_not_repeat_the_input() -> None:
    with pytest.raises(ValidationError) as caught:
        settings(postgres={"password": 12345, "port": "hunter2"})
    assert "12345" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


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


def test_a_cut_must_fit_into_what_may_be_in_flight() -> None:
    assert problems(delivery={"cut_bytes": "128MiB"}) == [
        (("delivery", "inflight_max"), "is 32MiB, less than cut_bytes: set it to 128MiB or more")
    ]
    assert [path for path, _ in problems(delivery={"cut_bytes": "1"})] == [("delivery", "cut_bytes")]


def test_every_table_has_a_topic_of_its_own() -> None:
    assert problems(kafka={"topics": {"name": "{prefix}.{table}"}}) == [
        (("kafka", "topics", "name"), "lacks {schema}: every table needs a topic of its own")
    ]
    rules = [{"match": "public.*", "topic": "{prefix}.all"}]
    assert problems(tables={"rules": rules}) == [
        (("tables", "rules", 0, "topic"), "lacks {table}: every table that matches needs a topic of its own")
    ]
    rules = [{"match": "public.*", "topic": "{prefix}.{table}"}, {"match": "a.b", "topic": "{prefix}.b"}]
    assert settings(tables={"rules": rules}).tables.rules[0].topic == "{prefix}.{table}"


def test_a_rule_cannot_take_a_topic_that_is_taken() -> None:
    rules = [
        {"match": "a.b", "topic": "{prefix}.transactions"},
        {"match": "a.c", "topic": "{prefix}.c"},
        {"match": "a.d", "topic": "{prefix}.c"},
    ]
    assert problems(tables={"rules": rules}) == [
        (
            ("tables", "rules", 0, "topic"),
            "shop.transactions is the topic of pgsluice itself: choose another name",
        ),
        (
            ("tables", "rules", 2, "topic"),
            "shop.c is the topic of another rule, for a.c: choose another name",
        ),
    ]


def test_a_compacted_topic_cannot_hold_truncates() -> None:
    sentence = 'a compacted topic cannot hold truncates, because they have no key: set it to "skip"'
    compact: dict[str, Any] = {"cleanup.policy": "compact,delete"}
    everywhere = {"topics": {"config": compact}}
    assert problems(kafka=everywhere) == [(("tables", "truncate"), sentence)]
    settings(kafka=everywhere, tables={"truncate": "skip"})
    rules = [{"match": "a.b"}, {"match": "a.c", "truncate": "emit"}]
    assert problems(kafka=everywhere, tables={"truncate": "skip", "rules": rules}) == [
        (("tables", "rules", 1, "truncate"), sentence)
    ]
    more: list[dict[str, Any]] = [
        {"match": "a.b", "config": compact},
        {"match": "a.c", "config": compact, "truncate": "skip"},
    ]
    assert problems(tables={"rules": more}) == [(("tables", "rules", 0, "truncate"), sentence)]
    more = [{"match": "a.b", "config": {"cleanup.policy": "delete"}, "truncate": "emit"}]
    settings(kafka=everywhere, tables={"truncate": "skip", "rules": more})


def test_what_depends_on_a_table_that_is_wrong_is_not_checked() -> None:
    assert [path for path, _ in problems(kafka={"topics": {"partitions": 0}}, tables={})] == [
        ("kafka", "topics", "partitions")
    ]
    assert [path for path, _ in problems(tables={"rules": [{"match": "x", "topic": "{prefix}.t"}]})] == [
        ("tables", "rules", 0, "match")
    ]


@pytest.mark.parametrize(
    ("table", "key", "value", "kind"),
    [
        ("postgres", "port", True, "int_type"),
        ("postgres", "port", 0, "greater_than_equal"),
        ("postgres", "port", 65_536, "less_than_equal"),
        ("postgres", "host", "", "string_too_short"),
        ("postgres", "create_slot", 1, "bool_type"),
        ("postgres", "create_slot", "true", "bool_type"),
        ("postgres", "publications", [], "too_short"),
        ("postgres", "publications", ["a", "b", "a"], "names a more than once"),
        ("postgres", "sslmode", "on", "literal_error"),
        ("tables", "include", [], "too_short"),
        ("tables", "include", "a.b", "list_type"),
        ("tables", "streaming", "on", "extra_forbidden"),
        ("schema_registry", "type", "karapace", "literal_error"),
        ("snapshot", "mode", "always", "literal_error"),
        ("snapshot", "chunk_rows", "many", "int_type"),
        ("snapshot", "max_rows_per_second", 0, "greater_than_equal"),
    ],
)
def test_values_that_are_refused(table: str, key: str, value: object, kind: str) -> None:
    assert problems(**{table: {key: value}}) == [((table, key), kind)]


def test_a_rule_may_want_some_of_the_rows() -> None:
    (((*path,), _),) = problems(tables={"rules": [{"match": "a.b", "where": ""}]})
    assert path == ["tables", "rules", 0, "where"]
    assert settings(tables={"rules": [{"match": "a.b", "where": "n > 1"}]}).tables.rules[0].where == "n > 1"


def test_a_rule_can_only_skip_a_table() -> None:
    rules = [{"match": "a.b", "snapshot": "skip"}, {"match": "c.d", "snapshot": "never"}]
    assert problems(tables={"rules": rules}) == [(("tables", "rules", 1, "snapshot"), "literal_error")]


@pytest.mark.parametrize("host", ["postgresql://u:hunter2@db/shop", "db1,postgres://db2"])
def test_a_uri_is_no_host(host: str) -> None:
    assert problems(postgres={"host": host}) == [(("postgres", "host"), "is a URI: write it as postgres.dsn")]


def test_a_user_stands_in_no_address() -> None:
    assert problems(postgres={"host": "db1,u:hunter2@db2"}) == [
        (("postgres", "host"), "has a user in it: write it as postgres.user and postgres.password")
    ]
    assert settings(postgres={"host": "db1,@abstract"}).postgres.host == "db1,@abstract"
    assert problems(kafka={"bootstrap_servers": "u:hunter2@kafka:9092"}) == [
        (
            ("kafka", "bootstrap_servers"),
            'has a user in it: write it as "sasl.username" and "sasl.password" under kafka.client',
        )
    ]


@pytest.mark.parametrize("url", ["http://u:hunter2\u2100@db", "http://u:hunter2@[db"])
def test_an_address_of_a_registry_that_cannot_be_taken_apart_is_not_quoted(url: str) -> None:
    ((_, problem),) = problems(schema_registry={"type": "confluent", "url": url})
    assert "hunter2" not in problem


def test_replication_factors() -> None:
    assert problems(kafka={"topics": {"replication_factor": 0}}) == [
        (("kafka", "topics", "replication_factor"), "must be -1 (the broker's default) or at least 1")
    ]
    assert settings(kafka={"topics": {"replication_factor": 3}}).kafka.topics.replication_factor == 3


class TestSchemaRegistry:
    URL = "https://registry.example.com:8081"

    def test_a_server_needs_an_address(self) -> None:
        assert problems(schema_registry={"type": "confluent"}) == [
            (("schema_registry", "url"), 'is needed with type = "confluent"')
        ]
        assert settings(schema_registry={"type": "confluent", "url": self.URL}).schema_registry.url == self.URL

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
    def test_what_is_no_address(self, url: str) -> None:
        ((path, sentence),) = problems(schema_registry={"url": url})
        assert path == ("schema_registry", "url")
        assert "must be addresses like" in sentence

    def test_a_secret_in_an_address_is_not_repeated(self) -> None:
        ((_, sentence),) = problems(schema_registry={"url": "http://user:hunter2@registry"})
        assert "has a user in it" in sentence
        assert "hunter2" not in sentence

    def test_secrets_are_read_for_every_connection(self, tmp_path: Path) -> None:
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

    @pytest.mark.parametrize(
        ("keys", "sentence"),
        [
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
    def test_what_does_not_go_together(self, keys: dict[str, str], sentence: str) -> None:
        ((_, found),) = problems(schema_registry=keys)
        assert sentence in found


def test_types_of_columns_are_names_by_pattern() -> None:
    rules = [{"match": "public.*", "types": {"amount": "decimal(38, 9)", "*_at": "timestamp-millis"}}]
    found = settings(tables={"rules": rules}).tables.rules[0].types
    assert {pattern: str(choice) for pattern, choice in found.items()} == {
        "amount": "decimal(38,9)",
        "*_at": "timestamp-millis",
    }


def test_what_is_no_type_of_a_column() -> None:
    rules = [{"match": "public.*", "types": {"a": "decimal(40,0)", "b": "string", "c": "timestamp-milis"}}]
    place = ("tables", "rules", 0, "types")
    assert problems(tables={"rules": rules}) == [
        ((*place, "a"), "'decimal(40,0)' is not possible: precision goes from 1 to 38, scale from 0 to the precision"),
        ((*place, "c"), "'timestamp-milis' is not a type that can be chosen: did you mean timestamp-millis?"),
    ]
    assert problems(tables={"rules": [{"match": "public.*", "types": ["string"]}]}) == [
        (place, "must be a table of names and values")
    ]
