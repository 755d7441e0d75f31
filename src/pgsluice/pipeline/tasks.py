"""Functions that wait for a task, but end the wait if the connection to PostgreSQL is lost or a stop takes too long."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

from pgsluice.errors import DrainTimeout
from pgsluice.pipeline.ends import Source, Stream
from pgsluice.pipeline.watch import WATCH_S

T = TypeVar("T")

NOTHING_LOST: Final = "Nothing is lost: what was not delivered was not confirmed either, and will be sent again."


async def while_served(source: Source, stream: Stream, step: Coroutine[Any, Any, T]) -> T:
    """Wait for ``step``. If the connection to PostgreSQL is lost meanwhile, cancel ``step`` and raise the error.

    Kafka may delay ``step``, and nobody reads the stream during ``step``. If nobody watched the connection either, a
    server that shuts down would wait for its walsender until ``step`` ends.
    """
    waiting, watches = asyncio.create_task(step, name="start"), _watches(source, stream)
    try:
        await asyncio.wait((waiting, *watches), return_when=asyncio.FIRST_COMPLETED)
        for watch in watches:
            if watch.done():
                watch.result()
        return await waiting
    finally:
        await cancel(waiting, *watches)


async def close_when_lost(source: Source, stream: Stream, step: Coroutine[Any, Any, None]) -> None:
    """Wait for ``step``. If PostgreSQL shuts down or is lost meanwhile, close our connections to it.

    A server that shuts down may wait until our connections are closed.
    """
    waiting, watches = asyncio.create_task(step, name="refuse"), _watches(source, stream)
    try:
        await asyncio.wait((waiting, *watches), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            await source.close()
        await waiting
    finally:
        await cancel(waiting, *watches)


def _watches(source: Source, stream: Stream) -> list[asyncio.Task[None]]:
    """Return tasks that raise an error if the connection to PostgreSQL is lost."""
    return [asyncio.create_task(stream.wait_ended()), asyncio.create_task(_watch(source))]


async def _watch(source: Source) -> None:
    while True:
        await asyncio.sleep(WATCH_S)
        await source.flushed_lsn()


@asynccontextmanager
async def drained_within(seconds: float, stop: asyncio.Event) -> AsyncIterator[None]:
    """Raise DrainTimeout if the block takes longer than ``seconds`` after ``stop`` is set."""
    try:
        async with asyncio.timeout(None) as limit:
            watch = asyncio.create_task(_arm(stop, limit, seconds))
            try:
                yield
            finally:
                watch.cancel()
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise DrainTimeout(
            f"Changes in flight could not be delivered within shutdown.drain_timeout ({seconds:g} s). {NOTHING_LOST}"
        ) from error


async def _arm(stop: asyncio.Event, limit: asyncio.Timeout, seconds: float) -> None:
    await stop.wait()
    limit.reschedule(asyncio.get_running_loop().time() + seconds)


async def cancel(*tasks: "asyncio.Task[Any] | None") -> None:
    """Cancel these tasks and wait for their end. Ignore their exceptions."""
    for task in tasks:
        if task is not None and not task.done():
            task.cancel()
        if task is not None:
            with suppress(BaseException):
                await task
