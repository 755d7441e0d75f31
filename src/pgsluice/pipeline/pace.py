"""The pace at which rows of tables are read: so many a second, on average. Pure: the caller has the clock."""


class Pace:
    """Says how long to wait before the next rows are read. ``rows_per_s`` None: never."""

    def __init__(self, rows_per_s: int | None) -> None:
        self._rows_per_s = rows_per_s
        self._free_at = 0.0
        """When the rows read so far have taken their time."""

    def at_once(self, rows: int) -> int:
        """Return how many of ``rows`` may be read at once: no more than in a second, so that the pace is even."""
        return rows if self._rows_per_s is None else min(rows, self._rows_per_s)

    def on_read(self, rows: int, now: float) -> None:
        """Take notice that so many rows were read. Time in which none were is not made up for."""
        if self._rows_per_s is not None:
            self._free_at = max(self._free_at, now) + rows / self._rows_per_s

    def wait_s(self, now: float) -> float:
        """Return how long to wait before more are read."""
        return max(0.0, self._free_at - now)
