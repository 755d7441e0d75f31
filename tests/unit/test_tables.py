"""The topic and the settings of each table."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgsluice.avro.choices import Choice, ColumnChoice
from pgsluice.errors import TableRefused
from pgsluice.tables import TablePattern, TablePolicy, TableRule, Tables, escape, missing_placeholders


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


def test_dead_letters_go_to_one_topic_as_messages_do() -> None:
    tables = Tables("shop", partitions=5, config={"cleanup.policy": "compact"})
    assert tables.dead_letters_policy() == replace(tables.messages_policy(), topic="shop.dead_letters")


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


@pytest.mark.parametrize(
    ("pattern", "schema", "table"),
    [
        ("*.orders", "public", "orders"),
        ("public.*", "public", "x.orders"),
        ('public."x.*"', "public", "x.orders"),
        ('"a.b".orders', "a.b", "orders"),
        ('"say ""a""."."*"', 'say "a".', "t"),
    ],
)
def test_schema_and_table_are_matched_each_by_itself(pattern: str, schema: str, table: str) -> None:
    assert TablePattern.parse(pattern).matches(schema, table)


@pytest.mark.parametrize(
    ("pattern", "schema", "table"),
    [
        ("*.orders", "public", "x.orders"),
        ("public.*", "public.x", "orders"),
        ('"a.*".orders', "a", "b.orders"),
        ("public.Orders", "public", "orders"),
    ],
)
def test_a_dot_in_a_name_does_not_make_it_match_another_rule(pattern: str, schema: str, table: str) -> None:
    assert not TablePattern.parse(pattern).matches(schema, table)


@pytest.mark.parametrize("text", ["", "orders", ".a", "a.", '"a.b', '"a"b.c', '"".a'])
def test_texts_that_are_not_patterns_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a pattern of schema and table"):
        TablePattern.parse(text)


def test_a_column_is_no_pattern() -> None:
    with pytest.raises(ValueError, match=r"'public.orders.note' names a column, but must .* a column list"):
        TablePattern.parse("public.orders.note")


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
                is_loaded=False,
                where="a > 1",
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
        is_loaded=False,
        where="a > 1",
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
        ("_x00E9é", "_x005F_x00E9_x00E9_"),
        ("éx00E9_", "_x00E9_x00E9_"),
        ("_x00E9e", "_x00E9e"),
    ],
)
def test_characters_that_kafka_does_not_allow_are_escaped(name: str, part: str) -> None:
    assert escape(name) == part


PIECES = st.sampled_from(["_", "x00E9", "é", "_x00E9_", "x1F40E", "\U0001f40e", "0", "A", "x", "-", "."])


def unescaped(part: str) -> str:
    """Return the name from which ``part`` was made. Escapes are replaced from left to right."""
    return re.sub(r"_x([0-9A-F]{4,6})_", lambda match: chr(int(match[1], 16)), part)


@settings(max_examples=2000)
@given(st.lists(PIECES, max_size=8).map("".join))
def test_a_name_can_be_read_back_from_its_escaped_form(name: str) -> None:
    assert unescaped(escape(name)) == name


NAMES = st.text(st.sampled_from("_x0aA2E.é5F-"), min_size=1, max_size=14)


@given(NAMES, NAMES, NAMES, NAMES)
def test_two_tables_never_share_a_topic(schema: str, table: str, other_schema: str, other_table: str) -> None:
    tables = Tables("p")
    one, other = tables.policy(schema, table), tables.policy(other_schema, other_table)
    assert one is not None
    assert other is not None
    assert (one.topic == other.topic) == ((schema, table) == (other_schema, other_table))


def test_a_name_too_long_for_kafka_ends_in_a_hash() -> None:
    policy = Tables("p").policy("public", "\x07" * 63)
    assert policy is not None
    assert len(policy.topic) == 249
    assert re.fullmatch(r"p\.public\.(_x0007_)+_?x?0*-_xFFFFFF_[0-9a-f]{32}", policy.topic)
    other = Tables("p").policy("public", "\x07" * 62 + "\x08")
    assert other is not None
    assert other.topic != policy.topic


def test_no_other_table_has_the_name_with_the_hash() -> None:
    long = Tables("p").policy("public", "\x07" * 63)
    assert long is not None
    same = Tables("p").policy("public", long.topic.removeprefix("p.public."))
    assert same is not None
    assert same.topic != long.topic


def test_a_long_name_that_is_cut_inside_an_escape_stays_unique() -> None:
    """Cut a long name inside an escape. The hash after it must not complete the escape."""
    for length in range(180, 216):
        long = Tables("p").policy("public", "a" * length + "_x0041_" * 10)
        assert long is not None
        part = re.sub(r"_x005F-?_(xFFFFFF_\w{32})$", r"_\1", long.topic.removeprefix("p.public."))
        same = Tables("p").policy("public", part)
        assert same is not None
        assert same.topic != long.topic


def test_a_rule_whose_topic_does_not_name_the_table_lets_tables_share_the_topic() -> None:
    tables = Tables(
        "p", rules=[TableRule("public.a", topic="{prefix}.all"), TableRule("public.b", topic="{prefix}.{table}")]
    )
    policies = [tables.policy("public", name) for name in "abc"]
    assert [policy.shared for policy in policies if policy is not None] == [True, False, False]


def test_tables_share_a_topic_whose_template_omits_what_the_pattern_leaves_open() -> None:
    rules = [TableRule("tenant_*.orders", topic="{prefix}.orders"), TableRule("tenant_*.*", topic="{prefix}.{table}")]
    tables = Tables("p", include=["tenant_1.users", "tenant_2.users", "*.*"], rules=rules)
    names = [(f"tenant_{number}", table) for number in (1, 2) for table in ("orders", "users")]
    policies = [tables.policy(*name) for name in names]
    found = [(policy.topic, policy.shared) for policy in policies if policy is not None]
    assert found == [("p.orders", True), ("p.users", True)] * 2
    assert tables.collisions(names) == []


@pytest.mark.parametrize(
    ("template", "glob", "missing"),
    [
        ("orders", "public.orders", []),
        ("orders", "public.*", ["{table}"]),
        ("orders", "*.orders", ["{schema}"]),
        ("orders", "?.[ab]", ["{schema}", "{table}"]),
        ("{table}", "public.*", []),
    ],
)
def test_a_template_needs_the_parts_that_vary_in_the_pattern(template: str, glob: str, missing: list[str]) -> None:
    assert missing_placeholders(template, glob) == missing


@pytest.mark.parametrize("table", ["transactions", "checkpoint", "schemas"])
def test_a_table_never_goes_to_a_service_topic(table: str) -> None:
    with pytest.raises(TableRefused, match=f"topic p.{table}, which pgsluice keeps for itself"):
        Tables("p", topic="{prefix}.{table}").policy("public", table)


@pytest.mark.parametrize("name", ["dead_letters", "messages"])
def test_a_table_never_goes_to_a_topic_that_kafka_takes_for_a_service_topic(name: str) -> None:
    """Refuse the topic of the table. Otherwise, Kafka would refuse the service topic when it is needed."""
    with pytest.raises(TableRefused, match=f"topic p_{name}, which pgsluice keeps for itself"):
        Tables("p", topic="{prefix}_{table}").policy("public", name)


@pytest.mark.parametrize(
    ("rule", "schema", "table"),
    [
        (TableRule("legacy.t_ord", topic="{prefix}.sales.orders"), "sales", "orders"),
        (TableRule("legacy.orders", topic="{prefix}.sales.{table}"), "sales", "orders"),
        (TableRule("sales.*_log", topic="{prefix}.{schema}.logs"), "sales", "logs"),
        (TableRule("*.*_log", topic="{prefix}.all.logs"), "all", "logs"),
    ],
)
def test_no_other_table_goes_to_a_topic_that_a_rule_gives_to_some(rule: TableRule, schema: str, table: str) -> None:
    """Refuse the topic, in whatever order the tables come. Consumers could not tell the rows of the tables apart."""
    tables = Tables("shop", rules=[rule])
    with pytest.raises(TableRefused, match=rf"Table {schema}.{table} would go to topic shop.{schema}.{table}, which a"):
        tables.policy(schema, table)
    assert tables.policy("other", table) is not None


def test_a_second_rule_can_send_another_table_to_the_topic() -> None:
    names = ("legacy.t_ord", "sales.orders")
    tables = Tables("shop", rules=[TableRule(name, topic="{prefix}.sales.orders") for name in names])
    for schema, table in (name.split(".") for name in names):
        policy = tables.policy(schema, table)
        assert policy is not None
        assert policy.topic == "shop.sales.orders"


@pytest.mark.parametrize("text", ["public.[a", "[!].*", "a[b.c]", 'public."a[.b"', "public.[a]["])
def test_a_set_of_characters_that_does_not_end_is_refused(text: str) -> None:
    """Refuse the pattern. It would match a literal bracket, which its author certainly does not mean."""
    with pytest.raises(ValueError, match=r"has a '\[' without a '\]' after it: write '\[\[\]'"):
        TablePattern.parse(text)


@pytest.mark.parametrize(
    ("text", "table"),
    [("public.[[]a]", "[a]"), ("public.a[*]", "a*"), ("public.[?]", "?"), ("public.[]]", "]"), ("public.[!]]b", "ab")],
)
def test_names_with_special_characters_of_patterns_can_be_matched(text: str, table: str) -> None:
    assert TablePattern.parse(text).matches("public", table)
    assert not TablePattern.parse(text).matches("public", "other")


def test_tables_whose_topics_kafka_cannot_distinguish_are_refused() -> None:
    rules = [TableRule("all.*", topic="{prefix}.all"), TableRule("x.transactions", topic="{prefix}.transactions")]
    tables = Tables("shop", rules=rules, exclude=["left.*"])
    names = [("a", "b_c"), ("a", "d"), ("all", "x"), ("all", "y"), ("a_b", "c"), ("left", "out"), ("x", "transactions")]
    (refused,) = tables.collisions(names)
    assert str(refused).startswith(
        "Table a_b.c would go to topic shop.a_b.c, which Kafka cannot distinguish from shop.a.b_c"
    )


class TestReservedTopics:
    """The topics of tables that the settings name. Users who create other tables cannot use these topics."""

    @pytest.mark.parametrize(
        "settings",
        [{"include": ["a.b_c", "*.*"]}, {"rules": [TableRule("a.b_c", partitions=1)]}],
        ids=["by include", "by a rule"],
    )
    def test_a_topic_that_kafka_takes_for_a_reserved_one_is_refused(self, settings: dict[str, Any]) -> None:
        tables = Tables("shop", **settings)
        assert tables.reserved_topics == {"shop.a.b_c"}
        with pytest.raises(TableRefused, match=r"topic shop.a_b.c, but shop.a.b_c is reserved for table a.b_c, which"):
            tables.policy("a_b", "c")
        named, other = tables.policy("a", "b_c"), tables.policy("a", "c")
        assert named is not None
        assert other is not None

    def test_a_reserved_topic_is_refused_for_other_tables(self) -> None:
        tables = Tables("shop", topic="{prefix}.{table}", include=["public.orders", "*.*"])
        with pytest.raises(TableRefused, match="is reserved for table public"):
            tables.policy("evil", "orders")

    def test_a_table_that_is_left_out_has_no_reserved_topic(self) -> None:
        tables = Tables("shop", rules=[TableRule("a.b_c")], exclude=["a.*"])
        assert tables.reserved_topics == set()
        assert tables.policy("a_b", "c") is not None

    def test_a_topic_that_is_meant_to_be_shared_is_not_reserved(self) -> None:
        rules = [TableRule("public.a", topic="{prefix}.all"), TableRule("public.*", topic="{prefix}.all")]
        tables = Tables("shop", rules=rules)
        assert tables.reserved_topics == {"shop.all"}
        assert [tables.policy("public", name) is not None for name in "ab"] == [True, True]


def test_types_of_columns_keep_their_order() -> None:
    types = {"b": Choice("string"), "*": Choice("double")}
    policy = Tables("shop", rules=[TableRule("public.*", types=types)]).policy("public", "orders")
    assert policy is not None
    assert policy.types == (ColumnChoice("b", Choice("string")), ColumnChoice("*", Choice("double")))


def test_whether_a_rule_chooses_types_is_known() -> None:
    plain, choosing = TableRule("public.a"), TableRule("public.b", types={"id": Choice.parse("string")})
    assert not Tables("shop", rules=[plain]).choose_types
    assert Tables("shop", rules=[plain, choosing]).choose_types


def test_the_time_for_thousands_of_names_is_not_quadratic() -> None:
    """Compare new tables with 2,000 named tables. Without an index, this test would take many minutes."""
    names = [f"public.a_t{number}" for number in range(2_000)]
    tables = Tables("shop", include=[*names, "*.*"], rules=[TableRule(name, partitions=5) for name in reversed(names)])
    for number in range(20):
        policy = tables.policy("public", f"a_t{number}")
        assert policy is not None
        assert policy.partitions == 5
        with pytest.raises(TableRefused, match=f"is reserved for table public.a_t{number}, which"):
            tables.policy("public_a", f"t{number}")


def test_the_first_rule_that_matches_counts_with_and_without_wildcards() -> None:
    rules = [
        TableRule("public.a*", partitions=1),
        TableRule("public.ab", partitions=2),
        TableRule("public.b", partitions=4),
        TableRule("*.b", partitions=5),
        TableRule("public.b", partitions=6),
    ]
    tables = Tables("shop", rules=rules, exclude=["x.*", "y.b"])
    expected = {"public.a": 1, "public.ab": 1, "public.b": 4, "public.c": 3, "z.b": 5, "x.a": None, "y.b": None}
    policies = {name: tables.policy(*name.split(".")) for name in expected}
    assert {name: policy and policy.partitions for name, policy in policies.items()} == expected


def test_the_tables_that_the_settings_name_are_known() -> None:
    tables = Tables("shop", include=["public.orders", "*.*"], rules=[TableRule("public.items"), TableRule("eu.*")])
    names = [("public", "orders"), ("public", "items"), ("eu", "items"), ("public", "others")]
    policies = [tables.policy(*name) for name in names]
    assert [policy is not None and policy.named for policy in policies] == [True, True, False, False]
