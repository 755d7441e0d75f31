"""The insertion of loaded rows into the open cut, with their positions, their marks and the progress of the load.

The outbox, the encoders and the loads are real. The sink is scripted.
"""

import asyncio
from dataclasses import replace

import pytest

from pgsluice.avro.types import TypeOptions
from pgsluice.checkpoint import Checkpoint
from pgsluice.commands import Answer, CommandState, Request
from pgsluice.loads import FIRST_SEQ, Load, Loaded, LoadMark, LoadPosition
from pgsluice.pgoutput.copy import insert_frame
from pgsluice.pipeline import inserter as module
from pgsluice.pipeline.begun import Begun
from pgsluice.pipeline.encoders import Encoders
from pgsluice.pipeline.inserter import Inserter, Opened
from pgsluice.pipeline.outbox import Limits, Outbox
from pgsluice.pipeline.requests import Requests
from pgsluice.pipeline.vitals import Vitals
from pgsluice.progress import Progress
from pgsluice.relation import Column, PgType, Relation
from pgsluice.snapshot import Chunk, Shape
from pgsluice.tables import Tables
from tests.support.ends import FakeRegistry, FakeSink, FakeSource, World

INT4 = PgType(23, "pg_catalog", "int4")
NUMBERS = Relation(7, "public", "numbers", "d", (Column("n", INT4, -1, is_key=True), Column("v", INT4, -1, False)))  # noqa: FBT003
SHAPE = Shape(NUMBERS, is_root=False, key=("n",), filter="", replaces=True, is_trusted=True, digest="one")
LOAD = Load("x", "public", "numbers", 7, "one", ("n",), ("2",), 2)
REQUEST = Request("command", "public", "numbers")
CHECKPOINT = Checkpoint("shop", "s", "7001", 1, 3, 4, 100)
TOPIC = "shop.public.numbers"
NOWHERE = LoadPosition()
LSN = 1000


