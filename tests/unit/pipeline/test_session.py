"""One session: confirmed positions, heartbeats, and a server that shuts down. Source and sink are scripted."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest
import structlog

from pgsluice import rows
from pgsluice.avro.types import TypeOptions
from pgsluice.checkpoint import Checkpoint
from pgsluice.commands import Answer, CommandState
from pgsluice.errors import Diverged, PoisonError, ProtocolError, SourceUnavailable
from pgsluice.history import ServerIdentity
from pgsluice.metrics import Metrics
from pgsluice.pgoutput import messages
from pgsluice.pgoutput.framing import Keepalive, XLogData
from pgsluice.pipeline import outbox, session_status, shortcut, shutdown, watch
from pgsluice.pipeline import session as module
from pgsluice.pipeline.encoders import Encoders
from pgsluice.pipeline.outbox import Limits
from pgsluice.pipeline.session import Ends, Session, SessionOptions
from pgsluice.pipeline.vitals import Vitals
from pgsluice.postgres.stream import MIN_STATUS_GAP_S
from pgsluice.progress import Progress, ResentKind
from pgsluice.resending import to_be_resent
from pgsluice.tables import Tables
from pgsluice.transaction import Transaction
from tests.support.ends import (
    TABLE,
    FakeRegistry,
    FakeSink,
    FakeSource,
    FakeStream,
    HangingSpool,
    MemoryRows,
    MemorySpool,
    World,
    data,
)

TABLE_IN_STREAM = replace(TABLE, xid=700)
CHECKPOINT = Checkpoint("shop", "s", "7001", 1, 1, 4, 10_000)


class Running:
    """A session in progress."""

    def __init__(
        self,
        world: World,
        limits: Limits,
        tables: Tables,
        spool: MemorySpool,
        checkpoint: Checkpoint,
        progress: Progress,
    ) -> None:
        self.world = world
        self.spool = spool
        self.checkpoint = checkpoint
        self.progress = progress
        self.vitals = Vitals()
        self.metrics = Metrics()
        self.stop = asyncio.Event()
        self.limits = limits
        self.tables = tables

    async def start(self) -> None:
        source, sink = FakeSource(self.world), FakeSink(self.world)
        self.stream: FakeStream = await source.start()
        await sink.fence()
        encoders = Encoders(source, sink, FakeRegistry(self.world), self.tables, TypeOptions())
        options = SessionOptions(self.limits)
        ends = Ends(source, self.stream, sink, encoders, self.spool, self.vitals)
        self.session = Session(ends, self.checkpoint, options, self.metrics, self.progress)
        self.task = asyncio.create_task(self.session.run(self.stop))

    async def finish(self) -> None:
        self.stop.set()
        await self.task

    def has_received(self, end_lsn: int) -> bool:
        return self.session.progress.received == end_lsn

    @property
    def confirmed(self) -> int:
        return self.stream.reports[-1][1] if self.stream.reports else 0

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"pgsluice_{name}", labels) or 0.0


@asynccontextmanager
async def running(  # noqa: PLR0913 - each test chooses some of a session's parts
    world: World,
    *,
    heartbeat_s: float = 60.0,
    cut_bytes: int = 1 << 20,
    inflight_max: int = 4 << 20,
    tables: Tables | None = None,
    spool: MemorySpool | None = None,
    checkpoint: Checkpoint = CHECKPOINT,
    to_be_resent: Mapping[int, ResentKind] | None = None,
) -> AsyncIterator[Running]:
    limits = Limits(0.05, cut_bytes, inflight_max, heartbeat_s)
    progress = Progress(checkpoint.end_lsn, to_be_resent or {})
    found = Running(world, limits, tables or Tables("shop"), spool or MemorySpool(), checkpoint, progress)
    await found.start()
    try:
        yield found
    finally:
        found.task.cancel()
        await asyncio.gather(found.task, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - a condition of a test has no event
            await asyncio.sleep(0.005)


async def test_a_transaction_is_confirmed_when_its_cut_is_committed_and_not_before() -> None:
    world = World(position=10_000, commit_gate=asyncio.Event())
    async with running(world) as found:
        end_lsn = world.commit(1, 2)
        await until(lambda: found.session.progress.received == end_lsn)
        await asyncio.sleep(0.05)
        assert found.confirmed <= 10_000
        assert world.commit_gate is not None
        world.commit_gate.set()
        await until(lambda: found.confirmed == end_lsn)
        assert found.metric("events_total", op="c") == 2
        assert found.metric("transactions_total") == 1
        assert found.metric("cuts_total", kind="data") == 1


async def test_the_next_cut_is_filled_while_one_is_committed() -> None:
    world = World(position=10_000, commit_gate=asyncio.Event())
    async with running(world) as found:
        for number in range(1, 6):
            end_lsn = world.commit(number)
            await until(partial(found.has_received, end_lsn))
        assert world.commit_gate is not None
        world.commit_gate.set()
        await until(lambda: found.confirmed == end_lsn)
    assert [[(r.key or b"")[-1] // 2 for r in records] for _, records, _ in world.cuts] == [[1], [2, 3, 4, 5]]


async def test_topics_of_new_tables_that_come_in_one_read_are_made_together() -> None:
    world = World(position=10_000)
    tables = [replace(TABLE, oid=TABLE.oid + number, name=f"t{number}") for number in range(3)]
    async with running(world) as found:
        rows = [data(one) for table in tables for one in (table, messages.Insert(None, table.oid, [b"1"]))]
        frames = [data(messages.Begin(10_050, 0, 700)), *rows, data(messages.Commit(10_050, 10_100, 0))]
        world.append(10_050, frames, 10_100)
        await until(lambda: found.confirmed == 10_100)
    # the topic of t0 was created alone, because its row comes first
    assert world.prepared == [["shop.public.t1", "shop.public.t2"]]
    assert world.topics == {f"shop.public.t{number}" for number in range(3)}


def small(world: World, *numbers: int) -> int:
    """Commit transactions of one row each, which all arrive in one read. Return the last end LSN.

    Only the first transaction describes the table.
    """
    frames: list[XLogData | Keepalive] = []
    for number in numbers:
        begin = world.server.xlogpos
        sent: list[messages.Message] = [messages.Begin(begin + 50, 1_000_000, begin)]
        sent += [TABLE] * (number == numbers[0])
        sent += [messages.Insert(None, TABLE.oid, [str(number).encode()]), messages.Commit(begin + 50, begin + 100, 1)]
        frames += [data(one) for one in sent]
        world.server = replace(world.server, xlogpos=begin + 100)
    world.append(world.server.xlogpos - 50, frames, world.server.xlogpos)
    return world.server.xlogpos


async def test_small_transactions_are_counted_and_confirmed_one_by_one() -> None:
    world = World(position=10_000)
    async with running(world) as found:
        end_lsn = small(world, 1, 2, 3, 4)
        await until(lambda: found.confirmed == end_lsn)
        assert found.metric("transactions_total") == 4
    ((cut, _, _),) = world.cuts
    assert world.numbers == [1, 2, 3, 4]
    assert (cut.first, cut.last) == (
        Transaction(10_000, 10_050, 1_000_000),
        (Transaction(10_300, 10_350, 1_000_000), 10_400),
    )


@pytest.mark.parametrize("has_shortcut", [True, False])
@pytest.mark.parametrize(("inflight_max", "cuts"), [(800, [2, 2, 2, 1]), (1 << 20, [2, 5])])
async def test_small_transactions_fill_cuts_like_others(
    monkeypatch: pytest.MonkeyPatch, inflight_max: int, cuts: list[int], *, has_shortcut: bool
) -> None:
    """Fill cuts of small transactions up to the limits. The second cut fills while the first one is being committed."""
    if not has_shortcut:
        monkeypatch.setattr(shortcut, "add_transactions", rows.add_transactions)
    world = World(position=10_000)
    async with running(world, cut_bytes=400, inflight_max=inflight_max) as found:
        end_lsn = small(world, *range(1, 8))
        await until(lambda: found.confirmed == end_lsn)
    assert world.numbers == [*range(1, 8)]
    assert [cut.transactions for cut, _, _ in world.cuts] == cuts


async def test_idle_progress_is_written_before_it_is_confirmed() -> None:
    world = World(position=10_000)
    async with running(world, heartbeat_s=0.05) as found:
        world.keepalive(12_345)
        await until(lambda: found.confirmed == 12_345)
        ((cut, records, checkpoint),) = world.cuts
        assert (cut.end_lsn, cut.transactions, records) == (12_345, 0, [])
        assert checkpoint.end_lsn == 12_345
        assert found.metric("cuts_total", kind="heartbeat") == 1


async def test_without_progress_there_are_no_heartbeats() -> None:
    world = World(position=10_000)
    async with running(world, heartbeat_s=0.01):
        world.keepalive(9_000)
        await asyncio.sleep(0.1)
    assert not world.cuts


async def test_without_progress_a_cut_is_written_occasionally(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a cut that does not move the position, so that changes of topics are noticed."""
    monkeypatch.setattr(outbox, "QUIET_S", 0.05)
    world = World(position=10_000)
    async with running(world) as found:
        world.keepalive(9_000)
        await until(lambda: len(world.cuts) > 1)
        assert {(cut.end_lsn, checkpoint.end_lsn) for cut, _, checkpoint in world.cuts} == {(10_000, 10_000)}
        assert found.confirmed <= 10_000


