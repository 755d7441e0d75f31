"""Decides what the daemon does after an error of PostgreSQL: try again, wait as a standby, or stop with a message.

Only this module turns an SQLSTATE, a libpq message or the state of a slot into a PgsluiceError. If the server sends an
SQLSTATE or a routine name, the text of its message does not matter, because it depends on the server's language.

https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import Error, pq

from pgsluice.errors import (
    ConfigError,
    HistoryError,
    NotInBinary,
    PermissionDenied,
    PgsluiceError,
    PoisonError,
    SlotInUse,
    SourceUnavailable,
)
from pgsluice.postgres.options import StreamOptions
from pgsluice.postgres.slot import SlotState

PLUGIN = "pgoutput"

_TWO_PHASE_AT_SYNCED = 18_00_00
"""The first version whose standbys copy the position from which a slot decodes transactions at PREPARE."""


@dataclass(eq=False)
class ServerError(Exception):
    """An ErrorResponse of the server. This package always turns it into a PgsluiceError."""

    sqlstate: str
    message: str
    detail: str
    routine: str
    context: str

    @classmethod
    def of(cls, result: pq.abc.PGresult) -> "ServerError":
        """Return an error with the fields of a failed result."""
        return cls(*(_field(result, field) for field in _FIELDS))

    def __str__(self) -> str:
        """Return PostgreSQL's message without a full stop at its end, because it becomes a part of a sentence."""
        words = f"{self.message} (SQLSTATE {self.sqlstate})"
        return f"{words}: {self.detail.rstrip('.')}" if self.detail else words


_FIELDS = (
    pq.DiagnosticField.SQLSTATE,
    pq.DiagnosticField.MESSAGE_PRIMARY,
    pq.DiagnosticField.MESSAGE_DETAIL,
    pq.DiagnosticField.SOURCE_FUNCTION,
    pq.DiagnosticField.CONTEXT,
)


def _field(result: pq.abc.PGresult, field: pq.DiagnosticField) -> str:
    return (result.error_field(field) or b"").decode("utf-8", "replace")


# --- connections -------------------------------------------------------------------------------------------

_NO_ROOM = "raise max_wal_senders or max_connections, or end sessions that nobody needs"

