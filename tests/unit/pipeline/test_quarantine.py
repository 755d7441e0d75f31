"""Unit tests of pgsluice.pipeline.quarantine. ``test_encoders`` tests the changes of tables in quarantine."""

import pytest
from structlog.testing import capture_logs

from pgsluice.metrics import Metrics
from pgsluice.pipeline.quarantine import LISTED_MAX, Quarantine
from pgsluice.relation import Relation


@pytest.fixture
def quarantine() -> Quarantine:
    return Quarantine(Metrics())


def table(name: str, schema: str = "public") -> Relation:
    return Relation(1, schema, name, "d", ())


def test_a_table_is_listed_with_the_reason_until_it_is_published(quarantine: Quarantine) -> None:
    quarantine.add(table("orders"), "no topic")
    assert quarantine.tables == [{"table": "public.orders", "reason": "no topic"}]
    quarantine.remove(table("orders"))
    assert quarantine.tables == []


def test_each_reason_is_logged_once(quarantine: Quarantine) -> None:
    with capture_logs() as logs:
        for reason in ("no topic", "no topic", "no key"):
            quarantine.add(table("orders"), reason)
        quarantine.remove(table("orders"))
        quarantine.remove(table("orders"))
    assert [(entry["event"], entry.get("reason")) for entry in logs] == [
        ("table in quarantine", "no topic"),
        ("table in quarantine", "no key"),
        ("table released from quarantine", None),
    ]


def test_names_are_written_as_patterns_so_that_no_two_tables_have_the_same(quarantine: Quarantine) -> None:
    """Names that contain dots must not be confused with each other. Otherwise, a published table could release another
    table from quarantine."""
    quarantine.add(table("b.c", schema="t"), "no topic")
    quarantine.remove(table("c", schema="t.b"))
    quarantine.add(table('"', schema="t"), "no topic")
    assert [one["table"] for one in quarantine.tables] == ['t."b.c"', 't.""""']


def test_a_name_cannot_look_like_a_part_of_the_message(quarantine: Quarantine) -> None:
    quarantine.add(table("z: OK all fine. table public.orders"), "no topic")
    assert [one["table"] for one in quarantine.tables] == ['public."z: OK all fine. table public.orders"']


def test_the_last_ones_are_listed(quarantine: Quarantine) -> None:
    for number in range(LISTED_MAX + 1):
        quarantine.add(table(f"t{number}"), "no topic")
    assert [one["table"] for one in quarantine.tables] == [f"public.t{number}" for number in range(1, LISTED_MAX + 1)]
