"""Recognises a server that shuts down, by what its walsender asks for.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

import time
from typing import Final

SIGN_S: Final = 1.0
"""A server that shuts down asks for a reply as soon as it has one, so our answers set the pace: five a second (the
stream's MIN_STATUS_GAP_S), fewer where the machine is busy. At other times, it asks when it has heard nothing for half
of wal_sender_timeout, and it is told something three times as often."""

PATIENCE_S: Final = 1.0
"""How long we have to write a checkpoint of the server's last position. Then the server is let go without one, because
it would wait for us for ever."""

LOOK_S: Final = 0.1
"""How often to look meanwhile whether it is over."""


class ShutdownWatch:
    """Recognises a server that shuts down: it asks for a reply again and again, at the same position."""

    def __init__(self) -> None:
        self.wal_end = 0
        """The position at which the server has asked last."""
        self.suspected = False
        self._asked_at = float("-inf")
        self._since = 0.0

    def asked(self, wal_end: int) -> None:
        """Take notice that the server, which has sent everything before ``wal_end``, has asked for a reply."""
        now = time.monotonic()
        if wal_end == self.wal_end and now - self._asked_at < SIGN_S and not self.suspected:
            self.suspected = True
            self._since = now
        self.wal_end = wal_end
        self._asked_at = now

    @property
    def overdue(self) -> bool:
        """Whether the server has waited for long enough."""
        return self.suspected and time.monotonic() - self._since > PATIENCE_S
