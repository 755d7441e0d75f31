"""How many new versions schemas get: users of the database make them, and they stay for ever.

Used by :mod:`.builtin`, which reports it. Nothing is held up: a row can only be delivered with the schema of its table.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

WINDOW_S: Final = 3600.0
VERSIONS_MAX: Final = 60
"""New versions of a subject within a window that nobody is told about: one a minute is more than migrations need."""


class VersionRate:
    """Counts the new versions of each subject, in windows of an hour."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._counts: Counter[str] = Counter()

    def is_exceeded(self, subject: str) -> bool:
        """Count a new version of ``subject``; return whether it is the first one too many in this window."""
        now = self._clock()
        if now - self._began >= WINDOW_S:
            self._began = now
            self._counts.clear()
        self._counts[subject] += 1
        return self._counts[subject] == VERSIONS_MAX + 1
