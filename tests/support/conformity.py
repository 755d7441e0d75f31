"""Checks Kubernetes manifests, including custom resources, with kubeconform."""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from sandbox import tools


def write_schemas(definitions: Path, directory: Path) -> Path:
    """Write a JSON schema for each custom resource, and return the directory. The schemas refuse unknown fields."""
    for file in definitions.glob("*.yaml"):
        definition = yaml.safe_load(file.read_text())["spec"]
        (version,) = definition["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        (directory / f"{definition['names']['singular']}.json").write_text(json.dumps(_closed(schema)))
    return directory


def _closed(schema: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(schema, list):
        return [_closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _closed(entry) for name, entry in schema.items()}
    if found.get("type") == "object" and isinstance(found.get("properties"), dict):
        found.setdefault("additionalProperties", False)
    return found


def conformity(rendered: Path, version: str, custom: Path) -> list[dict[str, Any]]:
    """Return the problems that kubeconform finds."""
    own = f"{tools.directory('kubernetes-schemas')}/{{{{.NormalizedKubernetesVersion}}}}{{{{.StrictSuffix}}}}"
    locations = [
        f"{own}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json",
        f"{custom}/{{{{.ResourceKind}}}}.json",
    ]
    command = [str(tools.program("kubeconform")), "-strict", "-output", "json", "-kubernetes-version", version]
    command += [word for location in locations for word in ("-schema-location", location)]
    said = subprocess.run([*command, str(rendered)], capture_output=True, text=True, check=False)
    found: list[dict[str, Any]] = json.loads(said.stdout)["resources"] or []
    assert (said.returncode == 0) == (not found), said.stderr
    return found
