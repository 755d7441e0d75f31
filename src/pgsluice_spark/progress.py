"""The cuts that a query applied last, for the query's log and its caller.

Used by :mod:`.query`. This module does no I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice_spark.cuts import Cut


@dataclass(frozen=True, slots=True)
class Progress:
    """Cuts that were applied together, and that become visible in views together.

    ``events`` is the number of changes that the cut records declare, including those of tables that are not copied.
    ``seconds`` is the time that it took to apply the cuts. ``lag_s`` is the age of their last transaction when all cuts
    had been applied, by this machine's clock. It is None if no cut has a time.
    """

    first_cut: int
    last_cut: int
    end_lsn: int
    events: int
    topics: int
    seconds: float
    lag_s: float | None

    @classmethod
    def of(cls, cuts: Sequence[Cut], topics: int, seconds: float, now_s: float) -> "Progress":
        """Return the progress for these cuts. ``now_s`` is the present time in seconds since 1970."""
        times = [cut.ts_us for cut in cuts if cut.ts_us is not None]
        return cls(
            first_cut=cuts[0].number,
            last_cut=cuts[-1].number,
            end_lsn=cuts[-1].end_lsn,
            events=sum(cut.events for cut in cuts),
            topics=topics,
            seconds=seconds,
            lag_s=max(0.0, now_s - times[-1] / 1e6) if times else None,
        )

    def __str__(self) -> str:
        age = "" if self.lag_s is None else f"; the last transaction is {self.lag_s:.1f} s old"
        return (
            f"cuts {self.first_cut} to {self.last_cut} applied: {self.events} changes in {self.topics} topics, "
            f"{self.seconds:.1f} s{age}"
        )
