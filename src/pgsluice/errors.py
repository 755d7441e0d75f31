"""All errors that pgsluice raises on purpose, and the consequence of each.

::

    PgsluiceError
    ├── RetryableError              the session ends; a new one starts after a back-off
    │   ├── SourceUnavailable       PostgreSQL is down or restarting, or the connection broke
    │   │   └── PrimaryUnavailable  rows cannot be read from the primary; streaming continues, and the read is retried
    │   ├── SlotInUse               another process streams from the slot; this process waits as its standby
    │   ├── NotInBinary             a value cannot be sent or read in binary format; the next session asks for text
    │   ├── TypeChanged             a composite type has gained an attribute since the catalog was read
    │   ├── TableUnreadable         one table cannot be read now; streaming continues, and the read is retried
    │   │   ├── ReadTooSlow         the rows did not arrive within the time limit; the next attempt reads fewer rows
    │   │   └── ValueRefused        a key or a condition has a value that its type does not accept (any more)
    │   ├── TooManyDescriptions     the server has described more tables on the connection than the limit allows
    │   ├── RegistryUnavailable     the schema registry cannot be reached, or cannot answer now
    │   └── SinkUnavailable         Kafka cannot be reached, or a Kafka transaction was abandoned
    │       ├── DeadlineMissed      a Kafka transaction took longer than its timeout
    │       └── Fenced              another producer took over; this process becomes a standby, or stops
    └── StopError                   the daemon stops; the message tells the operator why, and what to do
        ├── UsageError        2     the command line is not valid
        ├── ProtocolError    65     bytes that are not pgoutput; the error says where, and what was expected
        ├── HistoryError     65     slot, checkpoint and server do not belong to one history
        │   └── Diverged     65     the server has another history; Kafka records this, and later starts stop as well
        ├── PoisonError      65     a change that Kafka refuses or Avro cannot represent
        │   └── NullKey      65     a column of the key is null
        ├── IncompatibleSchema 65   the schema registry refuses a schema that an ALTER TABLE has changed
        ├── CommandRefused   65     a running pipeline has refused a command, or did not finish loading a table
        ├── UnavailableError 69     something that pgsluice needs is missing, and retrying would not help
        ├── DrainTimeout     75     the cut in flight did not finish within shutdown.drain_timeout
        ├── PermissionDenied 77     PostgreSQL, Kafka or the registry refuses the credentials or denies a privilege
        └── ConfigError      78     settings, slot or publication are wrong
            └── TableRefused 78     one table cannot be published; tables.refused decides: quarantine or stop

Every other exception that escapes is a bug (exit code 70). The exit codes are those of ``sysexits.h``.
A message says what happened, what follows and what to do. It never contains row data or secrets.
"""

EXIT_BUG = 70
"""``EX_SOFTWARE``: an exception that is not in the tree above."""


class PgsluiceError(Exception):
    """The root of the tree. ``exit_code``: the exit code of the process if this error ends it."""

    exit_code = EXIT_BUG

    @property
    def lines(self) -> tuple[str, ...]:
        """The message, line by line.

        If an element of the tuple contains a line break, this break belongs to a text that the message quotes.
        """
        return (str(self),)


class RetryableError(PgsluiceError):
    """The session cannot continue. A new session, which may succeed, starts after a back-off with jitter."""

    exit_code = 69


class SourceUnavailable(RetryableError):
    """PostgreSQL cannot be reached now, or it ended the connection."""


class PrimaryUnavailable(SourceUnavailable):
    """The server of ``snapshot.primary`` cannot be reached, or it is not the primary of the server we stream from."""


class SlotInUse(RetryableError):
    """Another process streams from the slot. PostgreSQL allows only one process at a time."""


class NotInBinary(RetryableError):
    """PostgreSQL cannot send a value in binary format, or we cannot read it. The next session requests text."""


class TypeChanged(RetryableError):
    """A composite value has an attribute that its type did not have when the catalog was read.

    The next session reads the descriptions of types again.
    """


class TableUnreadable(RetryableError):
    """The rows of one table cannot be read now. Streaming continues."""


class ReadTooSlow(TableUnreadable):
    """PostgreSQL did not return the rows within the time limit."""


class ValueRefused(TableUnreadable):
    """A key or a condition has a value that its type does not accept. For example, a label of an enum was renamed."""


class TooManyDescriptions(RetryableError):
    """The server has described more tables on one connection than the limit allows.

    On a new connection, the server describes only the tables that are still used.
    """


class RegistryUnavailable(RetryableError):
    """The schema registry cannot be reached now, or answers that it cannot serve the request."""


class SinkUnavailable(RetryableError):
    """Kafka cannot be reached now, or the outcome of a Kafka transaction is unknown."""


class DeadlineMissed(SinkUnavailable):
    """A Kafka transaction did not finish within its timeout. Activity does not extend the timeout."""


class Fenced(SinkUnavailable):
    """Another producer with our transactional id took over."""


class StopError(PgsluiceError):
    """The process stops with a message, because retrying would not help."""


class UsageError(StopError):
    """The command line is not valid."""

    exit_code = 2


class ProtocolError(StopError):
    """Bytes from the server do not follow the protocol."""

    exit_code = 65


class HistoryError(StopError):
    """Slot, checkpoint and server contradict one another. Continuing could lose or repeat changes."""

    exit_code = 65


class Diverged(HistoryError):
    """The server has another history than the server that pgsluice streamed from before.

    pgsluice refuses to continue, and writes a checkpoint that makes later starts stop as well. Without that checkpoint,
    a later start could continue, because the server's WAL may have grown until its positions look right again.
    """


class PoisonError(StopError):
    """A change that can never be delivered as it is."""

    exit_code = 65


class NullKey(PoisonError):
    """A column of the key is null, although fields of keys cannot be null."""


class IncompatibleSchema(StopError):
    """The schema registry refuses a schema, because it is not compatible with earlier schemas of its subject."""

    exit_code = 65


class CommandRefused(StopError):
    """A running pipeline has refused a command, or did not complete it."""

    exit_code = 65


class UnavailableError(StopError):
    """Something that pgsluice needs is missing, and retrying would not help."""

    exit_code = 69


class DrainTimeout(StopError):
    """Shutting down took longer than allowed. Changes that were not committed will be sent again."""

    exit_code = 75


class PermissionDenied(StopError):
    """The credentials of the configured user are refused, or the user lacks a privilege."""

    exit_code = 77


class ConfigError(StopError):
    """The configuration, the slot or the publication is wrong."""

    exit_code = 78


class TableRefused(ConfigError):
    """One table cannot be published with the present settings. This does not affect the other tables."""
