"""The progress of a session's loads, for the status, the metrics and the log.

The module writes to the log. It does not read the clock: its callers give it the current time as an argument.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import structlog

log = structlog.get_logger(__name__)

TableState = Literal["waiting", "loading", "blocked", "left_out", "stale", "skipped", "assumed", "loaded"]
"""``blocked``: the last read failed, or transactions that are changing the table have not ended. ``left_out``: the
table cannot be loaded as it is. ``stale``: after the table was loaded, rows changed in a way that the stream does not
show, and the settings prevent a new load. ``skipped``: the settings say that the table is not loaded. ``assumed``: the
table counts as loaded, because an earlier version of pgsluice has delivered its changes."""

STATES: Final[Sequence[TableState]] = get_args(TableState)

UNFINISHED: Final = ("loading", "blocked", "waiting")

SAY_S: Final = 60.0
"""The time between two reports of the progress in the log."""

SHOWN_MAX: Final = 20
"""The status names at most this many tables, because there may be thousands."""


@dataclass(frozen=True, slots=True)
class TableReport:
    """A published table, the number of rows that were read, and PostgreSQL's estimate of all its rows.

    ``reason`` says why the table is not read. ``is_stale`` says whether, after the table was loaded, rows changed in a
    way that the stream does not show.
    """

    table: str
    state: TableState
    rows: int = 0
    estimated_rows: int = 0
    reason: str | None = None
    is_stale: bool = False


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The progress of all loads.

    ``rows`` is the number of rows that were read so far from all tables that are loaded or will be loaded.
    ``estimated_rows`` is an estimate of this number at the end of all loads. ``tables`` has the number of tables by
    state. ``named`` has some of the tables that are not loaded, beginning with those that are being read.
    """

    tables: Mapping[str, int]
    rows: int
    estimated_rows: int
    rows_per_s: float
    named: Sequence[TableReport]

    @property
    def unfinished(self) -> int:
        """Return how many tables have yet to be loaded."""
        return sum(self.tables[state] for state in UNFINISHED)

    @property
    def is_stuck(self) -> bool:
        """Return whether there is something to load, and all of it is blocked."""
        return self.unfinished == self.tables["blocked"] > 0

    @property
    def seconds_left(self) -> int | None:
        """Return how long the remaining rows take at the present rate, or None if no rows are being read."""
        return round((self.estimated_rows - self.rows) / self.rows_per_s) if self.rows_per_s > 0 else None


class LoadWatch:
    """Measures the speed of loads, and logs their progress at the beginning, every minute, and at the end.

    While all tables are blocked, no progress is logged, because the log already has the reason.
    """

    def __init__(self) -> None:
        self._began_at: float | None = None
        """When the present loads began. None while no table is to be loaded."""
        self._marks: tuple[tuple[float, int], tuple[float, int]] = ((0.0, 0), (0.0, 0))
        """The times of the last two reports in the log, and how many rows had been read at each of these times."""

    def report(self, tables: Iterable[TableReport], now: float) -> LoadReport:
        """Return a report on ``tables``."""
        found = list(tables)
        states = Counter(one.state for one in found)
        counted = [one for one in found if one.state in UNFINISHED or one.state == "loaded"]
        rows = sum(one.rows for one in counted)
        estimated = sum(one.rows if one.state == "loaded" else max(one.rows, one.estimated_rows) for one in counted)
        unfinished = sorted((one for one in found if one.state in _NAMED), key=lambda one: _NAMED.index(one.state))
        rate = self._rate(rows, now)
        return LoadReport({state: states[state] for state in STATES}, rows, estimated, rate, unfinished[:SHOWN_MAX])

    def _rate(self, rows: int, now: float) -> float:
        (since, before), _ = self._marks
        if self._began_at is None or now <= since:
            return 0.0
        return max(0, rows - before) / (now - since)

    def say(self, report: LoadReport, now: float) -> None:
        """Log the progress of the loads, if a line in the log is due."""
        if self._began_at is None:
            if report.unfinished and not report.is_stuck:
                self._began_at = now
                self._marks = ((now, report.rows), (now, report.rows))
                log.info("tables are to be loaded", tables=report.unfinished, estimated_rows=report.estimated_rows)
        elif not report.unfinished:
            log.info(
                "tables are loaded",
                tables=report.tables["loaded"],
                left_out=report.tables["left_out"],
                rows=report.rows,
                seconds=round(now - self._began_at),
            )
            self._began_at = None
        elif now - self._marks[1][0] >= SAY_S and not (report.is_stuck and report.rows == self._marks[1][1]):
            log.info(
                "tables are being loaded",
                tables=report.unfinished,
                blocked=report.tables["blocked"],
                rows=report.rows,
                estimated_rows=report.estimated_rows,
                rows_per_second=round(report.rows_per_s),
                seconds_left=report.seconds_left,
            )
            self._marks = (self._marks[1], (now, report.rows))


_NAMED: Final = (*UNFINISHED, "left_out", "stale")
