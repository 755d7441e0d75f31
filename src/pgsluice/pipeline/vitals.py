"""Signs of life: whether the work of a pipeline goes on.

The session and the pipeline give them, the daemon looks at them for ``/livez`` and ``/readyz``. An event loop that runs
is not enough of a sign, because the one task that does the work may wait for something that never comes.
"""

import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Vitals:
    """When the work last went on. One task at a time does it."""

    def __init__(self) -> None:
        self._beat_at = time.monotonic()
        self._waits = 0

    def beat(self) -> None:
        """Say that the work goes on."""
        self._beat_at = time.monotonic()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait for others in the block, for as long as it takes: for Kafka, or for transactions in PostgreSQL to end.

        Such a wait is no silence, because it is reported by other means and starting the process anew would not help.
        """
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            self.beat()

    async def wait(self, step: Awaitable[T]) -> T:
        """Return what comes of ``step``, which others may hold up for as long as they like."""
        with self.waiting():
            return await step

    @property
    def silent_s(self) -> float:
        """How long there has been no sign of life; 0 while others are waited for."""
        return 0.0 if self._waits else time.monotonic() - self._beat_at
