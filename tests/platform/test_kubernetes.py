"""Tests the chart on a real API server, in a namespace where Pod Security is `restricted`. No pods run."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from sandbox import chart, tools
from sandbox.errors import ServerError
from sandbox.kubernetes import RESTRICTED, ApiServer, missing
from tests.support.chart import CASES, Manifest, load, manifests, pod_specs, values_of
from tests.support.versions import long
from tests.support.weather import wait_until

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PATHS = {
    "ConfigMap": "api/v1/namespaces/{}/configmaps",
    "Deployment": "apis/apps/v1/namespaces/{}/deployments",
    "NetworkPolicy": "apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Pod": "api/v1/namespaces/{}/pods",
    "PodDisruptionBudget": "apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "PodMonitor": "apis/monitoring.coreos.com/v1/namespaces/{}/podmonitors",
    "PrometheusRule": "apis/monitoring.coreos.com/v1/namespaces/{}/prometheusrules",
    "Service": "api/v1/namespaces/{}/services",
    "ServiceAccount": "api/v1/namespaces/{}/serviceaccounts",
    "ServiceMonitor": "apis/monitoring.coreos.com/v1/namespaces/{}/servicemonitors",
}


@pytest.fixture(scope="session")
def server() -> Iterator[ApiServer]:
    """Provide an API server that has the Prometheus operator's definitions."""
    for reason in (missing(), *(tools.missing(name) for name in ("helm", "etcd", "prometheus-operator"))):
        if reason is not None:
            pytest.skip(f"no Kubernetes API server here: {reason}")
    with ApiServer() as running:
        for file in tools.directory("prometheus-operator").glob("*.yaml"):
            running.create(DEFINITIONS, yaml.safe_load(file.read_text()))
        resources = [
            f"/apis/monitoring.coreos.com/v1/{kind}" for kind in ("podmonitors", "prometheusrules", "servicemonitors")
        ]
        wait_until(lambda: all(map(running.serves, resources)), "the operator's resources")
        yield running


@pytest.fixture
def namespace(server: ApiServer) -> str:
    """Provide an empty namespace where Pod Security is `restricted`."""
    name = f"test-{uuid4().hex[:8]}"
    server.create_namespace(name, RESTRICTED)
    return name


@pytest.fixture(params=["helm", *long("helm-4")])
def helm(request: pytest.FixtureRequest, server: ApiServer, namespace: str) -> Callable[..., str]:
    """Provide a function that runs Helm in the namespace: Helm 3, or Helm 4, which uses server-side apply."""
    if reason := tools.missing(request.param):
        pytest.skip(f"no {request.param} here: {reason}")
    return lambda *words: chart.helm(
        *words, "--namespace", namespace, kubeconfig=server.kubeconfig, program=request.param
    )


def strictly(path: str) -> str:
    """Return the path of a request that only checks an object.

    The server refuses unknown fields, and creates nothing.
    """
    return f"{path}?dryRun=All&fieldValidation=Strict"


@pytest.mark.parametrize("case", CASES)
def test_the_server_accepts_every_object(server: ApiServer, namespace: str, case: str) -> None:
    for item in manifests(*values_of(case)):
        server.create(strictly("/" + PATHS[item["kind"]].format(namespace)), item)


@pytest.mark.parametrize("case", CASES)
def test_every_pod_is_allowed_where_pod_security_is_restricted(server: ApiServer, namespace: str, case: str) -> None:
    for name, spec in pod_specs(manifests(*values_of(case))):
        server.create(strictly("/" + PATHS["Pod"].format(namespace)), pod(name, spec))


def test_the_server_accepts_the_plain_manifests(server: ApiServer, namespace: str) -> None:
    for file in chart.MANIFESTS.glob("*.yaml"):
        for item in load(file.read_text()):
            server.create(strictly("/" + PATHS[item["kind"]].format(namespace)), item)


