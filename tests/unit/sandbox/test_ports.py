import socket
from pathlib import Path

import pytest

from sandbox import ports
from sandbox.errors import NoFreePort
from sandbox.ports import ReservedPort


def test_ports_are_below_the_ephemeral_ports_of_the_kernel() -> None:
    lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    reserved = [ReservedPort.any() for _ in range(20)]
    assert all(ports.LOWEST <= port.number < lowest_ephemeral for port in reserved)
    assert len({port.number for port in reserved}) == 20
    for port in reserved:
        port.release()


def test_a_reserved_port_cannot_be_reserved_again_until_it_is_released() -> None:
    port = ReservedPort.any()
    with pytest.raises(OSError, match="in use"):
        ReservedPort(port.number)
    port.release()
    ReservedPort(port.number).release()


def test_a_server_can_bind_a_reserved_port() -> None:
    port = ReservedPort.any()
    with socket.create_server(("127.0.0.1", port.number)):
        pass
    port.release()


def test_a_port_that_somebody_listens_on_is_refused_and_not_kept() -> None:
    port = ReservedPort.any()
    port.release()
    with (
        socket.create_server(("127.0.0.1", port.number)),
        pytest.raises(OSError, match="in use"),
    ):
        ReservedPort(port.number)
    ReservedPort(port.number).release()


def test_it_is_an_error_if_no_port_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    port = ReservedPort.any()
    monkeypatch.setattr(ports, "LOWEST", port.number)
    monkeypatch.setattr(ports, "ATTEMPTS", 1)
    monkeypatch.setattr(ports, "ephemeral_start", lambda: 0)
    with pytest.raises(NoFreePort, match="are taken"):
        ReservedPort.any()
    port.release()
