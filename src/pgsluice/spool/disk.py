"""The thread for all file access. If the disk hangs, only this thread is blocked.

The spool passes all file access to a :class:`Disk`. The event loop never touches a file, and never waits for the disk
for longer than ``DISK_LIMIT_S``.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from pgsluice.errors import UnavailableError

T = TypeVar("T")

DISK_LIMIT_S = 30.0
"""The time limit of one job. A job writes a few MiB or removes one file, which takes seconds on a slow network disk."""

LAST_LOOK_S = 1.0
"""The additional time for a job that seems to be late. If the process was suspended, the job may not really be late."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A job and its result."""

    call: Callable[[], Any]
    result: "Future[Any]" = field(default_factory=Future)

    def carry_out(self) -> None:
        try:
            value = self.call()
        except BaseException as error:  # noqa: BLE001 - the task that waits for the result gets the error
            self.result.set_exception(error)
        else:
            self.result.set_result(value)


class Disk:
    """Runs jobs one after the other, in the order in which they were submitted.

    The thread is a daemon thread, and does not belong to an executor. When the interpreter exits, it waits for the
    threads of executors. So a thread of an executor would keep the process from ending while the disk hangs.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._begun_at: float | None = None
        """When the job in progress began, or None if there is none."""
        self._thread: threading.Thread | None = None

    @property
    def busy_s(self) -> float:
        """How long the job in progress has taken so far; 0 if there is none."""
        begun_at = self._begun_at
        return 0.0 if begun_at is None else time.monotonic() - begun_at

    async def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` and return its result. Raise UnavailableError if the disk hangs.

        The disk counts as hanging if a single job, this one or an earlier one, takes longer than ``DISK_LIMIT_S``.
        After a cancellation, ``call`` may still be carried out, but before all jobs that are submitted later.
        """
        job = _Job(call)
        self._put(job)
        result: asyncio.Future[T] = asyncio.wrap_future(job.result)
        try:
            was_late = False
            while not await _done_within(result, max(DISK_LIMIT_S - self.busy_s, LAST_LOOK_S)):
                is_late = self.busy_s >= DISK_LIMIT_S
                if is_late and was_late:
                    raise _hung(self.busy_s)
                was_late = is_late
            return result.result()
        finally:
            job.result.cancel()  # this has no effect if the job has begun
            result.cancel()

    def later(self, call: Callable[[], object]) -> None:
        """Carry out ``call`` after the jobs before it. Nobody waits for it, and its OSErrors are ignored."""

        def ignoring_errors() -> None:
            with suppress(OSError):
                call()

        self._put(_Job(ignoring_errors))

    def _put(self, job: _Job) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="pgsluice-disk", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job.result.set_running_or_notify_cancel():
                self._begun_at = time.monotonic()
                job.carry_out()
                self._begun_at = None


async def _done_within(result: "asyncio.Future[Any]", seconds: float) -> bool:
    done, _ = await asyncio.wait((result,), timeout=seconds)
    return bool(done)


def _hung(seconds: float) -> UnavailableError:
    return UnavailableError(
        f"The disk under buffer.spill_dir has not finished a job for {seconds:.0f} s, so transactions that "
        "do not fit into memory cannot be kept. Check the disk, or choose another directory. Nothing is lost: changes "
        "that were not delivered will be sent again."
    )
