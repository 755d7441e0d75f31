"""Tests the Helm chart: the objects that it renders, whether pgsluice accepts their settings, and refused values."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from sandbox import chart, tools
from tests.support.chart import (
    CASES,
    Manifest,
    container,
    load,
    manifests,
    one,
    pod_specs,
    values_of,
    variables,
)
from tests.support.conformity import conformity, write_schemas

MINIMAL = values_of("minimal")
DOCUMENTATION = chart.ROOT / "docs" / "kubernetes.md"
CUSTOM_RESOURCES = ("PodMonitor", "ServiceMonitor", "PrometheusRule")


@pytest.fixture(scope="session", autouse=True)
def helm() -> None:
    """Skip all tests if Helm or another tool is not available."""
    for name in ("helm", "helm-docs", "kubeconform", "kubernetes-schemas", "prometheus-operator"):
        if reason := tools.missing(name):
            pytest.skip(f"no {name} here: {reason}")
        tools.directory(name)


@pytest.fixture(scope="session")
def operator_schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide JSON schemas of the Prometheus operator's resources."""
    return write_schemas(tools.directory("prometheus-operator"), tmp_path_factory.mktemp("schemas"))


# -- every case ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_helm_lint_reports_no_problems(case: str) -> None:
    said = chart.helm("lint", "--strict", str(chart.CHART), *values_of(case))
    assert "0 chart(s) failed" in said
    assert "[WARNING]" not in said


@pytest.mark.parametrize("version", [chart.OLDEST, chart.NEWEST])
@pytest.mark.parametrize("case", CASES)
def test_rendered_objects_conform_to_the_schemas(
    case: str, version: str, tmp_path: Path, operator_schemas: Path
) -> None:
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text(chart.render(*values_of(case), kubernetes=version))
    assert conformity(rendered, version, operator_schemas) == []


def test_the_schemas_refuse_an_unknown_field(tmp_path: Path, operator_schemas: Path) -> None:
    """This test proves that the test above can fail, both for resources of Kubernetes and for those of the operator."""
    wrong = chart.render(*values_of("monitors"))
    wrong = wrong.replace("enableServiceLinks:", "enableServiceLink:").replace("interval:", "intervall:")
    (tmp_path / "wrong.yaml").write_text(wrong)
    found = conformity(tmp_path / "wrong.yaml", chart.NEWEST, operator_schemas)
    assert {"Deployment", "PodMonitor", "Pod"} == {entry["kind"] for entry in found}


@pytest.mark.parametrize("case", CASES)
def test_no_pod_has_more_rights_than_it_needs(case: str) -> None:
    """This test needs no API server. test_kubernetes.py tests whether Pod Security accepts the pods."""
    for name, spec in pod_specs(manifests(*values_of(case))):
        assert spec["enableServiceLinks"] is False, name
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        own = [item for item in spec["containers"] if item["name"] in {"pgsluice", "registry", "ready"}]
        for item in [*own, *spec.get("initContainers", [])]:
            assert item["securityContext"]["capabilities"] == {"drop": ["ALL"]}, item["name"]
            assert item["securityContext"]["allowPrivilegeEscalation"] is False, item["name"]
        assert all(item["securityContext"]["readOnlyRootFilesystem"] for item in own)


@pytest.mark.parametrize("case", CASES)
def test_secrets_are_only_referenced(case: str) -> None:
    found = manifests(*values_of(case))
    assert not [item for item in found if item["kind"] == "Secret"]
    for item in found:
        if item["kind"] == "Deployment":
            given = [name for each in item["spec"]["template"]["spec"]["containers"] for name in variables(each)]
            assert not [name for name in given if "PASSWORD" in name and not name.endswith("_FILE")]


@pytest.mark.parametrize("case", CASES)
def test_pgsluice_accepts_the_configuration(case: str, tmp_path: Path) -> None:
    """The test runs the command of the init container with the files and variables in the manifest."""
    found = manifests(*values_of(case))
    deployment = next(
        item for item in found if item["kind"] == "Deployment" and "registry" not in item["metadata"]["name"]
    )
    checked = Pod(deployment, found, tmp_path).run("check-config")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "OK    configuration" in checked.stdout
    if os.geteuid() == 0:
        assert "other users can read" not in checked.stdout


# -- the settings --------------------------------------------------------------------------------


FROM_ELSEWHERE = "content of a Secret"
"""The value that a simulated pod gives to each variable that comes from a Secret."""


