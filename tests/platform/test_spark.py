"""Tests the manifests in deploy/spark with the operators' definitions and with pgsluice-spark."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml

from pgsluice import __version__
from pgsluice_spark.command_line import parser
from pgsluice_spark.config import read
from sandbox import chart, tools
from tests.support.conformity import conformity, write_schemas

HERE = chart.ROOT / "deploy" / "spark"

RESTARTS = {"maxRestartAttempts": int, "restartBackoffMillis": int, "restartCounterResetMillis": int}


@pytest.fixture(scope="session", autouse=True)
def tools_are_here() -> None:
    for name in ("kubeconform", "kubernetes-schemas", "spark-operator"):
        if reason := tools.missing(name):
            pytest.skip(f"no {name} here: {reason}")
        tools.directory(name)


@pytest.fixture(scope="session")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the JSON schema of Kubeflow's SparkApplication."""
    return write_schemas(tools.directory("spark-operator"), tmp_path_factory.mktemp("schemas"))


def manifest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((HERE / name).read_text())
    return found


@pytest.mark.parametrize("name", ["configuration.yaml", "kubeflow.yaml"])
def test_manifests_conform(name: str, schemas: Path) -> None:
    assert conformity(HERE / name, chart.NEWEST, schemas) == []


def test_a_wrong_manifest_does_not_conform(tmp_path: Path, schemas: Path) -> None:
    wrong = manifest("kubeflow.yaml")
    wrong["spec"]["restartPolicy"]["onFailureRetryIntervals"] = 30
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    assert len(conformity(tmp_path / "wrong.yaml", chart.NEWEST, schemas)) == 1


def test_apaches_manifest_has_the_documented_fields(tmp_path: Path, schemas: Path) -> None:
    """The definition of Apache's operator cannot be fetched, so the test lists the names in the documentation.

    https://github.com/apache/spark-kubernetes-operator/blob/main/docs/spark_custom_resources.md
    """
    spec = manifest("apache.yaml")["spec"]
    known = {"pyFiles", "driverArgs", "runtimeVersions", "sparkConf", "applicationTolerations"}
    assert set(spec) == {*known, "driverSpec", "executorSpec"}
    assert all(type(value) is str for value in (*spec["sparkConf"].values(), *spec["runtimeVersions"].values()))
    restarts = spec["applicationTolerations"]["restartConfig"]
    assert restarts.pop("restartPolicy") == "Always"
    assert {name: type(value) for name, value in restarts.items()} == RESTARTS
    pods = {name: spec[f"{name}Spec"]["podTemplateSpec"] for name in ("driver", "executor")}
    for name, pod in pods.items():
        (container,) = pod["spec"]["containers"]
        assert spec["sparkConf"][f"spark.kubernetes.{name}.podTemplateContainerName"] == container["name"]
        container["image"] = spec["sparkConf"]["spark.kubernetes.container.image"]
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, **pod}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(whole))
        assert conformity(tmp_path / f"{name}.yaml", chart.NEWEST, schemas) == []


def applications() -> Iterator[tuple[str, list[str]]]:
    kubeflow, apache = manifest("kubeflow.yaml")["spec"], manifest("apache.yaml")["spec"]
    yield kubeflow["mainApplicationFile"], kubeflow["arguments"]
    yield apache["pyFiles"], apache["driverArgs"]


def test_pgsluice_spark_accepts_the_manifests(tmp_path: Path) -> None:
    text = next(yaml.safe_load_all((HERE / "configuration.yaml").read_text()))["data"]["mirror.toml"]
    (tmp_path / "mirror.toml").write_text(text)
    assert read(str(tmp_path / "mirror.toml")).maintenance == {"every": "6 hours", "keep": "7 days"}
    dockerfile = (HERE / "Dockerfile").read_text()
    for file, arguments in applications():
        assert f" {file.removeprefix('local://')}\n" in dockerfile
        assert parser().parse_args(arguments).command == "mirror"


def test_the_manifests_name_the_supported_versions() -> None:
    assert f"\nARG SPARK={pyspark.__version__}\n" in (HERE / "Dockerfile").read_text()
    kubeflow, apache = manifest("kubeflow.yaml")["spec"], manifest("apache.yaml")["spec"]
    assert kubeflow["sparkVersion"] == apache["runtimeVersions"]["sparkVersion"] == pyspark.__version__
    images = kubeflow["image"], apache["sparkConf"]["spark.kubernetes.container.image"]
    assert set(images) == {f"pgsluice-spark:{__version__}"}