def test_a_pod_with_more_rights_would_be_refused(server: ApiServer, namespace: str) -> None:
    (_, spec) = next(pod_specs(manifests(*values_of("minimal"))))
    spec["securityContext"]["runAsNonRoot"] = False
    with pytest.raises(ServerError, match="violates PodSecurity"):
        server.create(strictly("/" + PATHS["Pod"].format(namespace)), pod("root", spec))


def test_an_unknown_field_would_be_refused(server: ApiServer, namespace: str) -> None:
    (_, spec) = next(pod_specs(manifests(*values_of("minimal"))))
    spec["enableServiceLink"] = False
    with pytest.raises(ServerError, match=r'unknown field "spec\.enableServiceLink"'):
        server.create(strictly("/" + PATHS["Pod"].format(namespace)), pod("typo", spec))


def test_a_release_is_installed_upgraded_rolled_back_and_removed(
    server: ApiServer, namespace: str, helm: Callable[..., str]
) -> None:
    deployment = f"/{PATHS['Deployment'].format(namespace)}/shop-pgsluice"

    def replicas() -> int:
        return int(server.request("GET", deployment)[1]["spec"]["replicas"])

    notes = helm("install", "shop", str(chart.CHART), *values_of("minimal"))
    assert "UNINSTALLING THIS RELEASE DOES NOT DROP THE REPLICATION SLOT" in notes
    assert "SELECT pg_drop_replication_slot('pgsluice_shop')" in notes
    assert replicas() == 1
    helm("upgrade", "shop", str(chart.CHART), *values_of("standby"), "--set", "metrics.podMonitor.enabled=true")
    assert replicas() == 2
    assert kept(server, namespace) >= {"PodDisruptionBudget", "PodMonitor", "Deployment"}
    helm("rollback", "shop", "1")
    assert replicas() == 1
    assert kept(server, namespace) == {"ConfigMap", "Deployment", "Service", "ServiceAccount"}
    notes = helm("upgrade", "shop", str(chart.CHART), "--reset-then-reuse-values", "--set", "maintenance=true")
    assert "pgsluice slot drop" in notes
    helm("uninstall", "shop")
    assert kept(server, namespace) == set()


def kept(server: ApiServer, namespace: str) -> set[str]:
    """Return the kinds of the objects in the namespace, without the objects that every namespace has."""
    found = set()
    for kind, path in PATHS.items():
        names = [item["metadata"]["name"] for item in server.request("GET", "/" + path.format(namespace))[1]["items"]]
        if set(names) - {"kube-root-ca.crt", "default"}:
            found.add(kind)
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_release_can_be_changed_from_minimal_to_every_case_and_back(
    server: ApiServer, namespace: str, helm: Callable[..., str], case: str
) -> None:
    """Immutable fields, such as selectors, must be the same in all cases."""
    helm("install", "shop", str(chart.CHART), *values_of("minimal"))
    helm("upgrade", "shop", str(chart.CHART), *values_of(case))
    helm("upgrade", "shop", str(chart.CHART), *values_of("minimal"))
    assert kept(server, namespace) == {"ConfigMap", "Deployment", "Service", "ServiceAccount"}


def test_the_notes_say_which_settings_have_no_effect(helm: Callable[..., str], tmp_path: Path) -> None:
    sections = '[http]\nlisten = "127.0.0.1:1"\n[postgres]\nslot = "mine"\n[buffer]\nspill_max = "1GiB"\n'
    text = f'version = 1\nname = "shop"\n{sections}'
    (tmp_path / "own.toml").write_text(text)
    notes = helm("install", "own", str(chart.CHART), "--set-file", f"config={tmp_path / 'own.toml'}")
    assert "The chart sets buffer.spill_max, http.listen itself" in notes
    assert "pg_drop_replication_slot('mine')" in notes


OPEN = ["--set", "service.type=NodePort,registry.enabled=true,registry.service.type=LoadBalancer"]
OF_BOTH = "WARNING: shop-pgsluice and shop-pgsluice-registry can be reached from outside the cluster"
OF_PIPELINE = "WARNING: shop-pgsluice can be reached from outside the cluster"
OF_REGISTRY = "WARNING: shop-pgsluice-registry can be reached from outside the cluster"
NOT_SET = ", and http.token is not set."
UNSEEN = ". This chart cannot see whether\n"
GUARD = "{0}[0].setting=http.token,{0}[0].secretName=a,{0}[0].key=b"
FILE = "{0}[0].name=PGSLUICE_HTTP__TOKEN_FILE,{0}[0].value=/run/token"
VARIABLES = "{0}[0].configMapRef.name=x"

