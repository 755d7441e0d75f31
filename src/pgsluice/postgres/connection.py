"""The replication connection: a walsender session, which manages a logical slot and starts its stream.

The sessions of ``pipeline`` and the checks use this module. It uses the simple query protocol, because a walsender
supports no other protocol.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import psycopg
import structlog
from psycopg import AsyncConnection, pq

from pgsluice.errors import ConfigError, PgsluiceError, SlotInUse, UnavailableError
from pgsluice.history import ServerIdentity, TimelineSwitch
from pgsluice.lsn import parse_lsn
from pgsluice.postgres import failures
from pgsluice.postgres.async_libpq import Wire
from pgsluice.postgres.failures import PLUGIN, ServerError
from pgsluice.postgres.options import SESSION_SETTINGS, Address, ConnectionOptions, StreamOptions
from pgsluice.postgres.queries import WAL_END, identifier
from pgsluice.postgres.slot import SlotState, parse_slot, slot_query
from pgsluice.postgres.stream import ReplicationStream, Timing

OLDEST_SERVER = 10_00_00
"""The first version with pgoutput."""

SLOT_CREATION_REPORT_S = 10.0
"""How often to log which transactions the creation of a slot waits for. The creation may take hours."""

CANCEL_TIMEOUT_S = 5.0
"""How long to wait for the end of a cancelled command. After that, the connection is closed anyway."""

# setting -> the first version that has it. On an older version, SET would fail.
_LATER_TIMEOUTS = {"idle_session_timeout": 14_00_00, "transaction_timeout": 17_00_00}
_WAL_SENDER_TIMEOUT_PER_SESSION = 12_00_00
_PARENTHESISED_SLOT_OPTIONS = 15_00_00
_FAILOVER_SLOTS = 17_00_00
_PROTO_VERSIONS = ((16_00_00, 4), (15_00_00, 3), (14_00_00, 2), (10_00_00, 1))

# Since version 18, the server sends this notice if a publication is missing. Older versions raise an error.
_SKIPPED_PUBLICATION = ("55000", "LoadPublications")

Blockers = Callable[[int], Awaitable[Sequence[str]]]

log = structlog.get_logger(__name__)


class ReplicationConnection:
    """A session with a walsender.

    Only one task may use it. After :meth:`start`, only the stream may use it, until the stream has stopped.
    """

    def __init__(self, connection: AsyncConnection[tuple[Any, ...]], options: ConnectionOptions) -> None:
        self.server_version = connection.pgconn.server_version
        """The version as PostgreSQL numbers it: 170010 is 17.10."""
        self._connection = connection
        self._options = options
        self._wire = Wire(connection.pgconn)
        self._stream: ReplicationStream | None = None
        connection.add_notice_handler(self._on_notice)

    @classmethod
    async def open(cls, options: ConnectionOptions) -> Self:
        """Connect, and set the session's settings.

        Let psycopg connect, because it resolves host names outside the event loop, and does not block while it waits
        for libpq's socket. It tries every host and address, each for at most connect_timeout. Once connected, we send
        commands through libpq's PGconn, not through psycopg.
        """
        conninfo = await options.current_conninfo(replication="database")
        try:
            connection = await AsyncConnection.connect(conninfo, autocommit=True)
        except (psycopg.OperationalError, psycopg.ProgrammingError) as error:
            raise failures.cannot_connect(error) from error
        self = cls(connection, options)
        try:
            await self._prepare()
        except BaseException:
            await self.close()
            raise
        return self

    async def _prepare(self) -> None:
        if self.server_version < OLDEST_SERVER:
            raise ConfigError("PostgreSQL 10 is the first version with pgoutput: upgrade the server")
        settings = {name: "0" for name, since in _LATER_TIMEOUTS.items() if self.server_version >= since}
        # libpq sends the environment variables PGDATESTYLE and PGTZ as separate parameters, which take precedence over
        # the settings in ``options``. So these two settings are set again.
        settings |= {name: SESSION_SETTINGS[name] for name in ("DateStyle", "TimeZone")}
        if self.server_version >= _WAL_SENDER_TIMEOUT_PER_SESSION:
            settings["wal_sender_timeout"] = str(self._options.wal_sender_timeout_ms)
        await self.query("; ".join(f"SET {name} = '{value}'" for name, value in settings.items()))

    @property
    def backend_pid(self) -> int:
        """Return the PID of the server's process for this connection."""
        return self._connection.pgconn.backend_pid

    @property
    def address(self) -> Address:
        """Return the address of this server, which is one of the hosts in the settings."""
        pgconn = self._connection.pgconn
        return Address(pgconn.host.decode(), pgconn.hostaddr.decode(), int(pgconn.port))

    @property
    def same_server(self) -> ConnectionOptions:
        """Return the options for further connections to this server, even if the settings name several hosts."""
        return self._options.at(self.address)

    async def close(self) -> None:
        """Close the connection. The server releases the slot as soon as it notices that the connection is closed."""
        if self._stream is not None:
            self._stream.abandon()
        await self._connection.close()

    async def query(
        self, sql: str, doing: str = "asking PostgreSQL", *, patient: bool = False
    ) -> list[tuple[str | None, ...]]:
        """Run a replication command or SQL. Return the rows of its last result, in PostgreSQL's text format.

        ``doing`` describes the command in error messages. A ``patient`` command has no time limit.
        """
        try:
            results = await self._run(sql, patient=patient)
        except ServerError as error:
            raise failures.refused(error, doing) from error
        return _rows(results[-1])

    async def _run(self, sql: str, *, patient: bool = False) -> list[pq.abc.PGresult]:
        try:
            return await self._wire.query(sql, patient=patient)
        except psycopg.OperationalError as error:
            raise failures.connection_lost(error) from error

    async def identify_system(self) -> ServerIdentity:
        """Return the cluster's identifier, its timeline, and the end of its flushed WAL."""
        ((systemid, timeline, xlogpos, _),) = await self.query("IDENTIFY_SYSTEM")
        return ServerIdentity(str(systemid), int(str(timeline)), parse_lsn(str(xlogpos)))

    async def timeline_history(self, timeline: int) -> list[TimelineSwitch]:
        """Return where the ancestors of ``timeline`` ended, oldest first. The first timeline has no ancestors."""
        if timeline == 1:
            return []  # the first timeline has no history file, so the command would fail
        ((_, content),) = await self.query(f"TIMELINE_HISTORY {timeline}")
        return parse_timeline_history(content or "")

    async def slot(self, name: str) -> SlotState | None:
        """Return the slot's state, or None if there is no such slot."""
        rows = await self.query(slot_query(self.server_version, f"slot_name = {_literal(name)}"))
        return parse_slot(rows[0]) if rows else None

    async def wal_end(self) -> int | None:
        """Return the end of the server's WAL.

        On a standby, return the end of the WAL that it has received or replayed, or None if it has no WAL yet.
        """
        ((lsn,),) = await self.query(WAL_END)
        return None if lsn is None else parse_lsn(lsn)

    async def create_slot(
        self, name: str, *, failover: bool = False, is_temporary: bool = False, blockers: Blockers | None = None
    ) -> int:
        """Create a logical slot for pgoutput. Return its consistent point, which is where its stream begins.

        A temporary slot is dropped when this connection ends.

        The server waits for the end of every running transaction in all databases, including prepared ones. Meanwhile,
        log these transactions. ``blockers`` takes the PID of our backend, and returns descriptions of the transactions.
        If this call is cancelled, the server is asked to cancel the creation as well.
        """
        if failover and self.server_version < _FAILOVER_SLOTS:
            raise ConfigError("slots that survive a failover need PostgreSQL 17: set postgres.failover = false")
        reports = asyncio.create_task(self._report_waiting(name, blockers))
        try:
            command = self._create_slot_command(name, failover=failover, is_temporary=is_temporary)
            ((_, consistent_point, _, _),) = await self.query(
                command, f"creating replication slot {name!r}", patient=True
            )
        except asyncio.CancelledError:
            await self._cancel_command()
            raise
        finally:
            reports.cancel()
        return parse_lsn(str(consistent_point))

    def _create_slot_command(self, name: str, *, failover: bool, is_temporary: bool) -> str:
        if self.server_version >= _PARENTHESISED_SLOT_OPTIONS:
            options = "(SNAPSHOT 'nothing', FAILOVER)" if failover else "(SNAPSHOT 'nothing')"
        else:
            options = "NOEXPORT_SNAPSHOT"
        lasting = " TEMPORARY" if is_temporary else ""
        return f"CREATE_REPLICATION_SLOT {identifier(name)}{lasting} LOGICAL {PLUGIN} {options}"

    async def _report_waiting(self, name: str, blockers: Blockers | None) -> None:
        while True:
            await asyncio.sleep(SLOT_CREATION_REPORT_S)
            found: Sequence[str] = []
            if blockers is not None:
                with suppress(PgsluiceError):  # after an error, the warning does not name the transactions
                    found = await blockers(self._connection.pgconn.backend_pid)
            log.warning("slot creation waits for running transactions to end", slot=name, waits_for=list(found))

    async def _cancel_command(self) -> None:
        """Cancel the current command at the server, which would continue it even after we have disconnected."""
        with suppress(psycopg.Error, TimeoutError):
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                await self._connection.cancel_safe(timeout=CANCEL_TIMEOUT_S)
                await self._wire.results()

    async def drop_slot(self, name: str) -> None:
        """Drop the slot. Raise UnavailableError if a process streams from it."""
        try:
            await self.query(f"DROP_REPLICATION_SLOT {identifier(name)}", f"dropping replication slot {name!r}")
        except SlotInUse as error:
            raise UnavailableError(
                f"Replication slot {name!r} is in use, so it was not dropped ({error.__cause__}). Stop the pgsluice "
                "that streams from it, or end its walsender with pg_terminate_backend(), then drop the slot again."
            ) from error

    async def start(
        self, slot: str, publications: Sequence[str], options: StreamOptions | None = None
    ) -> ReplicationStream:
        """Start streaming from the slot's own position. Raise SlotInUse if another process streams from it.

        Call this only once per connection. A walsender that has ended one logical stream ends the next one as soon as
        it starts.
        """
        wanted = options or StreamOptions()
        plugin_options = wanted.of_server(self.server_version)
        state = await self.slot(slot)
        problem = failures.unusable(slot, state, self._connection.info.dbname, wanted, self.server_version)
        if problem is not None:
            raise problem
        timing = await self._timing()
        is_two_phase = bool(state and state.two_phase)
        log.info("starting replication", slot=slot, options=plugin_options, slot_is_two_phase=is_two_phase)
        try:
            await self._run(_start_command(slot, publications, self.server_version, plugin_options))
        except ServerError as error:
            raise await self._judge(error, slot) from error
        self._stream = ReplicationStream(self._wire, timing, lambda error: self._judge(error, slot))
        return self._stream

    async def _timing(self) -> Timing:
        # SHOW is not used, because it would add the unit to the number.
        sql = "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'"
        ((milliseconds,),) = await self.query(sql)
        return Timing.of(int(milliseconds or 0) / 1000, self._options.status_interval_s)

    async def _judge(self, error: ServerError, slot: str) -> Exception:
        """Return the PgsluiceError for a server's error. If the session still works, consider the slot's state."""
        state = None
        with suppress(ServerError, psycopg.OperationalError):
            results = await self._wire.query(slot_query(self.server_version, f"slot_name = {_literal(slot)}"))
            rows = _rows(results[-1])
            state = parse_slot(rows[0]) if rows else None
        return failures.stream_broke(error, slot, state)

    def _on_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        words = notice.message_primary or ""
        log.warning("PostgreSQL says", severity=notice.severity, sqlstate=notice.sqlstate, message_text=words)
        if self._stream is not None and (notice.sqlstate, notice.source_function) == _SKIPPED_PUBLICATION:
            self._stream.fail(failures.publication_missing(words))


