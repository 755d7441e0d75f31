"""The reads of a session, one at a time, and the result of a read that ends during a pause. The stream is scripted."""

import asyncio

import pytest

from pgsluice.errors import SourceUnavailable, StopError
from pgsluice.pgoutput.framing import Keepalive
from pgsluice.pipeline.intake import Intake
from tests.support.ends import FakeStream, World

FRAMES = [Keepalive(100, 0, reply_requested=False)]


class Scene:
    """A stream, and an intake that a test can pause."""

    def __init__(self) -> None:
        self.is_paused = False
        self.stream = FakeStream(World())
        self.intake = Intake(self.stream, lambda: self.is_paused)

    async def receive(self) -> None:
        """Make the stream return frames, so that the read in progress ends."""
        self.stream.queue.put_nowait(list(FRAMES))
        await turns()


async def turns() -> None:
    """Give other tasks some turns."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_read_is_taken_once() -> None:
    scene = Scene()
    intake = scene.intake
    assert (intake.awaited, intake.take(), intake.is_listening) == (None, None, False)
    intake.begin()
    intake.begin()  # a read is in progress already
    assert intake.is_listening
    assert intake.take() is None
    await scene.receive()
    assert not intake.is_listening
    read = intake.awaited
    assert read is not None
    assert intake.take() is read
    assert read.result() == FRAMES
    assert intake.take() is None


async def test_a_paused_pipeline_begins_no_read() -> None:
    scene = Scene()
    scene.is_paused = True
    scene.intake.begin()
    assert not scene.intake.is_listening
    assert scene.intake.awaited is None


async def test_frames_that_are_read_during_a_pause_wait_for_its_end() -> None:
    scene = Scene()
    scene.intake.begin()
    scene.is_paused = True
    assert scene.intake.awaited is not None
    await scene.receive()
    assert not scene.intake.is_listening
    assert [scene.intake.awaited, scene.intake.take()] == [None, None]
    scene.is_paused = False
    scene.intake.begin()
    read = scene.intake.take()
    assert read is not None
    assert read.result() == FRAMES


async def test_a_pause_hides_no_error() -> None:
    scene = Scene()
    scene.intake.begin()
    scene.is_paused = True
    scene.stream.queue.put_nowait(SourceUnavailable("The connection broke."))
    await turns()
    read = scene.intake.take()
    assert read is not None
    with pytest.raises(SourceUnavailable, match="broke"):
        read.result()


async def test_the_end_of_the_stream_is_noticed_during_a_pause() -> None:
    scene = Scene()
    scene.stream.end(SourceUnavailable("The connection broke."))
    with pytest.raises(SourceUnavailable, match="broke"):
        await scene.intake.wait_lost()


async def test_the_read_reports_an_error_that_stops_the_process() -> None:
    scene = Scene()
    scene.stream.end(StopError("The slot is lost."))
    waiting = asyncio.create_task(scene.intake.wait_lost())
    await turns()
    assert not waiting.done()
    waiting.cancel()


async def test_a_read_in_progress_is_given_up_at_the_end() -> None:
    scene = Scene()
    await scene.intake.close()
    scene.intake.begin()
    await scene.intake.close()
    assert not scene.intake.is_listening
