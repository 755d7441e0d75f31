"""Tests the proxy with which other tests cause network faults."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.support.proxy import Proxy

TIMEOUT_S = 20
SILENCE_S = 0.2


@pytest.fixture
def echo() -> Iterator[int]:
    """Provide the port of a server that sends back all data that it receives."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                while data := connection.recv(65536):
                    connection.sendall(data)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", echo) as proxy:
        yield proxy


def connected(proxy: Proxy) -> socket.socket:
    with ExitStack() as context:
        connection = context.enter_context(socket.create_connection((proxy.host, proxy.port), TIMEOUT_S))
        connection.sendall(b"hello")
        assert received(connection, 5) == b"hello"
        context.pop_all()
    return connection


def received(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := connection.recv(count - len(data))):
        data += more
    return data


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(SILENCE_S)
    try:
        return connection.recv(1) is None
    except TimeoutError:
        return True
    finally:
        connection.settimeout(TIMEOUT_S)


def test_data_and_the_end_of_a_connection_are_forwarded(proxy: Proxy) -> None:
    with connected(proxy) as client:
        data = bytes(5_000_000)
        threading.Thread(target=client.sendall, args=(data,), daemon=True).start()
        assert received(client, len(data)) == data
        assert proxy.forwarded("to_server") == proxy.forwarded("to_client") == 5 + len(data)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""


def test_a_cut_resets_open_connections_and_new_ones_are_accepted(proxy: Proxy) -> None:
    with connected(proxy) as client, connected(proxy) as other:
        assert proxy.connections == 2
        proxy.cut()
        for each in (client, other):
            with pytest.raises(ConnectionResetError):
                each.recv(1)
    connected(proxy).close()


def test_a_connection_can_be_cut_at_a_byte(proxy: Proxy) -> None:
    with connected(proxy) as client:
        proxy.cut_after(3, "to_client")
        client.sendall(b"abcdef")
        assert received(client, 3) == b"abc"
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    connected(proxy).close()


def test_a_connection_can_be_stalled_at_a_byte(proxy: Proxy) -> None:
    with connected(proxy) as client:
        proxy.stall_after(3, "to_client")
        client.sendall(b"abcdef")
        assert received(client, 3) == b"abc"
        assert is_silent(client)
        proxy.resume()
        assert received(client, 3) == b"def"


def test_stalled_data_arrives_later(proxy: Proxy) -> None:
    with connected(proxy) as client:
        proxy.stall("to_client")
        client.sendall(b"later")
        assert is_silent(client)
        assert proxy.forwarded("to_server") == 10
        proxy.resume()
        assert received(client, 5) == b"later"


def test_a_stalled_connection_can_be_cut(proxy: Proxy) -> None:
    with connected(proxy) as client:
        proxy.stall()
        client.sendall(b"never")
        assert is_silent(client)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_dropped_data_and_ends_of_connections_never_arrive(proxy: Proxy) -> None:
    with connected(proxy) as client:
        proxy.drop("to_server")
        client.sendall(b"lost")
        client.shutdown(socket.SHUT_WR)
        assert is_silent(client)
        proxy.resume()
        assert is_silent(client)
        assert proxy.connections == 1


def test_new_connections_are_refused_and_old_ones_stay(proxy: Proxy) -> None:
    with connected(proxy) as client:
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connected(proxy)
        client.sendall(b"still")
        assert received(client, 5) == b"still"
        proxy.resume()
        connected(proxy).close()


def test_an_unreachable_server_resets_the_client(proxy: Proxy) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # the socket does not listen
        proxy.target = ("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ConnectionResetError):  # at the first read, or earlier
            connected(proxy)


def test_the_proxy_can_listen_on_a_given_address(echo: int) -> None:
    with Proxy("127.0.0.1", echo, at=("127.77.0.1", echo)) as proxy:
        assert proxy.address == f"127.77.0.1:{echo}"
        with socket.create_connection(("127.77.0.1", echo), TIMEOUT_S) as connection:
            connection.sendall(b"hello")
            assert received(connection, 5) == b"hello"
