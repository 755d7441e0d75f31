"""Recognises the shutdown of a server by the requests for replies that its walsender sends.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

import time
from typing import Final

SIGN_S: Final = 1.0
"""Two requests for replies within this time, at the same position, show that the server shuts down. Such a server asks
again as soon as it has our reply, so our replies set the rate: five per second (the stream's MIN_STATUS_GAP_S), or
fewer on a busy machine. At other times, the server asks only if it has received nothing for half of wal_sender_timeout.
This does not happen, because we send at least three status updates in each wal_sender_timeout."""

PATIENCE_S: Final = 1.0
"""The session has this much time to write a checkpoint with the server's last position. After that, we let the server
shut down without this checkpoint. Otherwise, the server would wait for us without limit."""

LOOK_S: Final = 0.1
"""During PATIENCE_S, the session checks at this interval whether the checkpoint is written."""


class ShutdownWatch:
    """Recognises that a server shuts down, because it asks for replies again and again at the same position."""

    def __init__(self) -> None:
        self.wal_end = 0
        """The server's position at its last request for a reply."""
        self.suspected = False
        self._asked_at = float("-inf")
        self._since = 0.0

    def asked(self, wal_end: int) -> None:
        """Record that the server, which has sent everything before ``wal_end``, has asked for a reply."""
        now = time.monotonic()
        if wal_end == self.wal_end and now - self._asked_at < SIGN_S and not self.suspected:
            self.suspected = True
            self._since = now
        self.wal_end = wal_end
        self._asked_at = now

    @property
    def overdue(self) -> bool:
        """Return whether PATIENCE_S has passed since this watch recognised the shutdown."""
        return self.suspected and time.monotonic() - self._since > PATIENCE_S
