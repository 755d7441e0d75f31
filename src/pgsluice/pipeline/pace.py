"""The pace at which rows of tables are read: how many per second, and how many in one read.

The methods do not read the clock. The caller gives them the current time as an argument.
"""

from typing import Final

HELD_S: Final = 0.05
"""If changes wait longer than this while rows are read, the next reads take fewer rows."""

LEAST_ROWS: Final = 1000
"""If changes wait too long, the next reads take fewer rows, but not fewer than this. A read of fewer rows would hardly
be faster."""

SLOW_S: Final = 10.0
"""After a time-out, the number of rows grows again only if a read takes less than this time."""

_HALVINGS_MAX: Final = 10
_TIMEOUTS_MAX: Final = 30


class Pace:
    """Decides how long to wait before the next read, and how many rows it reads.

    Without ``rows_per_s``, the number of rows per second has no limit.
    """

    def __init__(self, rows_per_s: int | None) -> None:
        self._rows_per_s = rows_per_s
        self._free_at = 0.0
        """The time before which nothing may be read, because of ``rows_per_s``."""
        self._halvings = 0
        self._timeouts = 0
        """How many times the number of rows is halved because reads did not end within the time limit."""

    def at_once(self, rows: int) -> int:
        """Return how many of ``rows`` to take in one read.

        The result is at most ``rows_per_s``, so that the pace is even. It is smaller if changes wait too long for the
        rows, or if a read did not end within the time limit.
        """
        rows = max(1, rows >> self._timeouts)
        fewer = max(min(rows, LEAST_ROWS), rows >> self._halvings)
        return fewer if self._rows_per_s is None else min(fewer, self._rows_per_s)

    def on_read(self, rows: int, now: float) -> None:
        """Note how many rows were read. Time without reads does not allow a higher rate later."""
        if self._rows_per_s is not None:
            self._free_at = max(self._free_at, now) + rows / self._rows_per_s

    def on_round(self, held_s: float, read_s: float) -> None:
        """Note how long changes have waited for a round, and how long it took to read the rows.

        A part of the wait does not depend on the number of rows, and may be long if the network is slow. So the next
        reads take fewer rows only if reading took longer than the rest of the wait.
        """
        if read_s < SLOW_S:
            self._timeouts = max(self._timeouts - 1, 0)
        limit = max(HELD_S, held_s - read_s)
        if held_s > read_s > limit:
            self._halvings = min(self._halvings + 1, _HALVINGS_MAX)
        elif not held_s or read_s < limit / 3:
            self._halvings = max(self._halvings - 1, 0)

    def on_timeout(self) -> None:
        """Record that a read did not end within the time limit."""
        self._timeouts = min(self._timeouts + 2, _TIMEOUTS_MAX)

    def wait_s(self, now: float) -> float:
        """Return how long to wait before the next read."""
        return max(0.0, self._free_at - now)
