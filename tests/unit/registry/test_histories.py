"""Unit tests of pgsluice.registry.histories."""

import asyncio
import json
from typing import Any

import pytest

from pgsluice.avro.wire import Schema
from pgsluice.registry import histories as module
from pgsluice.registry.histories import Histories
from pgsluice.registry.schema_record import Registered
from pgsluice.registry.store import SchemaStore


class Names:
    """A history that keeps its schemas in order."""

    def __init__(self) -> None:
        self.learned: list[Any] = []

    def learn(self, schema: Schema) -> None:
        self.learned.append(schema["name"] if isinstance(schema, dict) else schema)

    def __len__(self) -> int:
        return len(self.learned)


class Counted:
    """Replaces the module json, and counts the calls of ``loads``."""

    parsed = 0

    def loads(self, text: str) -> Any:  # noqa: ANN401 - any JSON
        self.parsed += 1
        return json.loads(text)


@pytest.fixture
def parser(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    monkeypatch.setattr(module, "json", counted)
    return counted


def add(store: SchemaStore, schema: Schema, subject: str = "a") -> None:
    record, _ = store.propose(subject, schema, None)
    store.add(record)


def record(name: str, namespace: object = "s.t") -> dict[str, Any]:
    return {"name": name, "namespace": namespace}


async def test_every_version_is_learned_once(parser: Counted) -> None:
    store = SchemaStore()
    histories = Histories(store, Names)
    for number in range(5):
        add(store, record(f"V{number}"))
        found = await histories.of("a", "s.t")
        assert found.learned == [f"V{one}" for one in range(number + 1)]
        assert parser.parsed == number + 1
    assert (await histories.of("a", "s.t")).learned == found.learned
    assert parser.parsed == 5


async def test_a_restart_learns_the_same_as_a_running_process() -> None:
    store = SchemaStore()
    kept = Histories(store, Names)
    for number in range(5):
        add(store, record(f"V{number}"))
        found = await kept.of("a", "s.t")
    assert (await Histories(store, Names).of("a", "s.t")).learned == found.learned


async def test_tables_that_share_a_subject_have_separate_histories() -> None:
    store = SchemaStore()
    for schema in (record("A"), record("B", "s.u"), "string", record("C", 5), record("D")):
        add(store, schema)
    histories = Histories(store, Names)
    assert [(await histories.of("a", space)).learned for space in ("s.t", "s.u", "s.v")] == [["A", "D"], ["B"], []]
    assert (await histories.of("b", "s.t")).learned == []


async def test_versions_in_another_order_are_learned_again() -> None:
    store = SchemaStore()
    histories = Histories(store, Names)
    for version in (5, 6):
        store.add(Registered("a", version, version, json.dumps(record(f"V{version}"))))
    assert (await histories.of("a", "s.t")).learned == ["V5", "V6"]
    store.add(Registered("a", 2, 2, json.dumps(record("V2"))))
    assert (await histories.of("a", "s.t")).learned == ["V2", "V5", "V6"]
    store.add(Registered("a", 9, 2, json.dumps(record("V2"))))
    assert (await histories.of("a", "s.t")).learned == ["V5", "V6", "V2"]


async def test_the_least_recently_used_histories_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, parser: Counted
) -> None:
    monkeypatch.setattr(module, "KEPT_NAMES_MAX", 5)
    store = SchemaStore()
    histories = Histories(store, Names)
    for subject in "abc":
        for number in range(2):
            add(store, record(f"{subject}{number}"), subject)
    for subject in "abac":  # together their size is 6, so b is forgotten
        await histories.of(subject, "s.t")
    assert parser.parsed == 6
    await histories.of("a", "s.t")
    assert parser.parsed == 6
    assert (await histories.of("b", "s.t")).learned == ["b0", "b1"]
    assert parser.parsed == 8


async def test_a_history_that_is_too_large_is_kept_while_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, parser: Counted
) -> None:
    """If the history were dropped, every version would have to be learned again for each new version."""
    monkeypatch.setattr(module, "KEPT_NAMES_MAX", 1)
    store = SchemaStore()
    histories = Histories(store, Names)
    for number in range(5):
        add(store, record(f"V{number}"))
        await histories.of("a", "s.t")
    assert parser.parsed == 5


async def test_other_tasks_run_while_many_versions_are_learned() -> None:
    store = SchemaStore()
    for number in range(10):
        add(store, record(f"V{number}"))
    histories = Histories(store, Names)
    asking = [asyncio.create_task(histories.of("a", "s.t")) for _ in range(2)]
    turns = 0
    while not all(one.done() for one in asking):
        turns += 1
        if turns == 5:
            add(store, record("late"))
        await asyncio.sleep(0)
    assert turns > 10
    expected = [*(f"V{number}" for number in range(10)), "late"]
    assert [(await one).learned for one in asking] == [expected] * 2
    assert (await histories.of("a", "s.t")).learned == expected
