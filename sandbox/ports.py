"""Free TCP ports that stay ours, also when several runs share the machine. Used by postgres and kafka.

Ports come from below the range that the kernel hands to clients: a client socket of any process could sit
on the others by the time the server binds. Between looking and binding, an abstract Unix socket named
after the port keeps other sandboxes away; it needs no file and vanishes with this process.

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
    """One port of 127.0.0.1 that no other sandbox takes until ``release``."""

    def __init__(self, number: int) -> None:
        """Reserve ``number``; OSError if something has it."""
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
        """Reserve some free port."""
        ceiling = max(ephemeral_start(), LOWEST + ATTEMPTS)
        candidates = random.SystemRandom()
        for _ in range(ATTEMPTS):
            with suppress(OSError):
                return cls(candidates.randrange(LOWEST, ceiling))
        raise NoFreePort(f"{ATTEMPTS} ports between {LOWEST} and {ceiling} are taken")

    def release(self) -> None:
        """Let others have the port."""
        self._reservation.close()


def ephemeral_start() -> int:
    """Return the lowest port that the kernel hands to clients."""
    return int(EPHEMERAL_RANGE.read_text().split()[0])


def _bind_once(number: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # as servers do: connections of a former server in TIME_WAIT are no obstacle
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", number))