# Before a session exists, libpq gives no SQLSTATE, so the text of the message has to decide. After a failure that is
# not listed here, the daemon tries again. Examples of such failures are a server that is down or starting, a host name
# that DNS does not know, and every message in another language.
_CONNECTING: Sequence[tuple[str, type[PgsluiceError], str]] = (
    (
        r"certificate authentication failed",
        PermissionDenied,
        "use a client certificate whose CN is the role, or map its CN to the role in pg_ident.conf",
    ),
    (
        r"authentication failed|no password supplied|empty password returned",
        PermissionDenied,
        "check the user, the password and the method that pg_hba.conf requires",
    ),
    (
        r"no pg_hba\.conf entry|pg_hba\.conf rejects",
        PermissionDenied,
        "add a line to pg_hba.conf for the role and the database by its name: the keyword replication is not enough",
    ),
    (
        r"permission denied to start WAL sender|must be superuser or replication role",
        PermissionDenied,
        "run ALTER ROLE ... REPLICATION for the role",
    ),
    (
        r"permission denied for database",
        PermissionDenied,
        "run GRANT CONNECT ON DATABASE ... TO the role",
    ),
    (
        r'role ".*" does not exist|is not permitted to log in',
        PermissionDenied,
        "create the role with CREATE ROLE ... LOGIN REPLICATION, or correct the user",
    ),
    (
        r"permission denied to set parameter",
        PermissionDenied,
        "remove the setting from options: only a superuser may set it",
    ),
    (r'database ".*" does not exist', ConfigError, "correct dbname"),
    (
        r"unrecognized configuration parameter|invalid value for parameter",
        ConfigError,
        "correct the options of the connection",
    ),
    (
        r'invalid ("?\w+"? value|port number)|could not match \d|weak sslmode|bad value|path .* too long|of service',
        ConfigError,
        "correct the connection parameter",
    ),
    (r"service file .* not found", ConfigError, "correct PGSERVICEFILE, or remove the service"),
    (
        r"authentication method requirement|channel binding (is )?required",
        ConfigError,
        "correct require_auth or channel_binding, or the method that pg_hba.conf requires",
    ),
    (
        r"alert certificate expired",
        PermissionDenied,
        "renew the client's certificate (sslcert)",
    ),
    (
        r"requires a valid client certificate|alert (certificate|unknown ca|bad certificate|no certificate)",
        PermissionDenied,
        "check sslcert and sslkey: the server does not accept the client's certificate, or did not receive one",
    ),
    (
        r"does not support SSL, but SSL was required",
        ConfigError,
        "set ssl = on at the server; with a weaker sslmode, others in the network could read passwords and rows",
    ),
    (
        r"certificate verify failed",
        ConfigError,
        "correct sslrootcert if another authority signed the server's certificate, or renew a certificate that expired",
    ),
    (
        r"does not match host name",
        ConfigError,
        "set host to a name that the server's certificate contains",
    ),
    (
        r"certificate file|key file|root certificate",
        ConfigError,
        "check that the files of sslrootcert, sslcert and sslkey exist, belong together, and may be read",
    ),
    (
        r"unexpected eof while reading",
        SourceUnavailable,
        "sslnegotiation = direct needs a server with PostgreSQL 17 or later and with ssl = on",
    ),
    (
        r"max_wal_senders|too many clients|too many connections|connection slots are reserved",
        SourceUnavailable,
        _NO_ROOM,
    ),
    (
        r"unsupported startup parameter",
        ConfigError,
        "connect to PostgreSQL itself: connection poolers do not pass on replication connections",
    ),
)


_FATAL = "FATAL: "
"""The beginning of a message from the server. If an error contains it, the server was reached."""

# If psycopg has tried several addresses, it lists their failures in this form.
_ATTEMPT = re.compile(r"^- (host: .*?, port: .*?), hostaddr: ", re.MULTILINE)


def cannot_connect(error: Error) -> PgsluiceError:
    """Return the error for a failed attempt to connect.

    If one of several hosts may become available again, return an error after which the daemon tries again, because that
    host may be the right one. Several addresses of one host count as one server.
    """
    words = _one_line(str(error))
    judged = [_connecting(failure) for failure in _by_host(str(error))]
    if None in judged:
        if isinstance(error, psycopg.ProgrammingError):
            # The message is left out, because it may quote a password.
            return ConfigError("libpq cannot parse the connection string of PostgreSQL. To do: correct postgres.dsn")
        if _FATAL in words:
            return SourceUnavailable(f"PostgreSQL refused the connection: {words}")
        return SourceUnavailable(
            f"PostgreSQL cannot be reached: {words.rstrip('.?')}. Check postgres.host and "
            "postgres.port, and that the server runs and listens there"
        )
    # SourceUnavailable takes precedence, because a host that is only unavailable may be the right one.
    kind, advice = min((found for found in judged if found), key=lambda found: found[0] is not SourceUnavailable)
    if _FATAL in words or kind is PermissionDenied:
        return kind(f"PostgreSQL refused the connection: {words}. To do: {advice}")
    return kind(f"PostgreSQL cannot be reached: {words}. To do: {advice}")


def _by_host(text: str) -> list[str]:
    """Return one text for each host, with all its failures. If ``text`` names no hosts, return only ``text``."""
    _, *listed = _ATTEMPT.split(text)
    found: dict[str, str] = {}
    for host, failure in zip(listed[::2], listed[1::2], strict=True):
        found[host] = found.get(host, "") + failure
    return list(found.values()) or [text]