class Stage:
    """An inserter, with the open cut of a session that does nothing else."""

    def __init__(self, *loads: Load, load_position: LoadPosition = NOWHERE, request: Request | None = None) -> None:
        self.world = World()
        self.sink = FakeSink(self.world)
        self.encoders = Encoders(
            FakeSource(self.world), self.sink, FakeRegistry(self.world), Tables("shop"), TypeOptions()
        )
        limits = Limits(1.0, 1 << 20, 1 << 20, 60.0)
        self.outbox = Outbox(self.sink, CHECKPOINT, Progress(100), limits, lambda *_: None, Vitals())
        self.begun = Begun(self.encoders, 3, loads, {})
        state = CommandState("topic", 5, requests=() if request is None else (request,))
        self.requests = Requests(self.outbox, self.begun, state, lambda: None)
        self.inserter = Inserter(self.outbox, self.begun, self.requests, load_position, epoch=3, commit_timestamps=True)

    async def opened(self, *, where: str = "", key: tuple[str, ...] = ("n",), replaces: bool = True) -> Opened:
        shape = replace(SHAPE, where=where, key=key)
        return Opened(shape, await self.encoders.of_loaded(NUMBERS), replaces)

    @property
    def seqs(self) -> list[int]:
        """For each mark, how many rows and marks come before it at its position."""
        return [mark.seq - FIRST_SEQ for mark in self.marks]

    @property
    def marks(self) -> list[LoadMark]:
        return list(self.outbox._open.marks)

    @property
    def told(self) -> list[tuple[str, int]]:
        """The state and the row count of each mark."""
        return [(mark.state, mark.rows) for mark in self.marks]

    @property
    def numbers(self) -> list[int]:
        """The keys of the rows in the open cut."""
        return [(record.key or b"\0")[-1] // 2 for record in self.outbox._open.records]

    @property
    def answers(self) -> list[Answer]:
        return list(self.outbox._open.answers)


def chunk(*numbers: int, is_last: bool = False) -> Chunk:
    """Return rows with these keys."""
    messages = [insert_frame(7, [b"%d" % number, b"%d" % (10 * number)]) for number in numbers]
    return Chunk(messages, is_last)


@pytest.fixture
async def stage() -> Stage:
    return Stage()


async def test_a_load_begins_with_its_first_chunk(stage: Stage) -> None:
    await stage.inserter.insert(await stage.opened(), chunk(1, 2), LSN, 0)
    assert stage.numbers == [1, 2]
    begin, rows = stage.marks
    assert begin == LoadMark(TOPIC, "public", "numbers", begin.id, "begin", 3, LSN, FIRST_SEQ, 0, replaces=True)
    assert rows == LoadMark(TOPIC, "public", "numbers", begin.id, "rows", 3, LSN, FIRST_SEQ + 3, 2, replaces=True)
    load = Load(begin.id, "public", "numbers", 7, "one", ("n",), ("2",), 2)
    assert stage.begun.all() == list(stage.outbox._open.loads or ()) == [load]
    assert stage.outbox._open.load_position == LoadPosition(LSN, 4)


async def test_a_load_continues_after_its_last_row() -> None:
    stage = Stage(LOAD, load_position=LoadPosition(900, 3))
    await stage.inserter.insert(await stage.opened(), chunk(3, 4), LSN, 0)
    assert stage.told == [("rows", 4)]
    assert stage.seqs == [2]
    assert stage.begun.of(7) == replace(LOAD, last=("4",), rows=4)


async def test_rows_and_marks_at_one_position_are_counted_over_chunks_and_sessions() -> None:
    stage = Stage(LOAD, load_position=LoadPosition(LSN, 7))
    await stage.inserter.insert(await stage.opened(), chunk(3), LSN, 0)
    await stage.inserter.insert(await stage.opened(), chunk(4), LSN, 0)
    assert stage.seqs == [8, 10]
    assert stage.outbox._open.load_position == LoadPosition(LSN, 11)


async def test_a_load_ends_with_its_last_chunk() -> None:
    stage = Stage(LOAD)
    await stage.inserter.insert(await stage.opened(), chunk(3, is_last=True), LSN, 0)
    assert stage.told == [("rows", 3), ("end", 3)]
    assert stage.outbox._open.loaded == [Loaded("x", "public", "numbers", 7, 3, 3)]
    assert stage.begun.is_loaded(NUMBERS)
    assert not stage.outbox._open.loads


async def test_an_empty_table_has_two_marks(stage: Stage) -> None:
    await stage.inserter.insert(await stage.opened(replaces=False), chunk(is_last=True), LSN, 0)
    assert stage.told == [("begin", 0), ("end", 0)]
    assert not any(mark.replaces for mark in stage.marks)
    assert stage.numbers == []


async def test_rows_that_have_moved_are_read_again_before_the_end() -> None:
    stage = Stage(replace(LOAD, moved=(("t9",),)))
    await stage.inserter.insert(await stage.opened(), chunk(3, is_last=True), LSN, 0)
    assert stage.told == [("rows", 3)]
    found = stage.begun.of(7)
    assert found == replace(LOAD, last=("3",), rows=3, is_read=True, moved=(("t9",),))
    await stage.inserter.insert(await stage.opened(), chunk(9, is_last=True), LSN + 50, 0, found.moved)
    assert stage.told == [("rows", 3), ("rows", 4), ("end", 4)]


async def test_rows_that_moved_while_they_were_read_are_kept_for_later() -> None:
    stage = Stage(replace(LOAD, is_read=True, moved=(("t8",), ("t9",))))
    await stage.inserter.insert(await stage.opened(), chunk(8, is_last=True), LSN, 0, (("t8",),))
    assert stage.begun.of(7) == replace(LOAD, rows=3, is_read=True, moved=(("t9",),))


async def test_the_end_of_a_requested_load_is_answered() -> None:
    stage = Stage(LOAD, request=REQUEST)
    await stage.inserter.insert(await stage.opened(), chunk(3), LSN, 0)
    assert stage.answers == []
    await stage.inserter.insert(await stage.opened(), chunk(is_last=True), LSN + 50, 0)
    assert stage.answers == [Answer("command", "loaded", tables=("public.numbers",), rows=3)]
    assert stage.requests.state == CommandState("topic", 5)


async def test_a_load_of_some_rows_does_not_make_the_table_loaded() -> None:
    stage = Stage(LOAD, request=replace(REQUEST, where="n > 1"))
    await stage.inserter.insert(await stage.opened(where="n > 1"), chunk(3, is_last=True), LSN, 0)
    assert stage.told == [("rows", 3), ("end", 3)]
    assert not stage.outbox._open.loaded
    assert not stage.begun.is_loaded(NUMBERS)
    assert [answer.outcome for answer in stage.answers] == ["loaded"]


async def test_rows_have_the_time_of_their_snapshot(stage: Stage) -> None:
    await stage.inserter.insert(await stage.opened(key=()), chunk(1, is_last=True), LSN, 77)
    (record,) = stage.outbox._open.records
    assert record.op == "r"
    assert record.timestamp_ms == (77 + 946_684_800 * 10**6) // 1000


async def test_more_rows_than_a_cut_holds_go_into_several() -> None:
    stage = Stage()
    stage.outbox.pending.limit = 150
    await stage.sink.fence()
    await stage.inserter.insert(await stage.opened(), chunk(*range(1, 10), is_last=True), LSN, 0)
    assert stage.told[0] == ("begin", 0)
    assert stage.told[-1] == ("end", 9)
    rows = [rows for state, rows in stage.told if state == "rows"]
    assert len(rows) > 1
    assert rows == sorted(set(rows))
    assert stage.numbers == [*range(1, 10)]
    assert stage.outbox._open.load_position == LoadPosition(LSN, 9 + len(stage.marks))


async def test_other_tasks_run_between_many_rows(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN", 2)
    opened, told = await stage.opened(), list[int]()

    async def look() -> None:
        while True:
            told.append(stage.outbox.pending.events)
            await asyncio.sleep(0)

    other = asyncio.create_task(look())
    await stage.inserter.insert(opened, chunk(*range(1, 6)), LSN, 0)
    other.cancel()
    assert told == [2, 4, 5]
