"""The lag of a pipeline behind the server. It is known even while no session streams.

Once a second, the daemon calls the methods of :class:`Lag` with the current time, and with the positions that the
session or the slot watch has reported.
"""

from collections import deque

FRESH_S = 30.0
"""A position of the server counts as current for this long. A session asks for the position every 2 s. Between
sessions, the daemon asks for it every 10 s."""

OBSERVATIONS_MAX = 1000
"""At most this many positions of the server are kept until the pipeline has reached them."""


class Lag:
    """Records positions of the server and of this pipeline. All times are seconds of one monotonic clock."""

    def __init__(self, now: float) -> None:
        """Begin at ``now``. Nothing is known about the time before."""
        self._caught_up_at = now
        """The last moment at which nothing was left to deliver, as far as this process knows."""
        self._heard_at = now
        self._server: int | None = None
        self._ahead: deque[tuple[float, int]] = deque()
        """The positions of the server that this pipeline has not reached, each with the time at which it was noted, in
        ascending order."""
        self._apart_s = 0.0
        """The minimum time between two entries of ``_ahead``."""
        self._oldest_commit: tuple[float, int] | None = None
        """The time of a commit that is not delivered, and a position of the server at or after this commit."""
        self._reached = 0
        self._confirmed: int | None = None

    def note_server(self, at: float, server_lsn: int) -> None:
        """Record that the server's WAL ended at ``server_lsn`` at the time ``at``.

        Ignore observations that are not newer than the last one.
        """
        if self._server is not None and at <= self._heard_at:
            return
        self._heard_at, self._server = at, server_lsn
        while len(self._ahead) > 1 and self._ahead[-1][1] > server_lsn:
            self._ahead.pop()  # another server, whose WAL is shorter, has taken over
        if self._ahead and at - self._ahead[-1][0] >= self._apart_s and server_lsn > self._ahead[-1][1]:
            self._ahead.append((at, server_lsn))
        if len(self._ahead) > OBSERVATIONS_MAX:
            # In a long outage, the entries must not take more and more memory. So drop every second entry, and add
            # fewer entries from now on.
            self._ahead = deque(list(self._ahead)[::2])
            self._apart_s = 2 * (at - self._ahead[0][0]) / OBSERVATIONS_MAX
        self._look_back()

    def note_delivered(self, caught_up_lsn: int, confirmed_lsn: int) -> None:
        """Record that everything before ``caught_up_lsn`` is delivered, and that ``confirmed_lsn`` is confirmed."""
        self._reached = max(self._reached, caught_up_lsn)
        self._confirmed = max(self._confirmed or 0, confirmed_lsn)
        self._look_back()

    def note_undelivered_commit(self, committed_at: float) -> None:
        """Note ``committed_at``, the commit time of the oldest transaction that is received but not delivered.

        Call it after :meth:`note_delivered`.
        """
        self._oldest_commit = committed_at, max(self._server or 0, self._reached + 1)

    def note_other_owner(self, now: float) -> None:
        """Record that another process delivers, so the time up to ``now`` does not count as our lag."""
        self._caught_up_at, self._oldest_commit = now, None
        self._ahead.clear()

    def seconds(self, now: float) -> float:
        """Return for how long there have been changes to deliver, or 0 if there are none.

        If the server's position is older than ``FRESH_S``, the server may have new changes. In this case, the result
        counts from the last moment at which everything was delivered.
        """
        since = [self._caught_up_at] if now - self._caught_up_at > FRESH_S or self._server is None else []
        if self._ahead:
            since = [self._ahead[0][0]]
        if self._oldest_commit is not None:
            since.append(self._oldest_commit[0])
        return max(0.0, now - min(since, default=now))

    @property
    def bytes(self) -> int | None:
        """Return how many bytes of the server's WAL were not confirmed at the last contact, or None if not known."""
        if self._server is None or self._confirmed is None:
            return None
        return max(0, self._server - self._confirmed)

    def _look_back(self) -> None:
        """Drop the entries whose positions have been reached."""
        while self._ahead and self._ahead[0][1] <= self._reached:
            self._caught_up_at = max(self._caught_up_at, self._ahead.popleft()[0])
        if self._server is not None and self._server <= self._reached:
            self._caught_up_at = max(self._caught_up_at, self._heard_at)
            self._ahead.clear()
        elif self._server is not None and not self._ahead:
            self._ahead.append((self._heard_at, self._server))
            self._apart_s = 0.0
        if self._oldest_commit is not None and self._oldest_commit[1] <= self._reached:
            self._oldest_commit = None