def _connecting(text: str) -> tuple[type[PgsluiceError], str] | None:
    """Return the kind of error and the advice for this message, or None if the message is not known."""
    return next(((kind, advice) for pattern, kind, advice in _CONNECTING if re.search(pattern, text)), None)


def connection_lost(error: Error) -> SourceUnavailable:
    """Return the error for a broken connection."""
    return SourceUnavailable(f"the connection to PostgreSQL broke: {_one_line(str(error))}")


def query_failed(error: Error, doing: str) -> PgsluiceError:
    """Return the error for a failed query of psycopg."""
    if error.pgresult is None:
        return connection_lost(error)
    return refused(ServerError.of(error.pgresult), doing)


def _one_line(text: str) -> str:
    return re.sub(r"\s*\n\s*", "; ", text.strip())


# --- slots -------------------------------------------------------------------------------------------------


def unusable(
    name: str, slot: SlotState | None, database: str, wanted: StreamOptions, server_version: int
) -> PgsluiceError | None:
    """Return why we cannot stream from the slot, or None if its row in pg_replication_slots shows no obstacle."""
    if slot is None:
        return _slot_missing(name)
    if slot.plugin != PLUGIN:
        plugin = f"has the output plugin {slot.plugin}" if slot.plugin else "is a physical slot"
        return ConfigError(
            f"replication slot {name!r} {plugin}, but a logical slot with {PLUGIN} is needed: choose another "
            "slot, or drop this one if nobody needs it"
        )
    if slot.database != database:
        return ConfigError(
            f"replication slot {name!r} belongs to database {slot.database!r}, but dbname is {database!r}: "
            "correct one of the two settings"
        )
    if slot.invalidation is not None:
        return _slot_invalidated(name, slot.invalidation)
    return _two_phase_problem(name, slot, wanted, server_version)


def _slot_missing(name: str) -> ConfigError:
    return ConfigError(
        f"replication slot {name!r} does not exist. If somebody has dropped it, the changes since then are lost to "
        "this pipeline, because a new slot does not send them: start a new history with 'pgsluice run --adopt-slot', "
        "which creates the slot, then load the tables again with 'pgsluice snapshot start TABLE...'"
    )


def _slot_invalidated(name: str, reason: str) -> HistoryError:
    return HistoryError(
        f"PostgreSQL has invalidated replication slot {name!r} ({reason}): changes that were not delivered "
        "are gone. Drop the slot, create it again, start a new history with 'pgsluice run --adopt-slot', then load "
        "the tables again with 'pgsluice snapshot start TABLE...'. Higher values of max_slot_wal_keep_size and "
        "idle_replication_slot_timeout let slots live longer"
    )


def _two_phase_problem(name: str, slot: SlotState, wanted: StreamOptions, server_version: int) -> ConfigError | None:
    two_phase = slot.two_phase or wanted.two_phase
    if two_phase and slot.failover and server_version < _TWO_PHASE_AT_SYNCED:
        return ConfigError(
            f"replication slot {name!r} survives failovers (failover) and takes prepared transactions at PREPARE "
            "(two_phase): before version 18, a promoted standby does not know from which position to take them, and "
            "transactions that are prepared across the promotion would be lost. Give up one of the two: set "
            "postgres.two_phase = false and use a slot that never had two_phase, or send "
            f'ALTER_REPLICATION_SLOT "{name}" (FAILOVER false) over a replication connection'
        )
    return _slot_two_phase(name) if slot.two_phase and wanted.origin != "any" else None


def _slot_two_phase(name: str) -> ConfigError:
    return ConfigError(
        f"replication slot {name!r} decodes prepared transactions at PREPARE TRANSACTION (two_phase, which stays with "
        'the slot), and with postgres.origin = "none" PostgreSQL can lose track of them. Set origin = "any". '
        f'Or, on PostgreSQL 18 and later, send ALTER_REPLICATION_SLOT "{name}" (TWO_PHASE false) over a replication '
        "connection; on older versions, drop the slot and create it without two_phase"
    )


