"""The partitions and settings with which topics are created."""

import pytest

from pgsluice.errors import ConfigError
from pgsluice.kafka.topic_spec import (
    PARTITIONS_MAX,
    TopicSettings,
    TopicSpec,
    check_compacted,
    new_topic,
    other_service,
    portions,
    topic_settings,
)
from pgsluice.tables import TablePolicy


@pytest.mark.parametrize(("keyed", "truncate", "compactable"), [(True, False, True), (True, True, False), (False,) * 3])
def test_a_table_without_keys_or_with_truncates_has_a_topic_that_is_not_compacted(
    *, keyed: bool, truncate: bool, compactable: bool
) -> None:
    policy = TablePolicy("shop.t", 3, 2, {"retention.ms": "1"}, keys=None, tombstones=True, truncate=truncate)
    spec = TopicSpec.of(policy, keyed=keyed)
    assert spec == TopicSpec("shop.t", 3, 2, {"retention.ms": "1"}, compactable)
    assert new_topic(spec).config == ({} if compactable else {"cleanup.policy": "delete"}) | {"retention.ms": "1"}


def test_a_request_has_a_limit_of_partitions_but_at_least_one_topic() -> None:
    large, small = TopicSpec("large", PARTITIONS_MAX + 1), [TopicSpec(f"t{n}", PARTITIONS_MAX // 2) for n in range(5)]
    assert list(portions([])) == []
    assert list(portions([large, *small])) == [[large], small[:2], small[2:4], small[4:]]


def test_the_settings_of_a_topic_are_read() -> None:
    assert topic_settings({"cleanup.policy": "compact", "x": "y"}) == TopicSettings("compact", None)
    assert topic_settings({"max.message.bytes": "7"}) == TopicSettings(None, 7)


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_compaction_has_to_keep_the_last_record_of_every_key(policy: str) -> None:
    check_compacted("t", TopicSettings("compact"))
    check_compacted("t", TopicSettings())
    with pytest.raises(ConfigError, match=f"Topic t has cleanup.policy={policy}"):
        check_compacted("t", TopicSettings(policy))


def test_other_service_names_the_other_service_topic() -> None:
    assert other_service("shop.checkpoint") == "shop.transactions"
    assert other_service("shop.transactions") == "shop.checkpoint"
