"""Virtual time: an event loop that never waits, simulated threads that run one at a time, and a virtual clock.

The seed alone decides the order of all events in a simulation. The loop advances the clock to the next timer. Blocking
calls run in greenlets instead of threads. A greenlet runs only while the loop waits for it. When a greenlet sleeps, the
loop continues. ``patched`` replaces the clocks, threads and random generators in every module of pgsluice that uses
the real ones.
"""

import asyncio
import contextlib
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

from greenlet import greenlet

START_S = 1_700_000_000.0
"""The time of the wall clock at the beginning of every world."""


TICK_S = 1e-6


class Killed(BaseException):
    """Ends a thread whose process was killed, so that the thread has no further effect."""


class Stuck(Exception):
    """Raised when no timer is left, so that nothing can happen any more."""


class Process:
    """The tasks and threads of one daemon, which die together."""

    def __init__(self, loop: "Loop") -> None:
        self.alive = True
        self._loop = loop
        self.lanes: list[_Lane] = []
        self.steps_left = 0
        """The number of steps until the process is killed, or 0 if it is not going to be killed."""
        self.on_last_step: Callable[[], object] = self.kill

    def step(self) -> None:
        """Count a step, at which the process may die. Call this before or after an action that others can see."""
        if self.steps_left:
            self.steps_left -= 1
            if not self.steps_left:
                self.alive = False
                self._loop.call_soon(self.on_last_step)
        if not self.alive and _Thread.current is not None:
            raise Killed

    def kill(self) -> None:
        """Kill the process, and end its threads at their current step."""
        self.alive = False
        for lane in self.lanes:
            lane.kill()


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class _Thread:
    """A greenlet that replaces a thread. It runs only inside :meth:`step`."""

    current: "_Thread | None" = None

    def __init__(self, call: Callable[[], None]) -> None:
        self._greenlet = greenlet(call)
        self.killed = False

    def step(self) -> float | None:
        """Run the thread until it sleeps, and return for how long it sleeps. Return None if the thread has ended."""
        _Thread.current = self
        try:
            return self._greenlet.switch()  # type: ignore[no-any-return]  # the argument of sleep(), or None at the end
        finally:
            _Thread.current = None

    def sleep(self, seconds: float) -> None:
        """Return control from the thread to the loop, for ``seconds``."""
        self._greenlet.parent.switch(seconds)
        if self.killed:
            raise Killed


class _Lane:
    """Replaces an executor that has one worker thread. It runs its calls one after the other."""

    def __init__(self, loop: "Loop", process: Process | None) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._futures: list[asyncio.Future[Any]] = []
        self._thread: _Thread | None = None
        self._process = process
        if process is not None:
            process.lanes.append(self)

    def submit(self, call: Callable[[], Any]) -> "asyncio.Future[Any]":
        future = self._loop.create_future()
        self._waiting.append((call, future))
        self._futures.append(future)
        if self._thread is None:
            self._next()
        return future

    def kill(self) -> None:
        self._waiting.clear()
        for future in self._futures:
            future.cancel()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.killed = True
            while thread.step() is not None:
                pass

    def _next(self) -> None:
        call, future = self._waiting.popleft()
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.extend((True, call()))
            except Killed:
                outcome.extend((None, None))
            except BaseException as error:  # noqa: BLE001 - passed to the task that waits
                outcome.extend((False, error))

        self._thread = _Thread(run)
        self._step(self._thread, future, outcome)

    def _step(self, thread: _Thread, future: "asyncio.Future[Any]", outcome: list[Any]) -> None:
        if self._thread is not thread or thread.killed:
            return
        asleep_s = thread.step()
        if asleep_s is not None:
            self._loop.call_later(asleep_s, self._step, thread, future, outcome)
            return
        self._thread = None
        self._futures.remove(future)
        fine, value = outcome
        if not future.done():
            if fine:
                future.set_result(value)
            elif fine is not None:
                future.set_exception(value)
        if self._waiting and (self._process is None or self._process.alive):
            self._next()


class _Selector:
    """A selector that only moves the clock to the next timer."""

    def __init__(self, loop: "Loop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck
        # Some time always passes, as in reality. Otherwise, rounding errors in times could cause an endless loop.
        self._loop.now += timeout + TICK_S
        return []


class Loop(asyncio.BaseEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._clock_resolution = 1e-6
        self._selector = _Selector(self)
        self._lanes: dict[tuple[int, int], tuple[object, object, _Lane]] = {}

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]  # noqa: ANN401 - any call
        process = PROCESS.get()
        if process is not None and not process.alive:
            failed = self.create_future()
            failed.cancel()
            return failed
        key = id(executor), id(process)
        if key not in self._lanes:
            # Keep references to the executor and the process, so that their ids are not reused.
            self._lanes[key] = executor, process, _Lane(self, process)
        return self._lanes[key][-1].submit(lambda: func(*args))

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class _Event:
    """Replaces threading.Event, for threads that run one at a time."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            assert timeout is not None, "a simulated thread never waits for ever"
            sleep(timeout)
        return self._set


def sleep(seconds: float) -> None:
    """Sleep in a simulated thread."""
    assert _Thread.current is not None, "the event loop never blocks"
    if seconds:
        _Thread.current.sleep(seconds)


class SilentLog:
    """Replaces a module's logger. It passes the text of each log event to ``note``."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def __getattr__(self, level: str) -> Callable[..., None]:
        return self._say

    def _say(self, *args: object, **fields: object) -> None:
        self._note(" ".join(map(str, args)) + "".join(f" {name}={value}" for name, value in fields.items()))


def _silent(*_args: object) -> None:
    pass


@contextlib.contextmanager
def patched(loop: Loop, dice: random.Random, note: Callable[[str], None] | None) -> Iterator[None]:
    """Replace the clocks, threads, random generators and logs of all modules of pgsluice."""
    clock = SimpleNamespace(monotonic=loop.time, time=lambda: START_S + loop.now, sleep=sleep)
    threads = SimpleNamespace(**{**vars(threading), "Event": _Event})
    log: Any = SilentLog(note or _silent)
    if note is None:
        log = SimpleNamespace(**dict.fromkeys(("debug", "info", "warning", "error", "exception", "log"), _quiet))
    substitutes = {
        "time": (time, clock),
        "random": (random, dice),
        "threading": (threading, threads),
        "log": (None, log),
    }
    changed: list[tuple[Any, str, Any]] = []
    for module in [module for name, module in sys.modules.items() if name.startswith("pgsluice.")]:
        for name, (real, substitute) in substitutes.items():
            found = vars(module).get(name)
            if found is not None and (found is real or (name == "log" and hasattr(found, "warning"))):
                changed.append((module, name, found))
                setattr(module, name, substitute)
    try:
        yield
    finally:
        for module, name, found in changed:
            setattr(module, name, found)


def _quiet(*_args: object, **_fields: object) -> None:
    pass
