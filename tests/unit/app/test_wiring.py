import pytest

from pgsluice.app.wiring import pipeline_options, tables_of
from tests.support.settings import settings


def selection(**tables: object) -> str:
    return pipeline_options(settings(**tables), adopt_slot=False).selection


def test_only_settings_that_decide_what_is_delivered_change_the_selection() -> None:
    usual = selection()
    assert selection(delivery={"cut_interval": "1s"}, kafka={"topics": {"partitions": 12}}) == usual
    assert selection(postgres={"publications": ["a", "b"]}) == selection(postgres={"publications": ["b", "a"]}) != usual


@pytest.mark.parametrize(
    "other",
    [
        {"postgres": {"messages": True}},
        {"postgres": {"origin": "none"}},
        {"tables": {"include": ["public.*"]}},
        {"tables": {"exclude": ["public.audit"]}},
        {"tables": {"truncate": "skip"}},
        {"tables": {"rules": [{"match": "public.audit", "truncate": "skip"}]}},
    ],
)
def test_settings_that_decide_what_is_delivered_change_the_selection(other: dict[str, object]) -> None:
    assert selection(**other) != selection()


def test_a_rule_has_only_the_settings_that_it_sets() -> None:
    (rule,) = tables_of(settings(tables={"rules": [{"match": "public.orders", "keys": ["id"]}]})).rules
    assert rule.keys == ("id",)
    assert (rule.topic, rule.partitions, rule.truncate, rule.tombstones, rule.where) == (None, None, None, None, "")
    assert rule.is_loaded


def test_tables_of_an_older_pipeline_count_as_loaded_only_if_no_mode_is_set() -> None:
    unset, initial = (
        pipeline_options(one, adopt_slot=False).session.loading
        for one in (settings(), settings(snapshot={"mode": "initial"}))
    )
    assert unset is not None
    assert initial is not None
    assert (unset.assumes, initial.assumes) == (True, False)