async def test_no_cut_is_written_while_the_history_is_unconfirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no cut. A cut says that everything before its end is in Kafka, and this is not known yet."""
    monkeypatch.setattr(outbox, "QUIET_S", 0.05)
    world = World(position=9_000)
    async with running(world, to_be_resent={9_900: "transaction"}) as found:
        world.keepalive(9_500)
        await until(lambda: found.has_received(9_500))
        await asyncio.sleep(0.2)
    assert not world.cuts


async def test_a_transaction_without_published_rows_is_idle_progress() -> None:
    world = World(position=10_000)
    async with running(world, heartbeat_s=0.05, tables=Tables("shop", exclude=["public.*"])) as found:
        end_lsn = world.commit(1)
        await until(lambda: found.confirmed == end_lsn)
        assert (world.cuts[0][0].transactions, world.topics, world.schemas) == (0, set(), {})


async def test_a_keepalive_inside_a_transaction_is_not_a_position() -> None:
    world = World(position=10_000)
    async with running(world, heartbeat_s=0.01) as found:
        world.append(10_050, [data(messages.Begin(10_050, 0, 700)), data(TABLE)], 10_100)
        world.keepalive(10_040)
        await asyncio.sleep(0.1)
        assert found.session.progress.received == 0
        assert not world.cuts


async def test_a_server_that_shuts_down_gets_its_last_position_confirmed() -> None:
    world = World(position=10_000)
    async with running(world) as found:
        for _ in range(3):
            world.keepalive(10_100, reply_requested=True)
        await until(lambda: found.confirmed == 10_100)
        assert not found.stream.released


async def test_a_shutdown_is_noticed_although_our_replies_are_limited_in_rate() -> None:
    world = World(position=10_000)
    async with running(world) as found:
        for _ in range(2):
            world.keepalive(10_100, reply_requested=True)
            await asyncio.sleep(1.5 * MIN_STATUS_GAP_S)
        await until(lambda: found.confirmed == 10_100)


async def test_a_server_that_shuts_down_is_released_if_kafka_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "PATIENCE_S", 0.1)
    world = World(position=10_000, commit_gate=asyncio.Event())
    async with running(world) as found:
        for _ in range(3):
            world.keepalive(10_100, reply_requested=True)
        await until(lambda: found.stream.released)
        assert found.stream.released[0] == 10_100
        assert found.confirmed <= 10_000


async def test_a_single_request_for_a_reply_is_not_a_shutdown() -> None:
    world = World(position=10_000)
    async with running(world) as found:
        world.keepalive(10_100, reply_requested=True)
        await until(lambda: found.session.progress.received == 10_100)
        await asyncio.sleep(0.05)
    assert not world.cuts


async def test_a_large_transaction_gets_a_kafka_transaction_of_its_own() -> None:
    world = World(position=10_000)
    async with running(world, cut_bytes=2_000) as found:
        world.commit(1)
        world.commit(*range(2, 52))
        end_lsn = world.commit(52)
        await until(lambda: found.confirmed == end_lsn)
    assert world.numbers == list(range(1, 53))
    assert [len(records) for _, records, _ in world.cuts] == [1, 50, 1]


async def test_an_unfinished_large_transaction_is_not_committed_at_the_end() -> None:
    world = World(position=10_000)
    async with running(world, cut_bytes=2_000) as found:
        end_lsn = world.commit(1)
        rows = [data(messages.Insert(None, 7, [b"2"])) for _ in range(50)]
        world.append(20_000, [data(messages.Begin(20_000, 0, 9)), *rows], 20_100)
        await until(lambda: world.numbers == [1])
        await asyncio.sleep(0.05)
        await found.finish()
    assert world.numbers == [1]
    assert found.confirmed == end_lsn


async def test_malformed_bytes_end_the_session() -> None:
    world = World(position=10_000)
    async with running(world) as found:
        world.append(20_000, [data(messages.Insert(None, 7, [b"2"]))], 20_100)
        with pytest.raises(ProtocolError):
            await found.task


async def test_a_session_is_not_ready_while_kafka_accepts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_status, "STALL_S", 0.05)
    world = World(position=10_000, commit_gate=asyncio.Event())
    async with running(world) as found:
        assert not found.session.status.is_stalled
        end_lsn = world.commit(1)
        await until(lambda: found.session.status.is_stalled)
        assert world.commit_gate is not None
        world.commit_gate.set()
        await until(partial(found.has_received, end_lsn))
        await until(lambda: not found.session.status.is_stalled)


async def test_a_server_that_shuts_down_while_kafka_accepts_nothing_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An ordinary connection has to notice the shutdown, because the session does not read the stream."""
    monkeypatch.setattr(session_status, "STALL_S", 0.05)
    monkeypatch.setattr(watch, "WATCH_S", 0.02)
    world = World(position=10_000, commit_gate=asyncio.Event())
    async with running(world) as found:
        world.commit(1)
        await until(lambda: found.session.status.is_stalled)
        world.faults["flushed_lsn"] = [SourceUnavailable("the database system is shutting down")]
        with pytest.raises(SourceUnavailable):
            await found.task


