"""The replication connection: a walsender session that manages a logical slot and starts its stream.

Used by the session of ``pipeline`` and by the checks. Simple query protocol only: the walsender has no other.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import psycopg
from psycopg import AsyncConnection, pq

from pgsluice.lsn import parse_lsn
from pgsluice.postgres import failures
from pgsluice.postgres.failures import ServerError
from pgsluice.postgres.options import SESSION_SETTINGS, ConnectionOptions
from pgsluice.postgres.slot import SlotState, parse_slot, slot_query
from pgsluice.postgres.stream import ReplicationStream, Timing
from pgsluice.postgres.wire import Wire

# setting -> the first version that has it; before, setting it would be an error
_LATER_TIMEOUTS = {"idle_session_timeout": 14_00_00, "transaction_timeout": 17_00_00}
_WAL_SENDER_TIMEOUT_PER_SESSION = 12_00_00
_PARENTHESISED_SLOT_OPTIONS = 15_00_00


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """The answer to IDENTIFY_SYSTEM."""

    systemid: str
    timeline: int
    xlogpos: int
    database: str


@dataclass(frozen=True, slots=True)
class TimelineSwitch:
    """One line of a timeline's history: ``timeline`` ended at ``switch_lsn``."""

    timeline: int
    switch_lsn: int


class ReplicationConnection:
    """A session with a walsender. One task owns it; once :meth:`start` was called, the stream does."""

    def __init__(self, connection: AsyncConnection[tuple[object, ...]], options: ConnectionOptions) -> None:
        self._connection = connection
        self._options = options
        self._wire = Wire(connection.pgconn)
        self._stream: ReplicationStream | None = None
        self.server_version = connection.pgconn.server_version

    @classmethod
    async def open(cls, options: ConnectionOptions) -> Self:
        """Connect and pin the session's settings.

        psycopg's own connect is used: it resolves names off the event loop, tries every host and address
        within connect_timeout, and polls libpq by the socket's readiness. After that only its PGconn is used.
        """
        try:
            conninfo = options.conninfo(replication="database")
            connection = await AsyncConnection.connect(conninfo, autocommit=True)
        except psycopg.OperationalError as error:
            raise failures.lost(error) from error
        self = cls(connection, options)
        try:
            await self._pin_settings()
        except BaseException:
            await self.close()
            raise
        return self

    async def _pin_settings(self) -> None:
        """Set what the startup packet could not: it depends on the version, or libpq outranks it."""
        settings = {name: "0" for name, since in _LATER_TIMEOUTS.items() if self.server_version >= since}
        # libpq sends PGDATESTYLE and PGTZ after the options
        settings |= {name: SESSION_SETTINGS[name] for name in ("DateStyle", "TimeZone")}
        if self.server_version >= _WAL_SENDER_TIMEOUT_PER_SESSION:
            settings["wal_sender_timeout"] = str(self._options.wal_sender_timeout_ms)
        await self.query("; ".join(f"SET {name} = '{value}'" for name, value in settings.items()))

    async def close(self) -> None:
        """Close the connection; the server frees the slot as soon as it notices."""
        if self._stream is not None:
            self._stream.abandon()
        await self._connection.close()

    async def query(self, sql: str) -> list[tuple[str | None, ...]]:
        """Run a replication command or plain SQL; the rows of its last result, as PostgreSQL's text."""
        try:
            results = await self._command(sql)
        except ServerError as error:
            raise failures.refused(error, sql.split(maxsplit=1)[0]) from error
        return _rows(results[-1])

    async def _command(self, sql: str) -> list[pq.abc.PGresult]:
        try:
            return await self._wire.query(sql)
        except psycopg.OperationalError as error:
            raise failures.lost(error) from error

    async def identify_system(self) -> SystemIdentity:
        """Return which cluster this is, its timeline, how far its WAL is flushed, and our database."""
        ((systemid, timeline, xlogpos, database),) = await self.query("IDENTIFY_SYSTEM")
        return SystemIdentity(str(systemid), int(str(timeline)), parse_lsn(str(xlogpos)), str(database))

    async def timeline_history(self, timeline: int) -> list[TimelineSwitch]:
        """Return where the ancestors of ``timeline`` ended, oldest first. The first timeline has none."""
        if timeline == 1:
            return []  # it has no history file: asking would be an error
        ((_, content),) = await self.query(f"TIMELINE_HISTORY {timeline}")
        return [_switch(line) for line in (content or "").splitlines() if line.strip() and line[0] != "#"]

    async def slot(self, name: str) -> SlotState | None:
        """Return the slot's state, or None if there is no such slot."""
        rows = await self.query(slot_query(self.server_version, f"slot_name = {_literal(name)}"))
        return parse_slot(rows[0]) if rows else None

    async def create_slot(self, name: str, *, failover: bool = False) -> int:
        """Create a logical slot for pgoutput; its consistent point, where its stream begins."""
        if self.server_version >= _PARENTHESISED_SLOT_OPTIONS:
            options = "(SNAPSHOT 'nothing', FAILOVER)" if failover else "(SNAPSHOT 'nothing')"
        else:
            options = "NOEXPORT_SNAPSHOT"
        sql = f"CREATE_REPLICATION_SLOT {_identifier(name)} LOGICAL pgoutput {options}"
        ((_, consistent_point, _, _),) = await self.query(sql)
        return parse_lsn(str(consistent_point))

    async def drop_slot(self, name: str) -> None:
        """Drop the slot; SlotInUse while somebody streams from it."""
        await self.query(f"DROP_REPLICATION_SLOT {_identifier(name)}")

    async def start(self, slot: str, publications: Sequence[str]) -> ReplicationStream:
        """Start streaming from the slot's own position."""
        identity = await self.identify_system()
        problem = failures.unusable(slot, await self.slot(slot), identity.database)
        if problem is not None:
            raise problem
        names = ",".join(_identifier(name) for name in publications)
        proto_version = _proto_version(self.server_version)
        options = f"(proto_version '{proto_version}', publication_names {_literal(names)})"
        sql = f"START_REPLICATION SLOT {_identifier(slot)} LOGICAL 0/0 {options}"
        timing = await self._timing()
        try:
            await self._command(sql)
        except ServerError as error:
            raise failures.refused(error, f"streaming from slot {slot!r}") from error
        self._stream = ReplicationStream(self._wire, timing)
        return self._stream

    async def _timing(self) -> Timing:
        unit = "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'"
        ((milliseconds,),) = await self.query(unit)
        return Timing.of(int(milliseconds or 0) / 1000, self._options.status_interval_s)


def _proto_version(server_version: int) -> int:
    """Return the highest version of pgoutput's protocol that the server offers."""
    return next(
        (proto for since, proto in ((16_00_00, 4), (15_00_00, 3), (14_00_00, 2)) if server_version >= since),
        1,
    )


def _rows(result: pq.abc.PGresult) -> list[tuple[str | None, ...]]:
    return [
        tuple(_text(result.get_value(row, column)) for column in range(result.nfields))
        for row in range(result.ntuples)
    ]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _switch(line: str) -> TimelineSwitch:
    timeline, switch_lsn = line.split("\t")[:2]
    return TimelineSwitch(int(timeline), parse_lsn(switch_lsn))


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
