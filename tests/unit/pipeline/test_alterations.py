"""Tables that were altered after their load: the "stale" marks, the recorded states of the loads, and the warnings.

Source and sink are scripted. The open cut is real.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import structlog

from pgsluice.avro.types import TypeOptions
from pgsluice.checkpoint import Checkpoint
from pgsluice.commands import CommandState
from pgsluice.layout import ColumnLayout, Layout
from pgsluice.loads import FIRST_SEQ, Loaded, LoadMark, LoadPosition
from pgsluice.pipeline.alterations import Alterations
from pgsluice.pipeline.begun import Begun
from pgsluice.pipeline.encoders import Encoders
from pgsluice.pipeline.inserter import Inserter
from pgsluice.pipeline.outbox import Limits, Outbox
from pgsluice.pipeline.requests import Requests
from pgsluice.pipeline.rounds import Seams
from pgsluice.pipeline.vitals import Vitals
from pgsluice.progress import Progress
from pgsluice.relation import Column, PgType, Relation
from pgsluice.tables import TableRule, Tables
from pgsluice.transaction import Delivered
from pgsluice.transactions import Transactions
from tests.support.ends import FakeRegistry, FakeSink, FakeSource, MemorySpool, World

INT4 = PgType(23, "pg_catalog", "int4")
NUMBERS = Relation(7, "public", "numbers", "d", (Column("n", INT4, -1, is_key=True),))
BEFORE = Layout((ColumnLayout(1, "n", 23, -1, 700),), 1, "0a1b")
ADDED = replace(BEFORE, columns=(*BEFORE.columns, ColumnLayout(2, "m", 23, -1, 800, is_filled=True)), attnums=2)
WIDE = replace(NUMBERS, columns=(*NUMBERS.columns, Column("m", INT4, -1, is_key=False)))
LOADED = Loaded("load", "public", "numbers", 7, 12, 3, layout=BEFORE)
DELIVERED, RECEIVED = 900, 1000


class Scene:
    """The parts of a session that alterations need. Nothing runs in the background."""

    def __init__(self, *loaded: Loaded, loads_again: bool = True, load_position: LoadPosition = LoadPosition()) -> None:  # noqa: B008 - it is immutable
        self.world = World(published=[WIDE], layouts={7: ADDED})
        self.woken = 0
        source, sink = FakeSource(self.world), FakeSink(self.world)
        self.progress = Progress(DELIVERED)
        self.progress.on_received(RECEIVED)
        checkpoint = Checkpoint("shop", "s", "7001", 1, 3, 4, DELIVERED)
        limits = Limits(1.0, 1 << 20, 1 << 20, 60.0)
        self.outbox = Outbox(sink, checkpoint, self.progress, limits, lambda *_: None, Vitals())
        rules = [TableRule("public.skipped", is_loaded=False), TableRule("public.a", topic="shop.public.taken")]
        tables = Tables("shop", exclude=["public.out"], rules=rules)
        self.encoders = Encoders(source, sink, FakeRegistry(self.world), tables, TypeOptions())
        self.begun = Begun(self.encoders, 3, [], {(one.schema, one.table): one for one in loaded})
        requests = Requests(self.outbox, self.begun, CommandState(), self.wake)
        inserter = Inserter(self.outbox, self.begun, requests, load_position, epoch=3, commit_timestamps=False)
        transactions = Transactions(Delivered(0, 0, 0), MemorySpool())
        seams = Seams(transactions, self.outbox, self.progress, self.pause, self.go_on, self.wake)
        self.alterations = Alterations(source, self.encoders, self.begun, inserter, seams, loads_again=loads_again)

    def wake(self) -> None:
        self.woken += 1

    async def go_on(self) -> None:
        raise AssertionError("nothing was held")

    @asynccontextmanager
    async def pause(self) -> AsyncIterator[None]:
        yield

    async def look(self) -> list[dict[str, Any]]:
        """Check for alterations. Return the warnings."""
        with structlog.testing.capture_logs() as said:
            found = await self.alterations.look()
        assert [one.oid for one in found] == [one.oid for one in self.world.published]
        return [dict(one) for one in said]

    @property
    def marks(self) -> list[LoadMark]:
        return self.outbox._open.marks

    @property
    def records(self) -> list[Loaded]:
        return self.outbox._open.loaded


async def test_a_table_whose_rows_ddl_has_changed_is_stale() -> None:
    scene = Scene(LOADED)
    (warning,) = await scene.look()
    assert (warning["table"], warning["reason"]) == ("public.numbers", "column m was added with values")
    assert warning["next"] == "it is loaded again"
    position = (3, RECEIVED, FIRST_SEQ)
    assert scene.marks == [LoadMark("shop.public.numbers", "public", "numbers", "load", "stale", *position, 12, False)]  # noqa: FBT003 - asterisks
    assert scene.records == [replace(LOADED, state="stale")] == [scene.begun.loaded(WIDE)]
    assert scene.woken == 1


async def test_a_column_that_is_renamed_between_the_queries_does_not_make_the_table_stale() -> None:
    scene = Scene(LOADED)
    scene.world.layouts = {7: BEFORE}  # a rename comes between this answer and the next one
    renamed = replace(NUMBERS, columns=(replace(NUMBERS.columns[0], name="k"),))
    scene.world.published = [renamed]
    assert await scene.look() == []
    scene.world.layouts = {7: replace(BEFORE, columns=(replace(BEFORE.columns[0], name="k"),))}
    assert await scene.look() == []
    assert scene.marks == []


async def test_a_stale_table_is_reported_once() -> None:
    scene = Scene(LOADED)
    await scene.look()
    assert await scene.look() == []
    assert len(scene.marks) == 1


async def test_the_mark_is_not_before_what_was_delivered_or_read() -> None:
    scene = Scene(LOADED, load_position=LoadPosition(2000, 5))
    await scene.look()
    assert [(one.lsn, one.seq) for one in scene.marks] == [(2000, FIRST_SEQ + 5)]
    scene = Scene(LOADED)
    scene.progress.on_delivered(3000)
    await scene.look()
    assert [(one.lsn, one.seq) for one in scene.marks] == [(3000, FIRST_SEQ)]


async def test_if_nothing_loads_the_table_again_the_warning_names_the_command() -> None:
    (warning,) = await Scene(LOADED, loads_again=False).look()
    assert warning["next"] == "load it again: pgsluice snapshot start public.numbers"


async def test_the_warning_about_a_skipped_table_names_the_command() -> None:
    scene = Scene(replace(LOADED, table="skipped"))
    scene.world.published = [replace(WIDE, name="skipped")]
    (warning,) = await scene.look()
    assert warning["next"] == "load it again: pgsluice snapshot start public.skipped"


async def test_an_unchanged_table_is_left_alone() -> None:
    scene = Scene(LOADED)
    scene.world.layouts, scene.world.published = {7: BEFORE}, [NUMBERS]
    assert await scene.look() == []
    assert (scene.marks, scene.records, scene.woken) == ([], [], 0)


async def test_a_change_that_affects_no_row_is_recorded() -> None:
    scene = Scene(LOADED)
    scene.world.layouts, scene.world.published = {7: replace(BEFORE, storage="2c3d")}, [NUMBERS]
    assert await scene.look() == []
    assert (scene.marks, scene.woken) == ([], 0)
    assert scene.records == [replace(LOADED, layout=replace(BEFORE, storage="2c3d"))] == [scene.begun.loaded(WIDE)]


async def test_unpublished_columns_are_ignored() -> None:
    scene = Scene(LOADED)
    scene.world.published = [NUMBERS]
    assert await scene.look() == []
    assert scene.marks == []


async def test_a_table_without_a_recorded_layout_is_not_compared() -> None:
    scene = Scene(replace(LOADED, layout=None, state="assumed"))
    assert await scene.look() == []
    assert (scene.marks, scene.records) == ([], [replace(LOADED, layout=ADDED, state="assumed")])


async def test_the_encoder_is_made_again_because_column_numbers_may_change() -> None:
    scene = Scene(LOADED)
    await scene.encoders.of(WIDE)
    assert scene.encoders.known(WIDE) is not None
    await scene.look()
    assert scene.encoders.known(WIDE) is None


async def test_cancelled_loads_and_dropped_tables_are_ignored() -> None:
    scene = Scene(replace(LOADED, state="cancelled"), replace(LOADED, table="gone", oid=8))
    scene.world.gone = {8}
    assert await scene.look() == []
    assert (scene.marks, scene.records) == ([], [])


async def test_tables_that_are_not_or_cannot_be_published_are_ignored() -> None:
    names = {8: "out", 9: "taken"}
    scene = Scene(*(replace(LOADED, table=name, oid=oid) for oid, name in names.items()))
    scene.world.published = [replace(WIDE, name=name, oid=oid) for oid, name in names.items()]
    scene.world.layouts = dict.fromkeys(names, ADDED)
    assert await scene.look() == []
    assert (scene.marks, scene.records) == ([], [])


async def test_without_loaded_tables_the_catalog_is_not_queried() -> None:
    scene = Scene()
    await scene.look()
    assert scene.world.steps == ["published_names"]


async def test_a_table_that_has_left_the_publications_is_stale() -> None:
    scene = Scene(replace(LOADED, layout=ADDED))
    assert await scene.look() == []
    scene.world.published = []
    (warning,) = await scene.look()
    assert warning["table"] == "public.numbers"
    assert warning["next"] == "publish it again; then it is loaded again"
    assert [one.state for one in scene.marks] == ["stale"]
    assert scene.records == [replace(LOADED, layout=ADDED, state="stale")]
    assert await scene.look() == []
    assert len(scene.marks) == 1


async def test_a_table_that_was_dropped_or_excluded_is_not_stale() -> None:
    out = replace(LOADED, table="out", oid=8)
    cancelled = replace(LOADED, table="cancelled", oid=9, state="cancelled")
    scene = Scene(LOADED, out, cancelled)
    scene.world.published = []
    scene.world.gone = {7}
    assert await scene.look() == []
    assert scene.marks == []
