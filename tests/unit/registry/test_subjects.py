import pytest

from pgsluice.registry.subjects import Strategy, full_name, subject_name

KEY = {"type": "record", "name": "Key", "namespace": "shop.public.orders", "fields": []}


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("topic", "shop.all-orders-key"),
        ("record", "shop.public.orders.Key"),
        ("topic-record", "shop.all-orders-shop.public.orders.Key"),
    ],
)
def test_each_strategy_gives_a_record_schema_a_subject(strategy: Strategy, subject: str) -> None:
    assert subject_name(strategy, "shop.all-orders-key", KEY) == subject


@pytest.mark.parametrize("strategy", ["topic", "record", "topic-record"])
def test_a_schema_without_a_name_has_a_subject_by_topic(strategy: Strategy) -> None:
    assert subject_name(strategy, "shop.transactions-key", "string") == "shop.transactions-key"


def test_a_record_has_a_subject_by_its_full_name() -> None:
    assert full_name(KEY) == "shop.public.orders.Key"
    assert full_name({"type": "record", "name": "Cut", "fields": []}) == "Cut"
    assert full_name({"type": "string"}) is None
    assert full_name(["null", "string"]) is None