async def test_failed_position_requests_do_not_matter_while_kafka_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "WATCH_S", 0.01)
    world = World(position=10_000, faults={"flushed_lsn": [SourceUnavailable("too many connections")] * 3})
    async with running(world) as found:
        await until(lambda: not world.faults["flushed_lsn"])
        end_lsn = world.commit(1)
        await until(lambda: found.confirmed == end_lsn)
        assert found.session.status.confirmed_lsn == found.session.status.server_lsn


class TestSignsOfLife:
    async def test_an_idle_session_gives_signs_of_life(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch, "WATCH_S", 0.01)
        async with running(World(position=10_000)) as found:
            beat_at = found.vitals._beat_at
            await until(lambda: found.vitals._beat_at > beat_at)
            assert found.session.status.stall is None

    @pytest.mark.parametrize(
        ("busy_s", "reason"), [(99.0, "the disk under buffer.spill_dir has not finished"), (0.0, "no sign of life")]
    )
    async def test_a_disk_that_hangs_is_reported_once(
        self, busy_s: float, reason: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watch, "WATCH_S", 0.01)
        monkeypatch.setattr(session_status, "STALL_S", 0.03)
        world, spool = World(position=10_000), HangingSpool()
        spool.busy_s = busy_s
        with structlog.testing.capture_logs() as lines:
            async with running(world, spool=spool) as found:
                end_lsn = world.commit(1)
                await until(lambda: any(line["event"] == "nothing moves" for line in lines))
                assert reason in (found.session.status.stall or "")
                await asyncio.sleep(0.05)
                spool.thaw.set()
                await until(lambda: found.confirmed == end_lsn)
                await until(lambda: found.session.status.stall is None)
        assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["nothing moves"]

    async def test_waiting_for_kafka_is_not_silence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch, "WATCH_S", 0.01)
        world = World(position=10_000, commit_gate=asyncio.Event())
        async with running(world, cut_bytes=2_000) as found:
            world.commit(*range(50))
            await until(lambda: found.session.own_transaction)
            await asyncio.sleep(0.1)
            assert found.vitals.silent_s == 0.0

    async def test_a_commit_in_progress_does_not_hide_silence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch, "WATCH_S", 0.01)
        world, spool = World(position=10_000, commit_gate=asyncio.Event()), HangingSpool()
        spool.thaw.set()
        async with running(world, spool=spool) as found:
            world.commit(1)
            await until(lambda: found.session._outbox.committing)
            spool.thaw.clear()
            world.commit(2)
            await until(lambda: found.vitals.silent_s > 0.05)

    async def test_each_part_written_to_disk_is_a_sign_of_life(self) -> None:
        class InParts(MemorySpool):
            parts_left = 5
            part_ended_at: float | None = None

            async def relieve(self) -> bool:
                if self.part_ended_at is not None:
                    silences.append((found.vitals.silent_s, time.monotonic() - self.part_ended_at))
                await asyncio.sleep(0.01)
                self.part_ended_at = time.monotonic()
                self.parts_left -= 1
                return self.parts_left > 0

        silences: list[tuple[float, float]] = []
        spool = InParts()
        async with running(World(position=10_000), spool=spool) as found:
            found.world.commit(1)
            await until(lambda: spool.parts_left == 0)
        assert len(silences) == 4
        assert all(silent_s <= since_part_s for silent_s, since_part_s in silences)

    async def test_rows_are_read_from_disk_before_they_are_needed(self) -> None:
        class InBlocks(MemorySpool):
            loaded = 0

            async def load(self) -> None:
                self.loaded += 1

            def open(self) -> MemoryRows:
                spool = self

                class Rows(MemoryRows):
                    def __iter__(self) -> Iterator[tuple[int, bytes] | None]:
                        for at, piece in enumerate(super().__iter__()):
                            yield None
                            assert spool.loaded == at + 1
                            yield piece

                return Rows()

        world = World(position=10_000)
        async with running(world, spool=InBlocks()):
            rows = [row(700, number) for number in range(1, 4)]
            world.send(messages.StreamStart(700, first_segment=True), TABLE_IN_STREAM, *rows, messages.StreamStop())
            world.send(messages.StreamCommit(700, 10_050, 10_100, 1), end_lsn=10_100)
            await until(lambda: world.numbers == [1, 2, 3])


