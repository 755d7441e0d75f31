"""What PostgreSQL's refusals mean for the daemon: retry, wait as a standby, or stop with a sentence.

The one place of the package where an SQLSTATE, a libpq message or the state of a slot becomes a
PgsluiceError. SQLSTATEs and routine names decide where the server sends them: its words are translated.

https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

from dataclasses import dataclass

from psycopg import Error, pq

from pgsluice.errors import (
    ConfigError,
    HistoryError,
    PermissionDenied,
    PgsluiceError,
    SlotInUse,
    SourceUnavailable,
)
from pgsluice.postgres.slot import SlotState


@dataclass(eq=False)
class ServerError(Exception):
    """An ErrorResponse, not yet judged; it does not leave this package."""

    sqlstate: str
    message: str
    detail: str
    routine: str
    context: str

    @classmethod
    def of(cls, result: pq.abc.PGresult) -> "ServerError":
        """Take the fields that matter out of a failed result."""
        field = pq.DiagnosticField
        wanted = (
            field.SQLSTATE,
            field.MESSAGE_PRIMARY,
            field.MESSAGE_DETAIL,
            field.SOURCE_FUNCTION,
            field.CONTEXT,
        )
        return cls(*((result.error_field(one) or b"").decode("utf-8", "replace") for one in wanted))

    def __str__(self) -> str:
        """Return PostgreSQL's own words."""
        return f"{self.message} ({self.sqlstate})" + (f": {self.detail}" if self.detail else "")


def lost(error: Error | OSError) -> SourceUnavailable:
    """Judge a connection that broke."""
    return SourceUnavailable(f"the connection to PostgreSQL broke: {str(error).strip()}")


def unusable(name: str, slot: SlotState | None, database: str) -> PgsluiceError | None:
    """Say why the slot cannot be streamed in this session; None when nothing speaks against it."""
    if slot is None:
        return ConfigError(
            f"replication slot {name!r} does not exist. It is never created anew in silence, because changes "
            "made meanwhile would be missing: create it and start a new history on purpose"
        )
    if slot.plugin != "pgoutput":
        return ConfigError(f"replication slot {name!r} uses {slot.plugin or 'no plugin (it is physical)'}")
    if slot.database != database:
        return ConfigError(
            f"replication slot {name!r} belongs to database {slot.database!r}, not {database!r}"
        )
    if slot.invalidation is not None:
        return HistoryError(f"the server gave up replication slot {name!r} ({slot.invalidation})")
    if slot.two_phase:
        return ConfigError(f"replication slot {name!r} was created with two_phase")
    return None


def refused(error: ServerError, doing: str) -> PgsluiceError:
    """Judge a command that the server refused."""
    sentence = f"{doing}: {error}"
    if error.sqlstate == "55006":
        return SlotInUse(sentence)
    if error.sqlstate in {"28P01", "28000", "42501"}:
        return PermissionDenied(sentence)
    return SourceUnavailable(sentence)
