"""Rounds without a session: when the snapshot is taken, which transactions wait, and the position of the rows.

Source and sink are scripted. The gate, the transactions and the progress are real.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from pgsluice.checkpoint import Checkpoint
from pgsluice.errors import SourceUnavailable, TableUnreadable
from pgsluice.pgoutput.framing import Keepalive
from pgsluice.pipeline import rounds as module
from pgsluice.pipeline.outbox import Limits, Outbox
from pgsluice.pipeline.rounds import Rounds, Seams
from pgsluice.pipeline.vitals import Vitals
from pgsluice.progress import Progress
from pgsluice.snapshot import Snapshot, Taken
from pgsluice.transaction import Delivered, Transaction
from pgsluice.transactions import Transactions
from tests.support.ends import FakeReader, FakeSink, FakeStream, MemorySpool, World

END = 10_000
"""The server's position, which is also the insert position of a round."""

VISIBLE, INVISIBLE = 900, 1100
SEES_ALL = Snapshot(2000, 2000, frozenset())


class Reader(FakeReader):
    """A reader that counts the writes that move the stream, and that can hang."""

    flushes = 0
    hangs = False

    async def take(self) -> Taken:
        if self.hangs:
            await asyncio.Event().wait()
        return await super().take()

    async def flush(self) -> None:
        self.flushes += 1


class Stage:
    """Rounds, and the parts of a session that they use. Nothing runs in the background."""

    def __init__(self) -> None:
        self.world = World()
        self.reader = Reader(self.world)
        self.transactions = Transactions(Delivered(0, 0, 0), MemorySpool())
        self.progress = Progress(0)
        self.told: list[str] = []
        self.held: list[float] = []
        self.may_pause = asyncio.Event()
        self.may_pause.set()
        limits, checkpoint = Limits(1.0, 1 << 20, 1 << 20, 60.0), Checkpoint("shop", "s", "7001", 1, 1, 0, 0)
        outbox = Outbox(FakeSink(self.world), checkpoint, self.progress, limits, lambda *_: None, Vitals())
        self.stream = FakeStream(self.world)
        self.rounds = Rounds(self.reader, self.stream, self.seams(outbox), self.held.append)

    def seams(self, outbox: Outbox) -> Seams:
        def wake() -> None:
            self.told.append("wake")

        return Seams(self.transactions, outbox, self.progress, self.pause, self.go_on, wake)

    @asynccontextmanager
    async def pause(self) -> AsyncIterator[None]:
        await self.may_pause.wait()
        self.told.append("pause")
        try:
            yield
        finally:
            self.told.append("resume")

    async def go_on(self) -> None:
        assert self.transactions.gate is None, "nothing waits any more when this is called"
        self.told.append("go on")

    def hold(self, xid: int, commit_lsn: int) -> None:
        """Receive a transaction with changes, and check that the gate holds it back."""
        gate = self.transactions.gate
        assert gate is not None
        transaction = Transaction(xid, commit_lsn, 0)
        assert not gate.admits(transaction)
        gate.hold(transaction)
        self.rounds.on_held()


@pytest.fixture
async def stage() -> Stage:
    return Stage()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEEN_AGAIN_S", "ASK_S", "FLUSH_S"):
        monkeypatch.setattr(module, name, 0.001)


class TestTakingASnapshot:
    async def test_the_round_decides_about_transactions_after_its_snapshot(self, stage: Stage) -> None:
        taken = await stage.rounds.take()
        assert (taken.snapshot, taken.end_lsn) == (stage.world.seen[0], END)
        gate = stage.transactions.gate
        assert gate is not None
        assert gate.admits(Transaction(VISIBLE, 100, 0))
        assert not gate.admits(Transaction(INVISIBLE, 200, 0))

    async def test_nothing_after_a_waiting_transaction_counts_as_received(self, stage: Stage) -> None:
        await stage.rounds.take()
        stage.progress.on_received(END + 500)
        assert stage.progress.received <= END

    async def test_the_pause_of_the_session_is_counted(self, stage: Stage) -> None:
        await stage.rounds.take()
        assert stage.told == ["pause", "resume"]
        assert len(stage.held) == 1

    async def test_a_transaction_that_does_not_end_postpones_the_table(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "PAUSE_S", 0.01)
        stage.may_pause.clear()
        with pytest.raises(TableUnreadable, match="takes more than"):
            await stage.rounds.take()
        assert stage.transactions.gate is None
        assert stage.held == []

    async def test_a_server_that_does_not_answer_does_not_block_the_session(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "TAKE_S", 0.01)
        stage.reader.hangs = True
        with pytest.raises(SourceUnavailable, match="no snapshot within"):
            await stage.rounds.take()
        assert stage.reader.is_closed
        assert stage.transactions.gate is None
        assert stage.told == ["pause", "resume"]


