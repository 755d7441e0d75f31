"""The Dockerfile, as a linter sees it."""

import platform
import subprocess

import pytest

from sandbox.deployment import hadolint
from tests.support.container import ROOT


@pytest.mark.skipif(platform.machine() != "x86_64", reason="hadolint is fetched for x86_64 only")
def test_hadolint_finds_nothing() -> None:
    found = subprocess.run(
        [hadolint(), "--no-color", "--failure-threshold", "style", ROOT / "Dockerfile"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stdout) == (0, ""), found.stdout
