"""A change as ``pgsluice tail`` shows it, the filter that selects changes, and the text of a change. No I/O."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pgsluice.lsn import format_lsn
from pgsluice.printable import printable, quoted
from pgsluice.tables import TablePattern

OPS: Final = {
    "insert": "c",
    "update": "u",
    "delete": "d",
    "truncate": "t",
    "read": "r",
    "message": "m",
}
"""The kinds of change: the name that the command line uses, and the letter in the envelope (docs/events.md)."""

_NAMES: Final = {letter: name for name, letter in OPS.items()}

_COLORS: Final = {"c": 32, "u": 33, "d": 31, "t": 31, "r": 36, "m": 35}
"""The colour of each kind of change, as an ECMA-48 code: green, yellow, red, red, cyan, magenta."""
_DIM: Final = 2

_PLAIN: Final = re.compile(r"[\w.:+/@-]+")
"""A text that needs no quotes, because it cannot be mistaken for two values."""

Row = Mapping[str, object]
"""The values of a row by column, in a form that JSON can represent. A column whose value was not sent is missing."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One change. ``lsn`` is the LSN of the commit, and ``ts`` is the time of the commit as ISO 8601.

    If a message is not part of a transaction, ``lsn`` is the LSN of the message, and ``xid`` and ``ts`` are None.

    ``before`` has the part of the old row that was sent: its key (``before_image`` is "key"), or all of it ("full").
    ``unchanged`` are the columns whose new value was not sent because it equals the old one. For a message, ``schema``
    and ``table`` are empty, and ``after`` has the message's prefix and content.
    """

    op: str
    lsn: int
    xid: int | None
    ts: str | None
    schema: str = ""
    table: str = ""
    before: Row | None = None
    before_image: str = "none"
    after: Row | None = None
    unchanged: tuple[str, ...] = ()
    origin: str | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Filter:
    """Which changes are shown. An empty attribute accepts all changes."""

    tables: Sequence[TablePattern] = ()
    ops: frozenset[str] = frozenset()
    columns: frozenset[str] = frozenset()
    xids: frozenset[int] = frozenset()

    def apply(self, change: Shown) -> Shown | None:
        """Return the change with the requested columns. Return None if the change is not to be shown."""
        if self.ops and change.op not in self.ops:
            return None
        if self.xids and change.xid not in self.xids:
            return None
        if self.tables and not any(one.matches(change.schema, change.table) for one in self.tables):
            return None
        return self._with_columns(change) if self.columns else change

    def _with_columns(self, change: Shown) -> Shown | None:
        """Return the change with only the requested columns.

        Return None if it has no value of these columns, or if the full old row shows that none of them changed.
        """
        before, after = self._of_row(change.before), self._of_row(change.after)
        is_same = change.before_image == "full" and before == after
        if not (before or after) or is_same:
            return None
        unchanged = tuple(name for name in change.unchanged if name in self.columns)
        return replace(change, before=before, after=after, unchanged=unchanged)

    def _of_row(self, row: Row | None) -> Row | None:
        return None if row is None else {name: value for name, value in row.items() if name in self.columns}


def to_json(change: Shown) -> str:
    """Return the change as one line of JSON, with the names of the envelope."""
    fields: dict[str, object] = {
        "op": change.op,
        "schema": change.schema,
        "table": change.table,
        "before": change.before,
        "before_image": change.before_image,
        "after": change.after,
        "unchanged": change.unchanged,
        "lsn": format_lsn(change.lsn),
        "xid": change.xid,
        "ts": change.ts,
        "origin": change.origin,
        "flags": change.flags,
    }
    return json.dumps(fields)


def to_text(change: Shown, *, colors: bool) -> str:
    """Return the change as one line for people. Names and values in it cannot control a terminal."""
    paint = _painted if colors else _plain
    where = quoted(change.schema, change.table) if change.table else ""
    head = f"{change.ts or '-'}  {format_lsn(change.lsn)}  xid {'-' if change.xid is None else change.xid}"
    more = [] if change.origin is None else [f"origin={_value(change.origin)}"]
    parts = [
        paint(printable(head), _DIM),
        paint(_NAMES.get(change.op, printable(change.op)), _COLORS.get(change.op, 0)),
        printable(" ".join([where, *_columns(change), *change.flags, *more]).lstrip()),
    ]
    return "  ".join(parts).rstrip()


def _plain(text: str, _color: int) -> str:
    return text


def _painted(text: str, color: int) -> str:
    return f"\x1b[{color}m{text}\x1b[0m"


def _columns(change: Shown) -> list[str]:
    before, after = change.before or {}, change.after
    if after is None:
        return [f"{quoted(name)}={_value(value)}" for name, value in before.items()]
    shown = {name: _value(value) for name, value in after.items()}
    shown |= {
        name: f"{_value(value)} -> {shown[name]}"
        for name, value in before.items()
        if name in shown and value != after[name]
    }
    shown |= dict.fromkeys(change.unchanged, "(unchanged)")
    return [f"{quoted(name)}={text}" for name, text in shown.items()]


def _value(value: object) -> str:
    """Return the text of a value. A null, an empty text and the text "null" give different results."""
    if isinstance(value, str) and value != "null" and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)


Render = Callable[[Shown], str]