class TestTransactionsThatHavePassed:
    async def test_a_transaction_that_passed_has_to_be_visible_first(self, stage: Stage) -> None:
        stage.world.seen = [stage.world.seen[0], stage.world.seen[0], SEES_ALL]
        stage.rounds.watch(on=True)
        stage.rounds.on_commit(Transaction(INVISIBLE, 100, 0))
        assert (await stage.rounds.take()).snapshot == SEES_ALL

    async def test_the_wait_for_visibility_is_limited(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "SEEN_S", 0.01)
        stage.rounds.watch(on=True)
        stage.rounds.on_commit(Transaction(INVISIBLE, 100, 0))
        with pytest.raises(TableUnreadable, match="not visible to other sessions yet"):
            await stage.rounds.take()
        assert stage.transactions.gate is None

    @pytest.mark.parametrize("was_on", [False, True])
    async def test_transactions_are_not_noted_while_no_table_has_to_be_loaded(
        self, stage: Stage, *, was_on: bool
    ) -> None:
        stage.rounds.watch(on=was_on)
        if was_on:
            stage.rounds.on_commit(Transaction(INVISIBLE, 100, 0))
        stage.rounds.watch(on=False)
        stage.rounds.on_commit(Transaction(INVISIBLE + 1, 200, 0))
        assert (await stage.rounds.take()).end_lsn == END

    async def test_a_visible_transaction_is_forgotten(self, stage: Stage) -> None:
        stage.rounds.watch(on=True)
        stage.rounds.on_commit(Transaction(VISIBLE, 100, 0))
        await stage.rounds.prune()
        stage.world.seen = [Snapshot(1, 1, frozenset())]
        assert (await stage.rounds.take()).end_lsn == END

    async def test_transactions_that_the_snapshot_of_the_round_sees_are_not_noted(self, stage: Stage) -> None:
        stage.rounds.watch(on=True)
        await stage.rounds.take()
        stage.rounds.on_commit(Transaction(VISIBLE, 100, 0))
        await stage.rounds.end()
        stage.world.seen = [Snapshot(1, 1, frozenset())]
        assert (await stage.rounds.take()).end_lsn == END

    async def test_transactions_that_the_snapshot_of_the_round_does_not_see_are_noted(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "SEEN_S", 0.01)
        stage.rounds.watch(on=True)
        await stage.rounds.take()
        stage.rounds.on_commit(Transaction(INVISIBLE, 100, 0))
        await stage.rounds.end()
        with pytest.raises(TableUnreadable, match="not visible to other sessions yet"):
            await stage.rounds.take()


