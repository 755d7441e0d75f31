"""Unit tests of pgsluice_spark.loads: the state of a table's copy, which follows from the table's marks."""

import pytest

from pgsluice_spark.cuts import Cut, Mark, Position
from pgsluice_spark.loads import (
    GAP,
    LOADED,
    LOADING,
    PARTIAL,
    STALE,
    UNLOADED,
    Interval,
    Load,
    TableState,
    advanced,
    intervals,
    lacking,
    lost,
)

BEGIN, END = Position(1, 50, -9), Position(1, 70, -2)


def mark(state: str, position: Position, rows: int = 0, *, id: str = "a", replaces: bool = True) -> Mark:  # noqa: A002
    return Mark("public.orders", id, state, position, rows, replaces)


def cut(number: int, *marks: Mark) -> Cut:
    return Cut(number, 1, 80, None, 7, 0, 1, marks=marks)


def after(state: TableState, *marks: Mark, **rows: int) -> tuple[TableState, Position | None]:
    return advanced(state, [cut(3, *marks)], marks, rows)


def test_the_last_cut_is_remembered() -> None:
    state, gone = after(TableState(key=("id",)))
    assert state == TableState(7, 3, 1, 80, UNLOADED, None, ("id",))
    assert gone is None


def test_a_table_is_loaded_after_a_load_in_one_piece() -> None:
    state, gone = after(TableState(), mark("begin", BEGIN), mark("rows", END, 5), mark("end", END, 10), a=10)
    assert (state.status, state.load, gone) == (LOADED, None, BEGIN)


def test_a_table_is_loaded_after_a_load_in_several_pieces() -> None:
    state, gone = after(TableState(), mark("begin", BEGIN), a=4)
    assert (state.status, state.load, gone) == (LOADING, Load("a", BEGIN, 4), None)
    state, _ = advanced(state, [cut(4)], (), {"a": 5})
    assert state.load == Load("a", BEGIN, 9, 4)
    state, gone = advanced(state, [cut(5)], [mark("end", END, 10)], {"a": 1})
    assert (state.status, state.load, gone) == (LOADED, None, BEGIN)


def test_the_rows_of_a_repeated_cut_are_counted_once() -> None:
    marks = mark("begin", BEGIN), mark("rows", Position(1, 55, 0), 4), mark("rows", Position(1, 60, 0), 7)
    state, _ = advanced(TableState(key=("id",)), [cut(1, *marks[:2]), cut(2, marks[2])], marks, {"a": 7})
    assert state.load == Load("a", BEGIN, 7, 4)
    again = mark("rows", Position(1, 65, 0), 6)
    state, _ = advanced(state, [cut(2, again)], [again], {"a": 2})
    assert state.load == Load("a", BEGIN, 6, 4)
    assert after(state, mark("end", END, 6))[0].status == LOADED


def test_only_the_last_cut_can_be_repeated_within_a_load() -> None:
    """How many rows of the load belong to earlier cuts is not known."""
    state = TableState(cut=4, key=("id",), load=Load("a", BEGIN, 7, 4))
    assert after(state, mark("end", END, 4))[0].status == PARTIAL


def test_without_a_key_the_rows_of_a_repeated_cut_are_in_the_copy_twice() -> None:
    state = TableState(cut=3, load=Load("a", BEGIN, 7, 4))
    assert after(state, mark("end", END, 7), a=3)[0].status == PARTIAL


def test_the_changes_of_a_table_are_lost() -> None:
    assert lost(TableState(status=LOADED, load=Load("a", BEGIN))) == TableState(status=GAP)
    assert lost(TableState()) == TableState()


@pytest.mark.parametrize("status", [UNLOADED, STALE, GAP, PARTIAL])
def test_a_load_that_lacks_rows_is_reported(status: str) -> None:
    state, gone = after(TableState(status=status), mark("begin", BEGIN), mark("end", END, 10), a=9)
    assert (state.status, state.load, gone) == (PARTIAL, None, None)


def test_a_load_that_replaces_nothing() -> None:
    marks = mark("begin", BEGIN), mark("end", END, 10, replaces=False)
    state, gone = after(TableState(), *marks, a=10)
    assert (state.status, gone) == (PARTIAL, None)
    state, gone = after(TableState(status=LOADED, key=("id",)), *marks, a=10)
    assert (state.status, gone) == (LOADED, None)


