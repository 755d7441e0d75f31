"""The primary (``snapshot.primary``), from which rows are read if pgsluice streams from a standby.

A snapshot taken on a standby cannot be compared with the stream, because a standby does not show which transactions are
in progress on the primary. Transaction ids and positions are the same on both servers, as long as both servers belong
to one cluster and are on one timeline.

https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-INFO-CONTROLDATA
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pgsluice.errors import PgsluiceError, PrimaryUnavailable

# The control file shows a new timeline too late. The name of the current WAL file begins with the timeline, so the
# timeline is read from this name.
_IDENTITY: Final = """
SELECT pg_is_in_recovery()::text, (SELECT system_identifier::text FROM pg_control_system()),
       CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END"""

_AFTER_PROMOTION: Final = (
    "If pgsluice is connected to the primary now, remove snapshot.primary. Otherwise set snapshot.primary to the "
    "present primary."
)

Query = Callable[[str], Awaitable[Sequence[tuple[str | None, ...]]]]


@dataclass(frozen=True, slots=True)
class Primary:
    """Identifies the server to read from: the primary of the stream's cluster, on the stream's timeline."""

    systemid: str
    timeline: int

    async def check(self, query: Query) -> None:
        """Raise PrimaryUnavailable if the server is not this primary."""
        ((in_recovery, systemid, timeline),) = await query(_IDENTITY)
        if systemid != self.systemid:
            raise _refused(
                f"belongs to the cluster with system identifier {systemid}, but the stream comes from the cluster with "
                f"{self.systemid}",
                "Set snapshot.primary to the primary of the server from which pgsluice streams.",
            )
        if timeline is None or in_recovery == "true":
            raise _refused("is a standby", "Set snapshot.primary to the primary.")
        if int(timeline, 16) != self.timeline:
            raise _refused(
                f"is on timeline {int(timeline, 16)}, but the stream is on timeline {self.timeline}: a standby was "
                "promoted, so the two servers have different histories",
                _AFTER_PROMOTION,
            )

    def unreachable(self, error: PgsluiceError) -> PrimaryUnavailable:
        """Return the error for a connection that failed with ``error``."""
        words = str(error).removesuffix(".")
        return PrimaryUnavailable(f"snapshot.primary: {words}. No rows are read for now. {_AFTER_PROMOTION}")


def _refused(reason: str, remedy: str) -> PrimaryUnavailable:
    return PrimaryUnavailable(f"The server that snapshot.primary names {reason}. No rows are read. {remedy}")
