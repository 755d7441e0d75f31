"""How far a pipeline is behind the server, even while nothing streams.

Once a second, the daemon passes the positions from the session or the slot watch. The caller has the clock.
"""

from collections import deque

FRESH_S = 30.0
"""How long a position of the server counts as current. A session asks for it every 2 s. Between sessions, the daemon
asks every 10 s."""

OBSERVATIONS_MAX = 1000
"""How many positions of the server are remembered until everything before them is delivered."""


class Lag:
    """Knows positions of the server and of this pipeline. All times are seconds of one monotonic clock."""

    def __init__(self, now: float) -> None:
        """Begin at ``now``. This process knows nothing of the time before."""
        self._caught_up_at = now
        """The last moment at which nothing was left to deliver, as far as this process knows."""
        self._heard_at = now
        self._server: int | None = None
        self._ahead: deque[tuple[float, int]] = deque()
        """When the server reached positions that we have not reached, in ascending order."""
        self._apart_s = 0.0
        """The least time between two of these entries."""
        self._oldest_commit: tuple[float, int] | None = None
        """The time of a commit that is not delivered, and a position of the server after that commit."""
        self._reached = 0
        self._confirmed: int | None = None

    def note_server(self, at: float, server_lsn: int) -> None:
        """Note that the server's WAL went up to ``server_lsn``. Ignore it if it is older than the last note."""
        if self._server is not None and at <= self._heard_at:
            return
        self._heard_at, self._server = at, server_lsn
        while len(self._ahead) > 1 and self._ahead[-1][1] > server_lsn:
            self._ahead.pop()  # another server has taken over, and does not have this WAL
        if self._ahead and at - self._ahead[-1][0] >= self._apart_s and server_lsn > self._ahead[-1][1]:
            self._ahead.append((at, server_lsn))
        if len(self._ahead) > OBSERVATIONS_MAX:
            # A long outage must not take more memory than this. So keep every second entry, and space new ones wider.
            self._ahead = deque(list(self._ahead)[::2])
            self._apart_s = 2 * (at - self._ahead[0][0]) / OBSERVATIONS_MAX
        self._look_back()

    def note_delivered(self, caught_up_lsn: int, confirmed_lsn: int) -> None:
        """Note that everything before ``caught_up_lsn`` is delivered, and that ``confirmed_lsn`` is confirmed."""
        self._reached = max(self._reached, caught_up_lsn)
        self._confirmed = max(self._confirmed or 0, confirmed_lsn)
        self._look_back()

    def note_undelivered_commit(self, committed_at: float) -> None:
        """Note when the oldest received and undelivered transaction was committed. Call it after ``note_delivered``."""
        self._oldest_commit = committed_at, max(self._server or 0, self._reached + 1)

    def note_other_owner(self, now: float) -> None:
        """Note that another process delivers, so that this process does not count the time up to ``now``."""
        self._caught_up_at, self._oldest_commit = now, None
        self._ahead.clear()

    def seconds(self, now: float) -> float:
        """Return for how long there has been something to deliver, or 0 if there is nothing.

        If the server has not been heard of for ``FRESH_S``, it may have something to deliver. Then the time counts from
        the last moment at which it had nothing.
        """
        since = [self._caught_up_at] if now - self._caught_up_at > FRESH_S or self._server is None else []
        if self._ahead:
            since = [self._ahead[0][0]]
        if self._oldest_commit is not None:
            since.append(self._oldest_commit[0])
        return max(0.0, now - min(since, default=now))

    @property
    def bytes(self) -> int | None:
        """Return how much WAL the server had at the last contact that we have not confirmed. None means not known."""
        if self._server is None or self._confirmed is None:
            return None
        return max(0, self._server - self._confirmed)

    def _look_back(self) -> None:
        """Drop the entries that have been reached."""
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
