"""Commands to a session: their effects, and the checkpoint that contains the effects. Source and sink are scripted."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from pgsluice.avro.types import TypeOptions
from pgsluice.checkpoint import Checkpoint
from pgsluice.commands import REQUESTS_BYTES_MAX, TABLES_MAX, WHERE_MAX, Answer, Command, CommandState, Request
from pgsluice.errors import PrimaryUnavailable, TableUnreadable
from pgsluice.loads import Load, Loaded
from pgsluice.metrics import Metrics
from pgsluice.pipeline import loader as loader_module
from pgsluice.pipeline import watch
from pgsluice.pipeline.encoders import Encoders
from pgsluice.pipeline.outbox import Limits
from pgsluice.pipeline.reading import LoadOptions
from pgsluice.pipeline.session import Ends, Session, SessionOptions
from pgsluice.progress import Progress
from pgsluice.relation import Column, PgType, PublishedName, Relation
from pgsluice.snapshot import Shape
from pgsluice.tables import Tables
from tests.support.ends import FakeRegistry, FakeSink, FakeSource, MemorySpool, World

NUMBERS = Relation(7, "public", "numbers", "d", (Column("n", PgType(23, "pg_catalog", "int4"), -1, is_key=True),))
OTHERS = replace(NUMBERS, oid=8, name="others")
LEFT = replace(NUMBERS, oid=9, name="left_out")
STRANGE = replace(NUMBERS, oid=11, name="strange")
CHANGED = replace(NUMBERS, oid=12, name="changed")
"""A table whose owner changes while a command about it is examined."""
GONE = replace(NUMBERS, oid=10, name="gone")
CHECKPOINT = Checkpoint("shop", "s", "7001", 1, 3, 4, 10_000, commands=CommandState("topic", 0))
STOPPED = replace(CHECKPOINT, commands=CommandState("topic", 0, is_pipeline_paused=True))
"""The checkpoint of a pipeline that is paused as a whole."""
PAUSED = replace(CHECKPOINT, commands=CommandState("topic", 0, is_paused=True))


def shape(relation: Relation) -> Shape:
    return Shape(
        relation, is_root=False, key=("n",), filter="", replaces=True, is_trusted=relation is not CHANGED, digest="one"
    )


def world_of(*commands: Command | bytes | None) -> World:
    """Return a world with two tables that have rows, and with these records in the topic of commands."""
    records = [one.to_json() if isinstance(one, Command) else one for one in commands]
    return World(
        position=10_000,
        published=[NUMBERS, OTHERS, LEFT, GONE, STRANGE, CHANGED],
        strange={11},
        shapes={7: shape(NUMBERS), 8: shape(OTHERS), 12: shape(CHANGED)},
        rows={7: [1, 2, 3], 8: [4]},
        commands=records,
    )


def command(verb: str, *tables: str, identifier: str = "a", where: str = "", seconds: float = 86_400) -> Command:
    return Command(identifier, verb, int((time.time() + seconds) * 1000), tables, where)


@asynccontextmanager
async def running(
    world: World,
    checkpoint: Checkpoint = CHECKPOINT,
    *,
    is_initial: bool = False,
    chunk_rows: int = 100,
    progress: Progress | None = None,
) -> AsyncIterator[Session]:
    source, sink = FakeSource(world), FakeSink(world)
    stream = await source.start()
    await sink.fence()
    encoders = Encoders(source, sink, FakeRegistry(world), Tables("shop", exclude=["public.left*"]), TypeOptions())
    options = SessionOptions(
        Limits(0.01, 1 << 20, 1 << 20, 60.0),
        loading=LoadOptions(chunk_rows, 1 << 20, 1 << 20, replaces=True, in_each_epoch=False, is_initial=is_initial),
    )
    ends = Ends(source, stream, sink, encoders, MemorySpool())
    progress = progress or Progress(checkpoint.end_lsn)
    session = Session(ends, checkpoint, options, Metrics(), progress, loaded=world.loaded)
    task = asyncio.create_task(session.run(asyncio.Event()))
    try:
        yield session
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def answers(world: World) -> list[Answer]:
    return [answer for cut, _, _ in world.cuts for answer in cut.answers]


def outcomes(world: World) -> list[str]:
    return [one.outcome for one in answers(world)]


def rows(world: World) -> list[str]:
    """Return the table of each row that was loaded."""
    return [record.target.topic.rpartition(".")[2] for _, records, _ in world.cuts for record in records]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - a condition of a test has no event
            await asyncio.sleep(0.002)


async def test_a_command_loads_a_table_although_the_settings_load_none() -> None:
    world = world_of(command("start", "public.numbers"))
    async with running(world):
        await until(lambda: "loaded" in outcomes(world))
    assert answers(world) == [
        Answer("a", "accepted", "", ("public.numbers",)),
        Answer("a", "loaded", "", ("public.numbers",), 3),
    ]
    assert rows(world) == ["numbers"] * 3
    (loaded,) = [one for cut, _, _ in world.cuts for one in cut.loaded]
    assert (loaded.state, loaded.rows) == ("end", 3)
    _, _, checkpoint = world.cuts[-1]
    assert checkpoint.commands == CommandState("topic", 1)


async def test_a_table_of_an_untrusted_owner_does_not_block_others() -> None:
    world = world_of(command("start", "public.?t*", "public.numbers"))
    async with running(world):
        await until(lambda: "loaded" in outcomes(world))
    left_out = "Left out: public.strange, because nobody has chosen to trust their owners."
    assert answers(world)[0] == Answer("a", "accepted", left_out, ("public.others", "public.numbers"))


async def test_the_checkpoint_after_a_command_contains_its_request() -> None:
    world = world_of(command("start", "public.numbers"))
    async with running(world, PAUSED):
        await until(lambda: outcomes(world))
    (answer,) = answers(world)
    assert (answer.outcome, answer.detail) == ("accepted", "Loads are paused.")
    checkpoints = [checkpoint for _, _, checkpoint in world.cuts]
    assert {one.commands.offset for one in checkpoints if not one.commands.requests} <= {0}
    asked = checkpoints[-1].commands
    assert asked == CommandState("topic", 1, is_paused=True, requests=(Request("a", "public", "numbers"),))


async def test_the_next_session_continues_with_the_request() -> None:
    request = Request("a", "public", "numbers")
    world = world_of()
    world.loaded = {("public", "numbers"): Loaded("old", "public", "numbers", 7, 3, 1)}
    last = replace(
        CHECKPOINT,
        commands=CommandState("topic", 0, requests=(request,)),
        loads=(Load("new", "public", "numbers", 7, "one", ("n",), ("1",), 1),),
    )
    async with running(world, last):
        await until(lambda: "loaded" in outcomes(world))
    assert rows(world) == ["numbers"] * 2
    assert answers(world) == [request.answer("loaded", rows=3)]


async def test_a_table_that_was_loaded_is_loaded_again_in_several_chunks() -> None:
    world = world_of(command("start", "public.numbers"))
    world.loaded = {("public", "numbers"): Loaded("old", "public", "numbers", 7, 3, 1)}
    async with running(world, chunk_rows=1):
        await until(lambda: "loaded" in outcomes(world))
    assert rows(world) == ["numbers"] * 3


async def test_a_load_of_some_rows_does_not_make_the_table_loaded() -> None:
    world = world_of(command("start", "public.numbers", where="n > 1"))
    async with running(world):
        await until(lambda: "loaded" in outcomes(world))
    assert [one for cut, _, _ in world.cuts for one in cut.loaded] == []
    assert {mark.replaces for cut, _, _ in world.cuts for mark in cut.marks} == {False}


async def test_after_a_load_of_some_rows_the_settings_load_the_whole_table() -> None:
    """Load the whole table directly after the command's load, without waiting for the next check of the tables."""
    request = Request("a", "public", "numbers", "n > 1")
    world = world_of()
    async with running(
        world, replace(CHECKPOINT, commands=CommandState("topic", 0, requests=(request,))), is_initial=True
    ):
        await until(lambda: any(one.table == "numbers" for cut, _, _ in world.cuts for one in cut.loaded))
    ends = [
        mark.replaces
        for cut, _, _ in world.cuts
        for mark in cut.marks
        if (mark.table, mark.state) == ("numbers", "end")
    ]
    assert ends == [False, True]


