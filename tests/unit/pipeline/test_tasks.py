"""The time limit of a stop. ``test_pipeline.py`` tests servers that go away while a session starts or refuses them."""

import asyncio

import pytest

from pgsluice.errors import DrainTimeout
from pgsluice.pipeline.tasks import cancel, drained_within


async def test_a_block_has_no_time_limit_until_a_stop() -> None:
    async with drained_within(0, asyncio.Event()):
        await asyncio.sleep(0)


async def test_a_block_that_takes_too_long_after_a_stop_is_cancelled() -> None:
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(DrainTimeout, match=r"shutdown\.drain_timeout \(0 s\)\. Nothing is lost"):
        async with drained_within(0, stop):
            await asyncio.Event().wait()


async def test_a_timeout_of_the_block_itself_is_passed_on() -> None:
    with pytest.raises(TimeoutError, match="of a client"):
        async with drained_within(10, asyncio.Event()):
            raise TimeoutError("of a client")


async def test_cancelled_tasks_have_ended() -> None:
    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("not of interest")

    waiting, finished = asyncio.create_task(fail()), asyncio.create_task(asyncio.sleep(0))
    await finished
    await cancel(waiting, None, finished)
    assert waiting.done()