class Pod:
    """A simulated pod. A directory has the files of its volumes, and the commands of its containers use these files."""

    def __init__(self, deployment: Manifest, found: list[Manifest], directory: Path) -> None:
        self._deployment = deployment
        self._found = found
        self._directory = directory
        spec = deployment["spec"]["template"]["spec"]
        self._volumes = {volume["name"]: volume for volume in spec["volumes"]}

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a container's command, or another command, with the container's variables and volumes."""
        described = container(self._deployment, name)
        for mount in described["volumeMounts"]:
            self._fill(self._place(mount["mountPath"]), self._volumes[mount["name"]])
        given = {item["name"]: item.get("value", FROM_ELSEWHERE) for item in described.get("env", [])}
        environ = {name: self._placed(value) for name, value in given.items()}
        command = [sys.executable, "-m", "pgsluice", *(arguments or described["args"])]
        environ |= {"PATH": os.environ["PATH"]}
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    def _place(self, path: str) -> Path:
        return self._directory / path.lstrip("/")

    def _placed(self, value: str) -> str:
        return str(self._place(value)) if value.startswith(("/run/", "/etc/")) else value

    def _fill(self, directory: Path, volume: Manifest) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        for name, (text, mode) in _files(volume, self._found):
            file = directory / name
            file.unlink(missing_ok=True)
            file.write_text(text)
            file.chmod(mode)


def _files(volume: Manifest, found: list[Manifest]) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield the name, the content and the mode of each file that a kubelet would write into a volume."""
    if "configMap" in volume:
        (item,) = volume["configMap"]["items"]
        given = [one["data"] for one in found if one["kind"] == "ConfigMap" and item["key"] in one.get("data", {})]
        yield item["path"], (given[0][item["key"]] if given else MINIMAL_SETTINGS, 0o644)
    elif "secret" in volume:
        for key in ("ca.crt", "tls.crt", "tls.key"):
            yield key, ("-----BEGIN-----\n", volume["secret"]["defaultMode"])
    elif "projected" in volume:
        for source in volume["projected"]["sources"]:
            for item in source["secret"].get("items", [{"path": "kafka__client__ssl.key.password"}]):
                yield item["path"], (f"content of {item['path']}\n", volume["projected"]["defaultMode"])


MINIMAL_SETTINGS = yaml.safe_load((chart.CHART / "ci/minimal-values.yaml").read_text())["config"]


def test_secrets_and_certificates_become_settings(tmp_path: Path) -> None:
    found = manifests(*values_of("tls"))
    shown = Pod(one(found, "Deployment"), found, tmp_path).run("pgsluice", "config", "show").stdout
    settings = dict(line.split(" = ", 1) for line in shown.splitlines() if " = " in line)
    secrets, certificates = f"{tmp_path}/run/secrets/pgsluice", f"{tmp_path}/run/tls"
    for name, value in {
        "password_file": f"{secrets}/schema-registry-password",
        "sslrootcert": f"{certificates}/postgres/ca.crt",
        "sslcert": f"{certificates}/postgres/tls.crt",
        "sslkey": f"{certificates}/postgres/tls.key",
        "ca_file": f"{certificates}/schema-registry/ca.crt",
        "key_file": f"{certificates}/schema-registry/tls.key",
        "tls_cert_file": f"{certificates}/http/tls.crt",
        "tls_key_file": f"{certificates}/http/tls.key",
    }.items():
        assert value in settings[name], name
    assert f"{secrets}/postgres-password" in shown
    assert f"{secrets}/http-token" in shown
    assert f"{secrets}/kafka-password" in shown
    assert f"{secrets}/kafka__client__ssl.key.password" in shown
    assert f"{secrets}/postgres__parameters__sslpassword" in shown
    assert f"{certificates}/kafka/ca.crt" in shown
    assert "content of" not in shown


