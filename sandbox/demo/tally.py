"""Counts the cuts and events that were read, and finds missing, incomplete and repeated ones, for ``story``."""

from collections import Counter

from sandbox.demo.events import OPERATIONS, Cut, count


class Tally:
    """Counts cuts and their events. ``problems`` has a description of each inconsistency."""

    def __init__(self) -> None:
        """Start with all counts at zero."""
        self.events = 0
        self.problems: list[str] = []
        self._cuts = 0
        self._operations: Counter[str] = Counter()
        self._positions: set[tuple[str, tuple[int, int, int]]] = set()
        self._last_cut: int | None = None

    def add(self, cut: Cut) -> None:
        """Count the next cut."""
        number = cut.record["cut"]
        if self._last_cut is not None and number != self._last_cut + 1:
            self.problems.append(f"cut {number} follows cut {self._last_cut}")
        if cut.record["events"] != len(cut.events):
            self.problems.append(f"cut {number} lists {cut.record['events']} events, but has {len(cut.events)}")
        positions = {(event.topic, event.position) for event in cut.events}
        if twice := len(self._positions & positions):
            self.problems.append(f"cut {number} repeats {count(twice, 'event')} of earlier cuts")
        self._last_cut = number
        self._cuts += 1
        self.events += len(cut.events)
        self._operations.update(OPERATIONS[event.value["op"]] for event in cut.events)
        self._positions |= positions

    def __str__(self) -> str:
        operations = ", ".join(count(number, name) for name, number in self._operations.most_common())
        return f"{count(self.events, 'event')} ({operations}) in {count(self._cuts, 'cut')}"
