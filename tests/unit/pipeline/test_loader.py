"""Loads of tables beside the stream: the positions of the rows, the transactions that wait, and errors while reading.

Source and sink are scripted. The rows of a table are returned only while ``world.read`` is set.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import structlog

from pgsluice.avro.types import TypeOptions
from pgsluice.checkpoint import Checkpoint
from pgsluice.commands import CommandState, Request
from pgsluice.errors import (
    PrimaryUnavailable,
    ReadTooSlow,
    SinkUnavailable,
    SourceUnavailable,
    TableUnreadable,
    ValueRefused,
)
from pgsluice.layout import ColumnLayout, Layout
from pgsluice.loads import FIRST_SEQ, Load, Loaded, LoadMark, LoadPosition
from pgsluice.metrics import Metrics
from pgsluice.pgoutput import messages
from pgsluice.pipeline import begun, outbox, reading, rounds
from pgsluice.pipeline import loader as module
from pgsluice.pipeline.encoders import Encoders
from pgsluice.pipeline.load_report import SHOWN_MAX
from pgsluice.pipeline.loader import Loader
from pgsluice.pipeline.outbox import Limits
from pgsluice.pipeline.reading import LoadOptions
from pgsluice.pipeline.session import Ends, Session, SessionOptions
from pgsluice.progress import Progress
from pgsluice.record import Record
from pgsluice.relation import Column, PgType, Relation
from pgsluice.snapshot import Shape, Snapshot
from pgsluice.tables import TableRule, Tables
from tests.support.ends import FakeRegistry, FakeSink, FakeSource, FakeStream, MemorySpool, World, data

NUMBERS = Relation(7, "public", "numbers", "d", (Column("n", PgType(23, "pg_catalog", "int4"), -1, is_key=True),))
SHAPE = Shape(NUMBERS, is_root=False, key=("n",), filter="", replaces=True, is_trusted=True, digest="one")
LAYOUT = Layout((ColumnLayout(1, "n", 23, -1, 700),), 1, "0a1b")
CHECKPOINT = Checkpoint("shop", "s", "7001", 1, 3, 4, 10_000, commands=CommandState("topic"))
TRACKING = replace(CHECKPOINT, tracks_loads=True)
TOPIC = "shop.public.numbers"
RULES = [TableRule("public.skipped", is_loaded=False), TableRule("public.some*", where="n > 1")]
TABLES = Tables("shop", exclude=["public.left*"], rules=RULES)
VISIBLE = 700
"""The id of a transaction that the snapshots in these tests see.

The snapshots do not see the transactions whose ids ``World`` chooses.
"""


class Running:
    """A session that loads tables."""

    def __init__(
        self, world: World, checkpoint: Checkpoint, include: Sequence[str], cut_bytes: int, options: LoadOptions
    ) -> None:
        self.metrics = Metrics()
        self.world = world
        self.tables = replace(TABLES, include=include)
        self.checkpoint = checkpoint
        self.spool = MemorySpool()
        self.stop = asyncio.Event()
        self.options = SessionOptions(Limits(0.01, cut_bytes, 1 << 20, 60.0), loading=options)

    async def start(self) -> None:
        world = self.world
        source, sink = FakeSource(world), FakeSink(world)
        self.stream: FakeStream = await source.start()
        await sink.fence()
        encoders = Encoders(source, sink, FakeRegistry(world), self.tables, TypeOptions())
        ends = Ends(source, self.stream, sink, encoders, self.spool)
        progress = Progress(self.checkpoint.end_lsn)
        self.session = Session(ends, self.checkpoint, self.options, self.metrics, progress, loaded=world.loaded)
        self.task = asyncio.create_task(self.session.run(self.stop))

    async def finish(self) -> None:
        """Wait until the table is loaded, and deliver everything."""
        await until(lambda: any(cut.loaded for cut, _, _ in self.world.cuts))
        self.stop.set()
        await self.task


def world_of(*rows: int) -> World:
    """Return a world in which the table has these rows, and in which the slot is at the checkpoint's position."""
    return World(position=10_000, published=[NUMBERS], shapes={7: SHAPE}, layouts={7: LAYOUT}, rows={7: list(rows)})


@asynccontextmanager
async def loading(
    world: World,
    *,
    checkpoint: Checkpoint = CHECKPOINT,
    include: Sequence[str] = ("*.*",),
    cut_bytes: int = 1 << 20,
    **options: Any,  # noqa: ANN401 - those of LoadOptions
) -> AsyncIterator[Running]:
    usual = LoadOptions(100, 1 << 20, 1 << 20, replaces=True, in_each_epoch=False)
    found = Running(world, checkpoint, include, cut_bytes, replace(usual, **options))
    await found.start()
    try:
        yield found
    finally:
        found.task.cancel()
        await asyncio.gather(found.task, return_exceptions=True)


WIDE = replace(NUMBERS, columns=(*NUMBERS.columns, Column("t", PgType(25, "pg_catalog", "text"), -1, is_key=False)))


def change_key(world: World, old: bytes, new: bytes, xid: int = 15_000) -> None:
    """Commit a transaction that changes the key of a row. The row's other value is unchanged and not sent."""
    begin = world.server.xlogpos
    described = messages.Relation(
        None,
        7,
        "public",
        "numbers",
        "d",
        tuple(messages.RelationColumn(one.is_key, one.name, one.type.oid, one.typmod) for one in WIDE.columns),
    )
    sent: list[messages.Message] = [
        messages.Begin(begin + 50, 1_000_000, xid),
        described,
        messages.Update(None, 7, [old, b""], None, [new, messages.UNCHANGED]),
        messages.Commit(begin + 50, begin + 100, 1_000_000),
    ]
    world.append(begin + 50, [data(one) for one in sent], begin + 100)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - a condition of a test has no event
            await asyncio.sleep(0.002)


async def fit_nowhere(found: Running) -> None:
    """Make the first round fail: its snapshot sees a transaction, but does not see one that committed earlier."""
    world = found.world
    world.server = replace(world.server, xlogpos=10_500)
    world.tells_position = False
    await until(lambda: found.session._transactions.gate)
    world.server = replace(world.server, xlogpos=10_000)
    world.commit(5)
    world.commit(6, xid=VISIBLE)
    await until(lambda: len(found.session._transactions._held) == 2 or not found.session._transactions.gate)
    world.tells_position = True
    world.seen = [Snapshot(20_000, 20_000, frozenset())]
    world.read.set()


