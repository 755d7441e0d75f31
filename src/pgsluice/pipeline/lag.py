"""How far a pipeline is behind, also while nothing streams.

The daemon tells what is known, from the session and from looks at the slot, once a second. Pure: the caller has the
clock.
"""

from collections import deque

FRESH_S = 30.0
"""How long a position of the server's counts as its present one. It is asked for every 2 s by a session, and every 10 s
beside the sessions."""

OBSERVATIONS_MAX = 1000
"""Positions of the server's that are remembered until everything before them is delivered."""


class Lag:
    """What is known of the server's position and of ours. All times are seconds of one clock that never goes back."""

    def __init__(self, now: float) -> None:
        """Begin at ``now``: of the time before, this process knows nothing."""
        self._caught_up_at = now
        """The last moment at which nothing was left to deliver, as far as it is known."""
        self._heard_at = now
        self._server: int | None = None
        self._ahead: deque[tuple[float, int]] = deque()
        """When the server was at positions that we have not reached, in the order of both."""
        self._apart_s = 0.0
        """How far these are apart at least."""
        self._oldest_commit: tuple[float, int] | None = None
        """The time of a commit that is not delivered, and a position of the server's behind it."""
        self._reached = 0
        self._confirmed: int | None = None

    def hear(self, at: float, server_lsn: int) -> None:
        """Note that the server's WAL went up to ``server_lsn``; what is older than the last one is left out."""
        if self._server is not None and at <= self._heard_at:
            return
        self._heard_at, self._server = at, server_lsn
        while len(self._ahead) > 1 and self._ahead[-1][1] > server_lsn:
            self._ahead.pop()  # another server has taken its place, and does not have that
        if self._ahead and at - self._ahead[-1][0] >= self._apart_s and server_lsn > self._ahead[-1][1]:
            self._ahead.append((at, server_lsn))
        if len(self._ahead) > OBSERVATIONS_MAX:
            # An outage that lasts takes no more memory than this; fewer are remembered, evenly.
            self._ahead = deque(list(self._ahead)[::2])
            self._apart_s = 2 * (at - self._ahead[0][0]) / OBSERVATIONS_MAX
        self._look_back()

    def reach(self, caught_up_lsn: int, confirmed_lsn: int) -> None:
        """Note that nothing before ``caught_up_lsn`` is left to deliver, and that ``confirmed_lsn`` is confirmed."""
        self._reached = max(self._reached, caught_up_lsn)
        self._confirmed = max(self._confirmed or 0, confirmed_lsn)
        self._look_back()

    def owe(self, committed_at: float) -> None:
        """Note when the oldest transaction that was received and is not delivered was committed; after ``reach``."""
        self._oldest_commit = committed_at, max(self._server or 0, self._reached + 1)

    def leave(self, now: float) -> None:
        """Note that another process delivers, so that the time up to ``now`` is not counted here."""
        self._caught_up_at, self._oldest_commit = now, None
        self._ahead.clear()

    def seconds(self, now: float) -> float:
        """Return for how long there has been something to deliver, 0 if there is nothing.

        While the server has not been heard of for ``FRESH_S``, it may have something. Then the time counts from the
        last moment at which it had nothing.
        """
        since = [self._caught_up_at] if now - self._caught_up_at > FRESH_S or self._server is None else []
        if self._ahead:
            since = [self._ahead[0][0]]
        if self._oldest_commit is not None:
            since.append(self._oldest_commit[0])
        return max(0.0, now - min(since, default=now))

    @property
    def bytes(self) -> int | None:
        """The WAL that the server had when it was last heard of, and we have not confirmed; None: not known."""
        if self._server is None or self._confirmed is None:
            return None
        return max(0, self._server - self._confirmed)

    def _look_back(self) -> None:
        """Forget what has been reached."""
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
