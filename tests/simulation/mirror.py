"""Applies events to copies of tables, as a consumer does (docs/events.md), and compares the copies with the tables."""

from collections.abc import Callable, Iterable
from typing import Any

from tests.simulation.tables import RECREATED, State, Table, TableWal, apply
from tests.simulation.wal import Truth, Values
from tests.support.marks import Load, Loads, Position
from tests.support.marks import position_of as _position

Row = dict[str, str | None]

UNKNOWN = "(unknown)"
"""The placeholder for an unchanged value that the copy lacks, because the value was written before the copy began."""


class Mirror:
    """The copy of each topic, and the content of the tables at the position of the last cut."""

    def __init__(self, wal: TableWal, prefix: str, violate: Callable[[str], None], *, in_each_epoch: bool) -> None:
        """``in_each_epoch`` says whether tables have to be loaded again in each epoch."""
        self.may_repeat: Callable[[], bool] = lambda: False
        """Whether tables may be loaded twice, because an outdated broker may hide the end of a load from a daemon."""
        self.loaded: set[int] = set()
        """The OIDs of tables that were loaded, or whose load a command has cancelled."""
        self.asked_for: set[str] = set()
        """The tables (schema and name) whose loads were requested by commands and ended in this cut."""
        self.placed_at = 0
        """The LSN of the last loaded rows and marks."""
        self._in_each_epoch = in_each_epoch
        self._wal = wal
        self._prefix = prefix
        self._violate = violate
        self._tables: State = {}
        self._copies: dict[str, dict[str, tuple[Position, Row]]] = {}
        self._left: dict[str, Row] = {}
        """By topic: the last deleted row, which the next event may insert under another key."""
        self._loads = Loads(violate)
        self._oids: dict[str, int] = {}
        """The OID of the table that each load reads."""
        self._complete: dict[str, int] = {}
        """By topic: the OID of the table that the copy has to equal."""
        self._filled: dict[int, set[str]] = {}
        """By table (OID): the columns that were added with a default since its last load."""
        self._last: Position = (0, 0, 0)
        self._seen: dict[tuple[str, Position], dict[str, Any]] = {}
        """All events by topic and position, in at-least-once mode."""

    def pass_over(self, truths: Iterable[Truth]) -> None:
        """Apply the transactions that were committed before the slot was created."""
        apply(self._tables, truths)

    def unnoticed(self) -> dict[int, set[str]]:
        """Return, by table OID, the columns that were added with a default since the table was loaded.

        The daemon should have noticed these columns, and should have loaded the table again.
        """
        tables = {oid: self._wal.table(oid) for oid in self._complete.values()}
        found = {oid: _names(table) & self._filled.get(oid, set()) for oid, table in tables.items() if table}
        return {oid: names for oid, names in found.items() if names}

    def begin_epoch(self, truths: Iterable[Truth]) -> None:
        """Begin a new epoch after the transactions ``truths``.

        Copies may lack changes, so each copy is complete only after a new load.
        """
        self._tables.clear()
        apply(self._tables, truths)
        self._loads.under_way.clear()
        self._complete.clear()
        if self._in_each_epoch:
            self.loaded.clear()

    def on_cut(
        self,
        cut: dict[str, Any],
        checkpoint: dict[str, Any],
        ended: Iterable[dict[str, Any]],
        events: Iterable[tuple[str, dict[str, Any]]],
        truths: Iterable[Truth],
    ) -> None:
        """Apply the events and marks of a cut in order, and compare the copies with the tables."""
        self.placed_at = checkpoint["place"]["lsn"]
        ended = list(ended)
        self._oids |= {one["id"]: one["oid"] for one in (*checkpoint["loads"], *ended)}
        things = [(_position(event), topic, event) for topic, event in events]
        things += [(_position(mark), mark["topic"], mark) for mark in cut["snapshots"]]
        left = list(truths)
        for position, topic, thing in sorted(things, key=lambda one: one[0]):
            while left and left[0].lsn < position[1]:
                self._apply(left.pop(0))
            self._check_order(position, thing)
            if "state" in thing:
                self._on_mark(topic, thing)
            elif thing["op"] == "r":
                self._on_row(topic, position, thing)
            else:
                self._on_change(topic, position, thing)
        for truth in left:
            self._apply(truth)
        self.loaded |= {one["oid"] for one in ended if one["state"] == "cancelled"}
        for topic, oid in list(self._complete.items()):
            self._compare(f"at the end of cut {cut['cut']}, {topic}", topic, oid)

    def _apply(self, truth: Truth) -> None:
        apply(self._tables, [truth])
        for change in truth.changes:
            if change.op == "fill" and change.table is not None and change.new is not None:
                self._filled.setdefault(change.table.oid, set()).update(change.new)

    # In at-least-once mode, readers see records one by one, and some of them more than once.

    def on_record(self, topic: str, event: dict[str, Any]) -> None:
        """Store an event. If it comes again, check that it is the same."""
        former = self._seen.setdefault((topic, _position(event)), event)
        if former["op"] != event["op"] or not _agree(former["after"], event["after"]):
            self._violate(f"{topic}: {event} and {former} have the same position")

    def on_ended(self, ended: dict[str, Any]) -> None:
        """Record that a table was loaded, or that its rows are stale."""
        if ended["state"] == "stale":
            self.loaded.discard(ended["oid"])
            return
        self.loaded.add(ended["oid"])
        if ended["state"] == "cancelled":
            return
        self._complete[f"{self._prefix}.{ended['schema']}.{ended['table']}"] = ended["oid"]

    def check_all(self, truths: Iterable[Truth]) -> None:
        """Compare the result of all events with each table that was loaded. Leave out recreated tables."""
        self._tables.clear()
        for truth in truths:
            self._apply(truth)
        for (topic, position), event in sorted(self._seen.items(), key=lambda one: one[0][1]):
            if event["op"] == "r":
                row = _row(event["after"])
                self._copies.setdefault(topic, {})[str(row["id"])] = position, row
            else:
                self._on_change(topic, position, event)
        for topic, oid in list(self._complete.items()):
            if oid < RECREATED:
                self._copies.setdefault(topic, {})
                self._compare(f"at the end, {topic}", topic, oid)

    def _check_order(self, position: Position, thing: dict[str, Any]) -> None:
        if position < self._last or (position == self._last and thing.get("op") != "t"):
            self._violate(f"{thing} follows {self._last}")
        self._last = position

    def _on_mark(self, topic: str, mark: dict[str, Any]) -> None:
        if mark["state"] == "stale":
            self._complete.pop(topic, None)
            self.loaded.discard(self._oids[mark["id"]])
        load = self._loads.on_mark(mark)
        if load is not None and mark["state"] == "end" and mark["replaces"]:  # the load has read all rows
            self._on_end(topic, load, is_asked_for=f"{mark['schema']}.{mark['table']}" in self.asked_for)

    def _on_end(self, topic: str, load: Load, *, is_asked_for: bool) -> None:
        oid = self._oids[load.id]
        if oid in self._complete.values() and not (is_asked_for or self.may_repeat()):
            self._violate(f"{topic} is loaded twice")
        self._complete[topic] = oid
        self._filled.pop(oid, None)
        self.loaded.add(oid)
        copy = self._copies.setdefault(topic, {})
        self._copies[topic] = {key: one for key, one in copy.items() if one[0] >= load.begin}
        self._compare(f"at the end of load {load}, {topic}", topic, oid)

    def _on_row(self, topic: str, position: Position, event: dict[str, Any]) -> None:
        load = self._loads.on_row((event["schema"], event["table"]))
        if load is None:
            return
        row = _row(event["after"])
        key = str(row["id"])
        self._copies.setdefault(topic, {})[key] = position, row
        oid = self._oids.get(load.id)
        if oid is None:
            return  # A load of only some rows began and ended in this cut. Its table is unknown.
        there = self._tables.get(oid, {}).get(key.encode())
        if there is None or not self._is_same(oid, there, row):
            self._violate(f"{topic}: {row} was read for {position[1]:X}, where the table has {there}")

    def _on_change(self, topic: str, position: Position, event: dict[str, Any]) -> None:
        copy, op = self._copies.setdefault(topic, {}), event["op"]
        if op == "t":
            copy.clear()
        elif op == "d":
            _, self._left[topic] = copy.pop(str(event["before"]["id"]), (position, {}))
        else:
            row = _row(event["after"])
            key = str(row["id"])
            former = self._left[topic] if "key_change" in event["flags"] else copy.get(key, (position, {}))[1]
            if event["before_image"] == "full":
                copy.pop(str(event["before"]["id"]), None)
            row |= {name: former.get(name, UNKNOWN) for name in event["unchanged"]}
            copy[key] = position, row

    def _compare(self, where: str, topic: str, oid: int) -> None:
        table, copy = self._tables.get(oid), self._copies[topic]
        if table is None:
            del self._complete[topic]  # the table was dropped
            return
        if {key.decode() for key in table} != copy.keys():
            self._violate(f"{where} has the rows {sorted(copy)}, but the table has {sorted(table)}")
            return
        for key, row in table.items():
            found = copy[key.decode()][1]
            if not self._is_same(oid, row, found):
                self._violate(f"{where} has {found}, but the table has {row}")

    def _is_same(self, oid: int, row: Values, found: Row) -> bool:
        """Return whether two rows agree in the columns that the table still has and that were always published."""
        table = self._wal.table(oid)
        if table is None:
            return True
        left_out = {"w"} if table.was_hidden else set()
        if oid in self._complete.values():
            left_out |= self._filled.get(oid, set())
        names = _names(table) - left_out
        return all(_plain(row.get(name)) == found.get(name) for name in names)


def _names(table: Table) -> set[str]:
    return {name for name, _ in table.columns}


def _agree(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """Return whether two rows agree in their common columns. The publication may have omitted a column in one row."""
    if one is None or other is None:
        return one is other
    return all(one[name] == other[name] for name in one.keys() & other.keys())


def _row(after: dict[str, Any]) -> Row:
    return {name: None if value is None else str(value) for name, value in after.items()}


def _plain(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