def parse_timeline_history(content: str) -> list[TimelineSwitch]:
    """Return the switch points of a timeline history file.

    Each line has a timeline, an LSN and a reason. ``#`` begins a comment.
    """
    lines = (line.strip() for line in content.splitlines())
    fields = (line.split(maxsplit=2) for line in lines if line and not line.startswith("#"))
    return [TimelineSwitch(int(timeline), parse_lsn(lsn)) for timeline, lsn, *_ in fields]


def _start_command(slot: str, publications: Sequence[str], server_version: int, options: Mapping[str, str]) -> str:
    proto_version = next(proto for since, proto in _PROTO_VERSIONS if server_version >= since)
    names = ",".join(identifier(name) for name in publications)
    pairs = {"proto_version": str(proto_version), "publication_names": names, **options}
    listed = ", ".join(f"{name} {_literal(value)}" for name, value in pairs.items())
    return f"START_REPLICATION SLOT {identifier(slot)} LOGICAL 0/0 ({listed})"


def _rows(result: pq.abc.PGresult) -> list[tuple[str | None, ...]]:
    return [
        tuple(_text(result.get_value(row, column)) for column in range(result.nfields)) for row in range(result.ntuples)
    ]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


# The walsender's grammar has neither E'' strings nor backslash escapes, so libpq's escape function would be wrong.
def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
