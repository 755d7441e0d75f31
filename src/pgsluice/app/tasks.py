"""Runs tasks concurrently until one of them ends, and reacts to the signals that stop the process."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import structlog

log = structlog.get_logger(__name__)


async def first_of(*works: Coroutine[Any, Any, Any]) -> None:
    """Run all of ``works`` until one ends, and cancel the others. If the one that ended has failed, raise its error."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def stop_on_signals(stop: Callable[[], None]) -> AsyncIterator[None]:
    """Call ``stop`` at the first SIGTERM or SIGINT. A second signal ends the process immediately."""
    loop = asyncio.get_running_loop()
    asked = False

    def on_signal(number: int) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        log.info("stopping", signal=signal.Signals(number).name)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
