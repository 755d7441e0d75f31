"""Uses libpq without blocking: waits for libpq's socket under asyncio, and runs queries of the simple protocol.

The replication connection, its stream and the reader of chunks use :class:`Wire`. The catalog uses only
:func:`answered_within` and :func:`break_off`.

https://www.postgresql.org/docs/current/libpq-async.html
"""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

import psycopg
from psycopg import pq

from pgsluice.postgres.failures import ServerError

ANSWER_TIMEOUT_S = 30.0
"""The time limit for a command that usually takes milliseconds. If a device in the network keeps TCP alive but forwards
nothing, only the missing answer shows the problem."""

_COPY = frozenset({pq.ExecStatus.COPY_BOTH, pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT})


class Wire:
    """One ``PGconn`` in non-blocking mode. One task at a time waits for data, and any task may send."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self.pgconn = pgconn
        self._waiter: asyncio.Future[None] | None = None
        self._results: list[pq.abc.PGresult] = []

    async def readable(self) -> None:
        """Wait until the socket has something to read. This reads nothing, so cancelling the call loses no data."""
        loop = asyncio.get_running_loop()
        descriptor = self.pgconn.socket
        self._waiter = loop.create_future()
        loop.add_reader(descriptor, _wake, self._waiter)
        try:
            await self._waiter
        finally:
            loop.remove_reader(descriptor)
            self._waiter = None

    def interrupt(self, error: Exception) -> None:
        """Make the current wait, if there is one, raise ``error``."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    async def query(self, sql: str, *, patient: bool = False) -> list[pq.abc.PGresult]:
        """Run ``sql`` in the simple protocol. Return the results. The last result may open a COPY.

        Raise ServerError if the server refuses ``sql``. Raise psycopg.OperationalError if the connection is lost, or if
        the answer does not arrive in time. A ``patient`` command may take hours, so it has no time limit.
        """
        self.pgconn.send_query(sql.encode())
        with nullcontext() if patient else answered_within(self.pgconn, ANSWER_TIMEOUT_S):
            results = await self.results()
        for result in results:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise ServerError.of(result)
        return results

    async def results(self) -> list[pq.abc.PGresult]:
        """Return the results of the current command, up to its end or to the COPY that it opens.

        If this call is cancelled, no result is lost, because the next call returns all of them.
        """
        while (result := await self._next_result()) is not None:
            self._results.append(result)
            if result.status in _COPY:
                break
        results, self._results = self._results, []
        return results

    async def _next_result(self) -> pq.abc.PGresult | None:
        while self.pgconn.is_busy():
            self.pgconn.flush()  # this may send only a part of the command; the next iteration sends the rest
            await self.readable()
            self.pgconn.consume_input()
        return self.pgconn.get_result()


@contextmanager
def answered_within(pgconn: pq.abc.PGconn, timeout_s: float) -> Iterator[None]:
    """Break the connection if the block takes longer than ``timeout_s``, so that every wait in the block fails.

    Cancelling the wait would not help, because psycopg would then ask the server to cancel the command, and wait for an
    answer that never comes.
    """
    loop = asyncio.get_running_loop()
    watchdog = loop.call_later(timeout_s, break_off, pgconn)
    try:
        yield
    except psycopg.OperationalError as error:
        if loop.time() < watchdog.when():
            raise
        raise psycopg.OperationalError(f"no answer within {timeout_s:g} s") from error
    finally:
        watchdog.cancel()


def break_off(pgconn: pq.abc.PGconn) -> None:
    """Break the connection, so that a call that waits for an answer fails immediately."""
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(pgconn.socket)) as connected:
        connected.shutdown(socket.SHUT_RDWR)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
