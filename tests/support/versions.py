"""The versions of PostgreSQL that a test run covers: four versions, or all versions with ``make test-all``."""

import os
from collections.abc import Collection, Iterable

import pytest

from sandbox.installation import VERSIONS

VARIABLE = "PGSLUICE_TEST_VERSIONS"

USUAL = (10, 14, 16, 18)
"""The oldest version, the first that streams large transactions, the first with the origin option, and the newest."""


def covers_all() -> bool:
    """Return whether ``make test-all`` runs."""
    return os.environ.get(VARIABLE) == "all"


def covered(versions: Iterable[int] = VERSIONS, usual: Collection[int] = USUAL) -> list[int]:
    """Return the versions in ``versions`` that this run covers.

    ``versions`` must include at least one of the ``usual`` versions. Otherwise the test would run only with
    ``make test-all``.
    """
    found = [version for version in versions if covers_all() or version in usual]
    assert found, f"{versions} has none of {usual}, so the test would only run in make test-all"
    return found


def long(*values: object) -> list[object]:
    """Return the values as parameters with the mark ``long``, because the test takes long with each of them."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]
