"""The daemon before it has reached any server: its status, and the errors that end it."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pgsluice.app import status as module
from pgsluice.app.daemon import COLLECT_AFTER, Daemon, collect_seldom
from pgsluice.app.http.health import Role
from pgsluice.config import Settings
from pgsluice.errors import UnavailableError
from pgsluice.spool import disk as disks


@asynccontextmanager
async def running(found: Daemon) -> AsyncIterator[asyncio.Task[None]]:
    """Run the daemon within the block, on a disk that hangs."""
    thaw = threading.Event()
    found._disk.later(thaw.wait)
    task = asyncio.create_task(found.run())
    try:
        yield task
    finally:
        thaw.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_it_waits(found: Daemon) -> None:
    async with asyncio.timeout(5):
        while found._disk._jobs.qsize() == 0:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.005)


async def test_a_disk_that_hangs_at_the_start_is_reported_and_ends_the_daemon(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIVE_S", 0.02)
    monkeypatch.setattr(disks, "DISK_LIMIT_S", 0.1)
    monkeypatch.setattr(disks, "LAST_LOOK_S", 0.1)
    found = Daemon(settings, adopt_slot=False)
    async with running(found) as task:
        await until_it_waits(found)
        await asyncio.sleep(0.03)
        assert "nothing has moved" in (found._status.live() or "")
        assert found._status.ready(Role.ANY) == "starting: not streaming yet"
        with pytest.raises(UnavailableError, match="has not finished a job"):
            await task


async def test_a_stop_does_not_wait_for_a_disk_that_hangs(settings: Settings) -> None:
    found = Daemon(settings, adopt_slot=False)
    async with running(found) as task:
        await until_it_waits(found)
        assert found._status.live() is None
        found._pipeline.stop()
        async with asyncio.timeout(5):
            await task


def test_garbage_collection_is_made_rare(request: pytest.FixtureRequest) -> None:
    request.addfinalizer(gc.unfreeze)
    former = gc.get_threshold()
    request.addfinalizer(lambda: gc.set_threshold(*former))
    collect_seldom()
    assert gc.get_threshold()[0] == COLLECT_AFTER
    assert gc.get_freeze_count() > 0
