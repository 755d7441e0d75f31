"""The versions of PostgreSQL that a test run covers: four of them, or all of them with ``make test-all``."""

import os
from collections.abc import Iterable

from sandbox.installation import VERSIONS

VARIABLE = "PGSLUICE_TEST_VERSIONS"

USUAL = (10, 14, 16, 18)
"""The oldest one, the first with streaming of large transactions, the first with origins, and the newest one."""


def covers_all() -> bool:
    """Return whether ``make test-all`` runs."""
    return os.environ.get(VARIABLE) == "all"


def covered(versions: Iterable[int] = VERSIONS) -> list[int]:
    """Return those of a test's versions that this run covers. Without an argument, select from all versions.

    A test needs one of the ``USUAL`` versions beside the versions that matter to it, so that some version is left.
    """
    found = [version for version in versions if covers_all() or version in USUAL]
    assert found, f"{versions} has none of {USUAL}, so the test would only run in make test-all"
    return found
