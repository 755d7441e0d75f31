"""A TCP proxy that can cut, stall, drop and refuse connections, as a bad network does.

    with Proxy(server.host, server.port) as proxy: ...; proxy.cut()

The proxy's event loop runs in a separate thread, so that tests with and without an event loop can use the proxy. Each
method has taken effect when it returns.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Literal, Self, TypeVar, get_args

from sandbox.ports import ReservedPort

HOST = "127.0.0.1"

CHUNK_BYTES = 64 * 1024

RESET_AT_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER with a time of zero, which makes close() send RST and drop unsent data."""

Direction = Literal["to_server", "to_client"]
BOTH: tuple[Direction, ...] = get_args(Direction)

T = TypeVar("T")


class Proxy:
    """Forwards the connections of one port. There are no faults until a method causes one.

    A method that is called without a direction affects both directions. A change of ``target`` affects only later
    connections.
    """

    host = HOST

    def __init__(self, target_host: str = HOST, target_port: int = 0, at: tuple[str, int] | None = None) -> None:
        """Set the target, and with ``at`` the address to listen on.

        The caller must have reserved the port in ``at``. By default, the proxy reserves any free port.
        """
        self.target = (target_host, target_port)
        self._reserved = [ReservedPort.any()] if at is None else []
        self._at = at or (HOST, self._reserved[0].number)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listening: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._ways: dict[Direction, _Way] = {direction: _Way() for direction in BOTH}

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for port in self._reserved:
            port.release()

    @property
    def port(self) -> int:
        """The port that clients connect to. It never changes."""
        return self._at[1]

    @property
    def address(self) -> str:
        """The address for clients, as ``host:port``."""
        return f"{self._at[0]}:{self.port}"

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def forwarded(self, direction: Direction) -> int:
        """Return the number of bytes forwarded through all connections."""
        return self._ways[direction].forwarded

    def cut(self) -> None:
        """Reset every connection on both sides. New connections are accepted."""
        self._do(self._cut)

    def cut_after(self, count: int, direction: Direction) -> None:
        """Reset all connections when exactly ``count`` more bytes have been forwarded on all of them together."""
        self._each(direction, lambda way: way.limit(count))

    def stall_after(self, count: int, direction: Direction) -> None:
        """Stall all connections when exactly ``count`` more bytes have been forwarded on all of them together."""
        self._each(direction, lambda way: way.limit(count, stalls=True))

    def stall(self, direction: Direction | None = None) -> None:
        """Stop forwarding. Old and new connections stay open, and their data is delayed."""
        self._each(direction, lambda way: way.open.clear())

    def drop(self, direction: Direction | None = None) -> None:
        """Drop everything that is sent, even the end of a connection, as if a host no longer answered."""
        self._each(direction, _Way.drop)

    def refuse(self) -> None:
        """Refuse new connections. Open connections stay open."""
        self._do(self._refuse)

    def resume(self) -> None:
        """End all faults. Dropped data stays lost, so the caller must cut the connections that lack data."""
        self._each(None, _Way.resume)
        self._do(self._listen)

    def _each(self, direction: Direction | None, change: Callable[["_Way"], None]) -> None:
        async def order() -> None:
            for name in BOTH if direction is None else (direction,):
                change(self._ways[name])

        self._do(order)

    def _do(self, order: Callable[[], Coroutine[Any, Any, T]]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(order(), self._loop)
        return future.result()

    # Everything below runs in the proxy's thread.

    async def _listen(self) -> None:
        if self._listening is None:
            self._listening = await asyncio.start_server(self._accept, *self._at)

    async def _refuse(self) -> None:
        if self._listening is not None:
            listening, self._listening = self._listening, None
            # asyncio attaches a new connection to its server in the next iteration of the loop. If the server is closed
            # before that, Python 3.11 loses the socket without closing it.
            for port in listening.sockets:
                self._loop.remove_reader(port)
            await asyncio.sleep(0)
            # Do not call wait_closed(), because it would wait for the connections, which must stay open.
            listening.close()

    async def _cut(self) -> None:
        for connection in list(self._connections):
            connection.reset()

    async def _end(self) -> None:
        await self._refuse()
        # A connection that was just accepted gets its task only in the next iteration of the loop.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await self._cut()
            await asyncio.wait(others, timeout=0.01)
        await asyncio.sleep(0)  # aborted transports close their sockets in the next iteration of the loop

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer)
        self._connections.add(connection)
        try:
            await connection.run(reader, self.target, self._ways, self._cut)
        except (OSError, asyncio.CancelledError):
            connection.reset()
        finally:
            self._connections.discard(connection)
            connection.close()


class _Way:
    """The state of one direction, which all connections share."""

    def __init__(self) -> None:
        self.forwarded = 0
        self.dropping = False
        self.left: int | None = None
        """How many more bytes may be forwarded before all connections are cut or stalled. None means no limit."""
        self.stalls = False
        self.open = asyncio.Event()
        self.open.set()

    def limit(self, count: int, *, stalls: bool = False) -> None:
        self.left, self.stalls = count, stalls

    async def stall(self) -> None:
        self.open.clear()

    def drop(self) -> None:
        self.dropping = True

    def resume(self) -> None:
        self.dropping = False
        self.left = None
        self.open.set()

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the part of ``data`` that may be forwarded, and the rest. Count the first part as forwarded."""
        count = len(data) if self.left is None else min(self.left, len(data))
        if self.left is not None:
            self.left -= count
        self.forwarded += count
        return data[:count], data[count:]


class _Connection:
    """A client, its connection to the server, and the data between them."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self._writers = [client]
        self._pumps: list[asyncio.Task[None]] = []
        self._is_reset = False

    async def run(
        self,
        client: asyncio.StreamReader,
        target: tuple[str, int],
        ways: dict[Direction, _Way],
        cut: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Forward data until both sides have closed.

        Raise OSError if a side fails, and CancelledError if the connection is cut.
        """
        server, to_server = await asyncio.open_connection(*target)
        to_client = self._writers[0]
        self._writers.append(to_server)
        if self._is_reset:  # the connection was reset while it was being opened
            self.reset()
            return
        for writer in self._writers:
            writer.transport.set_write_buffer_limits(0)
        self._pumps = [
            asyncio.create_task(_pump(client, to_server, ways["to_server"], cut)),
            asyncio.create_task(_pump(server, to_client, ways["to_client"], cut)),
        ]
        await asyncio.gather(*self._pumps)

    def reset(self) -> None:
        """Close both sides with RST."""
        self._is_reset = True
        for pump in self._pumps:
            pump.cancel()
        for writer in self._writers:
            if not writer.transport.is_closing():
                plain: socket.socket = writer.get_extra_info("socket")
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                writer.transport.abort()

    def close(self) -> None:
        """Close both sides after they have received all data."""
        for writer in self._writers:
            writer.close()


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    way: _Way,
    cut: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    while True:
        data = await reader.read(CHUNK_BYTES)
        await way.open.wait()
        if way.dropping:
            if not data:
                await asyncio.Future()  # do nothing until the connection is cut
            continue
        if not data:
            writer.write_eof()
            return
        while data:
            await way.open.wait()
            passed, data = way.take(data)
            writer.write(passed)
            await writer.drain()
            if way.left == 0:
                way.left = None
                await (way.stall() if way.stalls else cut())
