"""A disk in virtual time that can hang."""

from collections import deque
from random import Random

from pgsluice.spool.disk import Disk, _Job
from tests.simulation.virtual import Loop, Process


class ScriptedDisk(Disk):
    """Like :class:`Disk`, but without a thread. The event loop carries out the jobs, one after the other."""

    def __init__(self, loop: Loop, process: Process, dice: Random) -> None:
        super().__init__()
        self._loop = loop
        self._process = process
        self._dice = dice
        self._waiting: deque[_Job] = deque()
        self._is_frozen = False
        self._is_held = False
        """Whether a job has begun and waits for ``thaw``."""

    def freeze(self) -> None:
        """Make the disk hang, so that no job ends."""
        self._is_frozen = True

    def thaw(self) -> None:
        """Let the disk work again."""
        self._is_frozen = False
        if self._is_held:
            self._is_held = False
            self._finish()

    def _put(self, job: _Job) -> None:
        self._waiting.append(job)
        if len(self._waiting) == 1:
            self._begin()

    def _begin(self) -> None:
        while self._waiting and not self._waiting[0].result.set_running_or_notify_cancel():
            self._waiting.popleft()
        if self._waiting:
            self._begun_at = self._loop.time()
            self._loop.call_later(self._dice.choice((0.0, 0.0, 0.001)), self._finish)

    def _finish(self) -> None:
        if not self._process.alive:
            return
        if self._is_frozen:
            self._is_held = True
            return
        self._waiting[0].carry_out()
        self._begun_at = None
        self._waiting.popleft()
        self._begin()
