from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from sandbox.demo.events import Cut, Describer, Event, count, cut_line, text

TOPIC = "shop.public.products"


def event(op: str, key: dict[str, Any] | None, after: dict[str, Any] | None = None, **fields: Any) -> Event:  # noqa: ANN401 - anything of an event
    value: dict[str, Any] = {
        "op": op,
        "after": after,
        "before": None,
        "unchanged": [],
        "flags": [],
        "epoch": 1,
        "lsn": 0x1_000A,
        "seq": 3,
    }
    return Event(TOPIC, key, {**value, **fields})


def changes(*events: Event) -> list[str]:
    describer = Describer()
    return [describer.describe(one).change for one in events]


LAMP = {"sku": "LAMP", "price": Decimal("39.90"), "manual": "x" * 1000, "details": None}


def test_a_line_says_what_where_and_when() -> None:
    line = Describer().describe(event("c", {"sku": "LAMP"}, LAMP))

    assert (line.topic, line.operation, line.key, line.position) == (TOPIC, "insert", "sku=LAMP", "0/1000A #3")


def test_a_row_that_was_read_belongs_to_no_transaction() -> None:
    line = Describer().describe(event("r", {"sku": "LAMP"}, LAMP, seq=-(2**62)))

    assert (line.operation, line.position) == ("read", "0/1000A")


def test_an_insert_shows_the_values_that_are_not_null_without_the_key() -> None:
    assert changes(event("c", {"sku": "LAMP"}, LAMP)) == ["price=39.90, manual=(1,000 characters)"]


def test_an_update_shows_what_changed() -> None:
    cheaper = {**LAMP, "price": Decimal(30), "details": "{}"}
    found = changes(event("c", {"sku": "LAMP"}, LAMP), event("u", {"sku": "LAMP"}, cheaper))

    assert found[1] == "price 39.90 -> 30, details null -> {}"


def test_an_update_of_an_unknown_row_shows_the_whole_row() -> None:
    assert changes(event("u", {"id": 1}, {"id": 1, "name": "Ada"})) == ["name=Ada"]


def test_values_that_were_not_sent_are_remembered() -> None:
    key, not_sent = {"sku": "LAMP"}, {**LAMP, "manual": None}
    found = changes(
        event("c", key, LAMP),
        event("u", key, not_sent, unchanged=["manual"]),
        event("u", key, LAMP),
    )

    assert found[1:] == ["manual not sent (unchanged)", ""]


def test_a_row_keeps_its_values_under_another_key() -> None:
    moved = {**LAMP, "sku": "LAMP-2", "manual": None}
    found = changes(
        event("c", {"sku": "LAMP"}, LAMP),
        event("d", {"sku": "LAMP"}, flags=["key_change"]),
        event("c", {"sku": "LAMP-2"}, moved, before={"sku": "LAMP"}, unchanged=["manual"], flags=["key_change"]),
        event("u", {"sku": "LAMP-2"}, {**LAMP, "sku": "LAMP-2", "price": Decimal(1)}),
    )

    assert found[1:] == ["continues under another key", "was sku=LAMP, manual not sent (unchanged)", "price 39.90 -> 1"]


@pytest.mark.parametrize("end", [event("d", {"sku": "LAMP"}), event("t", None)])
def test_deleted_rows_are_forgotten(end: Event) -> None:
    insert = event("c", {"sku": "LAMP"}, LAMP)
    update = event("u", {"sku": "LAMP"}, LAMP)

    first, _, second = changes(insert, end, update)

    assert first == second


def test_a_truncate_does_not_affect_other_tables() -> None:
    other = event("c", {"id": 1}, {"id": 1, "name": "Ada"})
    truncate = Event("shop.public.carts", None, {**event("t", None).value, "flags": ["restart_identity"]})
    found = changes(other, truncate, event("u", {"id": 1}, {"id": 1, "name": "Ada"}))

    assert found[1:] == ["all rows, restart_identity", ""]


def test_rows_without_a_key_are_shown_completely() -> None:
    line = Describer().describe(event("c", None, {"name": "Ada"}))

    assert (line.key, line.change) == ("", "name=Ada")


def test_a_cut_is_shown_on_one_line() -> None:
    cut = Cut({"cut": 7, "transactions": 1, "events": 5000, "end_lsn": 0x2_0000_0010}, [])

    assert cut_line(cut) == "cut 7: 1 transaction, 5,000 events, up to 2/10"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (datetime(2024, 2, 29, 12, 30, 1, 500, tzinfo=UTC), "12:30:01"),
        (["a", None], "['a', None]"),
        ("x" * 40, "x" * 40),
        ("x" * 41, "(41 characters)"),
    ],
)
def test_values_are_shown_as_text(value: object, shown: str) -> None:
    assert text(value) == shown


def test_numbers_are_shown_with_their_noun() -> None:
    assert [count(number, "row") for number in (0, 1, 1234)] == ["0 rows", "1 row", "1,234 rows"]
