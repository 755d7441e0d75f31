import pytest

from tests.support.settings import problems, settings


def test_several_tables_may_share_the_topic_of_a_rule() -> None:
    rules = [{"match": "tenant_*.orders", "topic": "{prefix}.orders"}, {"match": "a.b", "topic": "{prefix}.orders"}]
    assert [rule.topic for rule in settings(tables={"rules": rules}).tables.rules] == ["{prefix}.orders"] * 2


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("include", [], "too_short"),
        ("include", "a.b", "list_type"),
    ],
)
def test_invalid_values_are_refused(key: str, value: object, kind: str) -> None:
    assert problems(tables={key: value}) == [(("tables", key), kind)]


def test_a_rule_may_choose_some_of_the_rows() -> None:
    (((*path,), _),) = problems(tables={"rules": [{"match": "a.b", "where": ""}]})
    assert path == ["tables", "rules", 0, "where"]
    assert settings(tables={"rules": [{"match": "a.b", "where": "n > 1"}]}).tables.rules[0].where == "n > 1"


def test_a_rule_can_only_skip_a_table() -> None:
    rules = [{"match": "a.b", "snapshot": "skip"}, {"match": "c.d", "snapshot": "never"}]
    assert problems(tables={"rules": rules}) == [(("tables", "rules", 1, "snapshot"), "literal_error")]


def test_types_of_columns_are_names_by_pattern() -> None:
    rules = [{"match": "public.*", "types": {"amount": "decimal(38, 9)", "*_at": "timestamp-millis"}}]
    found = settings(tables={"rules": rules}).tables.rules[0].types
    assert {pattern: str(choice) for pattern, choice in found.items()} == {
        "amount": "decimal(38,9)",
        "*_at": "timestamp-millis",
    }


def test_values_that_are_not_column_types() -> None:
    rules = [{"match": "public.*", "types": {"a": "decimal(40,0)", "b": "string", "c": "timestamp-milis"}}]
    place = ("tables", "rules", 0, "types")
    assert problems(tables={"rules": rules}) == [
        ((*place, "a"), "'decimal(40,0)' is not possible: precision goes from 1 to 38, scale from 0 to the precision"),
        ((*place, "c"), "'timestamp-milis' is not a type that can be chosen: did you mean timestamp-millis?"),
    ]
    assert problems(tables={"rules": [{"match": "public.*", "types": ["string"]}]}) == [
        (place, "must be a table of names and values")
    ]
