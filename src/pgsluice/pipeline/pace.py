"""The pace at which rows of tables are read: so many a second, and so many at once. Pure: the caller has the clock."""

from typing import Final

HELD_S: Final = 0.05
"""How long changes may wait while rows are read; if it takes longer, fewer are read at once."""

LEAST_ROWS: Final = 1000
"""That many are read at once, however long it takes: fewer would hardly be quicker."""

SLOW_S: Final = 10.0
"""After rows have not come within the time limit, more are read again only while reading takes less than this."""

_HALVINGS_MAX: Final = 10
_TIMEOUTS_MAX: Final = 30


class Pace:
    """Says how long to wait before the next rows are read, and how many are read then.

    ``rows_per_s`` None: as many as possible.
    """

    def __init__(self, rows_per_s: int | None) -> None:
        self._rows_per_s = rows_per_s
        self._free_at = 0.0
        """When the rows read so far have taken their time."""
        self._halvings = 0
        self._timeouts = 0
        """How often the number of rows is halved, because more did not come within the time limit."""

    def at_once(self, rows: int) -> int:
        """Return how many of ``rows`` are read at once.

        No more than in a second, so that the pace is even, and fewer where changes wait too long for them, or where
        more did not come within the time limit.
        """
        rows = max(1, rows >> self._timeouts)
        fewer = max(min(rows, LEAST_ROWS), rows >> self._halvings)
        return fewer if self._rows_per_s is None else min(fewer, self._rows_per_s)

    def on_read(self, rows: int, now: float) -> None:
        """Take notice that so many rows were read. Time in which none were is not made up for."""
        if self._rows_per_s is not None:
            self._free_at = max(self._free_at, now) + rows / self._rows_per_s

    def on_round(self, held_s: float, read_s: float) -> None:
        """Take notice how long changes have waited for a round, and how much of that it took to read the rows.

        The rest does not become less with fewer rows, over a slow network for example. So reading may take as long.
        """
        if read_s < SLOW_S:
            self._timeouts = max(self._timeouts - 1, 0)
        limit = max(HELD_S, held_s - read_s)
        if held_s > read_s > limit:
            self._halvings = min(self._halvings + 1, _HALVINGS_MAX)
        elif not held_s or read_s < limit / 3:
            self._halvings = max(self._halvings - 1, 0)

    def on_timeout(self) -> None:
        """Take notice that rows have not come within the time limit."""
        self._timeouts = min(self._timeouts + 2, _TIMEOUTS_MAX)

    def wait_s(self, now: float) -> float:
        """Return how long to wait before more are read."""
        return max(0.0, self._free_at - now)