async def test_after_a_load_of_some_rows_the_table_is_still_stale() -> None:
    world = world_of(command("start", "public.numbers", where="n > 1"))
    world.loaded = {("public", "numbers"): Loaded("old", "public", "numbers", 7, 3, 1, state="stale")}
    async with running(world):
        await until(lambda: "loaded" in outcomes(world))
    *_, end, stale = [mark for cut, _, _ in world.cuts for mark in cut.marks]
    assert (end.state, stale.state, stale.id, stale.rows) == ("end", "stale", "old", 3)
    assert (stale.lsn, stale.seq) == (end.lsn, end.seq + 1)


async def test_a_request_that_comes_while_the_loader_looks_for_tables_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish and request a table after the loader has asked which tables are published."""
    monkeypatch.setattr(loader_module, "LOOK_S", 0.05)
    world = world_of()
    world.published = [OTHERS]
    world.loaded = {("public", "others"): Loaded("old", "public", "others", 8, 1, 1)}  # so that the loader looks often
    is_looking, may_go_on = asyncio.Event(), asyncio.Event()
    usual = FakeSource.published_relations

    async def slow(self: FakeSource, tables: Sequence[PublishedName]) -> AsyncIterator[Relation]:
        if world.steps.count("published_names") > 1:  # commands wait for the first look
            is_looking.set()
            await may_go_on.wait()
        async for one in usual(self, tables):
            yield one

    monkeypatch.setattr(FakeSource, "published_relations", slow)
    async with running(world):
        await until(is_looking.is_set)
        world.published = [NUMBERS, OTHERS]
        world.commands.append(command("start", "public.numbers").to_json())
        await until(lambda: outcomes(world))
        may_go_on.set()
        await until(lambda: len(outcomes(world)) > 1)
    assert outcomes(world) == ["accepted", "loaded"]


async def test_loads_without_a_request_end_if_the_settings_load_nothing() -> None:
    world = world_of(command("resume"))
    last = replace(CHECKPOINT, loads=(Load("one", "public", "numbers", 7, "one", ("n",), ("1",), 1),))
    async with running(world, last):
        await until(lambda: outcomes(world))
    _, _, checkpoint = world.cuts[-1]
    assert checkpoint.loads == ()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (command("start", "public.numbers", seconds=-1), "The command expired"),
        (command("start"), "The command names 0 tables"),
        (command("start", *["public.numbers"] * (TABLES_MAX + 1)), f"and at most {TABLES_MAX}"),
        (command("start", "numbers"), "'numbers' must be a pattern of schema and table"),
        (command("start", "public.none"), "No published table matches public.none."),
        (command("start", "public.left_out"), "No published table matches public.left_out."),
        (command("start", "public.gone"), "Table public.gone does not exist any more."),
        (command("start", "public.strange"), "public.strange is left out until"),
        (command("start", "public.changed"), "public.changed is left out until"),
        (command("start", "public.numbers", where="nonsense"), "nonsense is not a condition"),
        (command("start", "public.numbers", where="x" * (WHERE_MAX + 1)), f"more than {WHERE_MAX} characters"),
        (command("cancel", "public.numbers"), "None of these tables is being loaded."),
    ],
)
async def test_impossible_commands_are_refused_with_a_message(given: Command, complaint: str) -> None:
    world = world_of(given)
    async with running(world):
        await until(lambda: outcomes(world))
    (answer,) = answers(world)
    assert answer.outcome == "refused"
    assert complaint in answer.detail
    _, _, checkpoint = world.cuts[-1]
    assert checkpoint.commands == CommandState("topic", 1)


async def test_a_primary_that_cannot_be_reached_refuses_and_ends_no_session() -> None:
    world = world_of(command("start", "public.numbers"), command("start", "public.numbers", identifier="b"))
    world.faults = {"shape": [PrimaryUnavailable("snapshot.primary: no route")]}
    async with running(world):
        await until(lambda: "loaded" in outcomes(world))
    assert (answers(world)[0].outcome, answers(world)[0].detail) == ("refused", "snapshot.primary: no route")


async def test_a_table_can_be_requested_only_once_at_a_time() -> None:
    world = world_of(command("start", "public.numbers"), command("start", "public.*s", identifier="b"))
    async with running(world, PAUSED):
        await until(lambda: len(outcomes(world)) == 2)
    assert outcomes(world) == ["accepted", "refused"]
    assert "public.numbers is being loaded already" in answers(world)[1].detail


async def test_more_requests_than_a_checkpoint_can_contain_are_refused() -> None:
    large = Request("z", "public", "others", "x" * REQUESTS_BYTES_MAX)
    world = world_of(command("start", "public.numbers"))
    async with running(world, replace(PAUSED, commands=replace(PAUSED.commands, requests=(large,)))):
        await until(lambda: "refused" in outcomes(world))
    assert "Nothing was begun: too many tables are waiting" in answers(world)[-1].detail


async def test_on_a_standby_nothing_is_loaded() -> None:
    world = world_of(command("start", "public.numbers"), command("pause", identifier="b"))
    world.standby = True
    async with running(world):
        await until(lambda: len(outcomes(world)) == 2)
    assert outcomes(world) == ["refused", "done"]
    assert "from a standby" in answers(world)[0].detail


async def test_records_that_are_not_commands_are_skipped() -> None:
    world = world_of(b"garbage", None, Answer("x", "done").to_json(), command("resume"))
    async with running(world):
        await until(lambda: outcomes(world))
    _, _, checkpoint = world.cuts[-1]
    assert checkpoint.commands == CommandState("topic", 4)


async def test_commands_that_were_read_before_are_skipped() -> None:
    """Ignore a command before the checkpoint's offset, because an outdated broker may return it again."""
    world = world_of(command("pause"), command("resume", identifier="b"))
    last = replace(CHECKPOINT, commands=CommandState("topic", 1))
    async with running(world, last):
        await until(lambda: outcomes(world))
    assert answers(world) == [Answer("b", "done")]