WARNINGS: dict[str, tuple[list[str], list[str]]] = {
    "closed": ([], []),
    "open": (OPEN, [OF_BOTH + NOT_SET]),
    "token": ([*OPEN, "--set", GUARD.format("secretSettings")], []),
    "token of the registry": (
        [*OPEN, "--set", GUARD.format("registry.secretSettings")],
        [OF_PIPELINE + NOT_SET],
    ),
    "variable": ([*OPEN, "--set", FILE.format("env")], []),
    "variable of the registry": ([*OPEN, "--set", FILE.format("registry.env")], [OF_PIPELINE + NOT_SET]),
    "flag": (
        [*OPEN, "--set-json", 'extraArgs=["--set", "http.token_file=/run/token"]'],
        [OF_REGISTRY + NOT_SET],
    ),
    "another flag": (
        [*OPEN, "--set-json", 'extraArgs=["--set=http.listen=token_file"]'],
        [OF_BOTH + NOT_SET],
    ),
    "unseen variables": (
        [*OPEN, "--set", VARIABLES.format("envFrom")],
        [OF_REGISTRY + NOT_SET, f"{OF_PIPELINE}{UNSEEN}envFrom sets http.token_file"],
    ),
    "unseen settings": (
        [*OPEN, "--set", "config=,existingConfigMap.name=own"],
        [f"{OF_BOTH}{UNSEEN}the ConfigMap own sets http.token_file"],
    ),
}


@pytest.mark.parametrize(("options", "warnings"), WARNINGS.values(), ids=WARNINGS)
def test_the_notes_warn_of_a_port_that_is_open_to_everybody(
    helm: Callable[..., str], options: list[str], warnings: list[str]
) -> None:
    notes = helm("install", "shop", str(chart.CHART), *values_of("minimal"), *options)
    assert [notes.count(warning) for warning in warnings] == [1] * len(warnings)
    assert notes.count("WARNING") == len(warnings)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], None),
        (["--set", "secretsFrom[0]=a"], "gets nothing from secretsFrom."),
        (["--set", "secretsFrom[0]=a,envFrom[0].secretRef.name=a"], "gets nothing from secretsFrom and envFrom."),
        (["--set", "secretsFrom[0]=a,registry.secretsFrom[0]=b"], None),
    ],
    ids=["nothing", "secretsFrom", "both", "own"],
)
def test_the_notes_say_what_the_registry_does_not_get(
    helm: Callable[..., str], options: list[str], sentence: str | None
) -> None:
    notes = helm("install", "shop", str(chart.CHART), *values_of("minimal"), "--set", "registry.enabled=true", *options)
    assert ("The registry gets nothing" in notes) == (sentence is not None)
    assert (sentence or "") in notes


@pytest.mark.parametrize("case", ["minimal", "maintenance"])
def test_the_notes_silence_the_alert_about_a_removed_pipeline(
    helm: Callable[..., str], namespace: str, case: str
) -> None:
    notes = helm("install", "shop", str(chart.CHART), *values_of(case))
    assert f"alertname=PgsluiceAbsent pipeline=shop namespace={namespace}\n" in notes


@pytest.mark.parametrize("case", ["minimal", "maintenance"])
def test_the_notes_uninstall_only_after_the_slot_was_dropped(helm: Callable[..., str], case: str) -> None:
    notes = helm("install", "shop", str(chart.CHART), *values_of(case))
    (line,) = (line for line in notes.splitlines() if "slot drop" in line)
    assert re.search(r"-- pgsluice slot drop && helm -n \S+ uninstall shop$", line)


def pod(name: str, spec: Manifest) -> Manifest:
    """Return a pod as the controller of a Deployment would create it."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
