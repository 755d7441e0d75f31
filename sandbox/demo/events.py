"""Turns change events and cuts into lines of text. No I/O. ``watch`` uses this module.

With PostgreSQL's default replica identity, an update does not contain the old row. So ``Describer`` remembers the rows
that it has seen, to show the differences.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgsluice.lsn import format_lsn

LONGEST = 40
"""The maximum length of a value that is shown. For a longer value, only the length is shown."""

OPERATIONS = {"r": "read", "c": "insert", "u": "update", "d": "delete", "t": "truncate"}

MOVED = "key_change"

Json = dict[str, Any]
Row = Mapping[str, Any]
Identity = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Event:
    """One decoded change. ``key`` is None for truncates and tables without a key."""

    topic: str
    key: Json | None
    value: Json

    @property
    def position(self) -> tuple[int, int, int]:
        """The position of the change in the history of the database."""
        return self.value["epoch"], self.value["lsn"], self.value["seq"]


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut record and all its changes, in the order of their commits."""

    record: Json
    events: list[Event]


@dataclass(frozen=True, slots=True)
class Line:
    """One event: its topic, its operation, its key, the changed values, and its position in the history."""

    topic: str
    operation: str
    key: str
    change: str
    position: str


class Describer:
    """Turns events into lines. It must receive all events in order."""

    def __init__(self) -> None:
        """Start without any remembered rows."""
        self._rows: dict[Identity, Row] = {}

    def describe(self, event: Event) -> Line:
        """Return the line for the next event."""
        value = event.value
        return Line(
            topic=event.topic,
            operation=OPERATIONS[value["op"]],
            key="" if event.key is None else _fields(event.key),
            change=self._change(event),
            position=_position(value),
        )

    def _change(self, event: Event) -> str:
        if event.value["op"] == "t":
            self._rows = {identity: row for identity, row in self._rows.items() if identity[0] != event.topic}
            return ", ".join(["all rows", *event.value["flags"]])
        if event.value["op"] == "d":
            return self._forget(event)
        return self._remember(event)

    def _forget(self, event: Event) -> str:
        if MOVED in event.value["flags"]:
            return "continues under another key"  # keep the row, because the next event has the new key and needs it
        self._rows.pop(_identity(event, event.key), None)
        return ""

    def _remember(self, event: Event) -> str:
        unchanged = event.value["unchanged"]
        moved, before = self._former(event)
        row = {**event.value["after"], **{name: before.get(name) for name in unchanged}}
        self._rows[_identity(event, event.key)] = row
        changes = [_change(name, before, value) for name, value in row.items() if name not in (event.key or ())]
        not_sent = (f"{name} not sent (unchanged)" for name in unchanged)
        return ", ".join(filter(None, [moved, *changes, *not_sent]))

    def _former(self, event: Event) -> tuple[str, Row]:
        """Return a description of the old key, and the row before the event.

        If the key has changed, the description is not empty, and a delete under the old key has preceded the event.
        """
        if MOVED in event.value["flags"]:
            old_key = {name: event.value["before"][name] for name in event.key or ()}
            return f"was {_fields(old_key)}", self._rows.pop(_identity(event, old_key), {})
        return "", self._rows.get(_identity(event, event.key), {}) if event.value["op"] == "u" else {}


def cut_line(cut: Cut) -> str:
    """Return a line about a cut record."""
    record = cut.record
    transactions, events = count(record["transactions"], "transaction"), count(record["events"], "event")
    return f"cut {record['cut']}: {transactions}, {events}, up to {format_lsn(record['end_lsn'])}"


def text(value: object) -> str:
    """Return a value as short text on one line."""
    if value is None:
        return "null"
    shown = f"{value:%H:%M:%S}" if isinstance(value, datetime) else str(value)
    return shown if len(shown) <= LONGEST else f"({len(shown):,} characters)"


def count(number: int, noun: str) -> str:
    """Return the number with the noun, in the plural if necessary."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _position(value: Json) -> str:
    """Return a text with the LSN and, unless the row was loaded, the number of the event in its transaction."""
    lsn = format_lsn(value["lsn"])
    return lsn if value["op"] == "r" else f"{lsn} #{value['seq']}"


def _change(name: str, before: Row, value: object) -> str:
    if name not in before:
        return "" if value is None else f"{name}={text(value)}"
    return "" if value == before[name] else f"{name} {text(before[name])} -> {text(value)}"


def _fields(key: Row) -> str:
    return " ".join(f"{name}={text(value)}" for name, value in key.items())


def _identity(event: Event, key: Row | None) -> Identity:
    """Return the topic and the key's values, which identify a row."""
    return event.topic, tuple((key or {}).values())
