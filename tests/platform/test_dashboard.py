"""Tests the dashboard of deploy/grafana: each query must have a result in a Prometheus that scrapes running daemons."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database, Postgres
from sandbox.prometheus import Prometheus, missing
from tests.support.container import ROOT
from tests.support.prometheus import run_pipeline
from tests.support.weather import Pipeline, wait_until

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "pgsluice.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]

SERVER = {"max_slot_wal_keep_size": "1GB"}
"""PostgreSQL must have a limit for the WAL of slots. Otherwise it does not report how many bytes a slot has left."""

JOB = "pgsluice"

LABELS: list[dict[str, str]] = [
    {"namespace": "shop"},
    {"namespace": "other"},
    {"namespace": "other", "job": "copy"},
]
"""One Prometheus scrapes each process three times, each time with a different one of these sets of labels.

So this Prometheus shows three pipelines with the same name. Another Prometheus adds no namespace, so Grafana's variable
for the namespace is empty.
"""

WINDOW = "10m"
"""The window of rates. It is longer than all tests take, so it always includes the events before the first test."""


class Watched:
    """A running pipeline and its standby, and the Prometheus that scrapes both."""

    def __init__(self, pipeline: Pipeline, prometheus: Prometheus) -> None:
        self._pipeline = pipeline
        self._prometheus = prometheus

    def ask(self, expression: str, namespace: str = "", job: str = JOB) -> list[dict[str, Any]]:
        """Return the result of a query, in which variables are replaced as in Grafana."""
        chosen = {"namespace": namespace, "job": job, "pipeline": self._pipeline.daemon.name, "instance": ".*"}
        for name, value in {**chosen, "__rate_interval": WINDOW}.items():
            expression = expression.replace(f"${name}", value)
        assert "$" not in expression, "the query has a variable that this test does not know"
        return self._prometheus.query(expression)

    def values(self, name: str, **labels: str) -> set[str]:
        """Return the values of a variable. Like Grafana, leave out time series that do not have the label."""
        match = re.fullmatch(r"label_values\((.*), (\w+)\)", VARIABLES[name]["definition"])
        assert match is not None
        metric, label = match.groups()
        assert label == name
        return {one["metric"][label] for one in self.ask(metric, **labels) if label in one["metric"]}


@pytest.fixture(scope="module")
def both(kafka: Kafka) -> Iterator[tuple[Watched, Watched]]:
    """Provide the pipeline in a Prometheus without namespaces, and in a Prometheus that adds the labels in LABELS."""
    if reason := missing():
        pytest.skip(f"no Prometheus here: {reason}")
    with ExitStack() as stack:
        server = stack.enter_context(Postgres(17, SERVER))
        database = stack.enter_context(server.database())
        pipeline = stack.enter_context(run_pipeline(database, kafka))
        standby = stack.enter_context(_standby(pipeline, database, kafka))
        urls = [pipeline.daemon.url, standby.url]
        plain = Watched(pipeline, stack.enter_context(Prometheus(JOB, urls)))
        labelled = Watched(pipeline, stack.enter_context(Prometheus(JOB, urls, labels=LABELS)))
        _fail_once(pipeline, server)
        stack.enter_context(pipeline.busy())
        wait_until(lambda: plain.ask('rate(pgsluice_events_total{op="c"}[10s]) > 0'), "events in Prometheus")
        _make_old_rows(database)
        wait_until(lambda: plain.ask("pgsluice_slot_safe_bytes"), "the slot in Prometheus")
        yield plain, labelled


@pytest.fixture
def watched(both: tuple[Watched, Watched]) -> Watched:
    """Provide the pipeline without a namespace."""
    return both[0]


@pytest.fixture
def labelled(both: tuple[Watched, Watched]) -> Watched:
    """Provide the pipeline with each set of labels in LABELS."""
    return both[1]


def _standby(pipeline: Pipeline, database: Database, kafka: Kafka) -> Daemon:
    settings, brokers = pipeline.daemon.settings, kafka.bootstrap_servers
    return Daemon(pipeline.daemon.name, database.conninfo(), brokers, settings, wait_for="any")


def _fail_once(pipeline: Pipeline, server: Postgres) -> None:
    """Make a session end with an error, and wait until a new one runs. Either daemon may own the slot afterwards."""
    server.kill()
    pipeline.wait_for(state="waiting")
    server.start()
    pipeline.daemon.wait_until_ready("any")


def _make_old_rows(database: Database) -> None:
    """Create a table that the pipeline loads. Call this only after Prometheus has scraped the pipeline once."""
    with database.connect() as admin:
        admin.execute("CREATE TABLE old AS SELECT generate_series(1, 1000) AS n")


@pytest.mark.parametrize(("title", "expression"), QUERIES)
def test_each_query_has_an_answer(title: str, expression: str, watched: Watched) -> None:
    found = wait_until(lambda: watched.ask(expression), title)
    values = [float(one["value"][1]) for one in found]
    assert [value for value in values if value != value] == [], "the panel shows NaN"  # noqa: PLR0124 - true only for NaN


def test_the_state_is_shown(watched: Watched) -> None:
    (panel,) = (panel for panel in PANELS if panel["title"] == "State")
    (names,) = (mapping["options"] for mapping in panel["fieldConfig"]["defaults"]["mappings"])

    def states() -> list[str]:
        found = watched.ask(panel["targets"][0]["expr"])
        return sorted(names[one["value"][1]]["text"] for one in found)

    wait_until(lambda: states() == ["standby", "streaming"], "an owner and a standby")


@pytest.mark.parametrize("labels", LABELS)
def test_pipelines_of_the_same_name_are_not_mixed(labels: dict[str, str], labelled: Watched) -> None:
    (expression,) = (expression for title, expression in QUERIES if title == "Streaming")

    def values() -> list[str]:
        return [one["value"][1] for one in labelled.ask(expression, **labels)]

    wait_until(lambda: values() == ["1"], "the process that streams")


@pytest.mark.parametrize(("title", "expression"), QUERIES)
def test_each_query_selects_one_pipeline(title: str, expression: str) -> None:
    selectors = re.findall(r"pgsluice_\w+|process_\w+", expression)
    chosen = '{namespace="$namespace",job="$job",pipeline="$pipeline",instance=~"$instance"'
    assert expression.count(chosen) == len(selectors), title


@pytest.mark.parametrize(("name", "values"), [("pipeline", 1), ("namespace", 0), ("job", 1), ("instance", 2)])
def test_the_variables_have_values_without_a_namespace(name: str, values: int, watched: Watched) -> None:
    assert len(watched.values(name)) == values


@pytest.mark.parametrize(
    ("name", "labels", "values"),
    [
        ("pipeline", {}, 1),
        ("job", {"namespace": "shop"}, 1),
        ("job", {"namespace": "other"}, 2),
        ("instance", {"namespace": "shop"}, 2),
        ("instance", {"namespace": "other", "job": "copy"}, 2),
    ],
)
def test_the_variables_have_values(name: str, labels: dict[str, str], values: int, labelled: Watched) -> None:
    assert len(labelled.values(name, **labels)) == values


def test_the_namespaces_can_be_chosen(labelled: Watched) -> None:
    assert labelled.values("namespace") == {"shop", "other"}


def test_each_variable_depends_only_on_those_before_it() -> None:
    """Grafana updates a variable when a variable in its query changes."""
    known: set[str] = set()
    for name, variable in VARIABLES.items():
        assert set(re.findall(r"\$(\w+)", variable.get("definition", ""))) <= known
        assert variable["datasource"]["uid"] == "${datasource}" if known else variable["query"] == "prometheus"
        known.add(name)


def test_every_panel_has_a_description_and_uses_the_selected_data_source() -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    for panel in PANELS:
        assert panel["description"], panel["title"]
        assert [one["datasource"] for one in (panel, *panel["targets"])] == [chosen] * (1 + len(panel["targets"]))


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)
