"""A walsender that a test controls. It is the other end of libpq's connection, on a real socket.

It can do things that a real server does not do on request: send a flood of data, stay silent, end COPY at a chosen
moment, or send invalid bytes.

https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

import asyncio
import struct
from typing import Self

from pgsluice.pgoutput.framing import StandbyStatusUpdate, parse_standby_status_update

_ENCRYPTION_REQUESTS = (80877103, 80877104)  # SSLRequest, GSSENCRequest
_PARAMETERS = {"server_encoding": "UTF8", "client_encoding": "UTF8"}


def message(kind: bytes, body: bytes = b"") -> bytes:
    """Return one message of the frontend/backend protocol."""
    return kind + struct.pack(">i", len(body) + 4) + body


class Walsender:
    """Accepts one connection, answers queries with CopyBothResponse, and collects the status updates."""

    def __init__(self, version: str = "17.10") -> None:
        self._parameters = {"server_version": version, **_PARAMETERS}
        self.query = asyncio.Event()
        """This event is set when a query has arrived."""
        self.answers_queries = True
        self.statuses: asyncio.Queue[StandbyStatusUpdate] = asyncio.Queue()
        self.copy_done = asyncio.Event()
        """This event is set when the client has ended its side of the COPY."""
        self.answers_copy_done = True
        self.reads = asyncio.Event()
        """A test can clear this event to stop the walsender from reading."""
        self.reads.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._writer.transport.abort()
        self._session.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._session = asyncio.ensure_future(self._serve(reader))

    async def _serve(self, reader: asyncio.StreamReader) -> None:
        await self._greet(reader)
        while True:
            await self.reads.wait()
            kind, length = struct.unpack(">ci", await reader.readexactly(5))
            self._answer(kind, await reader.readexactly(length - 4))

    async def _greet(self, reader: asyncio.StreamReader) -> None:
        while True:
            length, code = struct.unpack(">ii", await reader.readexactly(8))
            await reader.readexactly(length - 8)
            if code not in _ENCRYPTION_REQUESTS:
                break
            self._writer.write(b"N")
        self.send(message(b"R", struct.pack(">i", 0)))
        for name, value in self._parameters.items():
            self.send(message(b"S", name.encode() + b"\0" + value.encode() + b"\0"))
        self.send(message(b"K", struct.pack(">ii", 1, 2)))
        self.ready()

    def _answer(self, kind: bytes, body: bytes) -> None:
        if kind == b"Q":
            self.query.set()
            if self.answers_queries:
                self.send(message(b"W", struct.pack(">bh", 0, 0)))
        elif kind == b"d" and body.startswith(b"r"):
            self.statuses.put_nowait(parse_standby_status_update(body))
        elif kind == b"c":
            self.copy_done.set()
            if self.answers_copy_done:
                self.send(message(b"c"))
                self.complete()

    def send(self, data: bytes) -> None:
        """Send bytes unchanged."""
        self._writer.write(data)

    def frame(self, data: bytes) -> None:
        """Send ``data`` as CopyData."""
        self.send(message(b"d", data))

    def xlog_data(self, payload: bytes) -> None:
        """Send XLogData (``w``)."""
        self.frame(struct.pack(">cQQq", b"w", 0, 0, 0) + payload)

    def keepalive(self, wal_end: int = 0, *, reply_requested: bool = False) -> None:
        """Send a keepalive (``k``)."""
        self.frame(struct.pack(">cQqB", b"k", wal_end, 0, reply_requested))

    def refuse(self, kind: bytes = b"E", **fields: str) -> None:
        """Send an ErrorResponse (``E``) or a NoticeResponse (``N``). The name of each field is its one-letter type."""
        body = b"".join(letter.encode() + text.encode() + b"\0" for letter, text in fields.items())
        self.send(message(kind, body + b"\0"))

    def complete(self) -> None:
        """Send CommandComplete and ReadyForQuery."""
        self.send(message(b"C", b"COPY 0\0"))
        self.ready()

    def ready(self) -> None:
        """Send ReadyForQuery."""
        self.send(message(b"Z", b"I"))

    def vanish(self) -> None:
        """Reset the connection."""
        self._writer.transport.abort()