async def test_the_servers_position_is_known_before_anything_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "WATCH_S", 0.01)
    world = World(position=10_000, server=ServerIdentity("7001", 1, 99_000))
    async with running(world) as found:
        await until(lambda: found.session.status.server_lsn == 99_000)
        assert found.session.status.heard_at is not None
        assert (found.session.status.confirmed_lsn, found.session.status.caught_up_lsn) == (10_000, 10_000)
        assert found.session.status.oldest_commit_age_s() == 0.0


async def test_the_lag_has_figures() -> None:
    world = World(position=10_000, commit_gate=asyncio.Event())
    async with running(world) as found:
        assert found.session.status.oldest_commit_age_s() == 0.0
        end_lsn = world.commit(1)
        await until(lambda: found.session.progress.received == end_lsn)
        assert found.session.status.positions() == {
            "server": end_lsn,
            "received": end_lsn,
            "delivered": 10_000,
            "confirmed": 0,
        }
        assert (found.session.status.confirmed_lsn, found.session.status.caught_up_lsn) == (10_000, 10_000)
        assert found.session.status.oldest_commit_age_s() > 0
        assert found.session.status.buffered_bytes > 0


async def test_an_idle_session_is_caught_up_before_the_heartbeat() -> None:
    world = World(position=10_000)
    async with running(world) as found:
        assert (found.session.status.heard_at, found.session.status.caught_up_lsn) == (None, 10_000)
        world.keepalive(12_345)
        await until(lambda: found.session.status.caught_up_lsn == 12_345)
        assert (found.session.status.heard_at is None, found.session.progress.delivered) == (False, 10_000)