def arrived(world: World) -> list[tuple[str | None, int]]:
    """Return the records that consumers see, as pairs of op and number."""
    return [(record.op, number(record)) for _, records, _ in world.cuts for record in records]


def number(record: Record) -> int:
    return (record.key or b"\0")[-1] // 2


def marks(world: World) -> list[LoadMark]:
    return [mark for cut, _, _ in world.cuts for mark in cut.marks]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_S", "AGAIN_S", "AGAIN_MAX_S"):
        monkeypatch.setattr(module, name, 0.01)
    monkeypatch.setattr(reading, "WRITERS_S", 0.01)
    monkeypatch.setattr(rounds, "ASK_S", 0.01)


async def test_rows_are_between_two_marks() -> None:
    world = world_of(1, 2, 3)
    async with loading(world) as found:
        await found.finish()
    assert arrived(world) == [("r", 1), ("r", 2), ("r", 3)]
    begin, rows, end = marks(world)
    assert begin == LoadMark(TOPIC, "public", "numbers", begin.id, "begin", 3, 10_000, FIRST_SEQ, 0, replaces=True)
    assert rows == LoadMark(TOPIC, "public", "numbers", begin.id, "rows", 3, 10_000, FIRST_SEQ + 4, 3, replaces=True)
    assert end == LoadMark(TOPIC, "public", "numbers", begin.id, "end", 3, 10_000, FIRST_SEQ + 5, 3, replaces=True)


async def test_the_end_is_recorded_in_the_same_cut() -> None:
    world = world_of(1)
    async with loading(world) as found:
        await found.finish()
    (loaded,) = [one for cut, _, _ in world.cuts for one in cut.loaded]
    assert loaded == Loaded(loaded.id, "public", "numbers", 7, 1, 3, layout=LAYOUT)
    assert world.checkpoint is not None
    assert world.checkpoint.loads == ()
    assert world.checkpoint.load_position == LoadPosition(10_000, 4)


async def test_an_empty_table_is_loaded() -> None:
    world = world_of()
    async with loading(world) as found:
        await found.finish()
    assert [(mark.state, mark.rows) for mark in marks(world)] == [("begin", 0), ("end", 0)]


async def test_a_table_that_was_loaded_is_left_alone() -> None:
    world = world_of(1)
    world.loaded = {("public", "numbers"): Loaded("x", "public", "numbers", 7, 1, 1)}
    async with loading(world):
        await asyncio.sleep(0.05)
        assert not marks(world)


@pytest.mark.parametrize(("epoch", "again"), [(2, True), (3, False)])
async def test_a_table_is_loaded_again_in_each_epoch_if_that_is_wanted(epoch: int, *, again: bool) -> None:
    world = world_of(1)
    world.loaded = {("public", "numbers"): Loaded("x", "public", "numbers", 7, 1, epoch)}
    async with loading(world, in_each_epoch=True):
        if again:
            await until(lambda: marks(world))
        await asyncio.sleep(0.05)
        assert bool(marks(world)) == again


WIDER = replace(LAYOUT, columns=(replace(LAYOUT.columns[0], type_oid=20),))


@pytest.mark.parametrize(
    ("options", "again", "state"),
    [({}, True, "loaded"), ({"is_altered": False}, False, "stale"), ({"is_initial": False}, False, "stale")],
)
async def test_a_table_that_was_altered_is_loaded_again_if_that_is_wanted(
    options: dict[str, Any],
    again: bool,  # noqa: FBT001 - a parameter
    state: str,
) -> None:
    world = world_of(1)
    world.loaded = {("public", "numbers"): Loaded("x", "public", "numbers", 7, 1, 3, layout=LAYOUT)}
    world.layouts = {7: WIDER}
    async with loading(world, **options) as found:
        await until(lambda: marks(world))
        if again:
            await until(lambda: marks(world)[-1].state == "end")
        await until(lambda: found.session.load_report and found.session.load_report.tables[state])
        assert [mark.state for mark in marks(world)] == ["stale", *(["begin", "rows", "end"] if again else [])]
    *_, last = [one for cut, _, _ in world.cuts for one in cut.loaded]
    assert (last.state, last.layout) == (("end", WIDER) if again else ("stale", LAYOUT))


async def test_stale_tables_are_reported_even_if_nothing_is_loaded() -> None:
    world = world_of(1)
    world.loaded = {("public", "numbers"): Loaded("x", "public", "numbers", 7, 1, 3, state="stale")}
    async with loading(world, is_initial=False) as found:
        await until(lambda: found.session.load_report and found.session.load_report.tables["stale"])


async def test_a_table_stays_stale_until_it_is_loaded_again() -> None:
    world = world_of(1)
    world.loaded = {("public", "numbers"): Loaded("x", "public", "numbers", 7, 1, 3, state="stale")}
    world.read.clear()
    async with loading(world) as found:
        await until(lambda: found.session.load_report)
        assert found.session.load_report is not None
        (told,) = found.session.load_report.named
        assert (told.state, told.is_stale) == ("waiting", True)


async def test_another_table_of_the_same_name_is_loaded() -> None:
    world = world_of(1)
    world.loaded = {("public", "numbers"): Loaded("x", "public", "numbers", 6, 1, 1)}
    async with loading(world) as found:
        await found.finish()
    assert arrived(world) == [("r", 1)]


@pytest.mark.parametrize("name", ["left_out", "skipped"])
async def test_a_table_that_the_settings_leave_out_is_left_alone(name: str) -> None:
    world = world_of(1)
    world.published = [replace(NUMBERS, name=name)]
    begun = Load("l", "public", name, 7, "one", ("n",), ("1",), 1)
    async with loading(world, checkpoint=replace(CHECKPOINT, loads=(begun,))) as found:
        world.commit(5)
        await until(lambda: world.cuts)
        assert not marks(world)
        loader = found.session._loader
        assert loader is not None
        assert loader._begun.all() == []


