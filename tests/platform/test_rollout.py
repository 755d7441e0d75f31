"""Tests a rolling update with real daemons and the chart's probes, and prints how long delivery is interrupted."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest

from sandbox import tools
from sandbox.daemon import Daemon
from sandbox.kafka import Kafka
from sandbox.postgres import Database
from tests.support.chart import manifests, one, values_of
from tests.support.rollout import Observer, Pod, update
from tests.support.versions import long
from tests.support.weather import Pipeline, configured, prepare, wait_until


@pytest.fixture(scope="session", autouse=True)
def helm() -> None:
    """Skip all tests if Helm is not available."""
    if reason := tools.missing("helm"):
        pytest.skip(f"no Helm here: {reason}")


@pytest.fixture
def make_pod(database: Database, kafka: Kafka) -> Iterator[Callable[[int], Pod]]:
    """Provide a function that creates pods of one pipeline. Its argument is the number of replicas in the manifest.

    The pods are removed after the test.
    """
    prepare(database)
    name, settings = f"roll{uuid4().hex[:8]}", configured(None)
    with ExitStack() as stack:

        def make(replicas: int) -> Pod:
            rendered = manifests(*values_of("minimal"), "--set", f"replicas={replicas}")
            daemon = Daemon(name, database.conninfo(), kafka.bootstrap_servers, settings, at_once=False)
            return Pod(stack.enter_context(daemon), one(rendered, "Deployment"))

        yield make


@pytest.mark.parametrize("replicas", [*long(1), 2])
def test_during_an_update_a_pod_is_always_ready(
    replicas: int,
    make_pod: Callable[[int], Pod],
    database: Database,
    kafka: Kafka,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made: list[Pod] = []

    def new() -> Pod:
        made.append(make_pod(replicas))
        return made[-1]

    pods = [new() for _ in range(replicas)]
    for pod in pods:
        pod.start()
    wait_until(lambda: all(pod.ready for pod in pods), "the first pods to be ready")
    wait_until(lambda: any(pod.daemon.readiness("active") == 200 for pod in pods), "one of them to own the slot")
    pipeline = Pipeline(database, kafka, pods[0].daemon)
    with Observer(pods) as observer, pipeline.busy():
        ended_s = update(pods, new, wait_until)
        wait_until(lambda: any(pod.daemon.readiness("active") == 200 for pod in pods), "the slot to have an owner")
    for pod in pods:
        pod.end()
    with capsys.disabled():
        times = f"no pod delivered for {shown(observer.idle_s)} s, pods ended in {shown(ended_s)} s"
        times += f", for {observer.unanswered_s:.1f} s no daemon reported that it was ready"
        print(f"\n{replicas} replicas: {times}")  # noqa: T201 - only for information; the bench measures these times
    assert observer.without_ready_s == 0
    assert [pod.restarts for pod in made] == [0] * 2 * replicas
    pipeline.daemon = pods[0].daemon
    pipeline.assert_complete()


def shown(seconds: list[float]) -> str:
    return ", ".join(f"{each:.1f}" for each in seconds)


def test_one_late_answer_does_not_make_a_pod_unready() -> None:
    """A standby that takes over is not ready for a short time. Its pod must stay ready."""
    (pod,) = one(manifests(*values_of("minimal")), "Deployment")["spec"]["template"]["spec"]["containers"]
    readiness = pod["readinessProbe"]
    assert readiness["periodSeconds"] * (readiness["failureThreshold"] - 1) >= 5