async def test_without_a_known_offset_reading_begins_at_the_end() -> None:
    world = world_of(command("start", "public.numbers"))
    async with running(world, replace(CHECKPOINT, commands=CommandState())):
        await until(lambda: "commands opened" in world.steps)
        world.commands.append(command("resume", identifier="b").to_json())
        await until(lambda: outcomes(world))
    assert answers(world) == [Answer("b", "done")]


async def test_a_pause_ends_with_resume() -> None:
    world = world_of(command("pause"), command("start", "public.numbers", identifier="b"))
    async with running(world):
        await until(lambda: len(outcomes(world)) == 2)
        assert rows(world) == []
        world.commands.append(command("resume", identifier="c").to_json())
        await until(lambda: "loaded" in outcomes(world))
    assert outcomes(world) == ["done", "accepted", "done", "loaded"]


async def test_a_load_is_cancelled_before_it_begins() -> None:
    world = world_of(command("start", "public.numbers"), command("cancel", "public.*", identifier="b"))
    async with running(world, PAUSED):
        await until(lambda: len(outcomes(world)) == 3)
    assert [(one.id, one.outcome) for one in answers(world)] == [("a", "accepted"), ("b", "done"), ("a", "ended")]
    (cancelled,) = [one for cut, _, _ in world.cuts for one in cut.loaded]
    assert (cancelled.id, cancelled.state, cancelled.rows) == ("", "cancelled", 0)


