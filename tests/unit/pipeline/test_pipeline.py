"""The starts and sessions of a pipeline, and the reasons for which it stops. Source and sink are scripted."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import structlog

from pgsluice.avro.choices import Choice
from pgsluice.avro.types import TypeOptions
from pgsluice.checkpoint import Checkpoint
from pgsluice.cut import Cut, Recorded
from pgsluice.dead_letter import DeadLetter, Reason, Refused, SourceChange
from pgsluice.errors import (
    ConfigError,
    DeadlineMissed,
    Diverged,
    DrainTimeout,
    Fenced,
    HistoryError,
    NotInBinary,
    PermissionDenied,
    PgsluiceError,
    SinkUnavailable,
    SlotInUse,
    SourceUnavailable,
    TooManyDescriptions,
    TypeChanged,
    UnavailableError,
)
from pgsluice.history import ServerIdentity, TimelineSwitch
from pgsluice.metrics import Metrics
from pgsluice.pipeline import tasks
from pgsluice.pipeline.options import PipelineOptions
from pgsluice.pipeline.outbox import Limits
from pgsluice.pipeline.pipeline import DESCRIBED_ANEW_MAX, Pipeline, State
from pgsluice.pipeline.session import SessionOptions
from pgsluice.relation import CATALOG, Column, PgType, Relation
from pgsluice.tables import TableRule, Tables
from tests.support.ends import FakeRegistry, FakeSink, FakeSource, HangingSpool, MemorySpool, World

LIMITS = Limits(cut_interval_s=0.05, cut_bytes=1 << 20, inflight_max=4 << 20, heartbeat_s=0.05)
OPTIONS = PipelineOptions(
    name="shop",
    slot="s",
    tables=Tables("shop"),
    types=TypeOptions(),
    session=SessionOptions(LIMITS),
    create_slot=True,
    adopt_slot=False,
    drain_timeout_s=5.0,
)
IN_BINARY = TypeOptions(binary=True)
CHECKPOINT = Checkpoint("shop", "s", "7001", 1, 1, 4, 9_000)


def pipeline(
    world: World,
    *,
    source: Callable[[World], FakeSource] = FakeSource,
    sink: Callable[[World], FakeSink] = FakeSink,
    spool: Callable[[], MemorySpool] = MemorySpool,
    **options: Any,  # noqa: ANN401 - any of the options
) -> Pipeline:
    async def open_source() -> FakeSource:
        world.step("connect")
        return source(world)

    async def make_sink() -> FakeSink:
        return sink(world)

    return Pipeline(replace(OPTIONS, **options), open_source, make_sink, FakeRegistry(world), spool, Metrics())


@asynccontextmanager
async def running(world: World, **how: Any) -> AsyncIterator[Pipeline]:  # noqa: ANN401 - any of the options
    """Run the pipeline within the block."""
    found = pipeline(world, **how)
    task = asyncio.create_task(found.run())
    try:
        yield found
        found.stop()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - a condition of a test has no event
            await asyncio.sleep(0.005)


async def ended(found: Pipeline) -> None:
    """Run the pipeline until it ends by itself. If it does not end, the test fails."""
    async with asyncio.timeout(30):
        await found.run()


async def streaming(found: Pipeline) -> None:
    await until(lambda: found.state is State.STREAMING)


class TestTheFirstStart:
    async def test_the_slot_is_announced_and_created_and_the_epoch_begins(self) -> None:
        world = World()
        async with running(world) as found:
            await streaming(found)
        ((cut, records, checkpoint),) = world.cuts
        assert (cut.end_lsn, records) == (10_000, [])
        assert checkpoint == Checkpoint("shop", "s", "7001", 1, 1, 1, 10_000, tracks_loads=True)

    async def test_a_crash_after_the_announcement_does_not_look_like_a_lost_checkpoint(self) -> None:
        world = World(faults={"start": [SourceUnavailable("crash")]})
        async with running(world) as found:
            await streaming(found)
        assert [checkpoint.cut for _, _, checkpoint in world.cuts] == [1]

    async def test_nothing_is_confirmed_before_the_first_cut_is_in_kafka(self) -> None:
        world = World(faults={"begin": [SinkUnavailable("not now")]})
        async with running(world) as found:
            await streaming(found)
            assert world.position == 10_000
        assert world.checkpoint is not None

    async def test_the_first_start_without_create_slot_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="create_slot is false"):
            await ended(pipeline(World(), create_slot=False))


class TestGoingOn:
    async def test_a_start_continues_from_the_checkpoint_without_repetitions(self) -> None:
        last = replace(CHECKPOINT, last_end_lsn=9_000, last_xid=700, last_commit_ts=1_000_000)
        world = World(position=8_000, checkpoint=last, server=ServerIdentity("7001", 1, 8_900))
        world.commit(1, xid=700)  # the transaction ends at 9,000, so it is delivered, but not confirmed
        world.commit(2)
        async with running(world) as found:
            await until(lambda: world.numbers == [2])
            assert found.session is not None
        assert [checkpoint.cut for _, _, checkpoint in world.cuts] == [5]

    @pytest.mark.parametrize("step", ["begin", "produce", "commit", "committed", "open_topic", "register"])
    async def test_delivery_continues_after_an_error_at_any_step(self, step: str) -> None:
        world = World()
        async with running(world) as found:
            await streaming(found)
            world.faults[step] = [SinkUnavailable("lost")]
            for number in range(1, 6):
                world.commit(number)
                await asyncio.sleep(0.01)
            await until(lambda: len(world.numbers) >= 5)
        assert world.numbers == [1, 2, 3, 4, 5]

    async def test_delivery_continues_after_the_stream_broke(self) -> None:
        world = World()
        async with running(world) as found:
            await streaming(found)
            world.commit(1)
            world.break_stream(SourceUnavailable("restart"))
            await until(lambda: found.state is State.WAITING)
            world.commit(2)
            await until(lambda: len(world.numbers) >= 2)
        assert world.numbers == [1, 2]

    async def test_a_start_keeps_the_prepare_that_holds_the_slot(self) -> None:
        world = World(position=8_000, checkpoint=replace(CHECKPOINT, held_lsn=8_500))
        async with running(world) as found:
            await streaming(found)
            assert found.session is not None
            found.session.progress.on_prepared(700, 7_999)
            assert found.session.progress.held_at(9_000) == 8_500

    async def test_delivery_continues_on_a_promoted_standby(self) -> None:
        world = World(
            position=8_000,
            checkpoint=CHECKPOINT,
            server=ServerIdentity("7001", 2, 10_000),
            history=[TimelineSwitch(1, 9_500)],
        )
        async with running(world) as found:
            await streaming(found)
            world.commit(3)
            await until(lambda: world.numbers)
        assert world.cuts[0][2].timeline == 2

    async def test_a_standby_waits_until_the_owner_is_gone(self) -> None:
        """Let the standby wait without a connection to Kafka."""
        world = World(position=8_000, checkpoint=CHECKPOINT, streaming=True)
        world.faults["prepare"] = [SinkUnavailable("Kafka is away.")]
        async with running(world) as found:
            await until(lambda: found.state is State.STANDBY)
            assert world.owner is None
            assert world.faults["prepare"]
            world.streaming = False
            await streaming(found)


class TestPoison:
    """When a cut is committed, Kafka refuses a record because of its content."""

    def refused(self, *numbers: int) -> Refused:
        """Return the refusal of these rows of the first transaction, which commits at 10,050."""
        letters = [
            DeadLetter(
                SourceChange("public", "numbers", "c", 1, 10_050, number - 1, 10_000, 0),
                "shop.public.numbers",
                Reason.RECORD_TOO_LARGE,
                "larger than the limit",
            )
            for number in numbers
        ]
        return Refused("Kafka cannot take a record.", letters)

    def world(self, *refusals: Refused) -> World:
        world = World(position=10_000, checkpoint=replace(CHECKPOINT, end_lsn=10_000))
        world.commit(1, 2, 3)
        world.commit(4)
        world.faults["commit"] = [*refusals]
        return world

    async def test_a_refusal_stops_the_process(self) -> None:
        with pytest.raises(Refused, match="cannot take"):
            await ended(pipeline(self.world(self.refused(2))))

    async def test_dead_letters_replace_refused_records_in_the_next_session(self) -> None:
        world = self.world(self.refused(2), self.refused(3))
        async with running(world, dead_letters=True) as found:
            await until(lambda: len(world.numbers) == 4)
            metrics = found._metrics.registry
        ops = [record.op for _, records, _ in world.cuts for record in records]
        assert ops == ["c", "dead_letter", "dead_letter", "c"]
        assert metrics.get_sample_value("pgsluice_dead_letters_total") == 2.0
        assert metrics.get_sample_value("pgsluice_events_total", {"op": "c"}) == 2.0
        assert metrics.get_sample_value("pgsluice_session_errors_total", {"error": "Refused"}) == 2.0

    async def test_a_refused_dead_letter_stops_the_process(self) -> None:
        with pytest.raises(Refused, match="cannot take"):
            await ended(pipeline(self.world(self.refused(2), self.refused(2)), dead_letters=True))

    async def test_a_refusal_during_a_stop_is_reported(self) -> None:
        world = self.world(self.refused(2))
        world.commit_gate = asyncio.Event()
        found = pipeline(world, dead_letters=True)
        task = asyncio.create_task(found.run())
        await until(lambda: found.session is not None and found.session.status.buffered_bytes)
        found.stop()
        world.commit_gate.set()
        with pytest.raises(DrainTimeout, match=r"cannot take a record\. Nothing is lost"):
            await task


class TestWhenItMustNotGoOn:
    @pytest.mark.parametrize(
        ("world", "sentence"),
        [
            (World(position=5), "there is no checkpoint for it in Kafka"),
            (World(checkpoint=CHECKPOINT), "does not exist on this server"),
            (World(position=9_001, checkpoint=CHECKPOINT), "Somebody else advanced"),
            (World(position=8_001, checkpoint=replace(CHECKPOINT, held_lsn=8_000)), "after a PREPARE TRANSACTION at"),
            (World(position=5, checkpoint=replace(CHECKPOINT, end_lsn=10_001)), "the server's WAL ends at"),
            (World(position=5, checkpoint=replace(CHECKPOINT, slot="t")), "written for slot 't'"),
            (World(position=5, checkpoint=replace(CHECKPOINT, systemid="9")), "system identifier 9"),
            (World(position=5, checkpoint=replace(CHECKPOINT, timeline=3)), "is not an ancestor"),
        ],
    )
    async def test_a_problem_stops_the_pipeline_until_a_new_history_is_started(
        self, world: World, sentence: str
    ) -> None:
        with pytest.raises(HistoryError, match=sentence):
            await ended(pipeline(world))
        assert not world.cuts
        last = world.checkpoint
        async with running(world, adopt_slot=True) as found:
            await streaming(found)
        assert world.checkpoint is not None
        if last is not None:
            assert (world.checkpoint.epoch, world.checkpoint.cut) == (last.epoch + 1, last.cut + 1)
        assert world.checkpoint.end_lsn == world.position

    @pytest.mark.parametrize(
        ("position", "recorded", "birth"),
        [
            (8_000, Recorded(), (1, 1)),
            (8_000, Recorded(1, 1), (2, 2)),
            (8_000, Recorded(3, 40), (4, 41)),
            (None, Recorded(), (1, 1)),
            (None, Recorded(1, 1), (1, 1)),  # no slot, and cut 1 alone does not prove a loss, see is_outrun
            (None, Recorded(3, 40), (4, 41)),
        ],
    )
    async def test_a_lost_checkpoint_does_not_begin_a_former_epoch_again(
        self, position: int | None, recorded: Recorded, birth: tuple[int, int]
    ) -> None:
        """Begin a new epoch, because new records in a former epoch would look older than those that readers have."""
        world = World(position=position, recorded=recorded)
        async with running(world, adopt_slot=True) as found:
            await streaming(found)
        assert world.checkpoint is not None
        assert (world.checkpoint.epoch, world.checkpoint.cut) == birth

    async def test_a_slot_that_was_lost_together_with_the_checkpoint_is_not_replaced_silently(self) -> None:
        world = World(recorded=Recorded(3, 40))
        for _ in range(2):
            with pytest.raises(HistoryError, match="Cut 40 was delivered, but the checkpoint that belongs to it"):
                await pipeline(world).run()
        assert not world.cuts
        async with running(world, adopt_slot=True) as found:
            await streaming(found)

    async def test_a_history_that_another_owner_has_just_begun_is_noticed(self) -> None:
        world = World(position=10_000, checkpoint=replace(CHECKPOINT, cut=0, end_lsn=0))

        class Late(FakeSink):
            async def recorded(self) -> Recorded:
                world.checkpoint = replace(CHECKPOINT, end_lsn=10_000)
                return Recorded(1, 4)

        async with running(world, sink=Late) as found:
            await until(lambda: found.last_error is not None)
            assert "taken over while this one was starting" in str(found.last_error)
            await streaming(found)

    async def test_cuts_that_the_last_checkpoint_does_not_know_are_not_written_again(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT, recorded=Recorded(1, 6))
        with pytest.raises(HistoryError, match=r"Cut 6 is recorded as delivered, but .* belongs to cut 4"):
            await ended(pipeline(world))
        assert world.checkpoint == CHECKPOINT

    async def test_a_checkpoint_that_was_never_committed_does_not_count(self) -> None:
        shown = replace(CHECKPOINT, cut=5, end_lsn=12_000)
        world = World(
            position=8_000, checkpoint=shown, former_checkpoints=[CHECKPOINT], recorded=Recorded(1, 4), wal=[]
        )
        world.server = ServerIdentity("7001", 1, 11_000)
        end_lsn = world.commit(7)
        world.server = ServerIdentity("7001", 1, 12_000)
        async with running(world):
            await until(lambda: world.numbers == [7])
        ((cut, _, checkpoint),) = world.cuts
        assert (checkpoint.cut, cut.end_lsn) == (5, end_lsn)

    async def test_a_server_that_went_back_is_refused_until_it_is_adopted(self) -> None:
        world = World(position=5, checkpoint=replace(CHECKPOINT, end_lsn=10_001))
        with pytest.raises(Diverged, match="the server's WAL ends at"):
            await ended(pipeline(world))
        world.server = replace(world.server, xlogpos=20_000)
        with pytest.raises(HistoryError, match=r"the server's WAL ends at .* An earlier run found this"):
            await ended(pipeline(world))
        async with running(world, adopt_slot=True) as found:
            await streaming(found)
            assert (found.session and found.session.checkpoint.epoch, world.position) == (2, 5)

    async def test_a_server_that_sends_new_changes_at_old_positions_is_refused(self) -> None:
        world = World(position=5, checkpoint=CHECKPOINT, server=ServerIdentity("7001", 1, 8_000))
        world.commit(1)
        world.server = replace(world.server, xlogpos=20_000)
        for _ in range(2):
            with pytest.raises(HistoryError, match=r"has sent transaction 8000"):
                await ended(pipeline(world))
        assert (world.cuts, world.position) == ([], 5)
        async with running(world, adopt_slot=True):
            await until(lambda: world.numbers == [1])

    async def test_a_server_that_shuts_down_while_kafka_makes_the_refusal_wait(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Close the connection, because nobody reads the stream any more, and the server waits for its walsender."""
        monkeypatch.setattr(tasks, "WATCH_S", 0.01)
        world = World(position=5, checkpoint=CHECKPOINT, server=ServerIdentity("7001", 1, 8_000))
        world.commit(1)
        world.server = replace(world.server, xlogpos=20_000)

        class Hanging(FakeSink):
            async def refuse(self, checkpoint: Checkpoint) -> None:
                world.faults["flushed_lsn"] = [SourceUnavailable("shuts down")]
                await until(lambda: not world.streaming)
                await super().refuse(checkpoint)

        with pytest.raises(Diverged, match=r"has sent transaction 8000"):
            await ended(pipeline(world, sink=Hanging))
        assert world.checkpoint is not None
        assert "has sent transaction 8000" in world.checkpoint.refused

    async def test_schemas_of_an_owner_that_has_just_ended_are_found(self) -> None:
        """Read the registry again after the cut records.

        Each schema is registered before the cut that needs it. So the second reading finds the schemas of all cuts.
        """
        world = World(
            position=8_000, checkpoint=CHECKPOINT, recorded=Recorded(1, 4, topics=frozenset({"shop.public.late"}))
        )

        class Late(FakeSink):
            async def recorded(self) -> Recorded:
                world.schemas["shop.public.late-value"] = [{"name": "Envelope"}]
                return await super().recorded()

        async with running(world, sink=Late) as found:
            await streaming(found)
            assert world.described_topics == {"shop.public.late"}

    async def test_adopt_slot_changes_nothing_without_a_problem(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT)
        async with running(world, adopt_slot=True) as found:
            await streaming(found)
        assert world.checkpoint == CHECKPOINT

    @pytest.mark.parametrize("position", [None, 8_000])
    async def test_another_pipelines_prefix_cannot_be_adopted(self, position: int | None) -> None:
        world = World(position=position, checkpoint=replace(CHECKPOINT, pipeline="other"))
        with pytest.raises(ConfigError, match="belong to pipeline 'other'"):
            await ended(pipeline(world, adopt_slot=True))

    async def test_another_transaction_in_place_of_the_delivered_one_is_refused(self) -> None:
        last = replace(CHECKPOINT, last_end_lsn=9_000, last_xid=1, last_commit_ts=1)
        world = World(position=8_000, checkpoint=last, server=ServerIdentity("7001", 1, 8_900))
        world.commit(1)
        with pytest.raises(HistoryError, match="restored from a backup"):
            await ended(pipeline(world))

    async def test_a_server_that_does_not_send_the_last_transaction_again_is_refused(self) -> None:
        last = replace(CHECKPOINT, last_end_lsn=8_500, last_xid=1, last_commit_ts=1)
        world = World(position=8_000, checkpoint=last)
        world.commit(1)
        with pytest.raises(HistoryError, match=r"did not send it again\. So the server was restored"):
            await ended(pipeline(world))

    async def test_an_error_that_is_not_retried_ends_the_pipeline(self) -> None:
        with pytest.raises(PermissionDenied):
            await ended(pipeline(World(faults={"connect": [PermissionDenied("password")]})))

    async def test_a_slot_that_is_dropped_during_the_start_is_reported(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT)

        class Dropped(FakeSource):
            async def start(self) -> Any:  # noqa: ANN401 - as the fake's
                stream = await super().start()
                world.position = None
                return stream

        with pytest.raises(ConfigError, match="was dropped while it was being started"):
            await ended(pipeline(world, source=Dropped))

    async def test_a_large_transaction_that_misses_its_deadline_twice_stops_the_process(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT, faults={"commit": [DeadlineMissed("late")] * 2})
        world.commit(*range(1, 50))
        with pytest.raises(UnavailableError, match=r"0.0 MiB of it were written, at 0.00 MiB/s.*transaction_timeout"):
            await ended(pipeline(world, session=SessionOptions(replace(LIMITS, cut_bytes=2_000))))

    async def test_a_large_transaction_that_misses_its_deadline_once_is_tried_again(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT, faults={"commit": [DeadlineMissed("late")]})
        world.commit(*range(1, 50))
        async with running(world, session=SessionOptions(replace(LIMITS, cut_bytes=2_000))):
            await until(lambda: len(world.numbers) == 49)

    async def test_a_type_that_changed_is_described_again(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT, faults={"begin": [TypeChanged("a part is not known")]})
        world.commit(1)
        async with running(world):
            await until(lambda: world.numbers == [1])
            world.faults["begin"] = [TypeChanged("a part is not known")]
            world.commit(2)
            await until(lambda: world.numbers == [1, 2])

    async def test_a_value_that_still_cannot_be_read_comes_as_text(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT, faults={"begin": [TypeChanged("a part is not known")] * 2})
        world.commit(1)
        async with running(world, types=IN_BINARY) as found:
            await until(lambda: world.numbers == [1])
            assert not found.binary

    async def test_types_that_change_again_and_again_come_as_text(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT)
        world.commit(0)
        async with running(world, types=IN_BINARY) as found:
            await until(lambda: world.numbers == [0])
            for number in range(1, DESCRIBED_ANEW_MAX + 2):
                assert found.binary
                world.faults["begin"] = [TypeChanged("a part is not known")]
                world.commit(number)
                await until(lambda: world.numbers[-1] == number)  # noqa: B023 - called at once
            assert not found.binary

    async def test_a_value_that_has_no_binary_format_comes_as_text(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT, faults={"begin": [NotInBinary("It has none.")]})
        world.commit(1)
        async with running(world, types=IN_BINARY) as found:
            await until(lambda: world.numbers == [1])
            assert not found.binary

    async def test_too_many_tables_stop_a_pipeline_that_does_not_advance(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT, faults={"begin": [TooManyDescriptions("Too many.")] * 2})
        world.commit(1)
        with pytest.raises(UnavailableError, match=r"nothing after 0/2328 was delivered.*pg_prepared_xacts"):
            await ended(pipeline(world))

    async def test_too_many_tables_do_not_stop_a_pipeline_that_advances(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT, faults={"begin": [TooManyDescriptions("Too many.")]})
        world.commit(1)
        async with running(world):
            await until(lambda: world.numbers == [1])
            world.faults["begin"] = [TooManyDescriptions("Too many.")]
            world.commit(2)
            await until(lambda: world.numbers == [1, 2])

    async def test_a_small_cut_that_misses_its_deadline_is_tried_again(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT, faults={"commit": [DeadlineMissed("late")] * 2})
        world.commit(1)
        async with running(world):
            await until(lambda: world.numbers == [1])

    async def test_being_fenced_by_a_writer_while_the_slot_is_ours_stops_the_process(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT)

        class Overtaken(FakeSink):
            async def commit(self, _cut: Cut, checkpoint: Checkpoint) -> None:
                world.checkpoint = replace(checkpoint, end_lsn=checkpoint.end_lsn + 8)
                raise Fenced("Another took over.")

        world.commit(1)
        with pytest.raises(UnavailableError, match="It does not stream from our slot"):
            await ended(pipeline(world, sink=Overtaken))

    @pytest.mark.parametrize("step", ["commit", "committed"])
    async def test_being_fenced_by_a_process_that_writes_nothing_is_retried(self, step: str) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT, faults={step: [Fenced("Another took over.")]})
        world.commit(1)
        async with running(world) as found:
            await until(lambda: found.last_error == "Another took over.")
            await streaming(found)
            world.commit(2)
            await until(lambda: world.numbers == [1, 2])

    @pytest.mark.parametrize("shown", [[replace(CHECKPOINT, cut=1)], []])
    async def test_an_outdated_checkpoint_after_being_fenced_is_retried(self, shown: list[Checkpoint]) -> None:
        """Start a new session, because an outdated checkpoint does not show who has written the last checkpoint."""
        world = World(position=8_000, checkpoint=CHECKPOINT)
        outdated: list[list[Checkpoint]] = []

        class Outdated(FakeSink):
            async def checkpoints(self) -> list[Checkpoint]:
                return outdated.pop() if outdated else await super().checkpoints()

        async with running(world, sink=Outdated):
            world.commit(1)
            await until(lambda: world.numbers == [1])
            outdated.append(shown)
            world.faults["commit"] = [Fenced("Another took over.")]
            world.commit(2)
            await until(lambda: world.numbers == [1, 2])
        assert not outdated

    async def test_being_fenced_by_a_process_that_refuses_the_server_stops_the_process(self) -> None:
        """Stop, because the next session reads in the checkpoint topic that the other process has refused the server.

        The other process owned the slot when it began to write this refusal.
        """
        world = World(position=8_000, checkpoint=CHECKPOINT)

        class Overtaken(FakeSink):
            async def commit(self, _cut: Cut, _checkpoint: Checkpoint) -> None:
                world.checkpoint = replace(CHECKPOINT, refused="The server went back.")
                raise Fenced("Another took over.")

        world.commit(1)
        with pytest.raises(HistoryError, match="The server went back"):
            await ended(pipeline(world, sink=Overtaken))

    async def test_being_fenced_in_the_first_session_after_a_promotion_is_retried(self) -> None:
        """Start a new session, although the session's checkpoint differs from the one in Kafka.

        The session's checkpoint is on the new timeline. Kafka still has the checkpoint that the session found.
        """
        world = World(
            position=8_000,
            checkpoint=CHECKPOINT,
            server=ServerIdentity("7001", 2, 10_000),
            history=[TimelineSwitch(1, 8_500)],
            faults={"begin": [Fenced("Another took over.")]},
        )
        world.commit(1)
        async with running(world) as found:
            await until(lambda: world.numbers == [1])
            assert found.session is not None
            assert (found.session.checkpoint.timeline, found.session.checkpoint.epoch) == (2, 1)

    async def test_being_fenced_by_the_slots_new_owner_makes_a_standby(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT)

        class Taken(FakeSource):
            async def slot_position(self) -> int | None:
                if world.cuts:
                    raise SlotInUse("active for another")
                return await super().slot_position()

        async with running(world, source=Taken) as found:
            await streaming(found)
            world.commit(1)
            await until(lambda: world.numbers)
            world.faults["commit"] = [Fenced("Another took over.")]
            world.commit(2)
            await until(lambda: found.state is State.STANDBY)


