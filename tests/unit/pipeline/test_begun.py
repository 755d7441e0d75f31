"""The loads in progress, and the rows that a load has to read again before it ends."""

from dataclasses import replace

import pytest

from pgsluice.envelope import OnIncomplete
from pgsluice.layout import ColumnLayout, Layout
from pgsluice.loads import Load, Loaded
from pgsluice.pgoutput.messages import UNCHANGED, ColumnValue
from pgsluice.pipeline import begun as module
from pgsluice.pipeline.begun import Begun
from pgsluice.pipeline.encoders import Encoders
from pgsluice.relation import Column, PgType, Relation

INT4, TEXT = PgType(23, "pg_catalog", "int4"), PgType(25, "pg_catalog", "text")
NOTES = Relation(7, "public", "notes", "d", (Column("n", INT4, -1, is_key=True), Column("t", TEXT, -1, is_key=False)))
LAYOUT = Layout((ColumnLayout(1, "n", 23, -1, 700), ColumnLayout(2, "t", 25, -1, 700)), 2, "0a1b")
LOAD = Load("x", "public", "notes", 7, "shape", ("n",), ("5",), 5)


class Watched(Encoders):
    """Encoders that only record, for each watched table, the function to call when a row arrives without all its
    values."""

    def __init__(self) -> None:
        self.told: dict[int, OnIncomplete] = {}

    def watch(self, oid: int, tell: OnIncomplete | None) -> None:
        if tell is None:
            del self.told[oid]
        else:
            self.told[oid] = tell

    def incomplete(self, *row: ColumnValue) -> None:
        self.told[7](NOTES, list(row))


@pytest.fixture
def encoders() -> Watched:
    return Watched()


@pytest.fixture
def begun(encoders: Watched) -> Begun:
    return Begun(encoders, 3, [LOAD], {})


def test_the_loads_of_former_sessions_are_in_progress(begun: Begun, encoders: Watched) -> None:
    assert begun.of(7) == LOAD
    assert begun.of(8) is None
    assert begun.all() == [LOAD]
    assert list(encoders.told) == [7]


def test_the_progress_of_a_load_is_recorded(begun: Begun) -> None:
    further = replace(LOAD, last=("6",), rows=6)
    begun.put(further)
    assert begun.all() == [further]


def test_tables_can_be_recorded_as_loaded_without_a_load(begun: Begun) -> None:
    others = replace(NOTES, oid=8, name="others")
    (found,) = begun.assume([NOTES, others])
    assert (found.table, found.oid, found.epoch, found.state) == ("others", 8, 3, "assumed")
    assert begun.loaded(others) == found
    assert begun.of(7) == LOAD


def test_a_finished_table_has_a_record(begun: Begun, encoders: Watched) -> None:
    assert not begun.is_loaded(NOTES)
    assert begun.finish(LOAD, LAYOUT) == Loaded("x", "public", "notes", 7, 5, epoch=3, layout=LAYOUT)
    assert begun.is_loaded(NOTES)
    assert not begun.is_loaded(replace(NOTES, oid=8))
    assert not begun.all()
    assert not encoders.told


def test_a_table_whose_rows_are_stale_is_not_loaded(begun: Begun) -> None:
    loaded = begun.finish(LOAD, LAYOUT)
    assert begun.complete(NOTES) == loaded
    assert begun.has_loaded
    assert begun.replace(replace(loaded, state="stale")) == begun.loaded(NOTES)
    assert not begun.is_loaded(NOTES)
    assert begun.complete(NOTES) is None
    assert begun.has_loaded


def test_a_stale_table_whose_load_was_cancelled_is_loaded(begun: Begun) -> None:
    begun.replace(replace(begun.finish(LOAD, LAYOUT), state="stale"))
    cancelled = begun.cancel(NOTES)
    assert cancelled is not None
    assert cancelled.state == "cancelled"
    assert begun.is_loaded(NOTES)
    assert begun.complete(NOTES) is None
    assert not begun.has_loaded


