"""Shows the events that arrive in the topics, and counts them. ``story`` uses this module."""

import math
from collections import deque
from collections.abc import Callable

from sandbox.demo.cuts import CutReader
from sandbox.demo.events import Cut, Describer, Line, cut_line
from sandbox.demo.screen import DIM, GREEN, RED, YELLOW, Screen, fitted
from sandbox.demo.tally import Tally

COLOURS = {"read": GREEN, "insert": GREEN, "update": YELLOW, "delete": RED, "truncate": RED}

TOPIC_WIDTH, OPERATION_WIDTH, KEY_WIDTH, POSITION_WIDTH = 23, 8, 20, 14
GAP = "  "

ARRIVAL_TIMEOUT_S = 120

LINES = 12
TAIL = 3
"""How many lines are shown from the end of a long list. The middle of the list is omitted."""


class Watch:
    """Prints events and cuts as lines, in the order of the database's history."""

    def __init__(self, screen: Screen, reader: CutReader) -> None:
        """Show the events of ``reader``."""
        self.tally = Tally()
        self.cut = 0
        """The number of the last cut that was shown."""
        self._screen = screen
        self._reader = reader
        self._describer = Describer()

    def until(self, xid: int, lines: int = LINES) -> None:
        """Show everything up to the transaction ``xid``, in about ``lines`` lines."""
        self._until(lambda cut: any(event.value["xid"] == xid for event in cut.events), lines)

    def until_loaded(self, tables: int, lines: int) -> None:
        """Show everything until ``tables`` tables have been loaded, in about ``lines`` lines."""
        ids = set[str]()

        def is_last(cut: Cut) -> bool:
            ids.update(mark["id"] for mark in cut.record["snapshots"] if mark["state"] == "end")
            return len(ids) >= tables

        self._until(is_last, lines)

    def _until(self, is_last: Callable[[Cut], bool], lines: int) -> None:
        feed = _Feed(self._screen, lines - TAIL)
        for cut in self._reader.read(ARRIVAL_TIMEOUT_S):
            self._show(cut, feed)
            if is_last(cut):
                break
        feed.close()

    def forever(self) -> None:
        """Show events until an exception is raised."""
        for cut in self._reader.read(math.inf):
            feed = _Feed(self._screen, LINES - TAIL)
            self._show(cut, feed)
            feed.close()

    def _show(self, cut: Cut, feed: "_Feed") -> None:
        self.tally.add(cut)
        self.cut = cut.record["cut"]
        for event in cut.events:
            feed.add(self._columns(self._describer.describe(event)))
        if cut.events:  # cuts without events are heartbeats
            feed.add(self._screen.painted(cut_line(cut), DIM))

    def _columns(self, line: Line) -> str:
        painted, taken = self._screen.painted, TOPIC_WIDTH + OPERATION_WIDTH + KEY_WIDTH + POSITION_WIDTH
        cells = (
            fitted(line.topic, TOPIC_WIDTH),
            painted(fitted(line.operation, OPERATION_WIDTH), COLOURS[line.operation]),
            fitted(line.key, KEY_WIDTH),
            fitted(line.change, self._screen.width - taken - 4 * len(GAP)),
            painted(line.position, DIM),
        )
        return GAP.join(cells)


class _Feed:
    """A list of lines. Its first lines are printed immediately, and its last lines when it is closed."""

    def __init__(self, screen: Screen, head: int) -> None:
        self._screen = screen
        self._room = head
        self._end: deque[str] = deque(maxlen=TAIL)
        self._left_out = 0

    def add(self, line: str) -> None:
        if self._room:
            self._room -= 1
            self._screen.say(line)
        else:
            self._left_out += len(self._end) == TAIL
            self._end.append(line)

    def close(self) -> None:
        if self._left_out:
            self._screen.say(f"... {self._left_out:,} lines ...", DIM)
        for line in self._end:
            self._screen.say(line)
