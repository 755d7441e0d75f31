"""Which tables go to which topic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.avro.choices import Choice, ColumnChoice
from pgsluice.errors import ConfigError
from pgsluice.tables import TablePolicy, TableRule, Tables, escape


def test_by_default_every_table_goes_to_a_topic_of_its_own() -> None:
    assert Tables("shop").policy("public", "orders") == TablePolicy(
        "shop.public.orders", 3, -1, {}, None, tombstones=False, truncate=True
    )


def test_messages_go_to_one_topic_that_keeps_all_of_them_in_one_order() -> None:
    tables = Tables(
        "shop", partitions=5, replication_factor=3, config={"retention.ms": "1", "cleanup.policy": "compact"}
    )
    assert tables.messages_policy() == TablePolicy(
        "shop.messages",
        1,
        3,
        {"retention.ms": "1", "cleanup.policy": "delete"},
        None,
        tombstones=False,
        truncate=False,
    )


@pytest.mark.parametrize(
    ("include", "exclude", "published"),
    [
        (["*.*"], [], True),
        (["public.*"], [], True),
        (["app.*"], [], False),
        (["app.*", "public.ord*"], [], True),
        (["*.*"], ["public.orders"], False),
        (["*.*"], ["Public.*"], True),
    ],
)
def test_patterns_choose_the_tables(include: list[str], exclude: list[str], published: bool) -> None:  # noqa: FBT001
    assert (Tables("shop", include=include, exclude=exclude).policy("public", "orders") is not None) == published


def test_the_first_rule_that_matches_wins() -> None:
    tables = Tables(
        "shop",
        partitions=1,
        replication_factor=3,
        config={"retention.ms": "1", "cleanup.policy": "delete"},
        rules=[
            TableRule(
                "public.o*",
                keys=("a", "b"),
                topic="{prefix}-{table}",
                partitions=12,
                replication_factor=2,
                config={"retention.ms": "2"},
                tombstones=True,
                truncate=False,
            ),
            TableRule("*.*", partitions=99),
        ],
    )
    assert tables.policy("public", "orders") == TablePolicy(
        "shop-orders",
        12,
        2,
        {"retention.ms": "2", "cleanup.policy": "delete"},
        ("a", "b"),
        tombstones=True,
        truncate=False,
    )
    other = tables.policy("public", "items")
    assert other is not None
    assert (other.partitions, other.replication_factor, other.topic) == (99, 3, "shop.public.items")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("orders", "orders"),
        ("Order-Items_2", "Order-Items_2"),
        ("a.b", "a_x002E_b"),
        ("größe", "gr_x00F6__x00DF_e"),
        ("_x002E_", "_x005F_x002E_"),
        ("\U0001f40e", "_x1F40E_"),
    ],
)
def test_what_kafka_does_not_allow_is_escaped(name: str, part: str) -> None:
    assert escape(name) == part


NAMES = st.text(st.sampled_from("_x0aA2E.é5F-"), min_size=1, max_size=14)


@given(NAMES, NAMES, NAMES, NAMES)
def test_two_tables_never_share_a_topic(schema: str, table: str, other_schema: str, other_table: str) -> None:
    tables = Tables("p")
    one, other = tables.policy(schema, table), tables.policy(other_schema, other_table)
    assert one is not None
    assert other is not None
    assert (one.topic == other.topic) == ((schema, table) == (other_schema, other_table))


def test_a_name_too_long_for_kafka_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="296 characters long, Kafka allows 249"):
        Tables("p").policy("public", "é" * 41)


@pytest.mark.parametrize("table", ["transactions", "checkpoint", "schemas"])
def test_a_table_never_goes_to_a_service_topic(table: str) -> None:
    with pytest.raises(ConfigError, match=f"topic p.{table}, which pgsluice keeps for itself"):
        Tables("p", topic="{prefix}.{table}").policy("public", table)


def test_types_of_columns_keep_their_order() -> None:
    types = {"b": Choice("string"), "*": Choice("double")}
    policy = Tables("shop", rules=[TableRule("public.*", types=types)]).policy("public", "orders")
    assert policy is not None
    assert policy.types == (ColumnChoice("b", Choice("string")), ColumnChoice("*", Choice("double")))


def test_it_knows_whether_some_rule_chooses_types() -> None:
    plain, choosing = TableRule("public.a"), TableRule("public.b", types={"id": Choice.parse("string")})
    assert not Tables("shop", rules=[plain]).choose_types
    assert Tables("shop", rules=[plain, choosing]).choose_types
