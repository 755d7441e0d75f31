from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from tests.support.settings import problems, settings


def test_few_settings_are_required() -> None:
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


def test_a_slot_may_have_another_name_than_the_pipeline() -> None:
    assert settings(postgres={"slot": "legacy"}).slot_name == "legacy"


def test_a_primary_inherits_unset_parameters_from_its_standby() -> None:
    assert settings().primary_parameters() is None
    found = settings(postgres={"host": "standby", "dbname": "shop"}, snapshot={"primary": "host=primary password=x"})
    assert found.primary_parameters() == {"host": "primary", "dbname": "shop", "password": "x"}
    assert "password=x" not in repr(found)


def test_secrets_are_never_printed() -> None:
    one = settings(
        postgres={"dsn": "password=hunter1", "password": "hunter2", "parameters": {"sslpassword": "hunter3"}},
        kafka={"client": {"sasl.password": "hunter4", "ssl.key.pem": "hunter5"}},
    )
    for text in (repr(one), str(one), one.model_dump_json(), repr(one.kafka.client)):
        assert "hunter" not in text
    assert isinstance(one.kafka.client["sasl.password"], SecretStr)


def test_a_rule_cannot_use_a_topic_of_pgsluice() -> None:
    rules = [
        {"match": "a.b", "topic": "{prefix}.transactions"},
        {"match": "a.c", "topic": "{prefix}.c"},
        {"match": "a.d", "topic": "{prefix}.c"},  # two tables may share a topic
    ]
    assert problems(tables={"rules": rules}) == [
        (
            ("tables", "rules", 0, "topic"),
            "shop.transactions is one of pgsluice's own topics: choose another name",
        ),
    ]


def test_a_compacted_topic_cannot_hold_truncates() -> None:
    sentence = 'a compacted topic cannot have records of TRUNCATE, because they have no key: set truncate to "skip"'
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


def test_checks_that_need_an_invalid_table_are_skipped() -> None:
    assert [path for path, _ in problems(kafka={"topics": {"partitions": 0}}, tables={})] == [
        ("kafka", "topics", "partitions")
    ]
    assert [path for path, _ in problems(tables={"rules": [{"match": "x", "topic": "{prefix}.t"}]})] == [
        ("tables", "rules", 0, "match")
    ]