async def test_rows_are_not_read_faster_than_the_pace() -> None:
    world = world_of(*range(30))
    began = time.monotonic()
    async with loading(world, max_rows_per_s=20) as found:
        await found.finish()
    assert time.monotonic() - began > 0.9, "the other 10 rows are read a second after the first 20"
    assert [mark.rows for mark in marks(world) if mark.state == "rows"] == [20, 30]


async def test_a_transaction_that_the_snapshot_does_not_see_comes_after_the_rows() -> None:
    world = world_of(1, 2)
    world.read.clear()
    async with loading(world) as found:
        await until(lambda: found.session._transactions.gate)
        world.commit(5)
        await until(lambda: found.session._transactions._held)
        assert not arrived(world)
        world.read.set()
        await found.finish()
    assert arrived(world) == [("r", 1), ("r", 2), ("c", 5)]
    assert found.session.progress.delivered == 10_100


async def test_nothing_after_a_waiting_transaction_is_confirmed() -> None:
    world = world_of(1)
    world.read.clear()
    async with loading(world) as found:
        await until(lambda: found.session._transactions.gate)
        world.commit(5)
        world.keepalive(20_000)
        await until(lambda: found.session.status.server_lsn == 20_000)
        assert found.session.progress.received <= 10_050
        world.read.set()
        await found.finish()
        assert found.session.progress.received == 20_000


async def test_a_transaction_that_the_snapshot_sees_comes_before_the_rows() -> None:
    world = world_of(1)
    world.read.clear()
    async with loading(world) as found:
        world.server = replace(world.server, xlogpos=10_200)
        await until(lambda: found.session._transactions.gate)
        world.server = replace(world.server, xlogpos=10_000)
        world.commit(5, xid=VISIBLE)
        await until(lambda: world.cuts)
        world.server = replace(world.server, xlogpos=10_200)
        world.read.set()
        await found.finish()
    assert arrived(world) == [("c", 5), ("r", 1)]


async def test_rows_without_a_position_are_read_again_in_smaller_chunks() -> None:
    world = world_of(1, 2, 3)
    world.read.clear()
    async with loading(world, chunk_rows=2) as found:
        await fit_nowhere(found)
        await found.finish()
    assert arrived(world) == [("c", 5), ("c", 6), ("r", 1), ("r", 2), ("r", 3)]
    assert [mark.rows for mark in marks(world) if mark.state == "rows"] == [1, 3]


async def test_a_table_whose_rows_never_have_a_position_is_postponed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "VOIDS_MAX", 0)
    world = world_of(1)
    world.read.clear()
    async with loading(world) as found:
        await fit_nowhere(found)
        await found.finish()
    assert arrived(world) == [("c", 5), ("c", 6), ("r", 1)]


async def test_a_snapshot_has_to_see_the_transactions_that_have_passed() -> None:
    world = world_of(1)
    world.read.clear()
    async with loading(world, chunk_rows=1) as found:
        world.rows[7].append(2)
        await until(lambda: found.session._transactions.gate)
        world.commit(5)
        await until(lambda: found.session._transactions._held)
        world.read.set()
        await until(lambda: ("c", 5) in arrived(world))
        await until(lambda: len(world.seen) == 1)
        world.seen = [Snapshot(1_000, 1_000, frozenset()), Snapshot(20_000, 20_000, frozenset())]
        await found.finish()
    assert arrived(world) == [("r", 1), ("c", 5), ("r", 2)]


async def test_only_one_large_chunk_is_read_while_another_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MANY_EVENTS", 1)
    world = world_of(1, 2, 3, 4)
    world.commit_gate = asyncio.Event()
    async with loading(world, chunk_rows=1) as found:
        await until(lambda: world.steps.count("rows") == 2)
        await asyncio.sleep(0.05)
        assert world.steps.count("rows") == 2
        world.commit_gate.set()
        await found.finish()
    assert [len(cut.marks) for cut, _, _ in world.cuts if cut.marks][:2] == [2, 1]


async def test_small_chunks_become_one_cut_while_another_is_committed() -> None:
    world = world_of(1, 2, 3, 4)
    world.commit_gate = asyncio.Event()
    async with loading(world, chunk_rows=1) as found:
        await until(lambda: world.steps.count("rows") == 4)
        await until(lambda: not found.session._loader._tables)  # type: ignore[union-attr]
        world.commit_gate.set()
        await found.finish()
    assert [len(cut.marks) for cut, _, _ in world.cuts if cut.marks] == [2, 4]


async def test_the_wait_for_visible_transactions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SEEN_S", 0.01)
    world = world_of(1, 2)
    world.read.clear()
    async with loading(world, chunk_rows=1) as found:
        await until(lambda: found.session._transactions.gate)
        world.commit(5)
        await until(lambda: found.session._transactions._held)
        world.read.set()
        await until(lambda: ("c", 5) in arrived(world))
        world.commit(6)
        await until(lambda: ("c", 6) in arrived(world))
        assert ("r", 2) not in arrived(world)
        world.seen = [Snapshot(20_000, 20_000, frozenset())]
        await found.finish()
    assert arrived(world) == [("r", 1), ("c", 5), ("c", 6), ("r", 2)]


async def test_writers_of_the_table_have_to_end_first() -> None:
    world = world_of(1)
    world.writers = [{"3/1", "4/1"}, {"3/1", "5/9"}, {"5/9"}]
    async with loading(world) as found:
        await found.finish()
    assert not world.writers


