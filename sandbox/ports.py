"""Reserves free TCP ports, even if several test runs share the machine. ``postgres`` and ``kafka`` use this module.

The ports are below the range that the kernel assigns to client sockets, because another process could get a port of
that range before the server binds to it. An abstract Unix socket named after the port prevents other sandboxes from
choosing the same port. Such a socket needs no file, and disappears with this process.

https://man7.org/linux/man-pages/man7/unix.7.html
"""

import random
import socket
from contextlib import suppress
from pathlib import Path
from typing import Self

from sandbox.errors import NoFreePort

LOWEST = 10_240
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
ATTEMPTS = 1000


class ReservedPort:
    """One port of 127.0.0.1 that no other sandbox uses until ``release``."""

    def __init__(self, number: int) -> None:
        """Reserve the port ``number``. Raise OSError if the port is in use."""
        self.number = number
        self._reservation = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._reservation.bind(f"\0pgsluice-sandbox-port-{number}")
            _bind_once(number)
        except OSError:
            self._reservation.close()
            raise

    @classmethod
    def any(cls) -> Self:
        """Reserve any free port."""
        ceiling = max(ephemeral_start(), LOWEST + ATTEMPTS)
        candidates = random.SystemRandom()
        for _ in range(ATTEMPTS):
            with suppress(OSError):
                return cls(candidates.randrange(LOWEST, ceiling))
        raise NoFreePort(f"{ATTEMPTS} ports between {LOWEST} and {ceiling} are taken")

    def release(self) -> None:
        """Release the port for others."""
        self._reservation.close()


def ephemeral_start() -> int:
    """Return the lowest port that the kernel assigns to client sockets."""
    return int(EPHEMERAL_RANGE.read_text().split()[0])


def _bind_once(number: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Servers also set this option, so that connections of an earlier server in TIME_WAIT do not prevent the bind.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", number))
