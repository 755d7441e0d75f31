"""The system catalog: what the replication protocol does not say about the slot, publications and tables.

Used by the session of ``pipeline`` and by the checks. An ordinary connection beside the replication one; it
only reads, and pg_catalog is readable by everybody, so a role with LOGIN and REPLICATION is enough.

https://www.postgresql.org/docs/current/catalogs.html
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

import psycopg
from psycopg import AsyncConnection

from pgsluice.lsn import parse_lsn
from pgsluice.postgres import failures
from pgsluice.postgres.options import ConnectionOptions
from pgsluice.postgres.slot import SlotState, parse_slot, slot_query

STATEMENT_TIMEOUT_MS = 10_000
"""For one query of the catalog. They take milliseconds, unless somebody locks system tables."""

_SESSION_SETTINGS = {"default_transaction_read_only": "on", "statement_timeout": str(STATEMENT_TIMEOUT_MS)}

_SERVER_VERSION = "SELECT current_setting('server_version_num')"

_CURRENT_LSN = """
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END)::text"""

_MISSING_PUBLICATIONS = """
SELECT name FROM unnest(%s::text[]) name
WHERE name NOT IN (SELECT pubname FROM pg_publication) ORDER BY name"""

_PRIMARY_KEY = """
SELECT a.attname
FROM pg_constraint c
CROSS JOIN LATERAL unnest(c.conkey) WITH ORDINALITY AS k (attnum, place)
JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum
WHERE c.conrelid = %s AND c.contype = 'p'
ORDER BY k.place"""


class Catalog:
    """Answers about the server; connects when first asked, and again after the connection was lost."""

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._connection: AsyncConnection[tuple[Any, ...]] | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def server_version(self) -> int:
        """Return the server's version as PostgreSQL numbers it: 170010 is 17.10."""
        ((version,),) = await self._rows(_SERVER_VERSION)
        return int(version)

    async def slot(self, name: str) -> SlotState | None:
        """Return the slot's state, or None if there is no such slot."""
        rows = await self._rows(slot_query(await self.server_version(), "slot_name = %s"), [name])
        return parse_slot(rows[0]) if rows else None

    async def missing_publications(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` that do not exist in this database."""
        return [name for (name,) in await self._rows(_MISSING_PUBLICATIONS, [list(names)])]

    async def primary_key(self, relation_oid: int) -> tuple[str, ...]:
        """Return the primary key's columns in key order; empty when there is none, or no such relation."""
        return tuple([name for (name,) in await self._rows(_PRIMARY_KEY, [relation_oid])])

    async def current_wal_lsn(self) -> int:
        """Return where the server's WAL ends; on a standby, how far it is replayed."""
        ((lsn,),) = await self._rows(_CURRENT_LSN)
        return parse_lsn(lsn)

    async def _rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        async with self._lock:
            try:
                connection = await self._connected()
                cursor = await connection.execute(sql, parameters)
                return await cursor.fetchall()
            except psycopg.Error as error:
                raise failures.connection_lost(error) from error

    async def _connected(self) -> AsyncConnection[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            conninfo = self._options.conninfo(_SESSION_SETTINGS)
            self._connection = await AsyncConnection.connect(
                conninfo, autocommit=True, prepare_threshold=None
            )
        return self._connection