def test_probes_and_scrapes_use_tls() -> None:
    found = manifests(*values_of("tls"), "--set", "registry.enabled=true")
    for deployment in (each for each in found if each["kind"] == "Deployment"):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["scheme"] == "HTTPS"
        variables = {variable["name"] for variable in container["env"]}
        assert variables >= {"PGSLUICE_HTTP__TLS_CERT_FILE", "PGSLUICE_HTTP__TLS_KEY_FILE", "PGSLUICE_HTTP__TOKEN_FILE"}
    (endpoint,) = one(found, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["ca"] == {"secret": {"name": "shop-http-tls", "key": "ca.crt"}}
    assert endpoint["authorization"] == {"credentials": {"name": "shop-http", "key": "token"}}


def test_a_broken_file_is_found_before_anything_starts(tmp_path: Path) -> None:
    wrong = 'version = 1\nname = "shop"\n[postgres]\nhots = "db"\n[kafka]\ntopic_prefix = "shop"\n'
    (tmp_path / "wrong.toml").write_text(wrong)
    found = manifests("--set-file", f"config={tmp_path / 'wrong.toml'}")
    checked = Pod(one(found, "Deployment"), found, tmp_path).run("check-config")
    assert checked.returncode == 78
    assert "postgres.hots: is not a setting: did you mean postgres.host?" in checked.stdout
    assert "kafka.bootstrap_servers" in checked.stdout


def test_the_text_of_the_settings_arrives_as_it_is(tmp_path: Path) -> None:
    text = 'big = 1073741824\n\n# {{ .Release.Name }} \'"\\\n[tables]\n\tinclude = ["a.*"]\nname = "ü{prefix}"\n'
    (tmp_path / "odd.toml").write_text(text)
    found = manifests("--set-file", f"config={tmp_path / 'odd.toml'}")
    assert one(found, "ConfigMap")["data"]["config.toml"] == text


def test_a_changed_file_replaces_the_pod() -> None:
    def checksum(*options: str) -> str:
        template = one(manifests(*MINIMAL, *options), "Deployment")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum() == checksum()
    assert checksum() != checksum("--set-string", "config=version = 1")


# -- consequences of values ----------------------------------------------------------------------


def test_there_is_time_to_drain_before_the_pod_is_killed() -> None:
    deployment = one(manifests(*MINIMAL, "--set", "drainTimeoutSeconds=90"), "Deployment")
    assert variables(container(deployment))["PGSLUICE_SHUTDOWN__DRAIN_TIMEOUT"] == "90s"
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 90


@pytest.mark.parametrize(("size", "limit"), [("10Gi", "9216MiB"), ("512Mi", "460MiB"), ("1Ti", "943718MiB")])
def test_the_volume_is_larger_than_what_may_be_spilled(size: str, limit: str) -> None:
    deployment = one(manifests(*MINIMAL, "--set", f"spill.size={size}"), "Deployment")
    assert variables(container(deployment))["PGSLUICE_BUFFER__SPILL_MAX"] == limit
    assert deployment["spec"]["template"]["spec"]["volumes"][0]["emptyDir"] == {"sizeLimit": size}


def test_only_pgsluices_user_can_write_to_the_spill_directory() -> None:
    """An emptyDir is writable for all users, so spill_dir must be a directory in it that pgsluice creates itself."""
    pipeline = container(one(manifests(*MINIMAL), "Deployment"))
    (mounted,) = (mount["mountPath"] for mount in pipeline["volumeMounts"] if mount["name"] == "spill")
    assert Path(variables(pipeline)["PGSLUICE_BUFFER__SPILL_DIR"]).parent == Path(mounted)


def test_each_pod_has_its_own_claim() -> None:
    """If two pods on different nodes shared a claim, they could block each other."""
    (spill, *_) = one(manifests(*values_of("spill-volume")), "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert spill["ephemeral"]["volumeClaimTemplate"]["spec"]["resources"]["requests"]["storage"] == "50Gi"


def test_only_two_replicas_have_rules_that_separate_them() -> None:
    alone, both = manifests(*MINIMAL), manifests(*values_of("standby"))
    assert not [item for item in alone if item["kind"] == "PodDisruptionBudget"]
    assert "affinity" not in one(alone, "Deployment")["spec"]["template"]["spec"]
    budget, spec = one(both, "PodDisruptionBudget")["spec"], one(both, "Deployment")["spec"]["template"]["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    labels = one(both, "Deployment")["spec"]["template"]["metadata"]["labels"]
    (term,) = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    (spread,) = spec["topologySpreadConstraints"]
    for selector in (budget["selector"], term["podAffinityTerm"]["labelSelector"], spread["labelSelector"]):
        assert selector["matchLabels"].items() <= labels.items()


def test_an_update_starts_a_pod_before_it_stops_one() -> None:
    """The new pod becomes ready as a standby while the old pod still owns the slot."""
    strategy = one(manifests(*values_of("standby")), "Deployment")["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def test_the_registry_has_its_own_user_and_no_access_to_postgresql() -> None:
    found = manifests(*values_of("registry"), "--set", "tls.postgres.secretName=shop-postgres-tls")
    registry = one(found, "Deployment", "pgsluice-registry")
    spec = registry["spec"]["template"]["spec"]
    assert container(registry, "registry")["args"] == ["registry", "--prefix=shop", "--prefix=billing"]
    assert variables(container(registry, "registry"))["PGSLUICE_KAFKA__CLIENT__SASL_USERNAME"] == "registry"
    assert "postgres" not in json.dumps([spec["volumes"], spec["containers"]])
    assert "shop-registry-user" in json.dumps(spec["volumes"])
    assert "shop-registry-more" in json.dumps(spec["volumes"])
    assert "shop-kafka" not in json.dumps(spec["volumes"])
    assert (
        one(found, "Service", "pgsluice")["spec"]["selector"]
        != one(found, "Service", "pgsluice-registry")["spec"]["selector"]
    )


def test_the_registry_shares_the_secrets_of_kafka_by_default() -> None:
    options = ["--set", "registry.enabled=true", *values_of("tls")]
    spec = one(manifests(*options), "Deployment", "pgsluice-registry")["spec"]["template"]["spec"]
    assert "shop-kafka" in json.dumps(spec["volumes"])
    assert "shop-postgres" not in json.dumps(spec["volumes"])
    assert "shop-more" not in json.dumps(spec["volumes"])


def test_the_registry_needs_the_token_of_the_pipeline_or_its_own() -> None:
    def secret(*options: str) -> str:
        registry = one(manifests(*values_of("registry"), *options), "Deployment", "pgsluice-registry")
        assert variables(container(registry, "registry"))["PGSLUICE_HTTP__TOKEN_FILE"].endswith("/http-token")
        volumes = {volume["name"]: volume for volume in registry["spec"]["template"]["spec"]["volumes"]}
        mounted = [source["secret"] for source in volumes["secrets"]["projected"]["sources"]]
        (name,) = (each["name"] for each in mounted if each.get("items", [{}])[0].get("path") == "http-token")
        return str(name)

    own = "registry.secretSettings[1]"
    assert secret() == "shop-http"
    assert secret("--set", f"{own}.setting=http.token,{own}.secretName=own,{own}.key=token") == "own"


SASL_VARIABLE = "PGSLUICE_KAFKA__CLIENT__SASL_PASSWORD"
OWN_SECRETS = {
    "a secret setting": ("secretSettings", {"setting": "kafka.client.sasl.password", "secretName": "own", "key": "p"}),
    "another spelling": ("secretSettings", {"setting": "kafka.client.sasl_password", "secretName": "own", "key": "p"}),
    "a Secret": ("secretsFrom", "own"),
    "a variable": (
        "env",
        {"name": SASL_VARIABLE, "valueFrom": {"secretKeyRef": {"name": "own", "key": "p"}}},
    ),
    "a Secret of variables": ("envFrom", {"secretRef": {"name": "own"}}),
}
SECRETS_OF_THE_PIPELINE: dict[str, Manifest] = {
    "a secret setting": {
        "secretSettings": [{"setting": "kafka.client.sasl.password", "secretName": "shop-kafka", "key": "p"}]
    },
    "a Secret": {"secretsFrom": ["shop-kafka"]},
    "a variable": {"env": [{"name": SASL_VARIABLE, "valueFrom": {"secretKeyRef": {"name": "shop-kafka", "key": "p"}}}]},
    "a table": {
        "env": [
            {"name": "PGSLUICE_KAFKA__CLIENT", "valueFrom": {"secretKeyRef": {"name": "shop-kafka", "key": "p"}}},
            {"name": "PGSLUICE_KAFKA__PASSWORD_FILE", "value": "/run/shop-kafka/password"},
        ]
    },
    "a Secret of variables": {"envFrom": [{"secretRef": {"name": "shop-kafka"}}]},
}


@pytest.mark.parametrize("values", SECRETS_OF_THE_PIPELINE.values(), ids=SECRETS_OF_THE_PIPELINE)
@pytest.mark.parametrize(("place", "secret"), OWN_SECRETS.values(), ids=OWN_SECRETS)
def test_a_registry_with_its_own_secrets_for_kafka_gets_none_of_the_pipeline(
    values: Manifest, place: str, secret: Manifest | str, tmp_path: Path
) -> None:
    """Check that each secret is rendered only once, because pgsluice refuses a password that is set in two ways."""
    (tmp_path / "values.json").write_text(json.dumps({**values, "registry": {"enabled": True, place: [secret]}}))
    found = manifests(*values_of("standby"), "--values", str(tmp_path / "values.json"))
    registry = one(found, "Deployment", "pgsluice-registry")
    assert "shop-kafka" not in json.dumps(registry)
    assert json.dumps(registry).count('"own"') == 1
    checked = Pod(registry, found, tmp_path).run("registry", "config", "show")
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("own", [["http.token"], []], ids=["its own token", "nothing"])
def test_without_its_own_secrets_for_kafka_the_registry_shares_those_of_the_pipeline(
    own: list[str], tmp_path: Path
) -> None:
    entries = [{"setting": setting, "secretName": "own", "key": "key"} for setting in own]
    variable = {"name": SASL_VARIABLE, "valueFrom": {"secretKeyRef": {"name": "shop-kafka-variable", "key": "p"}}}
    for values in (SECRETS_OF_THE_PIPELINE["a secret setting"], {"env": [variable]}):
        more = {"registry": {"enabled": True, "secretSettings": entries, "envFrom": [{"configMapRef": {"name": "x"}}]}}
        (tmp_path / "values.json").write_text(json.dumps({**values, **more}))
        rendered = load(chart.render(*values_of("standby"), "--values", str(tmp_path / "values.json")))
        registry = json.dumps(one(rendered, "Deployment", "pgsluice-registry"))
        assert registry.count("shop-kafka") == 1
        assert registry.count('"own"') == len(own)


def test_underscores_in_the_name_of_a_property_are_dots() -> None:
    """In both spellings, a password must become a file, because pgsluice can read a file again after a change."""
    setting = {"setting": "kafka.client.sasl_password", "secretName": "shop-kafka", "key": "password"}
    level = {"setting": "kafka.client.log_level", "secretName": "shop-kafka", "key": "level"}
    options = [*values_of("standby"), "--set-json", f"secretSettings={json.dumps([setting, level])}"]
    deployment = one(manifests(*options), "Deployment")
    named = variables(container(deployment))["PGSLUICE_KAFKA__PASSWORD_FILE"]
    assert named == "/run/secrets/pgsluice/kafka-password"
    volumes = json.dumps(deployment["spec"]["template"]["spec"]["volumes"])
    assert '"path": "kafka-password"' in volumes
    assert '"path": "kafka__client__log_level"' in volumes


@pytest.mark.parametrize("case", CASES)
def test_pgsluice_accepts_the_settings_of_the_registry(case: str, tmp_path: Path) -> None:
    found = manifests(*values_of(case), "--set", "registry.enabled=true")
    (registry,) = (
        item for item in found if item["kind"] == "Deployment" and item["metadata"]["name"].endswith("-registry")
    )
    shown = Pod(registry, found, tmp_path).run("registry", "config", "show")
    assert shown.returncode == 0, shown.stderr


@pytest.mark.parametrize("case", CASES)
def test_no_container_has_two_variables_with_one_name(case: str) -> None:
    """Server-side apply, which Helm 4 uses, refuses a list with two variables of the same name."""
    for name, spec in pod_specs(manifests(*values_of(case), "--set", "registry.enabled=true")):
        for item in [*spec["containers"], *spec.get("initContainers", [])]:
            names = [variable["name"] for variable in item.get("env", [])]
            assert sorted(set(names)) == sorted(names), f"{name} {item['name']}"


def test_the_last_of_several_variables_with_one_name_applies() -> None:
    given = [
        {"name": "PGSLUICE_POSTGRES__SSLROOTCERT", "value": "system"},
        {"name": "PGSLUICE_LOG__LEVEL", "value": "info"},
        {"name": "PGSLUICE_LOG__LEVEL", "value": "debug"},
    ]
    options = ["--set-json", f"env={json.dumps(given)}", "--set", "tls.postgres.secretName=shop-postgres-tls"]
    env = container(one(manifests(*MINIMAL, *options), "Deployment"))["env"]
    assert [entry for entry in env if "SSLROOTCERT" in entry["name"] or "LOG" in entry["name"]] == [given[0], given[2]]


@pytest.mark.parametrize("case", CASES)
def test_a_server_is_verified_only_with_an_authority(case: str) -> None:
    """Without sslrootcert, libpq looks for a file of authorities that no pod has, and does not connect."""
    found = manifests(*values_of(case))
    for item in found:
        settings = tomllib.loads(item.get("data", {}).get("config.toml", "")) if item["kind"] == "ConfigMap" else {}
        if settings.get("postgres", {}).get("sslmode") == "verify-full":
            given = [variables(each) for _, spec in pod_specs(found) for each in spec["containers"]]
            named = "sslrootcert" in settings["postgres"]
            assert named or any("PGSLUICE_POSTGRES__SSLROOTCERT" in each for each in given)


def test_the_network_policy_and_quotas_admit_the_pod_of_helm_test() -> None:
    found = manifests(*values_of("network-policy"))
    pod = one(found, "Pod")
    (rule,) = one(found, "NetworkPolicy")["spec"]["ingress"]
    own = [peer["podSelector"]["matchLabels"] for peer in rule["from"] if peer.get("podSelector")]
    assert any(labels.items() <= pod["metadata"]["labels"].items() for labels in own)
    assert pod["spec"]["containers"][0]["resources"]["limits"]


@pytest.mark.parametrize("options", [MINIMAL, values_of("tls")], ids=["minimal", "tls"])
def test_the_command_of_helm_test_needs_no_settings(options: list[str], tmp_path: Path) -> None:
    """The image sets variables, and one of them names a file of settings that this pod does not have."""
    (item,) = one(manifests(*options), "Pod")["spec"]["containers"]
    assert {mount["name"] for mount in item.get("volumeMounts", [])} <= {"tls-http"}
    environ = image_variables() | variables(item)
    with HTTPServer(("127.0.0.1", 0), Ready) as server, ThreadPoolExecutor() as pool:
        server.timeout = 60  # so that handle_request returns even if the command sends no request
        pool.submit(server.handle_request)
        url = f"http://127.0.0.1:{server.server_port}"
        arguments = [url if word.startswith("http") else word for word in item["command"][1:]]
        environ["PGSLUICE_SECRETS_DIR"] = str(tmp_path)  # the image has a directory for secrets
        command = [sys.executable, "-m", "pgsluice", *arguments]
        asked = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert (asked.returncode, asked.stdout) == (0, "ok\n"), asked.stderr
    assert "--ready" in arguments


class Ready(BaseHTTPRequestHandler):
    """Answers as a daemon that is ready."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()
        self.wfile.write(b"ok\n")


def image_variables() -> dict[str, str]:
    """Return pgsluice's variables in the Dockerfile."""
    found = dict(re.findall(r"(PGSLUICE_\w+)=(\S+)", (chart.ROOT / "Dockerfile").read_text()))
    assert "PGSLUICE_CONFIG" in found
    return found


def test_in_maintenance_mode_one_pod_waits() -> None:
    deployment = one(manifests(*values_of("maintenance")), "Deployment")
    waiting = container(deployment)
    assert deployment["spec"]["replicas"] == 1
    assert "readinessProbe" not in waiting
    _, option, program = waiting["command"]
    # The changed program prints a line when it has blocked SIGTERM.
    told = program.replace("; s.sigwait", "; print(flush=True); s.sigwait")
    with subprocess.Popen([sys.executable, option, told], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        assert process.poll() is None
        process.terminate()
        assert process.wait(timeout=60) == 0


# -- refused values ------------------------------------------------------------------------------

OF_REGISTRY = "registry.secretSettings[0]"
ONE_SPELLING = json.dumps({"setting": "kafka.client.sasl.password", "secretName": "a", "key": "b"})
TWO_SPELLINGS = f"{ONE_SPELLING},{ONE_SPELLING.replace('sasl.', 'sasl_')}"
VARIABLE = json.dumps({"name": SASL_VARIABLE, "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}})
REFUSED = {
    "a typo": (["--set", "replcas=2"], "additional properties 'replcas' not allowed"),
    "a typo further down": (["--set", "spill.sise=1Gi"], "additional properties 'sise' not allowed"),
    "three replicas": (["--set", "replicas=3"], "replicas is 3. One pod owns the replication slot"),
    "no replicas": (["--set", "replicas=0"], "replicas is 0."),
    "a wrong unit": (["--set", "spill.size=10G"], "'10G' does not match pattern"),
    "two files of settings": (["--set", "existingConfigMap.name=x"], "config and existingConfigMap.name are both set"),
    "no TOML": (["--set", "config=a = ["], "config is not TOML"),
    "a setting that is no secret": (
        ["--set", "secretSettings[0].setting=postgres.user,secretSettings[0].secretName=a,secretSettings[0].key=b"],
        "secretSettings names postgres.user, which is not a secret setting",
    ),
    "a secret setting twice": (
        ["--set", "secretSettings[1].setting=postgres.password,secretSettings[1].secretName=a,secretSettings[1].key=b"],
        "secretSettings names postgres.password twice",
    ),
    "two spellings of a secret setting": (
        ["--set-json", f"secretSettings=[{TWO_SPELLINGS}]"],
        "secretSettings names kafka.client.sasl.password twice",
    ),
    "a secret setting of the registry twice": (
        ["--set-json", f"registry.secretSettings=[{TWO_SPELLINGS}]"],
        "registry.secretSettings names kafka.client.sasl.password twice",
    ),
    "a secret setting that is also a variable": (
        ["--set-json", f"secretSettings=[{ONE_SPELLING}]", "--set-json", f"env=[{VARIABLE}]"],
        "env and secretSettings both set kafka.client.sasl.password. Remove one of the two.",
    ),
    "a secret setting of the registry that is also a variable": (
        ["--set-json", f"registry.secretSettings=[{ONE_SPELLING}]", "--set-json", f"registry.env=[{VARIABLE}]"],
        "registry.env and registry.secretSettings both set kafka.client.sasl.password. Remove one of the two.",
    ),
    "PostgreSQL's secret for the registry": (
        ["--set", f"{OF_REGISTRY}.setting=postgres.password,{OF_REGISTRY}.secretName=a,{OF_REGISTRY}.key=b"],
        "registry.secretSettings names postgres.password",
    ),
    "a secret in the environment": (
        ["--set", "env[0].name=PGSLUICE_KAFKA__CLIENT__SASL_PASSWORD,env[0].value=tiger"],
        "env holds a secret, PGSLUICE_KAFKA__CLIENT__SASL_PASSWORD",
    ),
    "a connection string in the environment": (
        ["--set", "env[0].name=PGSLUICE_POSTGRES__DSN,env[0].value=host=db password=tiger"],
        "env holds a secret, PGSLUICE_POSTGRES__DSN",
    ),
    "a primary in the environment": (
        ["--set", "env[0].name=PGSLUICE_SNAPSHOT__PRIMARY,env[0].value=postgresql://scott:tiger@db/shop"],
        "env holds a secret, PGSLUICE_SNAPSHOT__PRIMARY",
    ),
    "a property in the environment": (
        ["--set", "env[0].name=PGSLUICE_KAFKA__CLIENT__SASL_OAUTHBEARER_CONFIG,env[0].value=tiger"],
        "env holds a secret, PGSLUICE_KAFKA__CLIENT__SASL_OAUTHBEARER_CONFIG",
    ),
    "a table in the environment": (
        ["--set-json", 'env=[{"name":"PGSLUICE_KAFKA__CLIENT","value":"{\\"sasl.password\\": \\"tiger\\"}"}]'],
        "env holds a secret, PGSLUICE_KAFKA__CLIENT.",
    ),
    "a secret in the environment of the registry": (
        ["--set", "registry.env[0].name=PGSLUICE_KAFKA__CLIENT__SSL_KEY_PASSWORD,registry.env[0].value=tiger"],
        "env holds a secret, PGSLUICE_KAFKA__CLIENT__SSL_KEY_PASSWORD",
    ),
    "a secret in a flag": (
        ["--set-json", 'extraArgs=["--set", "postgres.password=tiger"]'],
        "extraArgs holds a secret, postgres.password",
    ),
    "a secret in one argument": (
        ["--set-json", 'extraArgs=["--set=kafka.client.sasl_password=tiger"]'],
        "extraArgs holds a secret, kafka.client.sasl.password",
    ),
    "a connection string in a flag": (
        ["--set-json", 'extraArgs=["--set", "postgres.dsn=host=db sslpassword = tiger"]'],
        "extraArgs holds a secret, postgres.dsn",
    ),
    "the directory for transactions": (
        ["--set", "env[0].name=PGSLUICE_BUFFER__SPILL_DIR,env[0].value=/data"],
        "env sets PGSLUICE_BUFFER__SPILL_DIR, which the chart sets itself. Set spill.volumeClaim instead.",
    ),
    "a variable of the chart's": (
        ["--set", "env[0].name=PGSLUICE_SHUTDOWN__DRAIN_TIMEOUT,env[0].value=1s"],
        "env sets PGSLUICE_SHUTDOWN__DRAIN_TIMEOUT, which the chart sets itself. Set drainTimeoutSeconds instead.",
    ),
    "both monitors": (
        ["--set", "metrics.podMonitor.enabled=true,metrics.serviceMonitor.enabled=true"],
        "every pod would be scraped twice",
    ),
    "a monitor of no Service": (
        ["--set", "metrics.serviceMonitor.enabled=true,service.enabled=false"],
        "metrics.serviceMonitor needs the Service, but service.enabled is false",
    ),
}


@pytest.mark.parametrize(("options", "sentence"), REFUSED.values(), ids=REFUSED)
def test_wrong_values_are_refused_with_a_sentence(options: list[str], sentence: str) -> None:
    with pytest.raises(chart.HelmError, match=re.escape(sentence)) as refused:
        chart.render(*MINIMAL, *options)
    assert "tiger" not in str(refused.value)


def test_no_settings_at_all_are_refused() -> None:
    with pytest.raises(chart.HelmError, match="There are no settings for pgsluice"):
        chart.render()


INLINE = {
    "postgres.password": '[postgres]\npassword = "tiger"',
    "a dsn": '[postgres]\ndsn = "host=db password=tiger"',
    "a URI": '[postgres]\ndsn = "postgresql://scott:tiger@db/shop"',
    "postgres.parameters.sslpassword": '[postgres]\nparameters = { sslpassword = "tiger" }',
    "kafka.client.sasl.password": '[kafka]\nclient = { "sasl.password" = "tiger" }',
    "kafka.client.ssl.key.pem": '[kafka.client]\n"ssl.key.pem" = "tiger"',
    "a dotted key": 'kafka.client."sasl.oauthbearer.client.secret" = "tiger"',
    "a table without quotes": '[kafka.client]\nsasl.password = "tiger"',
    "a key in a dsn": '[postgres]\ndsn = "host=db scram_client_key=tiger"',
    "snapshot.primary": '[snapshot]\nprimary = "host=db password=tiger"',
    "a URI of the primary": '[snapshot]\nprimary = "postgresql://scott:tiger@db/shop"',
    "schema_registry.password": '[schema_registry]\npassword = "tiger"',
    "schema_registry.token": '[schema_registry]\ntoken = "tiger"',
}


@pytest.mark.parametrize("settings", INLINE.values(), ids=INLINE)
def test_a_secret_in_the_settings_is_refused(settings: str, tmp_path: Path) -> None:
    (tmp_path / "secret.toml").write_text(settings)
    with pytest.raises(chart.HelmError, match="config holds a secret") as refused:
        chart.render("--set-file", f"config={tmp_path / 'secret.toml'}")
    assert "tiger" not in str(refused.value)


def test_files_of_secrets_may_be_named(tmp_path: Path) -> None:
    text = (
        '[postgres]\ndsn = "postgresql://scott@db/shop"\npassword_file = "/p"\n[kafka.client]\n"sasl.username" = "u"\n'
    )
    (tmp_path / "named.toml").write_text(text)
    assert chart.render("--set-file", f"config={tmp_path / 'named.toml'}")


HARMLESS = {
    "a connection string": 'env=[{"name":"PGSLUICE_POSTGRES__DSN","value":"postgresql://scott@db:5432/shop"}]',
    "a file": 'env=[{"name":"PGSLUICE_POSTGRES__PASSWORD_FILE","value":"/run/p"}]',
    "a flag": 'extraArgs=["--set", "snapshot.primary=host=db dbname=secret", "--set", "postgres.password_file=/run/p"]',
    "a property": 'extraArgs=["--set", "kafka.client.sasl.username=secret"]',
    "a secret setting": 'secretSettings=[{"setting":"snapshot.primary","secretName":"a","key":"b"}]',
}


@pytest.mark.parametrize("values", HARMLESS.values(), ids=HARMLESS)
def test_values_without_secrets_are_accepted(values: str) -> None:
    assert chart.render(*MINIMAL, "--set-json", values)


def test_the_primary_is_a_secret_setting(tmp_path: Path) -> None:
    found = manifests(*MINIMAL, "--set-json", HARMLESS["a secret setting"])
    (projected,) = (
        volume["projected"]
        for volume in one(found, "Deployment")["spec"]["template"]["spec"]["volumes"]
        if "projected" in volume
    )
    (source,) = projected["sources"]
    (tmp_path / source["secret"]["items"][0]["path"]).write_text("host=db-primary.example.com\n")
    environ = {"PGSLUICE_SECRETS_DIR": str(tmp_path), "PATH": os.environ["PATH"]}
    (tmp_path / "config.toml").write_text(MINIMAL_SETTINGS)
    command = [sys.executable, "-m", "pgsluice", "config", "show", "-c", str(tmp_path / "config.toml")]
    shown = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    assert "snapshot__primary" in shown


def test_all_mistakes_are_reported_together() -> None:
    wrong = ["--set", "replicas=3,env[0].name=PGSLUICE_CONFIG,env[0].value=x", "--set", "config=a = ["]
    with pytest.raises(chart.HelmError) as refused:
        chart.render(*wrong)
    assert str(refused.value).count("\n* ") == 3


# -- the files -----------------------------------------------------------------------------------


def test_the_readme_is_up_to_date() -> None:
    written = (chart.CHART / "README.md").read_text()
    assert written == chart.readme(), "run make manifests"
    undocumented = [line for line in written.splitlines() if line.startswith("|") and line.endswith("|  |")]
    assert undocumented == []


@pytest.mark.parametrize("copy", chart.COPIES, ids=lambda copy: str(copy.name))
def test_the_copies_are_up_to_date(copy: Path) -> None:
    assert copy.read_text() == chart.COPIES[copy].read_text(), "run make manifests"


def test_alerts_and_dashboard_are_rendered_unchanged() -> None:
    found = manifests(*values_of("monitors"))
    alerts, dashboard = chart.COPIES
    assert one(found, "PrometheusRule")["spec"] == yaml.safe_load(alerts.read_text())
    (text,) = one(found, "ConfigMap", "pgsluice-dashboard")["data"].values()
    assert json.loads(text) == json.loads(dashboard.read_text())


def test_only_the_pipeline_is_monitored() -> None:
    """The alerts are about pipelines. There are no alerts about `pgsluice registry`."""
    found = manifests(*values_of("monitors"), "--set", "registry.enabled=true")
    selector = one(found, "PodMonitor")["spec"]["selector"]["matchLabels"].items()
    watched = [
        item["metadata"]["name"]
        for item in found
        if item["kind"] == "Deployment" and selector <= item["spec"]["template"]["metadata"]["labels"].items()
    ]
    assert watched == ["pgsluice"]


def test_the_documented_values_are_accepted(tmp_path: Path) -> None:
    """The first blocks of code in docs/kubernetes.md are the settings and values of an installation."""
    blocks = re.findall(r"^ *```(\w+)\n(.*?)^ *```", DOCUMENTATION.read_text(), re.MULTILINE | re.DOTALL)
    for kind in ("toml", "yaml"):
        text = next(dedent(text) for shown, text in blocks if shown == kind)
        (tmp_path / f"shop.{kind}").write_text(text)
    options = ["--values", str(tmp_path / "shop.yaml"), "--set-file", f"config={tmp_path / 'shop.toml'}"]
    found = manifests(*options)
    checked = Pod(one(found, "Deployment"), found, tmp_path).run("check-config")
    assert checked.returncode == 0, checked.stdout
    assert "WARN" not in checked.stdout


def test_the_plain_manifests_are_up_to_date() -> None:
    written = {file.name: file.read_text() for file in chart.MANIFESTS.glob("*.yaml")}
    assert written == chart.plain_manifests(), "run make manifests"


def test_the_plain_manifests_are_complete() -> None:
    objects = [item for text in chart.plain_manifests().values() for item in load(text)]
    rendered = [item for item in manifests(*values_of("kubernetes")) if item["kind"] != "Pod"]
    assert sorted(item["kind"] for item in objects) == sorted(item["kind"] for item in rendered)
    assert (
        one(objects, "Deployment")["spec"]["template"]["spec"]
        == one(rendered, "Deployment")["spec"]["template"]["spec"]
    )


def test_every_value_is_in_the_schema() -> None:
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    assert set(_named(values, schema, schema)) == set()


def _named(values: Manifest, schema: Manifest, root: Manifest, path: str = "") -> Iterator[str]:
    """Yield the paths of values that the schema lacks, and of properties that have no value."""
    if "$ref" in schema:
        schema = root["definitions"][schema["$ref"].rpartition("/")[2]]
    if "properties" not in schema:
        return
    assert schema["additionalProperties"] is False, path
    for name in set(values) ^ (set(schema["properties"]) - {"global", "initialDelaySeconds", "successThreshold"}):
        yield f"{path}.{name}"
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _named(value, schema["properties"][name], root, f"{path}.{name}")


def test_the_chart_has_the_version_of_pgsluice() -> None:
    from pgsluice import __version__  # noqa: PLC0415 - only this test needs the package

    metadata = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert metadata["appVersion"] == __version__
    minor = chart.OLDEST.rpartition(".")[0]
    assert metadata["kubeVersion"] == f">={minor}.0-0"
