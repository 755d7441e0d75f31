"""The versions of PostgreSQL that a run of the tests covers: four of them, or each one in ``make test-all``."""

import os
from collections.abc import Iterable

from sandbox.installation import VERSIONS

VARIABLE = "PGSLUICE_TEST_VERSIONS"

USUAL = (10, 14, 16, 18)
"""The oldest, the first that streams large transactions, the first that knows origins, and the newest."""


def covers_all() -> bool:
    """Return whether this is ``make test-all``."""
    return os.environ.get(VARIABLE) == "all"


def covered(versions: Iterable[int] = VERSIONS) -> list[int]:
    """Return those of a test's versions that this run covers; without an argument, of all versions.

    A test that would be left without a version needs one of ``USUAL`` beside the version that matters to it.
    """
    found = [version for version in versions if covers_all() or version in USUAL]
    assert found, f"{versions} has none of {USUAL}, so the test would only run in make test-all"
    return found
