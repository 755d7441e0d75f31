"""Tests the alerts of deploy/prometheus with promtool, and one of them in a real Prometheus."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pgsluice.app import arguments, cli
from pgsluice.metrics import Metrics
from sandbox.errors import ServerError
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from sandbox.prometheus import Prometheus, missing, promtool
from tests.support.container import ROOT
from tests.support.prometheus import run_pipeline, samples_of
from tests.support.weather import Pipeline, wait_until

DIRECTORY = ROOT / "deploy" / "prometheus"
ALERTS = DIRECTORY / "alerts.yaml"
TESTS = sorted(DIRECTORY.glob("*_test.yaml"))

HEAD, *RULES = re.split(r"^(?=      - alert: )", ALERTS.read_text(), flags=re.MULTILINE)
NAMES = [re.findall(r"alert: (\w+)", rule)[0] for rule in RULES]
BY_NAME = dict(zip(NAMES, RULES, strict=True))

SILENCE = """
rule_files: [alerts.yaml]
tests:
  - interval: 1m
    input_series:
      - {series: 'pgsluice_info{job="pgsluice",pipeline="shop"}', values: 1 stale}
    alert_rule_test:
      - {alertname: PgsluiceAbsent, eval_time: 10m, exp_alerts: []}
  - interval: 1m
    input_series:
      - {series: 'pgsluice_info{job="pgsluice",namespace="cdc",pipeline="shop"}', values: 1 stale}
    alert_rule_test:
      - {alertname: PgsluiceAbsent, eval_time: 10m, exp_alerts: []}