class TestThePlaceOfTheRows:
    async def test_the_rows_are_at_the_servers_position_if_nothing_waits(self, stage: Stage) -> None:
        await stage.rounds.take()
        stage.rounds.on_position(END)
        assert await stage.rounds.wait_complete() == END

    async def test_the_rows_are_before_the_first_waiting_transaction(self, stage: Stage) -> None:
        await stage.rounds.take()
        stage.hold(INVISIBLE, END - 300)
        stage.hold(INVISIBLE + 1, END - 200)
        stage.rounds.on_position(END)
        assert await stage.rounds.wait_complete() == END - 300

    async def test_there_is_no_position_if_a_visible_transaction_waits_after_an_invisible_one(
        self, stage: Stage
    ) -> None:
        await stage.rounds.take()
        stage.hold(INVISIBLE, END - 300)
        stage.hold(VISIBLE, END - 200)
        assert await stage.rounds.wait_complete() is None

    async def test_the_position_is_requested_at_once(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "ASK_S", 3600.0)
        await stage.rounds.take()
        waiting = asyncio.create_task(stage.rounds.wait_complete())
        await asyncio.sleep(0)
        (answer,) = await stage.stream.read()
        assert isinstance(answer, Keepalive)
        stage.rounds.on_position(answer.wal_end)
        assert await waiting == END

    async def test_a_transaction_after_the_snapshot_ends_the_wait(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "ASK_S", 3600.0)
        await stage.rounds.take()
        waiting = asyncio.create_task(stage.rounds.wait_complete())
        await asyncio.sleep(0)
        transaction, gate = Transaction(VISIBLE, END, 0), stage.transactions.gate
        assert gate is not None
        assert gate.admits(transaction)
        stage.rounds.on_commit(transaction)
        assert await waiting == END

    async def test_a_message_is_written_to_move_the_stream(self, stage: Stage) -> None:
        await stage.rounds.take()
        waiting = asyncio.create_task(stage.rounds.wait_complete())
        await until(lambda: stage.reader.flushes)
        stage.rounds.on_position(END)
        assert await waiting == END

    async def test_a_stream_that_does_not_move_postpones_the_table(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "ROUND_S", 0.01)
        await stage.rounds.take()
        with pytest.raises(TableUnreadable, match="has not reached the snapshot"):
            await stage.rounds.wait_complete()

    @pytest.mark.parametrize("is_locked", [False, True])
    async def test_a_moving_stream_is_awaited_unless_the_table_is_locked(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch, *, is_locked: bool
    ) -> None:
        monkeypatch.setattr(module, "ROUND_S", 0.2)
        await stage.rounds.take()
        waiting = asyncio.create_task(stage.rounds.wait_complete(is_locked=is_locked))
        for step in range(60):
            stage.progress.on_received(END - 1_000 + step)
            await asyncio.sleep(0.01)
        assert waiting.done() == is_locked
        stage.rounds.on_position(END)
        if is_locked:
            with pytest.raises(TableUnreadable, match="has not reached the snapshot"):
                await waiting
        else:
            assert await waiting == END

    async def test_positions_outside_of_a_round_are_ignored(self, stage: Stage) -> None:
        stage.rounds.on_position(END)
        stage.world.server = replace(stage.world.server, xlogpos=END + 100)
        await stage.rounds.take()
        waiting = asyncio.create_task(stage.rounds.wait_complete())
        await until(lambda: stage.reader.flushes)
        assert not waiting.done()
        stage.rounds.on_position(END + 100)
        assert await waiting == END + 100


class TestTheEnd:
    async def test_waiting_transactions_continue_and_count_as_received(self, stage: Stage) -> None:
        await stage.rounds.take()
        stage.hold(INVISIBLE, END + 100)
        stage.progress.on_received(END + 500)
        stage.told.clear()
        await stage.rounds.end()
        assert stage.told == ["go on", "wake"]
        assert stage.progress.received == END + 500

    @pytest.mark.parametrize("waits", [False, True])
    async def test_the_time_that_changes_waited_is_counted(self, stage: Stage, *, waits: bool) -> None:
        await stage.rounds.take()
        if waits:
            stage.hold(INVISIBLE, END + 100)
        await stage.rounds.end()
        assert len(stage.held) == 1 + waits
        await stage.rounds.end()
        assert len(stage.held) == 1 + waits, "the second end counts nothing"

    async def test_a_round_does_not_affect_the_next_one(self, stage: Stage) -> None:
        await stage.rounds.take()
        stage.hold(INVISIBLE, END - 300)
        await stage.rounds.end()
        await stage.rounds.take()
        stage.rounds.on_position(END)
        assert await stage.rounds.wait_complete() == END


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - a condition of a test has no event
            await asyncio.sleep(0.001)