# --- commands ----------------------------------------------------------------------------------------------

# After 57P01 admin_shutdown, 57P02 crash_shutdown, 57P03 cannot_connect_now and all unknown errors, the daemon tries
# again.
_COMMANDS: dict[str, tuple[type[PgsluiceError], str]] = {
    "28000": (PermissionDenied, "the role needs LOGIN and REPLICATION"),
    "28P01": (PermissionDenied, "check the user and the password"),
    "42501": (PermissionDenied, "the role needs LOGIN and REPLICATION"),
    "42602": (ConfigError, "a slot's name has 1 to 63 of the characters a-z, 0-9 and _"),
    "42622": (ConfigError, "a slot's name has 1 to 63 of the characters a-z, 0-9 and _"),
    "42704": (ConfigError, "create it, or correct the name"),
    "42710": (SlotInUse, "somebody else created it at the same time"),
    "42939": (ConfigError, "choose a name that is not reserved"),
    "53300": (SourceUnavailable, _NO_ROOM),
    "53400": (SourceUnavailable, "raise max_replication_slots, or drop slots that nobody needs"),
    "55006": (SlotInUse, "wait for its owner to leave; the server notices a dead owner after wal_sender_timeout"),
}

# Routines that check the server's configuration before it decodes. Their SQLSTATE 55000 has many meanings, so the name
# of the routine decides.
_DECODING_REQUIREMENTS = {"CheckLogicalDecodingRequirements", "CheckSlotRequirements"}
_FEATURE_NOT_SUPPORTED = "0A000"
# Routines that look up the send functions of the parts of a value.
_SENDING_PARTS = {"array_send", "getTypeBinaryOutputInfo", "get_range_io_data", "get_multirange_io_data"}


def refused(error: ServerError, doing: str) -> PgsluiceError:
    """Return the error for a refused command. After an unknown error, the daemon tries again."""
    if error.routine in _DECODING_REQUIREMENTS:
        return _cannot_decode(error, doing)
    if error.routine in _SENDING_PARTS:
        # In binary format, the server still sends a column as text if its type has no send function. But it cannot send
        # an array or composite if the type of a part has no send function.
        return NotInBinary(f"{doing}: {error}")
    kind, advice = _COMMANDS.get(error.sqlstate, (SourceUnavailable, ""))
    return kind(f"{doing}: {error}" + (f". To do: {advice}" if advice else ""))


def _cannot_decode(error: ServerError, doing: str) -> PgsluiceError:
    if error.sqlstate == _FEATURE_NOT_SUPPORTED:
        return SourceUnavailable(
            f"{doing}: {error}. To do: the server is a standby, so wait for its promotion or connect to the "
            "primary (target_session_attrs=read-write); decoding on standbys needs PostgreSQL 16"
        )
    return ConfigError(
        f"{doing}: {error}. To do: set wal_level = logical (on a standby, also on its primary) and "
        "max_replication_slots > 0, then restart the server"
    )


# --- the stream --------------------------------------------------------------------------------------------

_ENCODING = {"22021", "22P05"}  # character_not_in_repertoire, untranslatable_character
_TOO_LARGE = "54000"  # program_limit_exceeded: a row is larger than 1 GB as text
_ALLOCATES = re.compile("palloc|MemoryContext")
"""The names of routines that allocate memory. They refuse (XX000) to allocate more than 1 GB for one value."""
_UNDEFINED_OBJECT = "42704"
_LSN = re.compile(r"\b[0-9A-F]{1,8}/[0-9A-F]{1,8}\b")
_CHANGE_CALLBACK = re.compile(r"\b(stream_)?change\b")
"""The name of the callback in the context of an error. The server does not translate it. Only this callback sends rows.
"""