async def test_a_load_is_cancelled_while_its_rows_are_read() -> None:
    world = world_of(command("start", "public.numbers"))
    world.read.clear()
    async with running(world):
        await until(lambda: "take" in world.steps)
        world.commands.append(command("cancel", "public.numbers", identifier="b").to_json())
        await until(lambda: "ended" in outcomes(world))
        world.read.set()
        world.commands.append(command("start", "public.others", identifier="c").to_json())
        await until(lambda: "loaded" in outcomes(world))
    assert rows(world) == ["others"]


async def test_a_first_load_that_is_cancelled_does_not_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "LOOK_S", 0.01)
    world = world_of(command("cancel", "public.numbers"), command("resume", identifier="b"))
    async with running(world, PAUSED, is_initial=True):
        await until(lambda: [one for cut, _, _ in world.cuts for one in cut.loaded if one.state == "end"])
        await asyncio.sleep(0.05)
    assert set(rows(world)) == {"others"}


async def test_cancelling_a_load_of_some_rows_does_not_change_the_table() -> None:
    world = world_of(
        command("start", "public.numbers", where="n > 1"), command("cancel", "public.numbers", identifier="b")
    )
    async with running(world, PAUSED):
        await until(lambda: "ended" in outcomes(world))
    assert [one for cut, _, _ in world.cuts for one in cut.loaded] == []


