from typing import Annotated, Optional

import pytest
from annotated_types import Ge
from pydantic import BaseModel

from pgsluice.config.keys import RULES, Kind, all_keys, all_sections, nearest, section_keys
from pgsluice.config.tables import Rule
from pgsluice.config.units import Duration


def test_keys_have_the_order_of_the_file() -> None:
    names = [".".join(path) for path in all_keys()]
    assert names[:3] == ["version", "name", "postgres.dsn"]
    assert names[-1] == "shutdown.drain_timeout"
    assert list(all_sections())[:4] == [(), ("postgres",), ("kafka",), ("kafka", "topics")]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("version", Kind.INTEGER),
        ("name", Kind.TEXT),
        ("postgres.password", Kind.SECRET),
        ("postgres.port", Kind.INTEGER),
        ("postgres.sslmode", Kind.TEXT),
        ("postgres.create_slot", Kind.BOOLEAN),
        ("postgres.publications", Kind.LIST),
        ("kafka.client", Kind.TABLE),
        ("delivery.heartbeat", Kind.TEXT),
        ("tables.rules", Kind.LIST),
    ],
)
def test_every_key_has_a_kind(name: str, kind: Kind) -> None:
    assert all_keys()[tuple(name.split("."))].kind is kind


def test_types_and_limits_are_separate() -> None:
    assert all_keys()["delivery", "heartbeat"].type is Duration
    port = all_keys()["postgres", "port"]
    assert port.type is int
    assert Ge(1) in port.limits
    assert port.example == 5432
    assert all_keys()["delivery", "heartbeat"].example is None


def test_optional_is_stripped_however_it_is_written() -> None:
    class Model(BaseModel):
        old: Optional[Annotated[int, Ge(2)]] = None  # noqa: UP045 - this form is tested

    (key,) = section_keys((), Model)
    assert (key.type, key.limits, key.kind) == (int, (Ge(2),), Kind.INTEGER)


def test_rules_have_keys() -> None:
    assert [key.path[-1] for key in section_keys(RULES, Rule)] == list(Rule.model_fields)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("nam", "name"),
        ("postgre", "postgres"),
        ("postgres.hots", "postgres.host"),
        ("slot", "postgres.slot"),
        ("kafka.partitions", "kafka.topics.partitions"),
        ("tables.rules.mtch", "tables.rules.match"),
        ("x.y", None),
    ],
)
def test_similar_keys_are_suggested(wrong: str, right: str | None) -> None:
    expected = None if right is None else tuple(right.split("."))
    assert nearest(tuple(wrong.split("."))) == expected