class TestAdopting:
    async def test_adopt_slot_applies_only_once(self) -> None:
        world = World(position=8_000)
        with pytest.raises(HistoryError, match="Somebody else advanced"):  # noqa: PT012 - the end of the block raises
            async with running(world, adopt_slot=True) as found:
                await streaming(found)
                world.commit(1)
                await until(lambda: world.numbers)
                world.server = replace(world.server, xlogpos=20_000)
                world.position = 15_000
                world.break_stream(SourceUnavailable("restart"))
                await until(lambda: found.state is State.STOPPED or not world.streams)
                await asyncio.sleep(1)
        assert world.numbers == [1]


class TestTheWrongServerForAMoment:
    @pytest.mark.parametrize(
        "world",
        [
            World(checkpoint=CHECKPOINT, standby=True),
            World(position=5, checkpoint=replace(CHECKPOINT, end_lsn=10_001), standby=True),
        ],
    )
    async def test_the_start_waits_for_a_standby(self, world: World) -> None:
        async with running(world) as found:
            await until(lambda: found.state is State.WAITING)
            assert "The server is a standby" in (found.last_error or "")
            world.standby = False
            world.position = 8_000
            world.server = replace(world.server, xlogpos=20_000)
            await streaming(found)

    async def test_a_slot_that_another_process_creates_meanwhile_is_used(self) -> None:
        world = World()

        class Late(FakeSink):
            async def fence(self) -> None:
                await super().fence()
                if world.position is None:
                    world.position, world.checkpoint = 8_000, CHECKPOINT

        async with running(world, sink=Late) as found:
            await streaming(found)
        assert world.checkpoint == CHECKPOINT

    async def test_a_server_that_shuts_down_while_kafka_makes_the_start_wait(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An ordinary connection has to notice the shutdown, because nobody reads the replication stream yet."""
        monkeypatch.setattr(tasks, "WATCH_S", 0.01)
        world = World(position=8_000, checkpoint=CHECKPOINT, faults={"flushed_lsn": [SourceUnavailable("shuts down")]})

        class Hanging(FakeSink):
            async def checkpoints(self) -> list[Checkpoint]:
                if world.faults["flushed_lsn"]:
                    await asyncio.sleep(60)
                return await super().checkpoints()

        async with running(world, sink=Hanging) as found:
            await until(lambda: found.state is State.WAITING)
            await streaming(found)

    async def test_a_process_on_the_wrong_server_does_not_fence_the_owner(self) -> None:
        world = World(checkpoint=CHECKPOINT, faults={"fence": [Fenced("The owner was disturbed.")]})
        with pytest.raises(HistoryError, match="If this is the wrong server"):
            await ended(pipeline(world))
        assert world.faults["fence"]

    async def test_deliveries_of_another_owner_during_the_start_are_not_ahead_of_the_server(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT)

        class Early(FakeSource):
            async def identify(self) -> ServerIdentity:
                return replace(await super().identify(), xlogpos=8_500)

        async with running(world, source=Early) as found:
            await streaming(found)

    async def test_being_fenced_before_the_slot_is_ours_does_not_stop_the_process(self) -> None:
        world = World(faults={"announce": [Fenced("Another took over.")]})
        async with running(world) as found:
            await streaming(found)


class TestChosenTypes:
    """The settings choose the types of columns. These types are checked once, at the beginning."""

    CHOSEN = replace(OPTIONS.tables, rules=[TableRule("public.*", types={"n": Choice.parse("uuid")})])

    async def test_an_impossible_type_stops_the_process_before_anything_is_created(self) -> None:
        column = Column("n", PgType(23, CATALOG, "int4"), -1, is_key=True)
        world = World(published=[Relation(1, "public", "t", "d", (column,))])
        with pytest.raises(ConfigError, match=r"table public\.t: column n of type int4 cannot be uuid"):
            await ended(pipeline(world, tables=self.CHOSEN))
        assert (world.streams, world.owner, world.position, world.checkpoint) == ([], None, None, None)

    async def test_an_impossible_type_quarantines_the_table_before_its_first_change(self) -> None:
        column = Column("n", PgType(23, CATALOG, "int4"), -1, is_key=True)
        world = World(position=8_000, checkpoint=CHECKPOINT, published=[Relation(1, "public", "t", "d", (column,))])
        with structlog.testing.capture_logs() as lines:
            async with running(world, tables=self.CHOSEN, quarantine=True) as found:
                await streaming(found)
        (line,) = [line for line in lines if line["event"] == "a table cannot be published"]
        assert (line["log_level"], "column n of type int4 cannot be uuid" in line["reason"]) == ("error", True)

    async def test_tables_that_have_no_such_column_are_fine(self) -> None:
        column = Column("id", PgType(23, CATALOG, "int4"), -1, is_key=True)
        relations = [Relation(1, "public", "t", "d", (column,)), Relation(2, "other", "t", "d", (column,))]
        world = World(position=8_000, checkpoint=CHECKPOINT, published=relations)
        async with running(world, tables=self.CHOSEN) as found:
            await streaming(found)

    async def test_the_elements_of_arrays_are_queried(self) -> None:
        column = Column("n", PgType(7_001, "public", "_mood"), -1, is_key=False)
        world = World(position=8_000, published=[Relation(1, "public", "t", "d", (column,))])
        with pytest.raises(ConfigError, match="cannot be uuid"):
            await ended(pipeline(world, tables=self.CHOSEN))
        assert world.described == [[7_001]]

    async def test_the_types_are_checked_once(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT)
        tables = replace(OPTIONS.tables, rules=[TableRule("public.*", types={"other": Choice.parse("uuid")})])
        async with running(world, tables=tables) as found:
            await streaming(found)
            world.faults |= {"commit": [SinkUnavailable("no")], "published_relations": [ConfigError("asked again")]}
            world.commit(1)
            await until(lambda: world.numbers == [1])

    @pytest.mark.parametrize("late", [SourceUnavailable("statement timeout"), TimeoutError()])
    async def test_a_slow_catalog_does_not_delay_the_start(self, late: Exception) -> None:
        """Continue without the check, because users who may create tables can make the check arbitrarily slow."""
        world = World(position=8_000, checkpoint=CHECKPOINT, faults={"published_relations": [late]})
        tables = replace(OPTIONS.tables, rules=[TableRule("public.*", types={"other": Choice.parse("uuid")})])
        with structlog.testing.capture_logs() as lines:
            async with running(world, tables=tables) as found:
                await streaming(found)
                assert found._failures == 0
        (line,) = [line for line in lines if line["event"] == "the types of the published columns were not checked"]
        assert str(late) in line["reason"]
        assert line["reason"]

    async def test_without_chosen_types_the_catalog_is_not_queried(self) -> None:
        world = World(
            position=8_000, checkpoint=CHECKPOINT, faults={"published_relations": [ConfigError("asked in vain")]}
        )
        async with running(world) as found:
            await streaming(found)


class TestBackOff:
    async def test_an_error_that_recurs_is_tried_again_ever_more_slowly(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT, faults={"produce": [SinkUnavailable("no")] * 9})
        world.commit(1)
        async with running(world) as found:
            await until(lambda: found._failures == 2)
            world.faults.clear()
            await until(lambda: world.numbers)

    async def test_retries_have_no_time_limit(self) -> None:
        world = World(faults={"connect": [SourceUnavailable("down")] * 99})
        async with running(world) as found:
            found._failures = 5_000
            await until(lambda: found._failures == 5_001 or found.state is State.WAITING)

    async def test_a_delivery_resets_the_back_off(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT)
        async with running(world) as found:
            await streaming(found)
            found._failures = 3
            world.commit(1)
            await until(lambda: world.numbers)
            world.break_stream(SourceUnavailable("restart"))
            await until(lambda: found._failures == 1)


class TestStopping:
    async def test_complete_transactions_are_delivered_and_confirmed(self) -> None:
        world = World()
        async with running(world) as found:
            await streaming(found)
            (stream,) = world.streams
            world.commit_gate = asyncio.Event()
            end_lsn = world.commit(1)
            await until(lambda: found.session is not None and found.session.progress.received == end_lsn)
            asyncio.get_running_loop().call_later(0.05, world.commit_gate.set)
        assert world.numbers == [1]
        assert (stream.reports[-1], stream.stopped) == ((end_lsn, end_lsn), True)
        assert found.state is State.STOPPED

    async def test_a_stop_does_not_wait_longer_than_the_time_limit(self) -> None:
        world = World()
        with pytest.raises(DrainTimeout):  # noqa: PT012 - the end of the block raises it
            async with running(world, drain_timeout_s=0.05) as found:
                await streaming(found)
                world.commit_gate = asyncio.Event()
                world.commit(1)
                await asyncio.sleep(0.05)

    async def test_a_stop_does_not_wait_for_a_disk_that_hangs(self) -> None:
        world = World()
        with pytest.raises(DrainTimeout):  # noqa: PT012 - the end of the block raises it
            async with running(world, drain_timeout_s=0.05, spool=HangingSpool) as found:
                await streaming(found)
                end_lsn = world.commit(1)
                await until(lambda: found.session is not None and found.session.progress.received == end_lsn)
        assert not world.streaming, "the slot is free"

    async def test_a_stop_with_undelivered_changes_is_an_error(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT, commit_gate=asyncio.Event())
        with pytest.raises(DrainTimeout, match="Nothing is lost"):  # noqa: PT012 - the end of the block raises
            async with running(world) as found:
                await streaming(found)
                world.commit(1)
                await until(lambda: found.session is not None and found.session.status.buffered_bytes)
                world.faults["commit"] = [SinkUnavailable("down")]
                assert world.commit_gate is not None
                asyncio.get_running_loop().call_later(0.05, world.commit_gate.set)

    @pytest.mark.parametrize("faults", [{"connect": SourceUnavailable("down")}, {"registry": SinkUnavailable("down")}])
    async def test_a_stop_ends_a_wait_at_once(self, faults: dict[str, PgsluiceError]) -> None:
        world = World(faults={step: [error] * 99 for step, error in faults.items()})
        async with running(world) as found:
            await asyncio.sleep(0.05)
        assert found.state is State.STOPPED

    async def test_a_stop_during_the_start_of_a_session(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT)
        hanging = asyncio.Event()

        async def source() -> FakeSource:
            hanging.set()
            await asyncio.sleep(60)
            return FakeSource(world)

        async def sink() -> FakeSink:
            return FakeSink(world)

        found = Pipeline(OPTIONS, source, sink, FakeRegistry(world), MemorySpool, Metrics())
        task = asyncio.create_task(found.run())
        await hanging.wait()
        found.stop()
        async with asyncio.timeout(5):
            await task


class TestSignsOfLife:
    async def test_the_wait_before_a_retry_gives_signs_of_life(self) -> None:
        world = World(position=8_000, checkpoint=CHECKPOINT, streaming=True)
        async with running(world) as found:
            await until(lambda: found.state is State.STANDBY)
            beat_at = found.vitals._beat_at
            await until(lambda: found.vitals._beat_at > beat_at)

    async def test_a_step_that_hangs_is_reported(self) -> None:
        class Hanging(FakeSource):
            async def slot_position(self) -> int | None:
                await asyncio.sleep(60)
                return None

        async with running(World(), source=Hanging) as found:
            await until(lambda: found.vitals.silent_s > 0.05)

    async def test_waiting_for_kafka_is_not_silence(self) -> None:
        class Hanging(FakeSink):
            async def prepare(self) -> None:
                await asyncio.sleep(60)

        async with running(World(), sink=Hanging) as found:
            await asyncio.sleep(0.1)
            assert found.vitals.silent_s == 0.0
