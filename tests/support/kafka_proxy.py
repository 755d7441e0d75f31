"""A proxy in front of a broker. It can recognise requests, hold them, drop their answers, or forward them late.

    with KafkaProxy() as proxy, Kafka(listeners=[Listener("SEEN", advertised={1: proxy.address})]) as kafka:
        proxy.target = kafka.addresses("SEEN")
        proxy.on(END_TXN, Request.lose_answer)

The proxy reads only the headers of requests: https://kafka.apache.org/protocol#protocol_messages
"""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from sandbox.ports import ReservedPort

HOST = "127.0.0.1"

PRODUCE = 0
FETCH = 1
INIT_PRODUCER_ID = 22
ADD_PARTITIONS_TO_TXN = 24
END_TXN = 26
WRITE_TXN_MARKERS = 27
"""The API keys of the requests that tests intercept."""

_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">hhi")
"""The beginning of a request header: API key, API version, correlation id."""

WAIT_S = 180


class Request:
    """A request on its way to the broker. A handler decides what happens to it, and may keep it for later."""

    def __init__(self, connection: "_Connection", frame: bytes) -> None:
        self.key, _, self._id = _HEAD.unpack_from(frame)
        self._connection = connection
        self._frame = frame
        self._answered = threading.Event()

    @property
    def size(self) -> int:
        """The size of the request in bytes."""
        return len(self._frame)

    def forward(self) -> None:
        """Forward the request to the broker. The client receives the answer."""
        self._connection.to_broker(self._frame)

    def lose_answer(self) -> None:
        """Forward the request. When the broker has answered, disconnect the client without sending it the answer."""
        self.send_late()
        self.cut()

    def cut(self) -> None:
        """Disconnect the client, and do not forward the request. The connection to the broker stays open."""
        self._connection.cut_client()

    def send_late(self) -> None:
        """Forward the request, wait until the broker has answered, and drop the answer."""
        self._connection.swallow(self._id, self._answered)
        self._connection.to_broker(self._frame)
        assert self._answered.wait(WAIT_S), "the broker did not answer"


Handler = Callable[[Request], None]


class KafkaProxy:
    """A proxy for a listener that advertises the proxy's address. The proxy forwards requests that have no handler."""

    def __init__(self) -> None:
        self.target = ""
        self._reserved = ReservedPort.any()
        self._handlers: dict[int, Handler] = {}
        self._connections: list[_Connection] = []
        self._listening = socket.create_server((HOST, self._reserved.number))

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="kafka-proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        _close(self._listening)
        for connection in self._connections:
            connection.close()
        self._reserved.release()

    @property
    def address(self) -> str:
        """The address ``host:port`` that the listener must advertise."""
        return f"{HOST}:{self._reserved.number}"

    def on(self, key: int, handler: Handler) -> None:
        """Pass all requests with this API key to ``handler``. The handler may block, which blocks the connection."""
        self._handlers[key] = handler

    def forward(self, *keys: int) -> None:
        """Remove the handlers of these API keys, so that their requests are forwarded. Without keys, remove all."""
        for key in keys or tuple(self._handlers):
            self._handlers.pop(key, None)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                host, _, port = self.target.partition(":")
                try:
                    broker = socket.create_connection((host, int(port)))
                except OSError:
                    client.close()
                    continue
                self._connections.append(_Connection(client, broker, self._handlers))


class _Connection:
    """A client, its connection to the broker, and the ids of the answers that the client must not receive."""

    def __init__(self, client: socket.socket, broker: socket.socket, handlers: dict[int, Handler]) -> None:
        self._client = client
        self._broker = broker
        self._handlers = handlers
        self._swallowed: dict[int, threading.Event] = {}
        self._held = False
        for pump in (self._requests, self._answers):
            threading.Thread(target=pump, name=f"kafka-proxy-{pump.__name__}", daemon=True).start()

    def to_broker(self, frame: bytes) -> None:
        self._broker.sendall(_SIZE.pack(len(frame)) + frame)

    def swallow(self, correlation_id: int, answered: threading.Event) -> None:
        self._swallowed[correlation_id] = answered

    def cut_client(self) -> None:
        self._held = True
        _close(self._client)

    def close(self) -> None:
        _close(self._client)
        _close(self._broker)

    def _requests(self) -> None:
        with suppress(OSError):
            while (frame := _frame(self._client)) is not None:
                request = Request(self, frame)
                self._handlers.get(request.key, Request.forward)(request)
        if not self._held:
            self.close()

    def _answers(self) -> None:
        with suppress(OSError):
            while (frame := _frame(self._broker)) is not None:
                answered = self._swallowed.pop(int.from_bytes(frame[:4], "big"), None)
                if answered is not None:
                    answered.set()
                    continue
                with suppress(OSError):
                    self._client.sendall(_SIZE.pack(len(frame)) + frame)
        _close(self._client)


def _frame(source: socket.socket) -> bytes | None:
    """Read one frame. Return its content without the length, or None at the end of the connection."""
    size = _exactly(source, _SIZE.size)
    return None if size is None else _exactly(source, _SIZE.unpack(size)[0])


def _exactly(source: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        more = source.recv(count - len(data))
        if not more:
            return None
        data += more
    return bytes(data)


def _close(side: socket.socket) -> None:
    with suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)
    side.close()
