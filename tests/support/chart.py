"""The Kubernetes objects that the Helm chart renders."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import yaml

from sandbox.chart import CHART, render

Manifest = dict[str, Any]

CASES = sorted(file.name.removesuffix("-values.yaml") for file in (CHART / "ci").glob("*-values.yaml"))
"""The features that have a values file in the chart's directory ``ci``."""


def values_of(case: str) -> list[str]:
    """Return the options with which Helm uses the values of a case."""
    return ["--values", str(CHART / "ci" / f"{case}-values.yaml")]


def manifests(*options: str) -> list[Manifest]:
    """Return the objects that the chart renders with ``options``."""
    return load(_rendered(options))


@cache
def _rendered(options: tuple[str, ...]) -> str:
    return render(*options)


def load(text: str) -> list[Manifest]:
    """Return the objects in a text of YAML documents."""
    return [document for document in yaml.safe_load_all(text) if document]


def one(found: list[Manifest], kind: str, name: str | None = None) -> Manifest:
    """Return the only object of a kind, or the object with this name."""
    (only,) = (item for item in found if item["kind"] == kind and name in {None, item["metadata"]["name"]})
    return only


def pod_specs(found: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Yield the specification of every pod in ``found``, with the name of the object that it belongs to."""
    for item in found:
        if item["kind"] == "Pod":
            yield item["metadata"]["name"], item["spec"]
        elif item["kind"] == "Deployment":
            yield item["metadata"]["name"], item["spec"]["template"]["spec"]


def container(deployment: Manifest, name: str = "pgsluice") -> Manifest:
    """Return a container of a Deployment, or one of its init containers."""
    spec = deployment["spec"]["template"]["spec"]
    (found,) = (item for item in [*spec["containers"], *spec.get("initContainers", [])] if item["name"] == name)
    found_manifest: Manifest = found
    return found_manifest


def variables(container_manifest: Manifest) -> dict[str, str]:
    """Return the environment of a container, without variables whose values are in other objects, such as Secrets."""
    return {item["name"]: item["value"] for item in container_manifest.get("env", []) if "value" in item}
