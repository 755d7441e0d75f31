import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from pgsluice.errors import ConfigError, ProtocolError, SourceUnavailable
from pgsluice.pgoutput.framing import Keepalive, XLogData
from pgsluice.postgres import stream as stream_module
from pgsluice.postgres.async_libpq import Wire
from pgsluice.postgres.failures import ServerError
from pgsluice.postgres.stream import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    BUSY_MESSAGES,
    MIN_STATUS_GAP_S,
    ReplicationStream,
    Timing,
)
from tests.support.pgoutput_encoder import xlog_data
from tests.support.walsender import Walsender, message

CALM = Timing(status_interval_s=60, probe_after_s=60, alone_after_s=60, give_up_after_s=60)
BUSY = Timing(status_interval_s=0.01, probe_after_s=60, alone_after_s=60, give_up_after_s=60)
SUSPICIOUS = Timing(status_interval_s=0.01, probe_after_s=0.05, alone_after_s=60, give_up_after_s=0.3)
CURIOUS = Timing(status_interval_s=0.01, probe_after_s=0.05, alone_after_s=0.2, give_up_after_s=60)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MIN_STATUS_GAP_S", 0.01)


@pytest.fixture
async def server() -> AsyncIterator[Walsender]:
    async with Walsender() as walsender:
        yield walsender


async def judge(error: ServerError) -> Exception:
    return ConfigError(f"judged: {error}")


@asynccontextmanager
async def streaming(server: Walsender, timing: Timing = CALM) -> AsyncIterator[ReplicationStream]:
    conninfo = f"host=127.0.0.1 port={server.port} sslmode=disable gssencmode=disable"
    connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
    wire = Wire(connection.pgconn)
    await wire.query("START_REPLICATION")
    stream = ReplicationStream(wire, timing, judge)
    try:
        yield stream
    finally:
        stream.abandon()
        await connection.close()


async def read(stream: ReplicationStream, count: int) -> list[XLogData | Keepalive]:
    frames: list[XLogData | Keepalive] = []
    while len(frames) < count:
        frames += await stream.read()
    return frames


async def test_a_busy_stream_is_read_in_large_batches(server: Walsender, monkeypatch: pytest.MonkeyPatch) -> None:
    async with streaming(server) as stream:
        for _ in range(BUSY_MESSAGES):
            server.xlog_data(b"one of many")
        await asyncio.sleep(0.05)
        assert len(await stream.read()) == BUSY_MESSAGES
        monkeypatch.setattr(stream_module, "GATHER_S", 0.2)
        server.xlog_data(b"first")
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0.02)
        server.xlog_data(b"second")
        assert len(await reading) == 2


async def test_a_stream_that_is_never_empty_is_read_without_a_pause(
    server: Walsender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "GATHER_S", 60)
    async with streaming(server) as stream:
        for _ in range(2 * BATCH_MESSAGES):
            server.xlog_data(b"x")
        await asyncio.sleep(0.05)
        async with asyncio.timeout(10):
            assert len(await stream.read()) == BATCH_MESSAGES
            assert len(await stream.read()) == BATCH_MESSAGES


async def end_of_copy(stream: ReplicationStream) -> None:
    while not stream._copy_ended:  # noqa: ASYNC110 - the stream has no event for it
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("wal_sender_timeout_s", "status_interval_s", "expected"),
    [
        (15, 5, Timing(5, 15, 60, 300)),
        (60, 5, Timing(5, 60, 240, 1200)),
        (3, 5, Timing(1, 3, 12, 60)),
        (0, 5, Timing(5, 60, 240, 1200)),  # a timeout that is switched off is treated like the default
        (0, 60, Timing(20, 60, 240, 1200)),
    ],
)
def test_times_follow_wal_sender_timeout(
    wal_sender_timeout_s: float, status_interval_s: float, expected: Timing
) -> None:
    assert Timing.of(wal_sender_timeout_s, status_interval_s) == expected


