"""Counts new versions of schemas per hour. Users of the database can create new versions, which stay forever.

If there are many, :mod:`.builtin` logs a warning. No registration is delayed, because a row cannot be delivered without
its table's schema.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

WINDOW_S: Final = 3600.0
VERSIONS_MAX: Final = 60
"""If a subject gets more new versions than this within a window, the log has a warning. Migrations create less than one
version a minute."""


class VersionRate:
    """Counts the new versions of each subject, in windows of an hour."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._counts: Counter[str] = Counter()

    def is_exceeded(self, subject: str) -> bool:
        """Count a new version of ``subject``. Return whether it is the first one beyond the limit in this window."""
        now = self._clock()
        if now - self._began >= WINDOW_S:
            self._began = now
            self._counts.clear()
        self._counts[subject] += 1
        return self._counts[subject] == VERSIONS_MAX + 1