@pytest.mark.parametrize("kind", ["transaction", "message"])
async def test_a_session_is_not_caught_up_while_a_cut_is_in_flight(kind: str) -> None:
    world = World(position=10_000, commit_gate=asyncio.Event())
    async with running(world) as found:
        end_lsn = world.commit(1) if kind == "transaction" else world.emit(b"x")
        await until(partial(found.has_received, end_lsn))
        await asyncio.sleep(0.1)  # the commit is in progress
        assert found.session.status.caught_up_lsn == 10_000
        assert world.commit_gate is not None
        world.commit_gate.set()
        await until(lambda: found.session.status.caught_up_lsn == end_lsn)


async def test_events_are_counted_by_topic() -> None:
    world = World(position=10_000)
    async with running(world) as found:
        world.commit(1, 2, 3)
        world.emit(b"x")
        end_lsn = world.commit(4)
        await until(lambda: found.confirmed == end_lsn)
        assert found.metric("topic_events_total", topic="shop.public.numbers", op="c") == 4
        assert found.metric("topic_events_total", topic="shop.messages", op="m") == 1


async def test_the_end_of_the_stream_is_noticed_while_kafka_accepts_nothing() -> None:
    world = World(position=10_000, commit_gate=asyncio.Event())
    async with running(world) as found:
        world.commit(1)
        await until(lambda: found.session.status.buffered_bytes)
        world.end_streams(SourceUnavailable("the connection broke"))
        with pytest.raises(SourceUnavailable, match="the connection broke"):
            await found.task


def row(xid: int | None, number: int) -> messages.Insert:
    return messages.Insert(xid, TABLE.oid, [str(number).encode()])


async def test_every_record_carries_the_origin_of_its_transaction() -> None:
    """Every record has the origin, although the Origin message comes only after the Begin message.

    No Relation message comes after the Origin message, because the table is already known.
    """
    world = World(position=10_000)
    async with running(world) as found:
        end_lsn = world.commit(1)
        await until(lambda: found.confirmed == end_lsn)
        begin, commit = messages.Begin(10_150, 1, 701), messages.Commit(10_150, 10_200, 1)
        origin = messages.Origin(0, "elsewhere")
        world.send(begin, origin, row(None, 2), row(None, 3), commit, end_lsn=10_200)
        await until(lambda: world.numbers == [1, 2, 3])
        (_, records, _) = world.cuts[-1]
        assert all(b"elsewhere" in (record.value or b"") for record in records)