_TEMPORARY = frozenset({"08", "25", "40", "53", "55", "57", "58"})
"""The classes of errors that may not happen again if the server sends the same change again. For example, memory or
disk space is missing, or an administrator has ended the session."""
_RIGHT_IS_MISSING = "42501"


def stream_broke(error: ServerError, name: str, slot: SlotState | None) -> PgsluiceError:
    """Return the error for a server error that ended the stream of slot ``name``, or prevented its start.

    ``slot`` is the slot's state after the error, or None if it could not be read.
    """
    if slot is not None and slot.invalidation is not None:
        return _slot_invalidated(name, slot.invalidation)
    if slot is not None and slot.synced:
        return SourceUnavailable(
            f"replication slot {name!r}: {error}. To do: it is a standby's copy of a slot of the primary, so "
            "wait for the standby's promotion or connect to the primary"
        )
    if error.sqlstate == _UNDEFINED_OBJECT and "Slot" not in error.routine:
        return publication_missing(error.message)
    if error.sqlstate == _FEATURE_NOT_SUPPORTED:
        return ConfigError(
            f"streaming from slot {name!r}: {error}. To do: let the publications of one pipeline agree about each "
            "table's columns, or follow them with separate pipelines. PostgreSQL decodes a change with the catalog "
            "as it was at the time of the change, so the slot has to be created again"
        )
    if _is_poison(error):
        return _poison(error, name)
    return refused(error, f"streaming from slot {name!r}")


def _is_poison(error: ServerError) -> bool:
    """Return whether the server cannot send a change, and will fail at this change again."""
    if error.sqlstate.startswith("22") or error.sqlstate == _TOO_LARGE:
        return True
    if error.sqlstate == _RIGHT_IS_MISSING:
        return False
    is_of_change = _LSN.search(error.context) and PLUGIN in error.context and _CHANGE_CALLBACK.search(error.context)
    return bool(is_of_change) and error.sqlstate[:2] not in _TEMPORARY and error.routine not in _SENDING_PARTS


def publication_missing(words: str) -> ConfigError:
    """Return the error for a publication that did not exist at the slot's position, even if it exists now."""
    return ConfigError(
        f"{words}. PostgreSQL decodes with the catalog as it was at the slot's position, so a publication "
        "created later does not count there, and changes would be missing. If you need the publication: (1) create the "
        "publication with CREATE PUBLICATION, (2) drop the slot with 'pgsluice slot drop', (3) start once with "
        "'pgsluice run --adopt-slot', then load the tables again with 'pgsluice snapshot start TABLE...'. Otherwise "
        "remove it from postgres.publications"
    )


def _poison(error: ServerError, name: str) -> PoisonError:
    """Return the error for a change that the server cannot send.

    Leave out the server's message, which may quote the row.
    """
    position = _LSN.search(error.context)
    where = f" at {position[0]}" if position else ""
    what = f"{_condition(error.sqlstate)} (SQLSTATE {error.sqlstate}), with the message in PostgreSQL's log"
    return PoisonError(
        f"PostgreSQL cannot send a change{where} from slot {name!r}: {what}. {_cause(error)}. "
        "The stream cannot continue after this change. To skip its whole transaction, call "
        "pg_replication_slot_advance() with a position after the transaction"
    )


def _condition(sqlstate: str) -> str:
    try:
        return psycopg.errors.lookup(sqlstate).__name__.rstrip("_")  # psycopg writes InternalError_
    except KeyError:
        return "error"


def _cause(error: ServerError) -> str:
    if error.sqlstate in _ENCODING:
        return "A text is not valid in the database's encoding or has no equivalent in UTF-8"
    if error.sqlstate == _TOO_LARGE or _ALLOCATES.search(error.routine):
        return (
            "A row exceeds what the server can send in one message. A bytea takes half as much in binary format, so if "
            "it is the cause, and postgres.binary is off, set it to true to receive the value"
        )
    return "A publication's row filter, or a type's output function, fails for a value"
