"""Tracks the progress of a table's copy: which cuts it contains, and how far the loads of the table have read.

Used above all by :mod:`.mirror`, :mod:`.changelog` and :mod:`.copies`. This module does no I/O. A load of a table has
marks in the cut records. The ``r`` events of a load are between its marks ``begin`` and ``end``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from pgsluice_spark.cuts import Cut, Mark, Position

UNLOADED: Final = "unloaded"
"""The cuts that were read do not contain the beginning of a load of the table."""
LOADING: Final = "loading"
LOADED: Final = "loaded"
"""The copy equals PostgreSQL's table at every cut."""
PARTIAL: Final = "partial"
"""Some rows or changes are missing, or the last load did not replace the earlier rows of the copy."""
STALE: Final = "stale"
"""The table's rows have values that were not sent, for example because the table was altered."""
GAP: Final = "gap"
"""Changes may be missing, because a new epoch has begun, records were lost, or the table was left out for a while."""


@dataclass(frozen=True, slots=True)
class Load:
    """A load that has begun and not ended.

    ``rows`` is the number of its distinct ``r`` events that have been read, and ``rows_before`` is this number without
    the events of the last cut. If ``lacks_changes`` is true, changes of the table since the load began are missing, so
    the table is not complete when the load ends.
    """

    id: str
    begin: Position
    rows: int = 0
    rows_before: int = 0
    lacks_changes: bool = False


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of a table's copy. ``offset``, ``cut``, ``epoch`` and ``end_lsn`` describe the copy's last cut."""

    offset: int = -1
    cut: int = 0
    epoch: int = 0
    end_lsn: int = 0
    status: str = UNLOADED
    load: Load | None = None
    key: tuple[str, ...] = ()
    """The columns of the table's key. There are none if the table has no key, or if the key is not known yet."""
    kind: str = ""
    """What keeps the copy: ``mirror`` or ``changelog``. It is empty in targets of earlier versions."""

    def to_json(self) -> str:
        """Return the state as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the state from a text of :meth:`to_json`. Raise ValueError, TypeError or KeyError for other texts."""
        fields = json.loads(text)
        load = fields["load"]
        fields["load"] = None if load is None else _load(load)
        return cls(**{**fields, "key": tuple(fields["key"])})


def _load(fields: Mapping[str, Any]) -> Load:
    return Load(**{**fields, "begin": Position(*fields["begin"])})


@dataclass(frozen=True, slots=True)
class Interval:
    """The range of positions of a load's ``r`` events.

    ``end`` is None if the load has not ended in the piece of the batch that is being applied.
    """

    id: str
    begin: Position
    end: Position | None


def intervals(state: TableState, marks: Sequence[Mark]) -> list[Interval]:
    """Return the loads that may have rows in a piece of a batch. ``marks`` are the table's marks in the piece."""
    begins = {mark.id: mark.position for mark in marks if mark.state == "begin"}
    if state.load is not None:
        begins.setdefault(state.load.id, state.load.begin)
    ends = {mark.id: mark.position for mark in marks if mark.state == "end"}
    return [Interval(identifier, begin, ends.get(identifier)) for identifier, begin in begins.items()]


def advanced(
    state: TableState, cuts: Sequence[Cut], marks: Sequence[Mark], rows: Mapping[str, int]
) -> tuple[TableState, Position | None]:
    """Return the state after a piece of a batch, and the position before which rows are obsolete.

    Rows whose last change is before this position do not exist in PostgreSQL any more, because a complete load did not
    read them. The position is None if no load that replaces earlier rows has ended. ``rows`` has the number of distinct
    ``r`` events in the piece, by load.
    """
    last = cuts[-1]
    if state.epoch and last.epoch != state.epoch and state.status == LOADED:
        state = replace(state, status=GAP)
    state, gone = _before_repetition(state, cuts), None
    for mark in marks:
        before, state = state, _after(state, mark, rows)
        if before.load is not None and state.load is None and state.status == LOADED and mark.replaces:
            gone = before.load.begin
    if state.load is not None:
        state = replace(state, load=_read_on(state.load, cuts, marks, rows.get(state.load.id, 0)))
    return replace(state, offset=last.offset, cut=last.number, epoch=last.epoch, end_lsn=last.end_lsn), gone


def _before_repetition(state: TableState, cuts: Sequence[Cut]) -> TableState:
    """Return the state in which the rows of cuts that ``cuts`` repeat are not counted.

    In at-least-once mode, pgsluice repeats the last cut after a crash, and reads rows again that the cut has. These
    rows have other positions than before. If the table has a key, they replace the earlier ones.
    """
    if state.load is None or not state.key or cuts[0].number > state.cut:
        return state
    is_known = cuts[0].number == state.cut
    lacks = state.load.lacks_changes or not is_known
    return replace(state, load=replace(state.load, rows=state.load.rows_before, lacks_changes=lacks))


def _read_on(load: Load, cuts: Sequence[Cut], marks: Sequence[Mark], count: int) -> Load:
    """Return a load after a piece of a batch with ``count`` of its rows."""
    total = load.rows + count
    own = [mark for mark in marks if mark.id == load.id]
    earlier = [mark.rows for mark in own if mark not in cuts[-1].marks]
    in_last = own[-1].rows - earlier[-1] if earlier else count
    return replace(load, rows=total, rows_before=total - in_last)


def lost(state: TableState) -> TableState:
    """Return the state of a table whose changes are lost."""
    return replace(state, load=None, status=UNLOADED if state.status == UNLOADED else GAP)


def lacking(state: TableState, marks: Sequence[Mark], place: Position) -> TableState:
    """Return the state of a table that lacks a change. ``place`` is the position of the last such change in a piece.

    ``marks`` are the table's marks in the piece. A load that began after the change has read the row since.
    """
    if state.load is not None and state.load.begin < place:
        state = replace(state, load=replace(state.load, lacks_changes=True))
    ended = {mark.id for mark in marks if mark.state == "end"}
    is_replaced = any(mark.state == "begin" and mark.id in ended and mark.position > place for mark in marks)
    return state if is_replaced and state.status == LOADED else replace(state, status=PARTIAL)


def _after(state: TableState, mark: Mark, rows: Mapping[str, int]) -> TableState:
    if mark.state == "begin":
        # Without a key, the rows of the load do not replace the earlier rows before the load ends.
        is_doubled = state.status == LOADED and not state.key
        status = LOADING if state.status == UNLOADED or is_doubled else state.status
        return replace(state, status=status, load=Load(mark.id, mark.position))
    if mark.state == "stale":
        return replace(state, status=STALE)
    if mark.state == "end":
        return _ended(state, mark, rows)
    return state


def _ended(state: TableState, mark: Mark, rows: Mapping[str, int]) -> TableState:
    load = state.load
    if load is None or load.id != mark.id:  # the beginning of the load was not among the cuts that were read
        return state if state.status == LOADED else replace(state, status=PARTIAL)
    is_whole = load.rows + rows.get(load.id, 0) == mark.rows and not load.lacks_changes
    if is_whole and mark.replaces:
        return replace(state, status=LOADED, load=None)
    return replace(state, status=LOADED if state.status == LOADED and is_whole else PARTIAL, load=None)
