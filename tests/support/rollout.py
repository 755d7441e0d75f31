"""Simulates Kubernetes during the update of a Deployment: the probes of the kubelet, and the steps of the controller.

The probes and the steps follow the rendered manifest. The pods are real daemons. No other part of Kubernetes runs.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-probes
https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#rolling-update-deployment
"""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException
from threading import Event, Thread
from typing import Any, Self
from urllib.parse import urlsplit

from sandbox.daemon import Daemon
from tests.support.chart import Manifest, container, variables

OK = 200
STEP_S = 0.02


@dataclass(frozen=True)
class Probe:
    """One probe of a container."""

    path: str
    period_s: float
    timeout_s: float
    failures: int

    @classmethod
    def read(cls, described: Manifest) -> Self:
        return cls(
            described["httpGet"]["path"],
            described["periodSeconds"],
            described["timeoutSeconds"],
            described["failureThreshold"],
        )

    def succeeds(self, url: str) -> bool:
        """Run the probe once, as a kubelet does."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        connection = HTTPConnection(parts.hostname, parts.port, timeout=self.timeout_s)
        try:
            connection.request("GET", self.path)
            return connection.getresponse().status == OK
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


@dataclass
class Pod:
    """A daemon, and its state according to the kubelet."""

    daemon: Daemon
    deployment: Manifest
    restarts: int = 0
    """How often the kubelet would have restarted the container."""
    _passed: bool = False
    _stop: Event = field(default_factory=Event)

    @property
    def ready(self) -> bool:
        """The readiness that the API server would show. A terminating pod is never ready."""
        return self._passed and not self._stop.is_set()

    def start(self) -> None:
        """Start the daemon with variables from the manifest, and start its probes."""
        given = variables(container(self.deployment))
        own = {name: value for name, value in given.items() if "TIMEOUT" in name or "SPILL_MAX" in name}
        self.daemon.variables = own
        self.daemon.start(wait=False)
        self._kubelet = Thread(target=self._watch, daemon=True)
        self._kubelet.start()

    def terminate(self) -> float:
        """Terminate the pod as Kubernetes does when it deletes a pod. Return the duration.

        Fail if the pod has not ended within the grace period.
        """
        self._stop.set()
        grace = self.deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        began = time.monotonic()
        self.daemon.send(signal.SIGTERM)
        assert self.daemon.wait(grace) == 0, self.daemon.log_text()
        return time.monotonic() - began

    def end(self) -> None:
        """Stop the probes. The daemon continues, but is no longer considered ready."""
        self._stop.set()
        self._kubelet.join()

    def _watch(self) -> None:
        described = container(self.deployment)
        startup, liveness, readiness = (
            Probe.read(described[f"{name}Probe"]) for name in ("startup", "liveness", "readiness")
        )
        while not startup.succeeds(self.daemon.url):
            if self._stop.wait(startup.period_s):
                return
        live = Thread(target=self._ask, args=(liveness, self._count_restart), daemon=True)
        live.start()
        self._ask(readiness, self._set_unready, self._set_ready)
        live.join()

    def _ask(self, probe: Probe, failed: Callable[[], None], succeeded: Callable[[], None] = lambda: None) -> None:
        failures = 0
        while not self._stop.is_set():
            if probe.succeeds(self.daemon.url):
                failures = 0
                succeeded()
            else:
                failures += 1
                if failures >= probe.failures:
                    failed()
            self._stop.wait(probe.period_s)

    def _set_ready(self) -> None:
        self._passed = True

    def _set_unready(self) -> None:
        self._passed = False

    def _count_restart(self) -> None:
        self.restarts += 1


class Observer:
    """Continuously checks whether any of the pods is ready, and whether any of them delivers."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        self._pods = pods
        self._stop = Event()
        self.without_ready_s = 0.0
        """The total time during which no pod was ready."""
        self.unanswered_s = 0.0
        """The total time during which no daemon reported that it was ready.

        Kubernetes may not notice a short outage, because a probe must fail several times before a pod is not ready.
        """
        self.idle_s: list[float] = []
        """The length of each period in which no pod owned the slot and delivered. Each hand-over causes one period."""

    def __enter__(self) -> Self:
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        before, idle_since = time.monotonic(), None
        while not self._stop.wait(STEP_S):
            now, pods = time.monotonic(), list(self._pods)
            if not any(pod.ready for pod in pods):
                self.without_ready_s += now - before
            if not any(pod.daemon.readiness() == OK for pod in pods):
                self.unanswered_s += now - before
            active = any(pod.daemon.readiness("active") == OK for pod in pods)
            if active and idle_since is not None:
                self.idle_s.append(time.monotonic() - idle_since)
            idle_since = None if active else idle_since or now
            before = now


def update(
    pods: list[Pod], make: Callable[[], Pod], wait_until: Callable[[Callable[[], Any], str], Any]
) -> list[float]:
    """Replace all pods as the manifest's strategy says. Return how long each of the old pods took to end.

    The owner of the slot is replaced first, which is the worst order that the controller can choose.
    """
    strategy = pods[0].deployment["spec"]["strategy"]["rollingUpdate"]
    assert strategy == {"maxSurge": 1, "maxUnavailable": 0}, "the steps below are for this strategy"
    took = []
    for former in sorted(pods, key=lambda pod: pod.daemon.readiness("active") != OK):
        new = make()
        pods.append(new)
        new.start()
        wait_until(partial(getattr, new, "ready"), "the new pod to be ready")
        took.append(former.terminate())
        pods.remove(former)
    return took