async def test_the_answer_says_that_the_table_is_not_published_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "LOOK_S", 0.01)
    world = world_of(command("start", "public.numbers"))
    async with running(world, PAUSED):
        await until(lambda: outcomes(world))
        world.published = [OTHERS]
        await until(lambda: "ended" in outcomes(world))
    assert answers(world)[-1].detail == "It is not published any more."


async def test_the_answer_says_why_a_table_waits() -> None:
    world = world_of(command("start", "public.numbers"))
    world.faults["take"] = [TableUnreadable("Permission denied.")]
    async with running(world):
        await until(lambda: "waiting" in outcomes(world))
    assert answers(world)[-1] == Answer("a", "waiting", "Permission denied.", ("public.numbers",))


class TestAPauseOfThePipeline:
    """A pause of the whole pipeline, and not only of loads."""

    async def test_ends_with_a_command_and_then_everything_is_delivered(self) -> None:
        world = world_of()
        async with running(world) as session:
            world.commit(1)
            await until(lambda: world.numbers == [1])
            world.commands.append(command("pause_pipeline").to_json())
            await until(lambda: outcomes(world))
            assert session.is_paused
            _, _, checkpoint = world.cuts[-1]
            assert checkpoint.commands.is_pipeline_paused
            world.commit(2)
            world.commit(3)
            await asyncio.sleep(0.1)
            assert world.numbers == [1]
            assert session.progress.confirmable <= checkpoint.end_lsn
            world.commands.append(command("resume_pipeline", identifier="b").to_json())
            await until(lambda: world.numbers == [1, 2, 3])
            assert not session.is_paused
        assert [one.detail for one in answers(world)] == [
            "The pipeline is paused. PostgreSQL keeps its WAL until `pgsluice resume`.",
            "The pipeline continues.",
        ]

    async def test_repeated_and_unnecessary_commands_are_answered(self) -> None:
        world = world_of(command("resume_pipeline"), command("pause_pipeline"), command("pause_pipeline"))
        async with running(world, PAUSED):
            await until(lambda: len(outcomes(world)) == 3)
        assert [one.detail for one in answers(world)] == [
            "The pipeline was not paused. Loads are still paused, until `pgsluice snapshot resume`.",
            "The pipeline is paused. PostgreSQL keeps its WAL until `pgsluice resume`.",
            "The pipeline was paused already. PostgreSQL keeps its WAL until `pgsluice resume`.",
        ]
        assert outcomes(world) == ["done"] * 3

    async def test_outlives_the_session_even_before_the_history_is_checked(self) -> None:
        """Read commands during the pause, although the server's history can be checked only after the pause."""
        world = world_of()
        progress = Progress(CHECKPOINT.end_lsn, {9_900: "transaction"})
        async with running(world, STOPPED, progress=progress, is_initial=True) as session:
            world.commit(1)
            await asyncio.sleep(0.1)
            assert (world.numbers, world.cuts, session.load_report) == ([], [], None)
            world.commands.append(command("resume_pipeline").to_json())
            await until(lambda: outcomes(world))
            assert world.numbers == []

    async def test_commands_about_tables_are_refused(self) -> None:
        world = world_of(command("start", "public.numbers"), command("cancel", "public.numbers", identifier="b"))
        async with running(world, STOPPED):
            await until(lambda: len(outcomes(world)) == 2)
        complaint = "The pipeline is paused. Run `pgsluice resume`, then give the command again."
        assert answers(world) == [Answer(one, "refused", complaint) for one in "ab"]

    async def test_does_not_end_with_a_pause_of_loads(self) -> None:
        world = world_of(command("resume"))
        async with running(world, STOPPED) as session:
            await until(lambda: outcomes(world))
            assert session.is_paused
        assert answers(world)[0].detail == "The pipeline itself is paused, until `pgsluice resume`."

    async def test_keeps_tables_from_being_loaded(self) -> None:
        world = world_of()
        async with running(world, STOPPED, is_initial=True):
            await asyncio.sleep(0.05)
            assert "take" not in world.steps
            world.commands.append(command("resume_pipeline").to_json())
            await until(lambda: set(rows(world)) == {"numbers", "others"})

    async def test_waits_for_the_end_of_the_round(self) -> None:
        world = world_of(command("start", "public.numbers"))
        world.read.clear()
        async with running(world, chunk_rows=1):
            await until(lambda: "take" in world.steps)
            world.commands.append(command("pause_pipeline", identifier="b").to_json())
            await asyncio.sleep(0.05)
            assert outcomes(world) == ["accepted"]
            world.read.set()
            await until(lambda: "done" in outcomes(world))
            found = rows(world)
            await asyncio.sleep(0.05)
            assert rows(world) == found == ["numbers"]

    async def test_can_expire_while_a_transaction_is_received(self) -> None:
        world = world_of()
        async with running(world) as session:
            await until(lambda: "commands opened" in world.steps)
            async with session._paused():
                world.commands.append(command("pause_pipeline", seconds=0.1).to_json())
                await asyncio.sleep(0.2)
            await until(lambda: outcomes(world))
            assert not session.is_paused
        assert answers(world) == [Answer("a", "refused", "The command expired before it was carried out.")]

    async def test_is_logged_repeatedly_until_it_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch, "WATCH_S", 0.005)
        world = world_of()
        with capture_logs() as log:
            async with running(world, STOPPED):
                await until(lambda: _events(log))
                await asyncio.sleep(0.02)
                assert _events(log) == [SAID_PAUSED]
                monkeypatch.setattr(watch, "PAUSED_AGAIN_S", 0.0)
                await until(lambda: len(_events(log)) > 1)
                world.commands.append(command("resume_pipeline").to_json())
                await until(lambda: "the pipeline continues after a pause" in _events(log))
        assert (log[0]["log_level"], log[0]["confirmed_lsn"]) == ("warning", 10_000)


SAID_PAUSED = "the pipeline is paused: nothing is delivered, and PostgreSQL keeps its WAL, until `pgsluice resume`"


def _events(log: Sequence[Mapping[str, object]]) -> list[object]:
    return [one["event"] for one in log if str(one["event"]).startswith("the pipeline")]
