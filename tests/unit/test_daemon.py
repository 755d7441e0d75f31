"""The composition root, as far as it goes without servers: signs of life before anything else works."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pgsluice import daemon as module
from pgsluice import disk as disks
from pgsluice.config import load
from pgsluice.daemon import _Daemon
from pgsluice.errors import UnavailableError
from pgsluice.http.health import Role


def make(tmp_path: Path) -> _Daemon:
    environ = {
        "PGSLUICE_NAME": "shop",
        "PGSLUICE_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "PGSLUICE_KAFKA__TOPIC_PREFIX": "shop",
        "PGSLUICE_POSTGRES__HOST": str(tmp_path),
        "PGSLUICE_BUFFER__SPILL_DIR": str(tmp_path / "spill"),
        "PGSLUICE_HTTP__LISTEN": "127.0.0.1:0",
    }
    return _Daemon(load(None, environ), adopt_slot=False)


@asynccontextmanager
async def running(found: _Daemon) -> AsyncIterator[asyncio.Task[None]]:
    """Run it on a disk that hangs for the length of the block."""
    thaw = threading.Event()
    found._disk.later(thaw.wait)
    task = asyncio.create_task(found.run())
    try:
        yield task
    finally:
        thaw.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_it_waits(found: _Daemon) -> None:
    async with asyncio.timeout(5):
        while found._disk._jobs.qsize() == 0:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)


async def test_a_disk_that_hangs_at_the_start_shows_and_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIVE_S", 0.02)
    monkeypatch.setattr(disks, "DISK_LIMIT_S", 0.1)
    monkeypatch.setattr(disks, "LAST_LOOK_S", 0.1)
    found = make(tmp_path)
    async with running(found) as task:
        await until_it_waits(found)
        await asyncio.sleep(0.03)
        assert "nothing has moved" in (found._live() or "")
        assert found._ready(Role.ANY) == "starting: not streaming yet"
        with pytest.raises(UnavailableError, match="has not finished a piece of work"):
            await task


async def test_a_stop_does_not_wait_for_it(tmp_path: Path) -> None:
    found = make(tmp_path)
    async with running(found) as task:
        await until_it_waits(found)
        assert found._live() is None
        found._pipeline.stop()
        async with asyncio.timeout(5):
            await task
