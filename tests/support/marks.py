"""What the marks of cut records say of each table's load, as docs/events.md has it: for every consumer of the tests.

A consumer tells of marks and of events with op ``r`` in the order of their positions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Position = tuple[int, int, int]
"""Epoch, LSN, seq."""

Name = tuple[str, str]
"""Schema and table."""


@dataclass(slots=True)
class Load:
    """A load that has begun: where that was, and how many rows have come since."""

    id: str
    begin: Position
    rows: int = 0


class Loads:
    """The loads under way, by table; ``complain`` is told what no pipeline may do."""

    def __init__(self, complain: Callable[[str], object]) -> None:
        self.under_way: dict[Name, Load] = {}
        self._complain = complain
        self._ids: set[str] = set()

    def on_row(self, name: Name) -> Load | None:
        """Take notice of a row that was read; return its load."""
        load = self.under_way.get(name)
        if load is None:
            self._complain(f"{name} has a row that no load has read")
        else:
            load.rows += 1
        return load

    def on_mark(self, mark: dict[str, Any]) -> Load | None:
        """Take notice of a mark; return the load that it tells of, None if there is none.

        At the ``end`` of a load that is returned, and whose mark says ``replaces``, the rows whose last event is older
        than its ``begin`` are gone.
        """
        name, state = (mark["schema"], mark["table"]), mark["state"]
        if state == "stale":
            return None  # it is of no load that is under way
        if state == "begin":
            self._begin(name, mark)
        load = self.under_way.get(name)
        if load is None or load.id != mark["id"] or load.rows != mark["rows"]:
            self._complain(f"{mark} is not of {load}")
            load = None
        if state == "end":
            self.under_way.pop(name, None)
        return load

    def _begin(self, name: Name, mark: dict[str, Any]) -> None:
        if mark["id"] in self._ids:
            self._complain(f"{mark} begins a second time")
        self._ids.add(mark["id"])
        self.under_way[name] = Load(mark["id"], position_of(mark))


def position_of(thing: Any) -> Position:  # noqa: ANN401 - an event or a mark
    """Return what orders events and marks."""
    return thing["epoch"], thing["lsn"], thing["seq"]