async def test_a_writer_that_does_not_end_does_not_block_other_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Load another table while a writer of the first table does not end."""
    monkeypatch.setattr(reading, "WRITERS_MAX_S", 0.03)
    world = world_of(1)
    other = replace(NUMBERS, oid=8, name="others")
    world.published.append(other)
    world.shapes[8] = replace(SHAPE, relation=other)
    world.rows[8] = [2]
    world.writers_of[7] = {"3/1"}
    async with loading(world) as found:
        await until(lambda: [mark.topic for mark in marks(world) if mark.state == "end"] == ["shop.public.others"])
        world.writers_of[7] = {"4/2"}  # this writer begins later, so the loader does not wait for it
        await until(lambda: len([mark for mark in marks(world) if mark.state == "end"]) == 2)
        found.stop.set()
        await found.task


async def test_a_load_continues_in_the_next_session() -> None:
    world = world_of(1, 2, 3)
    load = Load("x", "public", "numbers", 7, "one", ("n",), ("1",), 1)
    async with loading(
        world, checkpoint=replace(CHECKPOINT, loads=(load,), load_position=LoadPosition(10_000, 7))
    ) as found:
        await found.finish()
    assert arrived(world) == [("r", 2), ("r", 3)]
    assert [(mark.id, mark.state, mark.seq - FIRST_SEQ, mark.rows) for mark in marks(world)] == [
        ("x", "rows", 9, 3),
        ("x", "end", 10, 3),
    ]


async def test_a_load_begins_again_if_the_table_has_another_shape() -> None:
    world = world_of(1, 2)
    load = Load("x", "public", "numbers", 7, "another", ("n",), ("1",), 1)
    async with loading(world, checkpoint=replace(CHECKPOINT, loads=(load,))) as found:
        await found.finish()
    assert arrived(world) == [("r", 1), ("r", 2)]
    assert "x" not in {mark.id for mark in marks(world)}


async def test_a_chunk_may_take_several_cuts_each_with_its_progress() -> None:
    world = world_of(*range(1, 31))
    async with loading(world, cut_bytes=2_000) as found:
        await found.finish()
    assert [number for _, number in arrived(world)] == list(range(1, 31))
    lasts = [load.last for _, _, checkpoint in world.cuts for load in checkpoint.loads]
    assert lasts
    assert all(0 < int(last) < 30 for (last,) in lasts)


async def test_a_chunk_ends_with_its_bytes() -> None:
    world = world_of(1, 2, 3, 4)
    async with loading(world, chunk_bytes=20) as found:
        await found.finish()
    assert [number for _, number in arrived(world)] == [1, 2, 3, 4]
    assert len([mark for mark in marks(world) if mark.state == "rows"]) > 1


async def test_a_table_that_cannot_be_read_now_is_tried_again_later() -> None:
    world = world_of(1)
    world.faults = {"lock": [TableUnreadable("locked")], "rows": [TableUnreadable("cancelled")]}
    async with loading(world) as found:
        await until(lambda: not any(world.faults.values()))
        world.seen = [Snapshot(20_000, 20_000, frozenset())]
        world.commit(5)
        await found.finish()
    assert sorted(arrived(world)) == [("c", 5), ("r", 1)]


async def test_rows_that_do_not_come_in_time_are_read_in_smaller_chunks() -> None:
    world = world_of(*range(8))
    world.faults = {"rows": [ReadTooSlow("cancelled")]}
    async with loading(world, chunk_rows=8) as found:
        await found.finish()
    assert [number for _, number in arrived(world)] == list(range(8))
    assert next(mark.rows for mark in marks(world) if mark.state in ("rows", "end")) == 2


async def test_a_load_begins_again_if_its_key_is_no_longer_valid() -> None:
    world = world_of(*range(4))
    refusal = ValueRefused("invalid input value for enum")
    world.faults = {"rows": [None, refusal], "check_keys": [refusal]}
    async with loading(world, chunk_rows=2) as found:
        await found.finish()
    assert [number for _, number in arrived(world)] == [0, 1, 0, 1, 2, 3]
    assert len([mark for mark in marks(world) if mark.state == "begin"]) == 2


async def test_a_table_is_tried_again_if_the_connection_broke() -> None:
    world = world_of(1)
    world.faults = {"rows": [SourceUnavailable("gone")], "shape": [SourceUnavailable("gone")]}
    async with loading(world) as found:
        await until(lambda: not any(world.faults.values()))
        world.seen = [Snapshot(20_000, 20_000, frozenset())]
        world.commit(5)
        await found.finish()
    assert sorted(arrived(world)) == [("c", 5), ("r", 1)]


async def test_waiting_transactions_continue_if_the_rows_cannot_be_read() -> None:
    world = world_of(1)
    world.read.clear()
    async with loading(world) as found:
        await until(lambda: found.session._transactions.gate)
        world.commit(5)
        await until(lambda: found.session._transactions._held)
        world.seen = [Snapshot(20_000, 20_000, frozenset())]
        world.faults = {"rows": [TableUnreadable("cancelled")]}
        world.read.set()
        await found.finish()
    assert arrived(world) == [("c", 5), ("r", 1)]


WITHOUT_KEY = replace(SHAPE, key=())


async def test_a_table_without_key_is_read_in_one_round() -> None:
    """Load a table without a key in several cuts.

    If the snapshot does not see a transaction, the transaction waits for all rows.
    """
    world = world_of(*range(30))
    world.shapes = {7: WITHOUT_KEY}
    world.server = replace(world.server, xlogpos=10_500)
    world.tells_position = False
    async with loading(world, chunk_rows=7, cut_bytes=64) as found:
        await until(lambda: found.session._transactions.gate)
        world.server = replace(world.server, xlogpos=10_400)
        world.commit(50)
        await until(lambda: found.session._transactions._held)
        world.tells_position = True
        await until(lambda: ("c", 50) in arrived(world))
        await found.finish()
    assert arrived(world) == [*[("r", number) for number in range(30)], ("c", 50)]
    assert sum(bool(records) for _, records, _ in world.cuts) > 1
    assert {mark.lsn for mark in marks(world)} == {10_450}
    assert [mark.rows for mark in marks(world) if mark.state == "end"] == [30]


async def test_an_empty_table_without_key_is_loaded() -> None:
    world = world_of()
    world.shapes = {7: WITHOUT_KEY}
    async with loading(world) as found:
        await found.finish()
    assert [(mark.state, mark.rows) for mark in marks(world)] == [("begin", 0), ("end", 0)]


@pytest.mark.parametrize("failure", [SourceUnavailable("gone"), TableUnreadable("altered")])
async def test_a_table_without_key_is_read_from_the_beginning_after_a_failure(failure: Exception) -> None:
    world = world_of(*range(100))
    world.shapes = {7: WITHOUT_KEY}
    world.faults = {"next_rows": [None, None, failure]}
    async with loading(world, chunk_rows=1, cut_bytes=64) as found:
        await found.finish()
    first, *_, last = marks(world)
    assert (last.state, last.rows) == ("end", 100)
    assert first.id != last.id


async def test_a_table_without_key_is_read_from_the_beginning_after_a_restart() -> None:
    world = world_of(1, 2)
    world.shapes = {7: WITHOUT_KEY}
    load = Load("x", "public", "numbers", 7, "one", rows=1)
    async with loading(world, checkpoint=replace(CHECKPOINT, loads=(load,)), chunk_rows=1) as found:
        await found.finish()
    assert [mark.state for mark in marks(world)] == ["begin", "rows", "rows", "end"]
    assert "x" not in {mark.id for mark in marks(world)}


async def test_a_chunk_without_key_and_position_is_read_again() -> None:
    world = world_of(1)
    world.shapes = {7: WITHOUT_KEY}
    world.read.clear()
    async with loading(world) as found:
        await fit_nowhere(found)
        await found.finish()
    assert [(op, n) for op, n in arrived(world) if op == "r"] == [("r", 1)]


async def test_a_large_table_without_key_is_left_out_until_it_has_one() -> None:
    world = world_of(*range(200))
    world.shapes = {7: WITHOUT_KEY}
    async with loading(world) as found:
        world.commit(300)
        await until(lambda: world.cuts)
        assert not marks(world)
        world.seen = [Snapshot(20_000, 20_000, frozenset())]
        world.shapes = {7: SHAPE}
        await found.finish()
    assert [mark.rows for mark in marks(world) if mark.state == "end"] == [200]


WITHOUT_IDENTITY = replace(NUMBERS, columns=(replace(NUMBERS.columns[0], is_key=False),))
"""A table that has a unique index, but no replica identity. So its events have no key."""
UNIQUE = replace(SHAPE, relation=WITHOUT_IDENTITY)


async def test_a_table_whose_events_have_no_key_is_read_in_one_round() -> None:
    """Even if the rows could be read in chunks, a row of a chunk could not replace the same row of a change."""
    world = world_of(1, 2, 3)
    world.published, world.shapes = [WITHOUT_IDENTITY], {7: UNIQUE}
    async with loading(world, chunk_rows=1) as found:
        await found.finish()
    assert "rows" not in world.steps
    assert [mark.rows for mark in marks(world) if mark.state == "end"] == [3]


async def test_a_large_table_whose_events_have_no_key_is_left_out() -> None:
    world = world_of(*range(200))
    world.published, world.shapes = [WITHOUT_IDENTITY], {7: UNIQUE}
    async with loading(world) as found:
        await until(lambda: (report := found.session.load_report) and "is left out" in (report.named[0].reason or ""))
        assert not marks(world)


@pytest.mark.parametrize(("shape", "key"), [(UNIQUE, ("n",)), (SHAPE, ())])
async def test_a_load_begins_again_if_events_have_a_key_now_or_have_none_now(
    shape: Shape, key: tuple[str, ...]
) -> None:
    """A setting can give the events a key. Former versions read a table in chunks even if its events had no key."""
    world = world_of(1, 2)
    world.published, world.shapes = [shape.relation], {7: shape}
    load = Load("former", "public", "numbers", 7, "one", key, ("1",) if key else (), 1)
    async with loading(world, checkpoint=replace(CHECKPOINT, loads=(load,))) as found:
        await found.finish()
    assert "former" not in {mark.id for mark in marks(world)}
    assert [(mark.state, mark.rows) for mark in marks(world)] == [("begin", 0), ("rows", 2), ("end", 2)]


async def test_a_table_of_an_untrusted_owner_is_left_out_unless_the_settings_name_it() -> None:
    for is_trusted in (True, False):  # the owner may change just before the table is read
        world = world_of(1)
        world.strange = set() if is_trusted else {7}
        world.shapes = {7: replace(SHAPE, is_trusted=False)}
        async with loading(world) as found:
            world.commit(5)
            await until(partial(is_distrusted, found))
            assert not marks(world)
            assert ("shape" in world.steps) == is_trusted
    world = world_of(1)
    world.strange = {7}
    world.shapes = {7: replace(SHAPE, is_trusted=False)}
    async with loading(world, include=("public.numbers", "*.*")) as found:
        await found.finish()
    assert arrived(world) == [("r", 1)]


def is_distrusted(found: Running) -> bool:
    """Return whether the table is left out because of its owner, according to the status."""
    report = found.session.load_report
    return report is not None and "public.numbers is left out until" in (report.named[0].reason or "")


async def test_any_number_of_untrusted_tables_does_not_block_others() -> None:
    """Load a table although many others belong to untrusted owners. The log names only some of the others."""
    world = world_of(1)
    others = [replace(NUMBERS, oid=100 + number, name=f"other{number}") for number in range(50)]
    world.published = [*others, NUMBERS]
    world.strange = {one.oid for one in others}
    with structlog.testing.capture_logs() as lines:
        async with loading(world) as found:
            await found.finish()
    assert arrived(world) == [("r", 1)]
    assert [line["event"] for line in lines].count("a table cannot be read now") == SHOWN_MAX
    (line,) = [line for line in lines if line["event"].startswith("further tables cannot be read")]
    assert line["tables"] == 50 - SHOWN_MAX


async def test_a_requested_load_can_be_cancelled_after_a_change_of_the_owner() -> None:
    state = CommandState("topic", requests=(Request("a", "public", "numbers"),))
    world = world_of(1)
    world.strange = {7}
    async with loading(world, checkpoint=replace(CHECKPOINT, commands=state)) as found:
        await until(lambda: [answer.outcome for cut, _, _ in world.cuts for answer in cut.answers] == ["waiting"])
        loader = found.session._loader
        assert loader is not None
        async with loader._seams.pause():
            loader.cancel(loader.loading["public", "numbers"])
        await until(lambda: [answer.outcome for cut, _, _ in world.cuts for answer in cut.answers][1:] == ["ended"])
        assert not loader.loading


async def test_a_row_that_got_its_key_while_the_table_was_read_is_read_again() -> None:
    """Read a row again under its new key if the UPDATE did not send all its values.

    Perhaps the row was not read under its old key.
    """
    world = world_of(1, 3)
    async with loading(world, chunk_rows=1, max_rows_per_s=5) as found:
        await until(lambda: world.checkpoint and world.checkpoint.loads)
        world.read.clear()
        await until(lambda: not found.session._transactions.gate)
        world.seen = [Snapshot(20_000, 20_000, frozenset())]
        change_key(world, b"9", b"0")
        await until(lambda: world.checkpoint and any(load.moved for load in world.checkpoint.loads))
        world.rows[7] = [0, 1, 3]
        world.read.set()
        await found.finish()
    assert [(op, n) for op, n in arrived(world) if op == "r"] == [("r", 1), ("r", 3), ("r", 0)]
    assert marks(world)[-1].rows == 3
    assert "rows_of" in world.steps


def moved_load(*rows: int) -> Checkpoint:
    """Return a checkpoint with a load that has read all keys, and has to read these rows again."""
    moved = tuple((f"t{number}",) for number in rows)
    load = Load("former", "public", "numbers", 7, "one", ("n",), ("99",), 100, is_read=True, moved=moved)
    return replace(CHECKPOINT, loads=(load,))


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 1])
async def test_rows_that_moved_are_read_again_in_portions_that_fit(chunk_bytes: int) -> None:
    """Check that all rows are read even if only one at a time fits into a chunk."""
    world = world_of(*range(8))
    async with loading(world, checkpoint=moved_load(*range(8)), chunk_bytes=chunk_bytes) as found:
        await found.finish()
    assert [number for _, number in arrived(world)] == list(range(8))
    assert world.steps.count("rows_of") == (4 if chunk_bytes > 1 else 8)


async def test_rows_that_moved_are_read_in_smaller_portions_after_a_time_out() -> None:
    world = world_of(*range(4))
    world.faults = {"rows_of": [None, ReadTooSlow("cancelled")]}
    async with loading(world, checkpoint=moved_load(*range(4))) as found:
        await found.finish()
    assert [number for _, number in arrived(world)] == list(range(4))
    assert world.steps.count("rows_of") == 4


async def test_rows_that_move_while_the_settings_load_nothing_are_not_missed() -> None:
    """Check that a load that a session does not continue begins again later.

    The session does not note the new keys of rows, so these rows could be missing from the rest of the load.
    """
    world = world_of(1, 3)
    former = Load("former", "public", "numbers", 7, "one", ("n",), ("1",), 1)
    async with loading(world, checkpoint=replace(CHECKPOINT, loads=(former,)), is_initial=False):
        change_key(world, b"9", b"0", xid=VISIBLE)
        await until(lambda: ("c", 0) in arrived(world))
        await until(lambda: world.checkpoint and not world.checkpoint.loads)
    world.rows[7] = [0, 1, 3]
    assert world.checkpoint is not None
    async with loading(world, checkpoint=world.checkpoint) as found:
        await found.finish()
    assert [number for op, number in arrived(world) if op == "r"] == [0, 1, 3]


async def test_a_table_that_was_not_published_for_a_moment_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the table is loaded although no look for tables noticed that it was not published."""
    world = world_of(1, 2)
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    world.shapes = {}
    async with loading(world) as found:
        await until(lambda: "shape" in world.steps)
        assert not arrived(world)
        world.shapes = {7: SHAPE}
        await found.finish()
    assert [number for _, number in arrived(world)] == [1, 2]