class TestStreamedTransactions:
    async def test_rows_of_a_streamed_transaction_wait_until_the_commit(self) -> None:
        world = World(position=10_000)
        async with running(world) as found:
            world.send(
                messages.StreamStart(700, first_segment=True), TABLE_IN_STREAM, row(700, 1), messages.StreamStop()
            )
            world.commit(2)
            await until(lambda: world.numbers == [2])
            assert found.session.status.waiting_transactions == 1
            end_lsn = world.server.xlogpos + 100
            world.send(messages.StreamCommit(700, end_lsn - 50, end_lsn, 1), end_lsn=end_lsn)
            await until(lambda: world.numbers == [2, 1])
            await until(lambda: found.confirmed == end_lsn)
            assert found.session.status.waiting_transactions == 0

    async def test_other_tasks_run_during_many_small_streamed_transactions(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "TURN", 10)
        world = World(position=10_000)
        async with running(world) as found:
            xids = range(700, 800)
            for xid in xids:
                table = replace(TABLE, xid=xid)
                world.send(
                    messages.StreamStart(xid, first_segment=True), table, *[row(xid, 1)] * 5, messages.StreamStop()
                )
            await until(lambda: found.session.status.waiting_transactions == len(xids))
            world.send(*[messages.StreamCommit(xid, 10_000 + xid, 10_001 + xid, 1) for xid in xids], end_lsn=10_900)
            turns = 0
            async with asyncio.timeout(5):
                while not world.cuts:
                    turns += 1
                    await asyncio.sleep(0)
            assert turns > 40

    async def test_other_tasks_run_during_a_large_streamed_transaction(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "TURN", 10)
        world = World(position=10_000)
        async with running(world) as found:
            rows = [row(700, 1)] * 1000
            world.send(messages.StreamStart(700, first_segment=True), TABLE_IN_STREAM, *rows, messages.StreamStop())
            await until(lambda: found.session.status.waiting_transactions)
            world.send(messages.StreamCommit(700, 10_050, 10_100, 1), end_lsn=10_100)
            turns = 0
            async with asyncio.timeout(5):
                while not world.cuts:
                    turns += 1
                    await asyncio.sleep(0)
            assert turns >= 100
            assert len(world.numbers) == 1000

    async def test_nothing_is_delivered_after_an_abandoned_large_transaction(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "TURN", 10)
        world = World(position=10_000)
        async with running(world, cut_bytes=2_000) as found:
            rows = [row(700, 1)] * 1000
            world.send(messages.StreamStart(700, first_segment=True), TABLE_IN_STREAM, *rows, messages.StreamStop())
            await until(lambda: found.session.status.waiting_transactions)
            world.send(messages.StreamCommit(700, 10_050, 10_100, 1), end_lsn=10_100)
            async with asyncio.timeout(5):
                while not found.session.own_transaction:  # noqa: ASYNC110 - there is no event
                    await asyncio.sleep(0)
            found.stop.set()
            async with found.session._paused():
                found.session._outbox.note_commands(CommandState("topic", 7), [Answer("7", "done")], [], [])
            await found.task
            assert found.session.own_transaction
        assert not world.cuts

    async def test_many_commits_in_one_read_do_not_keep_all_rows_in_memory(self) -> None:
        world = World(position=10_000)
        async with running(world, cut_bytes=10_000, inflight_max=30_000) as found:
            xids = range(700, 740)
            for xid in xids:
                rows = [row(xid, 1)] * 40
                table = replace(TABLE, xid=xid)
                world.send(messages.StreamStart(xid, first_segment=True), table, *rows, messages.StreamStop())
            await until(lambda: found.session.status.waiting_transactions == len(xids))
            most = 0
            overflow = found.session._outbox.commit

            async def watched(transaction: Transaction, end_lsn: int) -> None:
                nonlocal most
                most = max(most, found.session.status.buffered_bytes)
                await overflow(transaction, end_lsn)

            found.session._outbox.commit = watched  # type: ignore[method-assign]  # commit() is called for every transaction
            commits = [messages.StreamCommit(xid, 10_000 + xid, 10_001 + xid, 1) for xid in xids]
            world.send(*commits, end_lsn=10_740)
            await until(lambda: len(world.numbers) == 40 * len(xids))
            assert most < 50_000


class TestPreparedTransactions:
    """The slot is at 10,000. A transaction is prepared at 10,100, and its commit ends at 10,400."""

    PREPARE = (
        messages.BeginPrepare(10_100, 10_120, 1_000_000, 700, "g"),
        TABLE,
        row(None, 1),
        messages.Prepare(10_100, 10_120, 1_000_000, 700, "g"),
    )
    COMMIT = messages.CommitPrepared(10_350, 10_400, 1_000_000, 700, "g")

    async def test_nothing_after_the_prepare_is_confirmed_before_its_commit_is_delivered(self) -> None:
        world = World(position=10_000)
        async with running(world, heartbeat_s=0.01) as found:
            world.send(*self.PREPARE, end_lsn=10_200)
            delivered = world.commit(2)
            await until(lambda: found.session.progress.delivered == delivered)
            await until(lambda: found.confirmed == 10_100)
            world.commit_gate = asyncio.Event()
            world.send(self.COMMIT, end_lsn=10_400)
            await until(lambda: found.has_received(10_400))
            assert found.confirmed == 10_100
            world.commit_gate.set()
            await until(lambda: found.confirmed == 10_400)
            assert world.numbers == [2, 1]

    async def test_a_rollback_releases_the_slot(self) -> None:
        world = World(position=10_000)
        async with running(world, heartbeat_s=0.01) as found:
            world.send(*self.PREPARE, end_lsn=10_200)
            await until(lambda: found.confirmed == 10_100)
            world.send(messages.RollbackPrepared(10_120, 10_400, 1, 1, 700, "g"), end_lsn=10_400)
            await until(lambda: found.confirmed == 10_400)
            assert world.numbers == []

    async def test_a_rollback_releases_the_slot_only_with_a_checkpoint(self) -> None:
        world = World(position=10_000)
        async with running(world, heartbeat_s=0.01) as found:
            world.send(*self.PREPARE, end_lsn=10_200)
            await until(lambda: found.session.checkpoint.held_lsn == 10_100)
            world.commit_gate = asyncio.Event()
            world.send(messages.RollbackPrepared(10_120, 10_400, 1, 1, 700, "g"), end_lsn=10_400)
            await until(lambda: found.has_received(10_400))
            assert found.confirmed == 10_100
            world.commit_gate.set()
            await until(lambda: found.confirmed == 10_400)
            assert found.session.checkpoint.held_lsn == 0

    async def test_a_prepared_transaction_without_changes_does_not_hold_the_slot(self) -> None:
        world = World(position=10_000)
        async with running(world, heartbeat_s=0.01) as found:
            world.send(self.PREPARE[0], self.PREPARE[-1], end_lsn=10_120)
            await until(lambda: found.confirmed == 10_120)
            assert found.session.status.oldest_prepared is None

    async def test_a_prepared_transaction_is_shown(self) -> None:
        world = World(position=10_000)
        async with running(world) as found:
            world.send(*self.PREPARE, end_lsn=10_200)
            await until(lambda: found.session.status.prepared)
            oldest = found.session.status.oldest_prepared
            assert oldest is not None
            assert (oldest.gid, oldest.xid, oldest.prepare_lsn) == ("g", 700, 10_100)
            assert found.session.status.waiting_transactions == 1

    async def test_a_long_prepared_transaction_causes_a_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch, "WATCH_S", 0.01)
        world = World(position=10_000)
        with structlog.testing.capture_logs() as lines:
            async with running(world) as found:
                world.send(*self.PREPARE, end_lsn=10_200)
                await until(lambda: found.session.status.prepared)
                await until(lambda: any(line["event"].startswith("a prepared transaction keeps") for line in lines))

    async def test_a_commit_without_a_prepare_causes_a_warning(self) -> None:
        world = World(position=10_000)
        with structlog.testing.capture_logs() as lines:
            async with running(world) as found:
                world.send(self.COMMIT, end_lsn=10_400)
                await until(lambda: found.has_received(10_400))
        assert any("was not received" in line["event"] for line in lines)


