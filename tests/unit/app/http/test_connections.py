"""Connections to the HTTP server as clients see them."""

import asyncio
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry

from pgsluice.app.http import connections as module
from pgsluice.app.http.health import Health
from pgsluice.app.http.server import HttpServer
from pgsluice.registry.schema_record import Registered
from pgsluice.registry.store import SchemaStore

REQUEST = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
SHORT_S = 0.2
SUBJECT_BYTES = 200
ANSWER_BYTES = 12 * 1024 * 1024
WAITING_MAX_BYTES = 30 * 1024 * 1024
"""The limit of pending answers in these tests.

It must not be too low, because the kernel alone buffers up to 4 MiB of each answer.
"""


class Client:
    """A client with one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def ask(self) -> bytes:
        """Send a request. Return the first line of the answer."""
        self.writer.write(REQUEST)
        head = await self._reader.readuntil(b"ok\n")
        return head.split(b"\r\n")[0]

    async def rest_of_answer(self) -> bytes:
        return await self._reader.readuntil(b"]")

    async def has_ended(self) -> bool:
        try:
            return await asyncio.wait_for(self._reader.read(1), 10) == b""
        except ConnectionError:
            return True

    def is_open(self) -> bool:
        return not self._reader.at_eof() and self._reader.exception() is None


Connect = Callable[[], Awaitable[Client]]


@pytest.fixture
def store() -> SchemaStore:
    return SchemaStore()


@pytest.fixture
async def server(store: SchemaStore) -> AsyncIterator[HttpServer]:
    health = Health(dict, lambda: None, lambda _: None)
    server = HttpServer("127.0.0.1:0", health, CollectorRegistry(), store)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def connect(server: HttpServer) -> AsyncIterator[Connect]:
    with ExitStack() as stack:

        async def connect() -> Client:
            client = Client(*await asyncio.open_connection("127.0.0.1", server.port, limit=2 * ANSWER_BYTES))
            stack.callback(client.writer.close)
            return client

        yield connect


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", SHORT_S)
    monkeypatch.setattr(module, "_LOOK_S", SHORT_S / 10)


@pytest.mark.usefixtures("impatient")
async def test_a_connection_with_many_requests_stays_open(connect: Connect) -> None:
    client = await connect()
    end = time.monotonic() + 5 * SHORT_S
    while time.monotonic() < end:
        assert await client.ask() == b"HTTP/1.1 200 OK"
        await asyncio.sleep(SHORT_S / 100)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("part", [b"", b"GET", REQUEST[:-2]])
@pytest.mark.parametrize("asks", [False, True])
async def test_a_silent_connection_is_closed(part: bytes, asks: bool, connect: Connect) -> None:  # noqa: FBT001
    client = await connect()
    if asks:
        assert await client.ask() == b"HTTP/1.1 200 OK"
    client.writer.write(part)
    assert await client.has_ended()


@pytest.mark.usefixtures("impatient")
async def test_a_connection_whose_client_does_not_read_is_closed(server: HttpServer) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.settimeout(0)
        await loop.sock_connect(client, ("127.0.0.1", server.port))
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(loop.sock_sendall(client, 200_000 * REQUEST), 120)


async def test_the_longest_silent_connection_is_closed_for_a_new_one(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 3)
    first, second, third = [await connect() for _ in range(3)]
    for client in (first, third):
        assert await client.ask() == b"HTTP/1.1 200 OK"
    assert await (await connect()).ask() == b"HTTP/1.1 200 OK"
    assert await second.has_ended()
    assert first.is_open()
    assert third.is_open()


async def test_all_pending_answers_together_are_limited(
    server: HttpServer, store: SchemaStore, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limit the memory of pending answers, because a client may send many requests and read no answers."""
    monkeypatch.setattr(module, "WAITING_MAX_BYTES", WAITING_MAX_BYTES)
    for number in range(ANSWER_BYTES // SUBJECT_BYTES):
        store.add(Registered(f"{number:0{SUBJECT_BYTES}}", 1, 1, '"string"'))
    store.complete = True
    clients = [await connect() for _ in range(12)]
    tracemalloc.start()
    for client in clients:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a stream's transport has it
        client.writer.write(REQUEST.replace(b"/livez", b"/subjects"))
    await asyncio.sleep(1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0 < server.waiting_bytes <= WAITING_MAX_BYTES + ANSWER_BYTES
    # Pending data are in memory twice, and a new answer is in memory several times.
    assert peak < 2 * WAITING_MAX_BYTES + 5 * ANSWER_BYTES
    reads = await connect()
    reads.writer.write(REQUEST.replace(b"/livez", b"/subjects"))
    assert len(await asyncio.wait_for(reads.rest_of_answer(), 10)) > ANSWER_BYTES
    assert await (await connect()).ask() == b"HTTP/1.1 200 OK"


async def test_a_health_check_is_answered_despite_many_idle_connections(connect: Connect) -> None:
    for _ in range(3 * module.CONNECTIONS_MAX):
        (await connect()).writer.write(REQUEST[:-2])
    assert await (await connect()).ask() == b"HTTP/1.1 200 OK"


async def test_a_health_check_is_answered_despite_long_requests(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answer a new connection although the older ones have requests in progress that never end."""
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(module, "NEW_S", SHORT_S)
    for _ in range(3):
        (await connect()).writer.write(b"POST /subjects/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
    await asyncio.sleep(2 * SHORT_S)
    check, attacker = await connect(), await connect()
    assert await check.ask() == b"HTTP/1.1 200 OK"
    assert attacker.is_open()
