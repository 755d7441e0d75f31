"""Signs of life, which show whether the work of a pipeline makes progress.

The session and the pipeline give these signs. The daemon evaluates them for ``/livez`` and ``/readyz``. A running event
loop would not prove that there is progress, because the task that does the work may wait for something that never
happens.
"""

import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Vitals:
    """Records when the work last made progress. One task at a time does the work."""

    def __init__(self) -> None:
        self._beat_at = time.monotonic()
        self._waits = 0

    def beat(self) -> None:
        """Record that the work has made progress."""
        self._beat_at = time.monotonic()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark this block as a wait for others, for example for Kafka or for the end of transactions in PostgreSQL.

        Such a wait has no time limit. It does not count as silence, because a restart of the process would not shorten
        it. The log and the metrics show long waits.
        """
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            self.beat()

    async def wait(self, step: Awaitable[T]) -> T:
        """Return the result of ``step``. The wait for it does not count as silence (see :meth:`waiting`)."""
        with self.waiting():
            return await step

    @property
    def silent_s(self) -> float:
        """Return how long there has been no sign of life, or 0 while the work waits for others."""
        return 0.0 if self._waits else time.monotonic() - self._beat_at
