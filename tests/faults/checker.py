"""What a read_committed consumer saw, compared with what PostgreSQL committed: nothing here is pgsluice's.

The mirror of ``tests.support.replay`` applies each cut and complains of the cut itself; this looks at whole
transactions, by their lines in the ledger, and at the sum of all balances after each cut.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

import psycopg

from tests.faults.workload import TABLES, TOTAL, WORKER_NUMBERS
from tests.support.reader import Cut, Event
from tests.support.replay import Replay, contents, differences

Position = tuple[int, int, int]


@dataclass
class Tally:
    """What was checked, and what was wrong."""

    cuts: int = 0
    transactions: int = 0
    prepared: int = 0
    events: int = 0
    sums: int = 0
    positions: int = 0
    """Of the slot, compared with the checkpoints."""
    repeated: int = 0
    """Records that came more than once, as they may at least once."""
    lost: int = 0
    doubled: int = 0
    torn: int = 0
    out_of_order: int = 0
    other: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add the figures of another run."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def complain(self, kind: str, what: str) -> None:
        """Count a problem under its kind, and describe it."""
        setattr(self, kind, getattr(self, kind) + 1)
        self.problems.append(f"{kind.replace('_', ' ')}: {what}")


class Checker:
    """Judges one pipeline, cut by cut and then as a whole."""

    def __init__(self, replay: Replay) -> None:
        self.tally = Tally()
        self._replay = replay
        self._seen: set[int] = set()
        self._last: tuple[int, int] = (0, 0)
        self._last_ticket = 0
        self._last_total = TOTAL
        self._last_numbers: dict[int, int] = {}
        """By worker."""

    def check_cuts(self, cuts: Iterable[Cut]) -> None:
        """Apply cuts in order, and look at the sum after each."""
        for cut in cuts:
            self._replay.apply([cut])
            self.tally.cuts += 1
            for place, found in groupby(sorted(changes(cut.events), key=itemgetter(0)), lambda change: change[0][:2]):
                self._check_transaction(place, list(found))
            if self._seen:
                self._check_sum(cut)

    def _check_sum(self, cut: Cut) -> None:
        rows = [row for name in ("debit", "credit") for row in self._replay.table(f"public.{name}").rows.values()]
        total = sum(int(row["balance"] or 0) for row in rows)
        self.tally.sums += 1
        changed, self._last_total = total != self._last_total, total
        if total != TOTAL and changed:
            self.tally.complain("torn", f"cut {cut.record['cut']} sums up to {total} instead of {TOTAL}")

    def _check_transaction(self, place: tuple[int, int], found: list[tuple[Position, Event]]) -> None:
        """One transaction: whole, once, behind the last one."""
        tally = self.tally
        tally.transactions += 1
        tally.events += len(found)
        name = f"transaction at {place[1]:X}"
        if place <= self._last:
            tally.complain("out_of_order", f"{name} comes after {self._last[1]:X}")
        self._last = max(place, self._last)
        if [position[2] for position, _ in found] != list(range(len(found))):
            tally.complain("torn", f"{name} has the places {[position[2] for position, _ in found]}")
        lines = [event["after"] for _, event in found if event["table"] == "ledger"]
        if len(lines) != 1:
            tally.complain("torn", f"{name} has {len(lines)} lines of the ledger and {len(found)} changes")
        for line in lines:
            self._check_line(name, line, len(found))

    def _check_line(self, name: str, line: dict[str, int], changes: int) -> None:
        """Compare a transaction with what it says of itself."""
        tally, number = self.tally, line["id"]
        name = f"{name}, number {number}"
        if number in self._seen:
            tally.complain("doubled", name)
        self._seen.add(number)
        if changes != line["changes"] + 1:
            tally.complain("torn", f"{name}, has {changes} changes instead of {line['changes'] + 1}")
        if line["ticket"] is None:
            tally.prepared += 1  # and the first one
            return
        if line["ticket"] != self._last_ticket + 1:
            tally.complain("out_of_order", f"{name}, with ticket {line['ticket']} comes after {self._last_ticket}")
        self._last_ticket = line["ticket"]
        worker = number // WORKER_NUMBERS
        if number <= self._last_numbers.get(worker, -1):
            tally.complain("out_of_order", f"{name}, comes after {self._last_numbers[worker]}")
        self._last_numbers[worker] = number
        if line["follows"] is not None and line["follows"] not in self._seen:
            tally.complain("out_of_order", f"{name}, comes before {line['follows']}")

    def check_repeated(self, records: Iterable[Event], checkpoints: Sequence[tuple[float, int]]) -> None:
        """Judge records of the mode at least once: each is new, or the same as before and behind the checkpoint."""
        known: dict[tuple[str, int, Position], Event] = {}
        delivered, left = 0, list(checkpoints)
        for record in sorted(records, key=lambda record: record.timestamp_ms):
            while left and left[0][0] < record.timestamp_ms / 1000:
                delivered = max(delivered, left.pop(0)[1])
            if record["lsn"] < delivered:
                self.tally.complain("doubled", f"{record} came after the checkpoint {delivered:X}")
            place = record.topic, record.partition, record.position
            former = known.setdefault(place, record)
            self.tally.repeated += former is not record
            if former.value != record.value:
                self.tally.complain("other", f"{record} was {former} before")
        self._check_order(records)
        once = sorted(known.values(), key=lambda record: record.position)
        for transaction, found in groupby(once, lambda record: record.position[:2]):
            events = list(found)
            self._replay.apply_changes(events)
            self._check_transaction(transaction, changes(events))

    def _check_order(self, records: Iterable[Event]) -> None:
        """In each partition, records that are new come in order."""
        last: dict[tuple[str, int], Position] = {}
        seen: set[tuple[str, int, Position]] = set()
        for record in sorted(records, key=lambda record: record.offset):
            place = record.topic, record.partition
            if (*place, record.position) not in seen and record.position < last.get(place, record.position):
                self.tally.complain("out_of_order", f"{record} comes after {last[place]}")
            seen.add((*place, record.position))
            last[place] = max(record.position, last.get(place, record.position))

    def check_whole(self, connection: psycopg.Connection, rest: list[Event]) -> None:
        """Compare all that came with what PostgreSQL holds; ``rest`` is what no cut listed."""
        tally = self.tally
        committed = {number for (number,) in connection.execute("SELECT id FROM ledger").fetchall()}
        for number in sorted(committed - self._seen):
            tally.complain("lost", f"transaction number {number}")
        for number in sorted(self._seen - committed):
            tally.complain("other", f"transaction number {number} was never committed")
        for event in rest:
            tally.complain("other", f"outside of all cuts: {event}")
        for name in TABLES:
            table = self._replay.table(f"public.{name}")
            for problem in (
                *table.problems,
                *differences(table, *contents(connection, f"SELECT * FROM public.{name}")),
            ):
                tally.complain("other", f"{name}: {problem}")
        for problem in self._replay.problems:
            tally.complain("other", problem)


def changes(events: Iterable[Event]) -> list[tuple[Position, Event]]:
    """Return one copy of each change."""
    return list({event.position: (event.position, event) for event in events}.values())
