"""Tests the Dockerfiles with a linter, and the version in the daemon's Dockerfile."""

import platform
import subprocess

import pytest

from pgsluice import __version__
from sandbox.deployment import hadolint
from tests.support.container import ROOT


@pytest.mark.skipif(platform.machine() != "x86_64", reason="hadolint is fetched for x86_64 only")
@pytest.mark.parametrize("name", ["Dockerfile", "deploy/spark/Dockerfile"])
def test_hadolint_reports_no_problems(name: str) -> None:
    found = subprocess.run(
        [hadolint(), "--no-color", "--failure-threshold", "style", ROOT / name],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stdout) == (0, ""), found.stdout


def test_the_image_has_the_version_of_pgsluice() -> None:
    assert f"\nARG VERSION={__version__}\n" in (ROOT / "Dockerfile").read_text()