class TestMessages:
    """Messages of pg_logical_emit_message."""

    @staticmethod
    def transaction(world: World, *contents: bytes | int) -> int:
        """Commit a transaction of rows (numbers) and messages (bytes). Return its end LSN."""
        begin = world.server.xlogpos
        sent: list[messages.Message] = [messages.Begin(begin + 50, 1_000_000, begin), TABLE]
        for content in contents:
            if isinstance(content, int):
                sent.append(messages.Insert(None, TABLE.oid, [str(content).encode()]))
            else:
                sent.append(messages.LogicalMessage(None, transactional=True, lsn=begin, prefix="p", content=content))
        sent.append(messages.Commit(begin + 50, begin + 100, 1_000_000))
        world.append(begin + 50, [data(one) for one in sent], begin + 100)
        return begin + 100

    @staticmethod
    def delivered(world: World) -> list[str]:
        return [f"{record.target.topic} {record.op}" for _, records, _ in world.cuts for record in records]

    async def test_a_message_outside_transactions_closes_a_cut(self) -> None:
        world = World(position=10_000)
        async with running(world) as found:
            lsn = world.emit(b"x")
            await until(lambda: found.confirmed == lsn)
            ((cut, records, checkpoint),) = world.cuts
            assert (cut.transactions, cut.events, cut.first, cut.last) == (0, 1, None, None)
            assert (cut.end_lsn, checkpoint.end_lsn) == (lsn, lsn)
            assert [record.op for record in records] == ["m"]
            assert cut.topics["shop.messages"].counts == {"m": 1}
            assert found.metric("events_total", op="m") == 1
            assert found.metric("cuts_total", kind="data") == 1
            assert found.session.status.oldest_commit_age_s() == 0.0

    async def test_a_message_is_not_confirmed_before_its_cut_is_committed(self) -> None:
        world = World(position=10_000, commit_gate=asyncio.Event())
        async with running(world) as found:
            lsn = world.emit(b"x")
            await until(partial(found.has_received, lsn))
            await asyncio.sleep(0.05)
            assert found.confirmed <= 10_000
            assert world.commit_gate is not None
            world.commit_gate.set()
            await until(lambda: found.confirmed == lsn)

    async def test_a_message_keeps_its_place_between_transactions(self) -> None:
        world = World(position=10_000)
        async with running(world) as found:
            world.commit(1)
            world.emit(b"x")
            world.commit(2)
            world.emit(b"y")
            end_lsn = self.transaction(world, 3)
            await until(lambda: found.confirmed == end_lsn)
        row, message = "shop.public.numbers c", "shop.messages m"
        assert self.delivered(world) == [row, message, row, message, row]

    async def test_messages_that_were_delivered_before_are_left_out(self) -> None:
        world = World(position=9_000, server=ServerIdentity("7001", 1, 9_950))
        world.emit(b"ends at 10,000, where the last session ended")
        world.emit(b"the next one")
        async with running(world, checkpoint=replace(CHECKPOINT, last_message_lsn=10_000)) as found:
            await until(lambda: found.confirmed == 10_050)
            assert found.session.checkpoint.last_message_lsn == 10_050
        ((_, (record,), _),) = world.cuts
        assert b"the next one" in (record.value or b"")

    async def test_a_transaction_may_consist_of_messages(self) -> None:
        world = World(position=10_000)
        async with running(world, tables=Tables("shop", exclude=["public.*"])) as found:
            end_lsn = self.transaction(world, b"x", 1, b"y")
            await until(lambda: found.confirmed == end_lsn)
        ((cut, _, _),) = world.cuts
        assert (cut.transactions, cut.events) == (1, 2)
        assert self.delivered(world) == ["shop.messages m"] * 2
        assert world.topics == {"shop.messages"}

    async def test_messages_keep_their_place_in_a_large_transaction(self) -> None:
        world = World(position=10_000)
        async with running(world, cut_bytes=2_000) as found:
            end_lsn = self.transaction(world, 1, b"x" * 3_000, 2, b"y" * 3_000)
            await until(lambda: found.confirmed == end_lsn)
        row, message = "shop.public.numbers c", "shop.messages m"
        assert self.delivered(world) == [row, message, row, message]
        assert len(world.cuts) == 1

    async def test_a_stop_abandons_a_large_unfinished_transaction(self) -> None:
        class Stopping(World):
            def step(self, name: str) -> None:
                if name == "produce":
                    found.stop.set()

        world = Stopping(position=10_000)
        async with running(world, cut_bytes=2_000) as found:
            self.transaction(world, b"x" * 3_000, b"y" * 3_000)
            await found.task
        assert not world.cuts