async def test_rows_that_move_before_the_first_read_are_ignored() -> None:
    world = world_of(1)
    world.read.clear()
    async with loading(world) as found:
        change_key(world, b"9", b"0", xid=VISIBLE)
        await until(lambda: ("c", 0) in arrived(world))
        world.read.set()
        await found.finish()
    assert "rows_of" not in world.steps


@pytest.mark.parametrize("limit", ["MOVED_MAX", "MOVED_BYTES_MAX"])
async def test_a_load_begins_again_after_too_many_moved_rows(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begun, limit, 0)
    world = world_of(1, 3)
    async with loading(world, chunk_rows=1, max_rows_per_s=5) as found:
        await until(lambda: world.checkpoint and world.checkpoint.loads)
        world.read.clear()
        await until(lambda: not found.session._transactions.gate)
        world.seen = [Snapshot(20_000, 20_000, frozenset())]
        change_key(world, b"9", b"0")
        await until(lambda: world.checkpoint and not world.checkpoint.loads)
        world.read.set()
        await found.finish()
    assert len({mark.id for mark in marks(world)}) == 2


async def test_moved_rows_are_noted_from_the_beginning_of_a_session() -> None:
    world = world_of(1)
    world.faults = {"published_relations": [SourceUnavailable("gone")] * 3}
    load = Load("x", "public", "numbers", 7, "one", ("n",), ("1",), 1)
    async with loading(world, checkpoint=replace(CHECKPOINT, loads=(load,))) as found:
        change_key(world, b"9", b"0")
        await until(lambda: world.checkpoint and any(load.moved for load in world.checkpoint.loads))
        world.seen = [Snapshot(20_000, 20_000, frozenset())]
        world.rows[7] = [0, 1]
        await found.finish()
    assert [(op, n) for op, n in arrived(world) if op == "r"] == [("r", 0)]


