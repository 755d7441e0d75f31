"""The thread for file operations: the order of jobs, and a disk that hangs."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from pgsluice.errors import UnavailableError
from pgsluice.spool import disk as module
from pgsluice.spool.disk import Disk
from tests.support.disks import hanging

LIMIT_S = 0.05


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DISK_LIMIT_S", LIMIT_S)
    monkeypatch.setattr(module, "LAST_LOOK_S", LIMIT_S)


async def test_jobs_run_in_order_in_a_thread_of_their_own(disk: Disk) -> None:
    done: list[int] = []
    disk.later(lambda: done.append(1))
    disk.later(lambda: done.append(2))
    assert await disk.run(threading.current_thread) is not threading.current_thread()
    assert done == [1, 2]
    assert disk.busy_s == 0.0 or disk.busy_s < LIMIT_S


async def test_an_error_is_raised_only_for_its_own_job(disk: Disk) -> None:
    def fail() -> None:
        raise FileNotFoundError("not there")

    disk.later(fail)
    with pytest.raises(FileNotFoundError, match="not there"):
        await disk.run(fail)


@pytest.mark.usefixtures("impatient")
async def test_a_job_that_hangs_ends_the_wait_for_all_later_jobs(disk: Disk) -> None:
    done: list[int] = []
    with hanging(disk):
        with pytest.raises(UnavailableError, match=r"has not finished .* Nothing is lost"):
            await disk.run(lambda: done.append(1))
        assert disk.busy_s >= LIMIT_S
    await disk.run(lambda: None)
    assert done == [], "the job ran, although nobody waited for it any more"


@pytest.mark.usefixtures("impatient")
async def test_many_jobs_that_finish_do_not_count_as_a_hanging_disk(disk: Disk) -> None:
    for _ in range(10):
        disk.later(lambda: time.sleep(LIMIT_S / 2))
    assert await disk.run(lambda: 1) == 1


@pytest.mark.usefixtures("impatient")
async def test_a_job_that_finishes_before_the_second_look_does_not_count_as_hanging(disk: Disk) -> None:
    """After the time limit, look at the job once more. If the process was suspended, the job could not run."""
    thaw = threading.Event()
    waiting = asyncio.create_task(disk.run(lambda: thaw.wait() and 1))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(1.5 * LIMIT_S, thaw.set)
    time.sleep(1.2 * LIMIT_S)  # noqa: ASYNC251 - the loop is blocked, as if the process were stopped
    assert await waiting == 1


async def test_a_cancellation_does_not_wait_for_the_disk(disk: Disk) -> None:
    done: list[int] = []
    with hanging(disk):
        task = asyncio.create_task(disk.run(lambda: done.append(1)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await disk.run(lambda: done.append(2))
    assert done == [2]


async def test_a_job_in_progress_at_a_cancellation_ends_before_the_next_one(disk: Disk) -> None:
    done, begun, thaw = list[int](), threading.Event(), threading.Event()

    def slowly() -> None:
        begun.set()
        thaw.wait()
        done.append(1)

    task = asyncio.create_task(disk.run(slowly))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    disk.later(lambda: done.append(2))
    thaw.set()
    await disk.run(lambda: done.append(3))
    assert done == [1, 2, 3]


def test_a_process_ends_while_its_disk_hangs() -> None:
    program = """
import asyncio, threading
from pgsluice.spool.disk import Disk

async def main():
    Disk().later(threading.Event().wait)
    await asyncio.sleep(0.1)

asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=30).returncode == 0
