import asyncio
import os
import signal

import pytest

from pgsluice.app.tasks import first_of, stop_on_signals
from pgsluice.errors import SourceUnavailable


async def test_the_first_task_that_ends_ends_the_others() -> None:
    ended: list[str] = []

    async def serve() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("server")

    await first_of(serve(), asyncio.sleep(0))
    assert ended == ["server"]


async def test_the_error_of_a_task_is_raised() -> None:
    async def fail() -> None:
        raise SourceUnavailable("PostgreSQL is gone")

    with pytest.raises(SourceUnavailable, match="is gone"):
        await first_of(fail(), asyncio.Event().wait())


async def test_a_signal_stops_the_process_in_an_orderly_way() -> None:
    stopped = asyncio.Event()
    async with stop_on_signals(stopped.set):
        os.kill(os.getpid(), signal.SIGTERM)
        await stopped.wait()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_a_second_signal_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, exited = asyncio.Event(), asyncio.Event()
    codes: list[int] = []

    def note_exit(code: int) -> None:
        codes.append(code)
        exited.set()

    monkeypatch.setattr(os, "_exit", note_exit)
    async with stop_on_signals(stopped.set):
        os.kill(os.getpid(), signal.SIGTERM)
        await stopped.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await exited.wait()
    assert codes == [128 + signal.SIGTERM]