async def test_transactions_are_noted_only_while_there_is_something_to_load() -> None:
    world = world_of()
    async with loading(world) as found:
        await until(lambda: world.cuts)
        for number in range(5):
            world.commit(number)
        await until(lambda: len(arrived(world)) == 5)
        assert found.session._loader is not None
        assert not found.session._loader._rounds._unseen


async def test_noted_transactions_do_not_add_up_while_nothing_can_be_read() -> None:
    """While no table can be read, forget which transactions the next snapshot has to see.

    This is safe, because the loader waits later for transactions that are changing the table.
    """
    world = world_of(1)
    world.faults = {"lock": [SourceUnavailable("too many connections")] * 2}
    async with loading(world) as found:
        await until(lambda: len(world.faults["lock"]) < 2)
        loader = found.session._loader
        assert loader is not None
        world.writers = [{"3/7"}]
        world.commit(5)
        await until(lambda: arrived(world))
        await until(lambda: not world.faults["lock"])
        await until(lambda: not loader._rounds._unseen)
        world.seen = [Snapshot(20_000, 20_000, frozenset())]
        await found.finish()
    assert not world.writers


async def test_a_dropped_table_is_forgotten() -> None:
    world = world_of(1)
    world.shapes = {}
    async with loading(world) as found:
        await asyncio.sleep(0.03)
        world.published = []
        await until(lambda: not found.session._loader._tables)  # type: ignore[union-attr]
        assert not marks(world)


