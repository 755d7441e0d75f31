"""Reads the stream of one session, one batch after the other. While the pipeline is paused, no new read begins.

While the pipeline is paused, the session gets no frames. A read that was in progress may still end, and its frames wait
for the end of the pause. Because no new read begins, the server has to wait, and memory holds at most one batch. The
stream still reports positions by itself, so the server does not end the connection.
"""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from pgsluice.errors import StopError
from pgsluice.pgoutput.framing import Keepalive, XLogData
from pgsluice.pipeline.ends import Stream
from pgsluice.pipeline.tasks import cancel

Read: TypeAlias = asyncio.Task[list[XLogData | Keepalive]]


class Intake:
    """Reads the stream of one session."""

    def __init__(self, stream: Stream, is_paused: Callable[[], bool]) -> None:
        """``is_paused`` says whether the pipeline is paused. Its result changes only while the session does no work."""
        self._stream = stream
        self._is_paused = is_paused
        self._reading: Read | None = None

    def begin(self) -> None:
        """Begin the next read, unless a read is in progress or the pipeline is paused."""
        if self._reading is None and not self._is_paused():
            self._reading = asyncio.create_task(self._stream.read(), name="read")

    @property
    def is_listening(self) -> bool:
        """Return whether a read waits for frames. Such a read notices the end of the stream."""
        return self._reading is not None and not self._reading.done()

    @property
    def awaited(self) -> Read | None:
        """Return the read that the session has to wait for, if there is one."""
        return None if self._is_kept else self._reading

    def take(self) -> Read | None:
        """Return the read that has ended, and forget it.

        Return None if no read has ended, or if its frames have to wait.
        """
        reading = self._reading
        if reading is None or not reading.done() or self._is_kept:
            return None
        self._reading = None
        return reading

    @property
    def _is_kept(self) -> bool:
        """Return whether a read has ended, and its frames have to wait for the end of a pause.

        If the read has raised an error, return False, because the error does not have to wait.
        """
        reading = self._reading
        return reading is not None and reading.done() and self._is_paused() and reading.exception() is None

    async def wait_lost(self) -> None:
        """Raise the error that ended the stream, even if nobody reads the stream.

        If the error is a StopError, never return. Only the read raises a StopError, so that the session first delivers
        everything that came before the error.
        """
        try:
            await self._stream.wait_ended()
        except StopError:
            await asyncio.Future()

    async def close(self) -> None:
        """Cancel the read in progress. In the next session, the server sends the frames of this read again."""
        await cancel(self._reading)