def test_a_loaded_table_stays_loaded_if_a_further_load_is_cancelled(begun: Begun) -> None:
    loaded = begun.finish(LOAD, LAYOUT)
    begun.put(replace(LOAD, id="y"))
    assert begun.cancel(NOTES) is None
    assert begun.complete(NOTES) == loaded


def test_a_table_without_a_key_does_not_stay_loaded_if_a_load_is_cancelled(begun: Begun) -> None:
    begun.finish(LOAD, LAYOUT)
    assert begun.cancel(NOTES) is None
    begun.put(replace(LOAD, id="y", key=()))
    cancelled = begun.cancel(NOTES)
    assert cancelled == Loaded("y", "public", "notes", 7, 5, epoch=3, state="cancelled")
    assert begun.complete(NOTES) is None


def test_a_load_that_begins_again_is_forgotten(begun: Begun, encoders: Watched) -> None:
    begun.drop(7)
    begun.drop(7)
    assert begun.is_changed
    assert begun.of(7) is None
    assert not encoders.told


def test_dropped_tables_are_forgotten(begun: Begun) -> None:
    other = replace(LOAD, oid=8, table="other")
    begun.put(other)
    begun.keep_only([8, 9])
    assert begun.all() == [other]


def test_the_key_of_a_row_without_all_its_values_is_kept(begun: Begun, encoders: Watched) -> None:
    encoders.incomplete(b"3", UNCHANGED)
    encoders.incomplete(b"4", UNCHANGED)
    encoders.incomplete(b"3", UNCHANGED)
    assert begun.is_changed
    assert begun.all() == [replace(LOAD, moved=(("t3",), ("t4",)))]
    assert not begun.is_changed


def test_no_key_is_kept_before_the_first_row_was_read(begun: Begun, encoders: Watched) -> None:
    begun.put(replace(LOAD, last=()))
    encoders.incomplete(b"3", UNCHANGED)
    assert not begun.is_changed


def test_a_load_begins_again_if_the_key_is_unknown(begun: Begun, encoders: Watched) -> None:
    encoders.incomplete(UNCHANGED, b"note")
    assert begun.of(7) is None


def test_a_load_begins_again_if_the_table_has_lost_a_key_column(begun: Begun, encoders: Watched) -> None:
    begun.put(replace(LOAD, key=("n", "m")))
    encoders.incomplete(b"3", UNCHANGED)
    assert begun.of(7) is None


@pytest.mark.parametrize(("limit", "largest"), [("MOVED_MAX", 2), ("MOVED_BYTES_MAX", len('[["t1"], ["t2"]]'))])
def test_a_load_begins_again_if_there_are_too_many_keys(
    limit: str, largest: int, begun: Begun, encoders: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, limit, largest)
    encoders.incomplete(b"1", UNCHANGED)
    encoders.incomplete(b"2", UNCHANGED)
    assert begun.of(7) is not None
    encoders.incomplete(b"3", UNCHANGED)
    assert begun.of(7) is None


def test_the_keys_of_all_tables_together_are_bounded(
    begun: Begun, encoders: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limit the size of all keys, because each checkpoint contains them, and has to fit into a Kafka message."""
    monkeypatch.setattr(module, "ALL_MOVED_BYTES_MAX", len('[["t100"], ["t2"]][["t3"]]'))
    begun.put(replace(LOAD, oid=8, table="more", moved=(("t100",), ("t2",))))
    encoders.incomplete(b"3", UNCHANGED)
    assert begun.of(8) is not None
    encoders.incomplete(b"4", UNCHANGED)
    assert begun.all() == [replace(LOAD, moved=(("t3",), ("t4",)))]


def test_the_size_of_a_key_is_that_in_the_checkpoint(
    begun: Begun, encoders: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOVED_BYTES_MAX", 12)
    encoders.incomplete("🐘".encode(), UNCHANGED)
    assert begun.of(7) is None
