"""Renders the Helm chart for its tests. Writes the generated files: plain manifests, README, and copies in the chart.

    python -m sandbox.chart        # make manifests runs this

https://helm.sh/docs/helm/helm_template/
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sandbox import tools
from sandbox.errors import SandboxError

ROOT = Path(__file__).parents[1]
CHART = ROOT / "helm" / "pgsluice"
MANIFESTS = ROOT / "deploy" / "kubernetes"
VALUES = CHART / "ci" / "kubernetes-values.yaml"

OLDEST, NEWEST = "1.27.0", "1.37.0"
"""The versions of Kubernetes against which the chart is validated. Chart.yaml declares the first as its minimum."""

COPIES = {
    CHART / "files" / "alerts.yaml": ROOT / "deploy" / "prometheus" / "alerts.yaml",
    CHART / "files" / "pgsluice.json": ROOT / "deploy" / "grafana" / "pgsluice.json",
}
"""Files of the chart that are copies of other files, because Helm cannot read files outside the chart."""

RELEASE = "pgsluice"

_HEADER = "# Rendered from the chart by `make manifests`; docs/kubernetes.md says what to change in it.\n"
_OF_HELM = re.compile(r"^ *(app\.kubernetes\.io/managed-by|helm\.sh/chart): .*\n", re.MULTILINE)
_CHECKSUM = re.compile(r"^ *annotations:\n *checksum/config: .*\n", re.MULTILINE)
"""The annotation with the checksum of the settings. Helm updates it to restart the pods when the settings change. In a
plain manifest, it would soon be outdated."""


class HelmError(SandboxError):
    """Helm failed. The message is Helm's output."""


def helm(*arguments: str, kubeconfig: Path | None = None, program: str = "helm") -> str:
    """Return the output of a Helm command. Raise HelmError if it fails. ``program`` is ``helm`` or ``helm-4``."""
    access = [] if kubeconfig is None else ["--kubeconfig", str(kubeconfig)]
    # Helm caches what an API server supports, under the server's host and port. Keep this cache beside the server's
    # kubeconfig, because a later server with the same port would otherwise get the cache of this one.
    environ = os.environ if kubeconfig is None else {**os.environ, "KUBECACHEDIR": str(kubeconfig.parent / "cache")}
    command = [str(tools.program(program)), *arguments, *access]
    found = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise HelmError(found.stdout + found.stderr)
    return found.stdout


def render(*options: str, release: str = RELEASE, kubernetes: str = OLDEST) -> str:
    """Return all manifests of the chart as one text. ``options`` are passed to ``helm template``."""
    return helm("template", release, str(CHART), "--kube-version", kubernetes, *options)


def plain_manifests() -> dict[str, str]:
    """Return the files of ``deploy/kubernetes``: the rendered chart without Helm's metadata."""
    rendered = render("--values", str(VALUES), "--skip-tests")
    documents = [document for document in re.split(r"^---\n", rendered, flags=re.MULTILINE) if document.strip()]
    return dict(_plain(document) for document in documents)


def _plain(document: str) -> tuple[str, str]:
    (kind,) = re.findall(r"^kind: (\w+)$", document, re.MULTILINE)
    without_source = re.sub(r"^# Source: .*\n+", "", document)
    return f"{kind.lower()}.yaml", _HEADER + _CHECKSUM.sub("", _OF_HELM.sub("", without_source)).strip("\n") + "\n"


def readme() -> str:
    """Return the chart's README, which is generated from the comments in values.yaml."""
    command = [str(tools.program("helm-docs")), "--dry-run", "--log-level", "error", "--sort-values-order", "file"]
    found = subprocess.run(
        [*command, "--chart-search-root", str(CHART)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        raise SandboxError(found.stdout + found.stderr)
    return found.stdout.strip("\n") + "\n"


def write() -> list[Path]:
    """Write the README, the copies and the plain manifests. Return the paths of all files."""
    for copy, original in COPIES.items():
        copy.write_text(original.read_text())
    for former in MANIFESTS.glob("*.yaml"):
        former.unlink()
    texts = {CHART / "README.md": readme(), **{MANIFESTS / name: text for name, text in plain_manifests().items()}}
    for file, text in texts.items():
        file.write_text(text)
    return [*COPIES, *texts]


def main(arguments: Sequence[str]) -> None:
    """Write all generated files, and print their names."""
    if arguments:
        sys.exit("usage: python -m sandbox.chart")
    for file in write():
        print(file.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