async def test_frames_arrive_as_they_were_sent(server: Walsender) -> None:
    async with streaming(server) as stream:
        server.xlog_data(b"one")
        server.keepalive(7)
        server.frame(b"s: what PostgreSQL 19 may say")
        server.xlog_data(b"")
        first, second, third = await read(stream, 3)
    assert first == xlog_data(b"one")
    assert second == Keepalive(7, 0, reply_requested=False)
    assert third == xlog_data(b"")


async def test_a_batch_ends_at_its_number_of_messages(server: Walsender) -> None:
    async with streaming(server) as stream:
        for _ in range(BATCH_MESSAGES + 1):
            server.keepalive()
        sizes: list[int] = []
        while sum(sizes) <= BATCH_MESSAGES:
            sizes.append(len(await stream.read()))
    assert max(sizes) <= BATCH_MESSAGES


async def test_a_batch_ends_at_its_number_of_bytes(server: Walsender) -> None:
    async with streaming(server) as stream:
        for _ in range(10):
            server.xlog_data(bytes(BATCH_BYTES // 3))
        batches: list[list[XLogData | Keepalive]] = []
        while sum(map(len, batches)) < 10:
            batches.append(await stream.read())
    assert max(map(len, batches)) <= 4


async def test_an_unknown_frame_is_a_protocol_error(server: Walsender) -> None:
    async with streaming(server) as stream:
        server.frame(b"?")
        with pytest.raises(ProtocolError):
            await stream.read()


async def test_reports_are_sent_by_the_timer_and_never_decrease(server: Walsender) -> None:
    async with streaming(server, BUSY) as stream:
        first = await server.statuses.get()
        assert (first.write, first.flush, first.apply, first.reply_requested) == (0, 0, 0, False)
        stream.report(30, 20)
        stream.report(25, 10)
        while (status := await server.statuses.get()).write == 0:
            pass
        assert (status.write, status.flush, status.apply) == (30, 20, 20)
        stream.report(35, 40)  # a position that is flushed has also been received
        while (status := await server.statuses.get()).write == 30:
            pass
        assert (status.write, status.flush, status.apply) == (40, 40, 40)


async def test_a_requested_reply_does_not_wait_for_the_timer(server: Walsender) -> None:
    async with streaming(server, CALM) as stream:
        stream.report(9, 5)
        server.keepalive(10, reply_requested=True)
        assert await stream.read() == [Keepalive(10, 0, reply_requested=True)]
        status = await server.statuses.get()
        assert (status.write, status.flush) == (9, 5)


async def test_a_flood_of_requests_gets_few_replies(server: Walsender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MIN_STATUS_GAP_S", MIN_STATUS_GAP_S)
    loop = asyncio.get_running_loop()
    async with streaming(server, CALM) as stream:
        start = loop.time()
        for _ in range(50):
            for _ in range(100):
                server.keepalive(10, reply_requested=True)
            await read(stream, 100)
        await server.statuses.get()
        assert server.statuses.qsize() <= (loop.time() - start) / MIN_STATUS_GAP_S + 1


async def test_a_server_that_shuts_down_is_answered_once(server: Walsender) -> None:
    async with streaming(server, CALM) as stream:
        stream.report(9, 5)
        stream.answer_shutdown(10)
        status = await server.statuses.get()
        assert (status.write, status.flush, status.apply) == (10, 0, 0)


async def test_silence_is_probed_and_then_ends_the_stream(server: Walsender) -> None:
    async with streaming(server, SUSPICIOUS) as stream:
        with pytest.raises(SourceUnavailable, match="sent nothing for"):
            await stream.read()
        probes = [server.statuses.get_nowait().reply_requested for _ in range(server.statuses.qsize())]
        assert probes[-1] is True
        with pytest.raises(SourceUnavailable, match="sent nothing for"):
            await stream.read()


async def test_a_silent_server_that_has_ended_the_stream_is_abandoned(server: Walsender) -> None:
    async with streaming(server, CURIOUS) as stream:
        answers = iter((True, True, False))

        async def inquire() -> bool:
            return next(answers)

        stream.inquire = inquire
        with pytest.raises(SourceUnavailable, match="it has ended the stream"):
            await stream.read()


async def test_a_silent_server_that_cannot_be_asked_is_abandoned_in_time(server: Walsender) -> None:
    async with streaming(server, CURIOUS) as stream:
        asked = 0

        async def inquire() -> bool:
            nonlocal asked
            asked += 1
            raise SourceUnavailable("nobody answers")

        stream.inquire = inquire
        with pytest.raises(SourceUnavailable, match="does not answer on another connection: nobody answers"):
            await stream.read()
    assert asked > 1


async def test_an_inquiry_that_is_under_way_ends_with_the_stream(server: Walsender) -> None:
    async with streaming(server, CURIOUS) as stream:
        asked = asyncio.Event()

        async def inquire() -> bool:
            asked.set()
            await asyncio.Future()
            raise AssertionError

        stream.inquire = inquire
        reading = asyncio.create_task(stream.read())
        await asked.wait()
        reading.cancel()
        await stream.stop()
        assert stream._inquiry is not None
        assert stream._inquiry.cancelled()


async def test_frames_that_have_not_been_checked_are_not_returned(server: Walsender) -> None:
    async with streaming(server) as stream:
        asked = asyncio.Event()
        answer = asyncio.get_running_loop().create_future()

        async def check_received() -> None:
            asked.set()
            await asyncio.shield(answer)

        stream.check_received = check_received
        server.keepalive(7)
        reading = asyncio.create_task(stream.read())
        await asked.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        answer.set_result(None)
        assert await stream.read() == [Keepalive(7, 0, reply_requested=False)]
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(SourceUnavailable("it is another server now"))
        server.keepalive(8)
        with pytest.raises(SourceUnavailable, match="another server"):
            await stream.read()


async def test_only_frames_before_a_failure_are_returned(server: Walsender) -> None:
    async with streaming(server) as stream:
        stream._wire.pgconn.notice_handler = lambda _: stream.fail(ConfigError("something is missing"))
        server.xlog_data(b"before")
        server.refuse(b"N", S="WARNING", C="55000", M="skipped")
        server.xlog_data(b"after")
        assert await stream.read() == [xlog_data(b"before")]
        with pytest.raises(ConfigError, match="something is missing"):
            await stream.read()


async def test_a_slow_reader_does_not_count_as_silence_of_the_server(server: Walsender) -> None:
    async with streaming(server, SUSPICIOUS) as stream:
        await asyncio.sleep(2 * SUSPICIOUS.give_up_after_s)
        assert stream.failure is None


async def test_missed_status_updates_are_not_sent_later(server: Walsender) -> None:
    async with streaming(server, CALM) as stream:
        server.reads.clear()
        pgconn = stream._wire.pgconn
        pgconn.put_copy_data(bytes(32 * 1024 * 1024))
        assert pgconn.flush() == 1
        for flushed in (1, 2, 3):
            stream.report(flushed, flushed)
            stream._send_report()
        stream.report(4, 4)
        server.reads.set()
        while server.statuses.empty():
            server.keepalive(reply_requested=True)
            await stream.read()
        assert (await server.statuses.get()).flush == 4


async def test_an_error_is_judged(server: Walsender) -> None:
    async with streaming(server) as stream:
        reading = asyncio.create_task(stream.read())
        server.refuse(S="ERROR", C="0A000", M="no", D="Really.", R="routine")
        server.ready()
        with pytest.raises(ConfigError, match=r"judged: no \(SQLSTATE 0A000\): Really") as caught:
            await reading
        assert isinstance(caught.value.__cause__, ServerError)
        assert caught.value.__cause__.routine == "routine"
        assert stream.ended.is_set()


async def test_a_cancelled_read_does_not_forget_the_error(server: Walsender) -> None:
    async with streaming(server) as stream:
        server.refuse(S="ERROR", C="0A000", M="no")
        reading = asyncio.create_task(stream.read())
        await end_of_copy(stream)
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        server.ready()
        with pytest.raises(ConfigError, match="judged: no"):
            await stream.read()


async def test_a_report_after_the_end_of_the_copy_does_not_hide_the_error(server: Walsender) -> None:
    async with streaming(server) as stream:
        server.refuse(S="ERROR", C="0A000", M="no")
        reading = asyncio.create_task(stream.read())
        await end_of_copy(stream)
        stream.ask_position()
        server.ready()
        with pytest.raises(ConfigError, match="judged: no"):
            await reading


@pytest.mark.parametrize("end", [message(b"C", b"COPY 0\0"), message(b"c")])
async def test_if_the_server_ends_the_copy_a_new_session_tries_again(end: bytes, server: Walsender) -> None:
    async with streaming(server) as stream:
        server.xlog_data(b"last")
        server.send(end)
        server.ready()
        assert await stream.read() == [xlog_data(b"last")]
        with pytest.raises(SourceUnavailable, match="ended the stream"):
            await stream.read()


async def test_a_lost_connection_is_noticed_by_the_reader(server: Walsender) -> None:
    async with streaming(server, CALM) as stream:
        server.vanish()
        with pytest.raises(SourceUnavailable, match="the connection to PostgreSQL broke"):
            await stream.read()


async def test_a_lost_connection_is_noticed_by_the_timer(server: Walsender) -> None:
    async with streaming(server, BUSY) as stream:
        server.vanish()
        await stream.ended.wait()
        assert isinstance(stream.failure, SourceUnavailable)


async def test_a_connection_lost_while_the_end_is_read_is_noticed(server: Walsender) -> None:
    async with streaming(server, CALM) as stream:
        server.refuse(S="ERROR", C="0A000", M="no")
        reading = asyncio.create_task(stream.read())
        await end_of_copy(stream)
        server.vanish()
        with pytest.raises(SourceUnavailable):
            await reading


async def test_an_error_in_the_reporter_ends_the_stream(server: Walsender) -> None:
    async with streaming(server, BUSY) as stream:
        reading = asyncio.create_task(stream.read())
        stream._received = -1
        with pytest.raises(struct.error):
            await reading


async def test_the_first_failure_is_raised(server: Walsender) -> None:
    async with streaming(server) as stream:
        server.xlog_data(b"not returned any more")
        await asyncio.sleep(0)
        stream.fail(ConfigError("first"))
        stream.fail(ConfigError("second"))
        with pytest.raises(ConfigError, match="first"):
            await stream.read()


async def test_stopping_reports_and_ends_the_copy(server: Walsender) -> None:
    async with streaming(server) as stream:
        server.xlog_data(b"not read any more")
        stream.report(3, 2)
        await stream.stop()
        assert server.copy_done.is_set()
        assert (await server.statuses.get()).flush == 2
        assert stream.failure is None


async def test_stopping_does_not_wait_for_ever(server: Walsender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "STOP_TIMEOUT_S", 0.05)
    server.answers_copy_done = False
    async with streaming(server) as stream:
        await stream.stop()
        with pytest.raises(SourceUnavailable, match="did not end properly"):
            await stream.read()


async def test_stopping_a_stream_that_has_ended_does_nothing(server: Walsender) -> None:
    async with streaming(server) as stream:
        stream.fail(ConfigError("over"))
        await stream.stop()
        assert not server.copy_done.is_set()


async def test_stopping_survives_a_lost_connection(server: Walsender) -> None:
    async with streaming(server) as stream:
        server.vanish()
        await asyncio.sleep(0)
        await stream.stop()
        assert isinstance(stream.failure, SourceUnavailable)
