"""The versions of PostgreSQL that a test run covers. There are four of them, or all with ``make test-all``."""

import os
from collections.abc import Iterable

from sandbox.installation import VERSIONS

VARIABLE = "PGSLUICE_TEST_VERSIONS"

USUAL = (10, 14, 16, 18)
"""The oldest version, the first with streaming of large transactions, the first with origins, and the newest."""


def covers_all() -> bool:
    """Return whether ``make test-all`` runs."""
    return os.environ.get(VARIABLE) == "all"


def covered(versions: Iterable[int] = VERSIONS) -> list[int]:
    """Return the versions in ``versions`` that this run covers.

    A test must include one of the ``USUAL`` versions in addition to the versions that matter to it. Otherwise it would
    run only with ``make test-all``.
    """
    found = [version for version in versions if covers_all() or version in USUAL]
    assert found, f"{versions} has none of {USUAL}, so the test would only run in make test-all"
    return found