"""
"""A test for promtool, in which two pipelines become absent. The first of them has no namespace."""


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    if reason := missing():
        pytest.skip(f"no Prometheus here: {reason}")


def test_the_rules_are_well_formed() -> None:
    assert f"SUCCESS: {len(NAMES)} rules found" in promtool("check", "rules", str(ALERTS))


def test_each_alert_fires_when_it_should_and_not_when_it_should_not() -> None:
    assert promtool("test", "rules", *map(str, TESTS)).count("SUCCESS") == len(TESTS)


def changed(directory: Path, name: str, change: Callable[[str], str]) -> list[str]:
    """Change the rule ``name``. Write it without the other rules, and its tests. Return the paths of the tests."""
    (directory / ALERTS.name).write_text(HEAD + change(BY_NAME[name]))
    written = []
    for tests in TESTS:
        head, *cases = re.split(r"^(?=  # )", tests.read_text(), flags=re.MULTILINE)
        if of_rule := [one for one in cases if f'"{name}"' in one]:
            (directory / tests.name).write_text(head + "".join(of_rule))
            written.append(str(directory / tests.name))
    return written


@pytest.mark.parametrize("name", NAMES)
class TestTheTestsOfTheAlerts:
    """The tests of an alert must fail if the alert never fires, or if it always fires."""

    def test_tests_fail_for_an_alert_that_never_fires(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(ServerError, match=name):
            promtool("test", "rules", *changed(tmp_path, name, lambda _: ""))

    def test_tests_fail_for_an_alert_that_always_fires(self, name: str, tmp_path: Path) -> None:
        at_once = changed(tmp_path, name, lambda rule: re.sub(r"        for: .*\n", "", _without_limit(rule)))
        with pytest.raises(ServerError, match=name):
            promtool("test", "rules", *at_once)


def _without_limit(rule: str) -> str:
    """Return the rule with an expression that is always true for the pipeline."""
    always = '        expr: group by (namespace, job, pipeline) ({pipeline!=""})\n'
    return re.sub(r"        expr:(?: \|\n(?:          .*\n)+| .*\n)", always, rule)


def exposed() -> set[str]:
    """Return the names of all time series that the daemon can expose."""
    return samples_of(Metrics().registry)


@pytest.mark.parametrize("name", NAMES)
def test_the_metrics_of_each_alert_are_exposed(name: str) -> None:
    found = set(re.findall(r"\b(?:pgsluice|process)_\w+", BY_NAME[name].partition("annotations:")[0]))
    assert found
    assert found <= exposed()


@pytest.mark.parametrize("name", NAMES)
def test_the_annotations_of_each_alert_name_a_command(name: str) -> None:
    """Each alert must mention a command. Commands of pgsluice must have valid arguments."""
    annotations = " ".join(BY_NAME[name].partition("annotations:")[2].split())
    commands = re.findall(r"`(.+?)`", annotations)
    assert [one for one in commands if " " in one], "no command with arguments"
    for command in commands:
        if command.startswith("pgsluice "):
            arguments.parser(cli.COMMANDS).parse_args(command.split()[1:])
    for document in re.findall(r"docs/\w+\.md", annotations):
        assert (ROOT / document).exists()


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_says_how_its_commands_differ_in_a_container(name: str) -> None:
    """In a container, PGSLUICE_CONFIG names the configuration file, so commands must also be valid without ``-c``."""
    annotations = " ".join(BY_NAME[name].partition("annotations:")[2].split())
    commands = [one for one in re.findall(r"`(pgsluice .+?)`", annotations) if "-c config.toml" in one]
    assert annotations.count("In a container, leave out `-c config.toml`.") == bool(commands)
    for command in commands:
        parsed = arguments.parser(cli.COMMANDS).parse_args(command.replace("-c config.toml", "").split()[1:])
        assert parsed.config is None


def test_the_command_that_silences_an_alert_names_its_pipeline(tmp_path: Path) -> None:
    """Tell promtool to expect no alerts, so that it fails and prints the annotations of the alerts that fire."""
    shutil.copy(ALERTS, tmp_path)
    (tmp_path / "silence.yaml").write_text(SILENCE)
    with pytest.raises(ServerError) as failed:
        promtool("test", "rules", str(tmp_path / "silence.yaml"))
    found = re.findall(r"`(amtool .+?)`", str(failed.value))
    silence = "amtool silence add --duration=14d --comment=removed alertname=PgsluiceAbsent pipeline=shop job=pgsluice"
    assert found == [silence, f"{silence} namespace=cdc"]


@pytest.fixture
def own_kafka() -> Iterator[Kafka]:
    """Provide a broker that the test can stop."""
    with Kafka() as cluster:
        yield cluster


def impatient(directory: Path) -> Path:
    """Write the rules with limits of seconds instead of minutes. Return the path of the file."""
    text = re.sub(r"for: \d+m", "for: 2s", ALERTS.read_text())
    assert text.count("pgsluice_lag_seconds) > 300") == 1
    rules = directory / "alerts.yaml"
    rules.write_text(text.replace("pgsluice_lag_seconds) > 300", "pgsluice_lag_seconds) > 5"))
    return rules


@pytest.mark.long
def test_the_lag_alert_fires_while_kafka_is_down(database: Database, own_kafka: Kafka, tmp_path: Path) -> None:
    rules = impatient(tmp_path)
    with (
        run_pipeline(database, own_kafka) as pipeline,
        Prometheus("pgsluice", [pipeline.daemon.url], rules) as prometheus,
    ):
        pipeline.write()
        pipeline.wait_until_confirmed()
        wait_until(lambda: prometheus.query("pgsluice_lag_seconds == 0"), "the lag to be seen")
        assert prometheus.alerts() == {}
        own_kafka.stop()
        pipeline.write()
        wait_until(lambda: prometheus.alerts().get("PgsluiceLagHigh") == "firing", "the alert")
        assert_growing(pipeline, prometheus)
        own_kafka.start()
        wait_until(lambda: "PgsluiceLagHigh" not in prometheus.alerts(), "the alert to end")


def assert_growing(pipeline: Pipeline, prometheus: Prometheus) -> None:
    """Check that the lag grows, that the daemon still queries the slot, and that the alert's text is complete."""
    before = pipeline.daemon.status()
    wait_until(lambda: pipeline.daemon.status()["lag_seconds"] > before["lag_seconds"] + 2, "the lag to grow")
    assert pipeline.daemon.status()["lag_bytes"] > 0
    (alert,) = prometheus.firing("PgsluiceLagHigh")
    assert alert["labels"]["pipeline"] == pipeline.daemon.name
    assert re.search(rf"Pipeline {pipeline.daemon.name} is \d+\.?\d*s behind", alert["annotations"]["summary"])