async def test_a_message_is_written_if_the_stream_does_not_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "FLUSH_S", 0.0)
    world = world_of(1)
    world.tells_position = False
    async with loading(world) as found:
        await until(lambda: "flush" in world.steps)
        world.keepalive()
        await found.finish()


async def test_the_message_that_moves_the_stream_is_not_published() -> None:
    world = World(position=10_000)
    async with loading(world) as found:
        lsn = world.emit(b"", "pgsluice.flush")
        world.keepalive()
        await until(lambda: found.session.progress.received >= lsn)
    assert not arrived(world)


async def test_a_table_is_abandoned_if_the_stream_does_not_reach_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "ROUND_S", 0.02)
    world = world_of(1)
    world.tells_position = False
    async with loading(world) as found:
        await until(lambda: world.steps.count("take") > 1)
        world.tells_position = True
        await found.finish()


async def test_the_snapshot_waits_for_a_transaction_that_is_half_received(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PAUSE_S", 0.02)
    world = world_of(1)
    world.read.clear()
    async with loading(world) as found:
        await until(lambda: found.session._transactions.gate)
        world.faults = {"rows": [TableUnreadable("cancelled")]}
        world.read.set()
        world.send(messages.Begin(10_050, 0, VISIBLE))
        await until(lambda: found.session._transactions.current)
        world.send(messages.Commit(10_050, 10_100, 0), end_lsn=10_100)
        await found.finish()


@pytest.mark.parametrize("is_initial", [False, True])
async def test_nothing_is_loaded_from_a_standby(is_initial: bool) -> None:  # noqa: FBT001 - a parameter
    world = world_of(1)
    world.standby = True
    with structlog.testing.capture_logs() as said:
        async with loading(world, checkpoint=TRACKING, is_initial=is_initial) as found:
            world.commit(5)
            await until(lambda: world.cuts)
            assert arrived(world) == [("c", 5)]
            if is_initial:
                await until(lambda: found.session.load_report and found.session.load_report.tables["blocked"])
                assert found.session.load_report is not None
                (table,) = found.session.load_report.named
                assert "from a standby" in str(table.reason)
            assert not found.task.done()
    assert [one["reason"] for one in said if one["event"] == "no table can be loaded"] == [module.STANDBY] * is_initial


def assumed(world: World) -> list[Loaded]:
    return [one for cut, _, _ in world.cuts for one in cut.loaded if one.state == "assumed"]


async def test_tables_delivered_by_an_earlier_version_count_as_loaded() -> None:
    world = world_of(1)
    world.published = [NUMBERS, replace(NUMBERS, oid=8, name="left_out")]
    async with loading(world, assumes=True) as found:
        await until(lambda: assumed(world))
        await until(lambda: found.session.load_report)
        assert found.session.load_report is not None
        assert found.session.load_report.tables["assumed"] == 1
        assert found.session.checkpoint.tracks_loads
    assert {(one.table, one.oid, one.rows) for one in assumed(world)} == {("numbers", 7, 0)}
    assert arrived(world) == []


async def test_tables_delivered_by_an_earlier_version_from_a_standby_count_as_loaded() -> None:
    world = world_of(1)
    world.standby = True
    with structlog.testing.capture_logs() as said:
        async with loading(world, assumes=True) as found:
            await until(lambda: found.session.load_report)
            await until(lambda: assumed(world))
    assert {one.table for one in assumed(world)} == {"numbers"}
    assert not any(one["event"] == "no table can be loaded" for one in said)


async def test_with_a_chosen_mode_earlier_tables_do_not_count_as_loaded() -> None:
    world = world_of(1)
    async with loading(world) as found:
        await found.finish()
        assert found.session.checkpoint.tracks_loads
    assert arrived(world) == [("r", 1)]
    assert assumed(world) == []


async def test_in_a_new_or_recorded_pipeline_tables_do_not_count_as_loaded() -> None:
    world = world_of(1)
    async with loading(world, assumes=True, checkpoint=TRACKING) as found:
        await found.finish()
    assert arrived(world) == [("r", 1)]
    assert assumed(world) == []


async def test_loaded_tables_are_recorded_again_if_the_session_ended_before() -> None:
    world = world_of(1)
    world.faults = {"commit": [SinkUnavailable("killed")]}
    async with loading(world, assumes=True) as found:
        await until(found.task.done)
        assert not found.session.checkpoint.tracks_loads
    assert world.cuts == []
    async with loading(world, assumes=True):
        await until(lambda: assumed(world))
    assert arrived(world) == []


async def test_rows_that_the_primary_may_have_lost_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    world = world_of(1, 2)
    world.faults = {"confirm": [PrimaryUnavailable("it has crashed")]}
    async with loading(world) as found:
        await found.finish()
    assert arrived(world) == [("r", 1), ("r", 2)]
    assert world.steps.count("confirm") == world.steps.count("rows") == 2


async def test_no_topic_is_created_for_a_table_that_must_not_be_read() -> None:
    world = world_of(1)
    world.faults = {"check_readable": [TableUnreadable("permission denied")] * 20}
    async with loading(world) as found:
        await until(lambda: found.session.load_report and found.session.load_report.tables["blocked"])
    assert "open_topic" not in world.steps


async def test_the_report_has_the_progress_of_the_tables() -> None:
    world = world_of(*range(30))
    world.published = [NUMBERS, replace(NUMBERS, oid=8, name="done"), replace(NUMBERS, oid=9, name="skipped")]
    world.loaded = {("public", "done"): Loaded("x", "public", "done", 8, 12, 1)}
    world.read.clear()
    async with loading(world, chunk_rows=10) as found:
        await until(lambda: found.session.load_report)
        begun = found.session.load_report
        world.read.set()
        await until(lambda: marks(world) and marks(world)[-1].state == "end")
        await until(lambda: found.session.load_report is not None and not found.session.load_report.unfinished)
    ended = found.session.load_report
    assert begun is not None
    assert ended is not None
    assert {state: number for state, number in begun.tables.items() if number} == {
        "waiting": 1,
        "skipped": 1,
        "loaded": 1,
    }
    assert (begun.rows, begun.estimated_rows) == (12, 42)
    assert ended.tables["loaded"] == 2
    assert (ended.rows, ended.estimated_rows, ended.named) == (42, 42, [])
    assert found.metrics.snapshot_rounds.labels("placed")._value.get() == 3
    assert found.metrics.registry.get_sample_value("pgsluice_snapshot_round_seconds_count") == 3
    assert (found.metrics.registry.get_sample_value("pgsluice_snapshot_held_seconds_total") or 0) > 0


async def test_tables_are_blocked_while_the_server_cannot_be_reached() -> None:
    world = world_of(1)
    world.faults = {"lock": [SourceUnavailable("too many connections")] * 20}
    async with loading(world) as found:
        await until(lambda: found.session.load_report and found.session.load_report.tables["blocked"])
        assert found.session.load_report is not None
        assert [one.reason for one in found.session.load_report.named] == ["too many connections"]
        await until(lambda: found.session.load_report and found.session.load_report.tables["loaded"])


async def test_a_table_that_waits_for_writers_is_blocked_until_they_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "WRITERS_MAX_S", 0.01)
    world = world_of(1)
    world.writers = [{"3/7"}] * 30
    async with loading(world) as found:
        await until(lambda: found.session.load_report and found.session.load_report.tables["blocked"])
        assert found.session.load_report is not None
        assert "transactions that are changing it have ended" in str(found.session.load_report.named[0].reason)
        await until(lambda: found.session.load_report and found.session.load_report.tables["loaded"])


