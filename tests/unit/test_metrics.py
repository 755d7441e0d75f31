"""The metrics without a pipeline: which are exposed, which are absent, and whether they are documented."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.exposition import generate_latest

from pgsluice import metrics as module
from pgsluice.app import metrics_reference
from pgsluice.metrics import OTHER_TOPICS, Known, Metrics, labelled, registry_metrics

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"

Described = dict[str, tuple[str, frozenset[str]]]
"""The type and the labels of each name."""


def documented() -> Described:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| ", DOCUMENT.read_text(), re.MULTILINE)
    return {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def defined() -> Described:
    return {name: (kind, frozenset(labels)) for name, (kind, labels) in metrics_reference.described().items()}


def test_the_documentation_has_exactly_the_defined_metrics() -> None:
    assert documented() == defined()


def test_the_reference_is_current() -> None:
    """Compare the reference with the metrics. If they differ, run ``python -m pgsluice.app.metrics_reference``."""
    assert DOCUMENT.read_text() == metrics_reference.renewed(DOCUMENT.read_text())


@pytest.mark.parametrize("path", ["deploy/prometheus/alerts.yaml", "deploy/grafana/pgsluice.json"])
def test_metrics_that_the_deployment_uses_are_documented(path: str) -> None:
    text = re.sub(r"docs/\w+\.md", "", (DOCUMENT.parents[1] / path).read_text())
    names = set(re.findall(r"\b(?:pgsluice|process)_[a-z_]+", text))
    known = {re.sub(r"_(?:bucket|count|sum)$", "", name) for name in names}
    assert known
    assert known <= documented().keys()


def test_the_documentation_names_every_alert() -> None:
    alerts = set(re.findall(r"- alert: (\w+)", (DOCUMENT.parents[1] / "deploy/prometheus/alerts.yaml").read_text()))
    assert alerts <= set(re.findall(r"\bPgsluice\w+", DOCUMENT.read_text()))


def test_every_metric_has_a_sentence() -> None:
    assert [family.name for family in Metrics().registry.collect() if not family.documentation.endswith(".")] == []


def exposed(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


class TestKnown:
    def test_a_metric_is_absent_while_its_value_is_unknown(self) -> None:
        registry, known = CollectorRegistry(), Known("lag", "Lag.")
        registry.register(known)
        assert exposed(registry) == []
        known.set(0)
        assert exposed(registry) == ["lag 0.0"]
        known.set(None)
        assert exposed(registry) == []

    def test_a_counter_can_be_set_to_a_count_kept_elsewhere(self) -> None:
        registry, known = CollectorRegistry(), Known("spilled", "Spilled.", counts=True)
        registry.register(known)
        known.set(5)
        assert exposed(registry) == ["spilled_total 5.0"]

    def test_a_metric_with_a_label_has_one_sample_per_value(self) -> None:
        registry, known = CollectorRegistry(), Known("status", "Status.", "status")
        registry.register(known)
        known.set_all({"reserved": True, "lost": False})
        assert exposed(registry) == ['status{status="reserved"} 1.0', 'status{status="lost"} 0.0']
        known.set_all({})
        assert exposed(registry) == []


def test_before_anything_is_known_neither_lag_nor_slot_is_shown() -> None:
    found = exposed(Metrics().registry)
    assert "pgsluice_active 0.0" in found
    assert [line for line in found if line.startswith(("pgsluice_lag", "pgsluice_slot"))] == []


def test_topics_beyond_the_limit_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOPICS_MAX", 2)
    metrics = Metrics()
    for topic, count in (("a", 1), ("b", 2), ("c", 4), ("d", 8), ("a", 16), ("c", 32)):
        metrics.topic_events.add(topic, "c", count)

    def count_of(topic: str) -> float | None:
        return metrics.registry.get_sample_value("pgsluice_topic_events_total", {"topic": topic, "op": "c"})

    assert [count_of(topic) for topic in ("a", "b", "c", "d", OTHER_TOPICS)] == [17, 2, None, None, 44]


def test_only_one_state_is_1_at_a_time() -> None:
    metrics = Metrics()
    for state in ("starting", "streaming"):
        metrics.set_state(state, ("starting", "streaming"))
    found = [line for line in exposed(metrics.registry) if line.startswith("pgsluice_state")]
    assert found == ['pgsluice_state{state="starting"} 0.0', 'pgsluice_state{state="streaming"} 1.0']


def test_labels_are_added_to_all_metrics_and_creation_times_left_out() -> None:
    registry = CollectorRegistry()
    Counter("events", "Events.", ["op"], registry=registry).labels("c").inc(3)
    found = labelled(registry, pipeline="shop")
    assert exposed(found) == ['events_total{op="c",pipeline="shop"} 3.0']
    assert "# TYPE events_total counter" in generate_latest(found).decode()


def test_the_registry_of_schemas_has_metrics_of_its_own() -> None:
    found = exposed(registry_metrics(lambda: 7))
    assert "pgsluice_registry_subjects 7.0" in found
    assert [line for line in found if line.startswith("pgsluice_active")] == []
    assert [line for line in found if line.startswith("process_resident_memory_bytes ")]
