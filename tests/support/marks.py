"""Follows the loads of tables with the marks in cut records, as docs/events.md specifies.

The tests' consumers use this module. A consumer must report marks, and events with op ``r``, in the order of their
positions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Position = tuple[int, int, int]
"""A position: epoch, LSN, seq."""

Name = tuple[str, str]
"""The name of a table: schema, table."""


@dataclass(slots=True)
class Load:
    """A load that has begun. ``begin`` is the position of its first mark, and ``rows`` counts its rows so far."""

    id: str
    begin: Position
    rows: int = 0


class Loads:
    """The current loads by table. ``complain`` is called when a pipeline violates the contract."""

    def __init__(self, complain: Callable[[str], object]) -> None:
        self.under_way: dict[Name, Load] = {}
        self._complain = complain
        self._ids: set[str] = set()

    def on_row(self, name: Name) -> Load | None:
        """Count a loaded row. Return its load, or None if no load is in progress."""
        load = self.under_way.get(name)
        if load is None:
            self._complain(f"{name} has a row with op r, but no load is in progress")
        else:
            load.rows += 1
        return load

    def on_mark(self, mark: dict[str, Any]) -> Load | None:
        """Process a mark. Return the load to which it belongs, or None.

        If the returned load has ended, and its mark says ``replaces``, the consumer must delete the rows whose last
        event is older than the load's ``begin``.
        """
        name, state = (mark["schema"], mark["table"]), mark["state"]
        if state == "stale":
            return None  # this mark does not belong to a load
        if state == "begin":
            self._begin(name, mark)
        load = self.under_way.get(name)
        if load is None or load.id != mark["id"] or load.rows != mark["rows"]:
            self._complain(f"{mark} does not belong to {load}")
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
    """Return the position of an event or a mark. Events and marks are ordered by position."""
    return thing["epoch"], thing["lsn"], thing["seq"]