async def test_changes_before_the_fatal_error_are_delivered_first() -> None:
    world = World(position=10_000, commit_gate=asyncio.Event())
    async with running(world) as one:
        world.commit(1)
        world.commit(2)
        world.break_stream(PoisonError("a row that cannot be sent"))
        await asyncio.sleep(0.05)
        assert not one.task.done()
        assert world.commit_gate is not None
        world.commit_gate.set()
        with pytest.raises(PoisonError):
            await one.task
    assert world.numbers == [1, 2]


class TestAServerWithAnotherHistory:
    """The server sends transactions that the original server did not have.

    The checkpoint says that everything before 10,000 was already delivered.
    """

    LAST = replace(CHECKPOINT, last_end_lsn=5_000, last_xid=700, last_commit_ts=1)

    async def test_a_change_that_would_be_delivered_stops(self) -> None:
        world = World(position=4_000, server=ServerIdentity("7001", 1, 8_000))
        world.commit(1)
        async with running(world, checkpoint=self.LAST) as found:
            with pytest.raises(Diverged, match=r"transaction 8000, which commits at 0/1F72.*--adopt-slot"):
                await found.task
        assert not world.cuts
        assert found.confirmed <= 5_000

    async def test_nothing_is_confirmed_before_the_last_transaction_comes_again(self) -> None:
        """Confirm nothing, so that the server can send all its changes again in a new epoch."""
        world = World(position=4_000, server=ServerIdentity("7001", 1, 4_500))
        world.commit(1)
        async with running(world, checkpoint=self.LAST, to_be_resent=to_be_resent(self.LAST, slot_lsn=4_000)) as found:
            world.keepalive(4_900)
            await until(lambda: found.has_received(4_900))
            assert found.metric("resent_transactions_total") == 1
            world.keepalive(5_100)
            with pytest.raises(Diverged, match=r"The last transaction delivered ended at 0/1388.*did not send it"):
                await found.task
        assert found.confirmed == 0

    async def test_a_change_of_an_excluded_table_does_not_stop(self) -> None:
        world = World(position=4_000, server=ServerIdentity("7001", 1, 8_000))
        world.commit(1, 2)
        world.keepalive()
        async with running(world, checkpoint=self.LAST, tables=Tables("shop", exclude=["public.*"])) as found:
            await until(lambda: found.metric("resent_transactions_total") == 1)

    async def test_another_message_in_place_of_the_last_one_stops(self) -> None:
        world = World(position=4_000, server=ServerIdentity("7001", 1, 8_000))
        world.emit(b"x")
        last = replace(self.LAST, last_message_lsn=8_050, last_message_crc="0a1b2c3d")
        async with running(world, checkpoint=last) as found:
            with pytest.raises(Diverged, match="The message at 0/1F72 is not the one"):
                await found.task

    async def test_a_message_stops(self) -> None:
        world = World(position=4_000, server=ServerIdentity("7001", 1, 8_000))
        world.emit(b"x")
        async with running(world, checkpoint=self.LAST) as found:
            with pytest.raises(Diverged, match="a message at 0/1F72"):
                await found.task

    async def test_a_heartbeat_that_is_being_committed_comes_first(self) -> None:
        """Wait until the heartbeat's checkpoint is committed, before the session ends with the error.

        After the error, the pipeline writes the last checkpoint again, with the error message in ``refused``. So the
        pipeline has to know which checkpoint is the last one.
        """
        world = World(position=4_000, commit_gate=asyncio.Event(), server=ServerIdentity("7001", 1, 10_000))
        last = replace(self.LAST, held_lsn=6_000)
        async with running(world, checkpoint=last, heartbeat_s=0.01) as found:
            world.keepalive(10_100)
            await until(lambda: found.session.status.is_stalled or found.session._outbox.committing is not None)
            world.send(messages.Begin(9_000, 1, 701), TABLE, messages.Insert(None, 7, [b"1"]))
            await asyncio.sleep(0.05)
            assert not found.task.done()
            assert world.commit_gate is not None
            world.commit_gate.set()
            with pytest.raises(Diverged):
                await found.task
            assert found.session.checkpoint == world.checkpoint
            assert found.session.checkpoint.cut == 5