def world_of_some(name: str) -> World:
    """Return a world with a rule that selects only some of the table's rows."""
    world, relation = world_of(1), replace(NUMBERS, name=name)
    world.published, world.shapes = [relation], {7: replace(SHAPE, relation=relation)}
    return world


async def test_a_table_of_which_a_rule_selects_some_rows_counts_as_loaded() -> None:
    world = world_of_some("some")
    async with loading(world) as found:
        await found.finish()
    assert [one.state for cut, _, _ in world.cuts for one in cut.loaded] == ["end"]
    assert {mark.replaces for mark in marks(world)} == {False}


async def test_a_load_continues_if_a_condition_has_refused_a_value() -> None:
    """Check that PostgreSQL is asked about the key alone, because it may have refused a value of a condition."""
    world = world_of_some("some")
    world.rows[7] = list(range(4))
    world.faults = {"rows": [None, ValueRefused("invalid input value for integer")]}
    async with loading(world, chunk_rows=2) as found:
        await found.finish()
    assert [number for _, number in arrived(world)] == [0, 1, 2, 3]
    assert "check_keys" in world.steps


async def test_with_another_condition_a_load_begins_again() -> None:
    wanted = replace(SHAPE, where="n > 1").read_digest
    for shape, is_same in ((wanted, True), (SHAPE.digest, False), (replace(SHAPE, where="n > 2").read_digest, False)):
        world = world_of_some("some")
        former = Load("former", "public", "some", 7, shape, ("n",), ("0",), 1)
        async with loading(world, checkpoint=replace(CHECKPOINT, loads=(former,))) as found:
            await found.finish()
        assert (marks(world)[-1].id == "former") is is_same


async def test_a_renamed_table_is_not_loaded_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the load of some rows, which a command requested, does not become a load of all rows."""
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    world = world_of(1, 2, 3, 4)
    state = CommandState("topic", requests=(Request("a", "public", "numbers", "n > 1"),))
    checkpoint = replace(CHECKPOINT, commands=state)
    async with loading(world, checkpoint=checkpoint, is_initial=False, chunk_rows=1, max_rows_per_s=5) as found:
        await until(lambda: world.checkpoint and world.checkpoint.loads)
        renamed = replace(NUMBERS, name="renamed")
        world.published, world.shapes = [renamed], {7: replace(SHAPE, relation=renamed, digest="two")}
        await until(lambda: [one.outcome for cut, _, _ in world.cuts for one in cut.answers] == ["ended"])
        await until(lambda: world.checkpoint and not world.checkpoint.loads)
        loader = found.session._loader
        assert loader is not None
        assert not loader.loading
    assert {mark.table for mark in marks(world)} == {"numbers"}


async def test_small_tables_come_first() -> None:
    world = world_of(*range(30))
    small = replace(NUMBERS, oid=8, name="small")
    world.published = [NUMBERS, small]
    world.shapes[8] = replace(SHAPE, relation=small)
    world.rows[8] = [1]
    async with loading(world):
        await until(lambda: len([mark for mark in marks(world) if mark.state == "end"]) == 2)
    assert [mark.topic for mark in marks(world) if mark.state == "begin"] == ["shop.public.small", TOPIC]


async def test_the_loader_checks_the_tables_again_while_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.002)
    world, rest, chunks = world_of(*range(80)), Loader._rest, list[int]()

    async def noted(self: Loader) -> None:
        chunks.append(world.steps.count("rows"))
        await rest(self)

    monkeypatch.setattr(Loader, "_rest", noted)
    async with loading(world, chunk_rows=1) as found:
        await found.finish()
    until_the_last_chunk = world.steps[: len(world.steps) - world.steps[::-1].index("rows")]
    assert until_the_last_chunk.count("published_relations") > 1
    assert chunks[0] == 80


async def test_a_table_that_cannot_be_read_is_blocked_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    world = world_of(1)
    world.faults = {"lock": [TableUnreadable("no right")] * 100}
    async with loading(world) as found:
        await until(lambda: found.session.load_report and found.session.load_report.tables["blocked"])
        report = found.session.load_report
    assert report is not None
    (table,) = report.named
    assert (table.table, table.state, table.reason) == ("public.numbers", "blocked", "no right")
    assert found.metrics.snapshot_rounds.labels("failed")._value.get() >= 1