def test_a_table_without_key_is_loaded_only_if_the_load_replaces_its_rows() -> None:
    """Without a key, the rows of the load are in the copy beside the same rows from before."""
    state, _ = after(TableState(status=LOADED), mark("begin", BEGIN), a=4)
    assert state.status == LOADING
    assert after(state, mark("end", END, 4))[0].status == LOADED
    assert after(state, mark("end", END, 4, replaces=False))[0].status == PARTIAL


@pytest.mark.parametrize("begins_in_piece", [False, True])
@pytest.mark.parametrize(
    ("place", "status"), [(Position(1, 49, 0), LOADED), (Position(1, 50, 0), PARTIAL), (Position(1, 90, 0), PARTIAL)]
)
def test_a_load_repairs_only_changes_that_are_missing_from_before_its_beginning(
    place: Position, status: str, *, begins_in_piece: bool
) -> None:
    begin, end = mark("begin", BEGIN), mark("end", END, 4)
    if begins_in_piece:
        state = lacking(after(TableState(), begin, end, a=4)[0], [begin, end], place)
    else:
        state = lacking(after(TableState(), begin, a=4)[0], [begin], place)
        assert (state.status, TableState.from_json(state.to_json())) == (PARTIAL, state)
        state, _ = after(state, end)
    assert state.status == status


def test_a_load_whose_beginning_is_missing() -> None:
    end = mark("end", END, 10)
    assert after(TableState(), end, a=10)[0].status == PARTIAL
    assert after(TableState(status=LOADED), end)[0].status == LOADED
    other = TableState(load=Load("b", BEGIN, 1), status=LOADING)
    assert after(other, end)[0].status == PARTIAL


def test_a_load_that_begins_again() -> None:
    again = Position(1, 60, -9)
    marks = mark("begin", BEGIN), mark("begin", again, id="b"), mark("end", END, 3, id="b")
    state, gone = after(TableState(), *marks, a=2, b=3)
    assert (state.status, gone) == (LOADED, again)


def test_a_table_stays_loaded_while_it_is_loaded_again() -> None:
    state, gone = after(TableState(status=LOADED, key=("id",)), mark("begin", BEGIN), a=4)
    assert (state.status, gone) == (LOADED, None)


def test_a_table_is_stale_until_the_next_load() -> None:
    state, _ = after(TableState(status=LOADED), mark("stale", BEGIN))
    assert state.status == STALE
    state, _ = after(state, mark("begin", BEGIN))
    assert state.status == STALE
    assert after(state, mark("end", END, 2), a=2)[0].status == LOADED
    state, gone = after(state, mark("end", END, 2), mark("stale", END), a=2)
    assert (state.status, gone) == (STALE, BEGIN)


def test_a_loaded_table_has_a_gap_after_a_new_epoch() -> None:
    assert after(TableState(epoch=1, status=LOADED))[0].status == LOADED
    former = TableState(epoch=4, status=LOADED)
    assert after(former)[0].status == GAP
    assert after(former, mark("begin", BEGIN), mark("end", END, 1), a=1)[0].status == LOADED
    assert after(TableState(epoch=4, status=STALE))[0].status == STALE


def test_states_that_later_versions_add() -> None:
    assert after(TableState(status=LOADED), mark("cancelled", BEGIN))[0].status == LOADED


def test_the_positions_of_loaded_rows_are_found() -> None:
    state = TableState(load=Load("a", BEGIN, 4))
    again = Position(1, 75, -9)
    assert intervals(TableState(), []) == []
    assert intervals(state, []) == [Interval("a", BEGIN, None)]
    found = intervals(state, [mark("end", END, 4), mark("begin", again, id="b")])
    assert sorted(found, key=lambda one: one.id) == [Interval("a", BEGIN, END), Interval("b", again, None)]


@pytest.mark.parametrize("state", [TableState(), TableState(7, 3, 1, 80, LOADING, Load("a", BEGIN, 4), ("id", "n"))])
def test_the_state_is_printed_as_text(state: TableState) -> None:
    assert TableState.from_json(state.to_json()) == state
