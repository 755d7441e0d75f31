"""The connections of the HTTP server, with limits for their number and for the time that each may be silent.

:mod:`.server` uses this module. aiohttp itself waits without limit for requests, and for clients that do not read their
answers. So without our limits, anybody who can reach the port could use up all file descriptors. None would be left for
health checks, or for the connections to PostgreSQL and Kafka.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web

CONNECTIONS_MAX: Final = 100
"""The maximum number of connections. This is enough even if many consumers ask for schemas at the same time, because
each consumer caches schemas."""

SILENT_S: Final = 20.0
"""The time after which an idle connection is closed. Within this time, the client has to read the last answer, and to
send the head of its next request."""

WAITING_MAX_BYTES: Final = 32 * 1024 * 1024
"""The limit for the total size of the answers that clients have not read yet. This is enough for a few lists of 100,000
subjects. aiohttp keeps a second copy of data that it has not written yet, so the answers may take twice as much
memory."""

NEW_S: Final = 0.5
"""The time for which a connection counts as new. It begins when the connection is accepted, and again after each
answer, because the client then needs time to send a request."""

_LOOK_S: Final = 1.0


class Connections:
    """The connections of one server.

    A new connection never has to wait, because an older connection is closed if there are too many.
    """

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._since: dict[web.RequestHandler, float] = {}
        """When each connection was accepted, or when its last request was answered."""
        self._busy: set[web.RequestHandler] = set()
        """The connections whose request is being answered. An answer takes a limited time."""

    def accept(self) -> web.RequestHandler:
        """Return the protocol of a new connection."""
        self._forget_ended()
        if len(self._since) >= CONNECTIONS_MAX:
            self._end(min(self._since, key=self._claim))
        connection = self._server()
        self._since[connection] = time.monotonic()
        return connection

    def _claim(self, connection: web.RequestHandler) -> tuple[bool, bool, float]:
        """Return the rank of a connection. The connection with the lowest rank is closed first.

        New connections have the highest rank, which protects health checks. Suppose that a client occupies all
        connections with slow requests. The request of a new connection has not arrived yet. If busy connections had the
        highest rank, the new connection of a health check would be closed first.
        """
        since = self._since[connection]
        is_new = since > time.monotonic() - NEW_S
        return is_new, not is_new and connection in self._busy, since

    @contextmanager
    def answering(self, connection: web.RequestHandler) -> Iterator[None]:
        """Mark ``connection`` as busy in this block, which answers a request."""
        self._busy.add(connection)
        try:
            yield
        finally:
            self._busy.discard(connection)
            self._since[connection] = time.monotonic()

    @property
    def waiting_bytes(self) -> int:
        """The bytes of answers that clients have not read yet, of all connections together."""
        return sum(map(_waiting_bytes, self._since))

    def make_room(self, connection: web.RequestHandler, size: int) -> None:
        """Close other connections, the ones with the most waiting bytes first, until ``size`` bytes fit."""
        excess = self.waiting_bytes + size - WAITING_MAX_BYTES
        others = sorted((one for one in self._since if one is not connection), key=_waiting_bytes)
        while excess > 0 and others and (waiting := _waiting_bytes(others[-1])):
            self._end(others.pop())
            excess -= waiting

    async def watch(self) -> None:
        """Close connections that have been silent for too long. Never return."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self._forget_ended()
            last = time.monotonic() - SILENT_S
            for connection in [one for one, since in self._since.items() if since < last and one not in self._busy]:
                self._end(connection)

    def _forget_ended(self) -> None:
        """Drop closed connections. Keep new connections, even though aiohttp's server may not list them yet."""
        now = time.monotonic()
        new = {one: since for one, since in self._since.items() if since > now - _LOOK_S}
        self._since = new | {one: self._since.get(one, now) for one in self._server.connections}

    def _end(self, connection: web.RequestHandler) -> None:
        """Close the connection without waiting until everything is sent, because the client may never read it."""
        del self._since[connection]
        if connection.transport is not None:
            connection.transport.abort()


def _waiting_bytes(connection: web.RequestHandler) -> int:
    """Return how many bytes wait in this process for the client. The operating system's buffers are not included."""
    return 0 if connection.transport is None else connection.transport.get_write_buffer_size()
