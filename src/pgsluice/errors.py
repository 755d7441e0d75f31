"""Every error that pgsluice raises on purpose, and what follows from each.

::

    PgsluiceError
    ├── RetryableError              the session ends; a new one starts after a back-off
    │   ├── SourceUnavailable       PostgreSQL is down, restarting, or the connection broke
    │   │   └── PrimaryUnavailable  no rows can be read on snapshot.primary: tried again while streaming goes on
    │   ├── SlotInUse               another process streams from the slot: wait as its hot standby
    │   ├── NotInBinary             a value cannot be sent or read in binary format: the next session asks for text
    │   ├── TypeChanged             a composite has gained an attribute since the catalog was asked about it
    │   ├── TableUnreadable         the rows of one table cannot be read now: tried again while streaming goes on
    │   │   └── ReadTooSlow         they have not come within the time limit: fewer are read at once
    │   ├── TooManyDescriptions     the connection has described more tables than are kept; a new one begins anew
    │   ├── RegistryUnavailable     the schema registry cannot be reached, or cannot answer now
    │   └── SinkUnavailable         Kafka cannot be reached, or a Kafka transaction was given up
    │       ├── DeadlineMissed      a Kafka transaction took longer than its timeout
    │       └── Fenced              another producer took over: its process owns the slot, or we stop
    └── StopError                   the daemon stops; the message is the sentence an operator needs
        ├── UsageError        2     the command line
        ├── ProtocolError    65     bytes that are not pgoutput (names message, offset, expectation)
        ├── HistoryError     65     slot, checkpoint and server do not belong to one history
        │   └── Diverged     65     the server has another history, which is recorded so that it stays refused
        ├── PoisonError      65     a change that Kafka or Avro cannot take
        ├── IncompatibleSchema 65   the schema registry refuses what an ALTER TABLE made of a schema
        ├── CommandRefused   65     a running pipeline has refused a command, or did not load a table to its end
        ├── UnavailableError 69     something that will not come back by waiting
        ├── DrainTimeout     75     the cut in flight did not finish within shutdown.drain_timeout
        ├── PermissionDenied 77     PostgreSQL, Kafka or the registry refuses the credentials or the right
        └── ConfigError      78     settings, slot or publication are not what they must be
            └── TableRefused 78     one table cannot be published as the settings are; tables.refused decides

Anything else that escapes is a bug (exit code 70). The numbers are those of ``sysexits.h``.
A message says what happened and what to do; it never contains row data or secrets.
"""

EXIT_BUG = 70
"""``EX_SOFTWARE``: an exception that is not in the tree above."""


class PgsluiceError(Exception):
    """Root of the tree; ``exit_code`` is what the process ends with if the error ends it."""

    exit_code = EXIT_BUG

    @property
    def lines(self) -> tuple[str, ...]:
        """The message, line by line. A line break inside a line belongs to something that the message quotes."""
        return (str(self),)


class RetryableError(PgsluiceError):
    """The session cannot go on, a new one may: wait with a jittered back-off, then try again."""

    exit_code = 69


class SourceUnavailable(RetryableError):
    """PostgreSQL cannot be reached now, or it ended the connection."""


class PrimaryUnavailable(SourceUnavailable):
    """The server that ``snapshot.primary`` names cannot be reached, or it is not the primary of the stream's server."""


class SlotInUse(RetryableError):
    """Another process streams from the slot; PostgreSQL lets one in at a time."""


class NotInBinary(RetryableError):
    """A value that PostgreSQL cannot send in binary format, or that we cannot read; a new session asks for text."""


class TypeChanged(RetryableError):
    """A value has a part that its type had not when it was described; a new session describes types anew."""


class TableUnreadable(RetryableError):
    """The rows of one table cannot be read now; streaming goes on."""


class ReadTooSlow(TableUnreadable):
    """PostgreSQL has not read the rows within the time limit."""


class TooManyDescriptions(RetryableError):
    """A connection has described more tables or types than are kept; a new one describes only what is still used."""


class RegistryUnavailable(RetryableError):
    """The schema registry cannot be reached now, or says that it cannot answer."""


class SinkUnavailable(RetryableError):
    """Kafka cannot be reached now, or the outcome of a Kafka transaction is unknown."""


class DeadlineMissed(SinkUnavailable):
    """A Kafka transaction did not finish within its timeout, which activity does not extend."""


class Fenced(SinkUnavailable):
    """Another producer with our transactional id took over."""


class StopError(PgsluiceError):
    """Trying again would not help: stop, and say why."""


class UsageError(StopError):
    """The command line cannot be understood."""

    exit_code = 2


class ProtocolError(StopError):
    """Bytes from the server that are not what the protocol says."""

    exit_code = 65


class HistoryError(StopError):
    """Slot, checkpoint and server contradict one another: going on could lose or double changes."""

    exit_code = 65


class Diverged(HistoryError):
    """The server has another history than the one that was followed.

    The refusal is recorded in Kafka, because the server's WAL may grow until its positions look right again.
    """


class PoisonError(StopError):
    """A change that can never be delivered as it is."""

    exit_code = 65


class IncompatibleSchema(StopError):
    """The schema registry refuses a schema, because it does not go with the subject's earlier ones."""

    exit_code = 65


class CommandRefused(StopError):
    """A running pipeline has not done what a command told it."""

    exit_code = 65


class UnavailableError(StopError):
    """Something needed is gone for good."""

    exit_code = 69


class DrainTimeout(StopError):
    """Shutting down took longer than allowed; what was not committed will be sent again."""

    exit_code = 75


class PermissionDenied(StopError):
    """The credentials or the rights of the configured user are not enough."""

    exit_code = 77


class ConfigError(StopError):
    """The configuration, the slot or the publication is not what it must be."""

    exit_code = 78


class TableRefused(ConfigError):
    """One table cannot be published as the settings are: the others can."""
