"""Queries the system catalog for what the protocol does not send: facts about the slot, publications and tables.

Sessions and checks use this module. It has its own ordinary connection, besides the replication connection. It only
reads pg_catalog, which every role may read, so LOGIN and REPLICATION are enough for the role.

https://www.postgresql.org/docs/current/catalogs.html
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import psycopg
from psycopg import AsyncConnection

from pgsluice.errors import SourceUnavailable, TableRefused
from pgsluice.identity import Identity, Partitions
from pgsluice.layout import ColumnLayout, Layout
from pgsluice.lsn import parse_lsn
from pgsluice.pgbinary.conversions import LEVELS_MAX, TypeDescription, is_built_in
from pgsluice.postgres import failures, published_queries, queries
from pgsluice.postgres.async_libpq import answered_within, break_off
from pgsluice.postgres.options import ConnectionOptions
from pgsluice.postgres.slot import SlotState, SlotStatistics, parse_slot, slot_query
from pgsluice.printable import quoted
from pgsluice.relation import Column, PgType, PublishedName, Relation, in_portions
from pgsluice.snapshot import TableSize

STATEMENT_TIMEOUT_MS = 10_000
"""The time limit for one query. Queries take milliseconds, unless somebody locks system tables."""

ANSWER_TIMEOUT_S = STATEMENT_TIMEOUT_MS / 1000 + 5
"""The time limit for an answer. statement_timeout ends slow queries earlier, so if no answer comes, the network is
broken."""

TYPES_AT_ONCE = 50
"""The maximum number of types in one query. There is a limit because a composite type can have 1,600 attributes."""

PARTS_MAX = 100_000
"""The maximum number of parts in the types of one table's columns, including parts of parts. There is a limit because
every user may create types with many parts."""

STATISTICS_SINCE = 14_00_00
"""The first version with pg_stat_replication_slots."""

Parameters = Sequence[object] | Mapping[str, object]

_SESSION_SETTINGS = {"default_transaction_read_only": "on", "statement_timeout": str(STATEMENT_TIMEOUT_MS)}


@dataclass(frozen=True, slots=True)
class Server:
    """The server's properties, and the role and database of the session."""

    version: int
    """The version as PostgreSQL numbers it: 170010 is 17.10."""
    database: str
    user: str
    encoding: str
    in_recovery: bool
    tls: str | None
    """Protocol and cipher, or None without TLS."""

    @property
    def major(self) -> int:
        """Return the major version."""
        return self.version // 10000

    @property
    def minor(self) -> int:
        """Return the minor version."""
        return self.version % 10000


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication, and the commands that it publishes."""

    name: str
    insert: bool
    update: bool
    delete: bool
    truncate: bool
    via_root: bool = False
    """Whether the rows of partitions are sent as rows of their root."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A published table that holds rows.

    Its rows are published under its own name, or under the name of its partition root.
    """

    schema: str
    name: str
    replica_identity: str
    """``d``, ``n``, ``f`` or ``i``, as in pg_class."""
    has_identity: bool
    """Whether its replica identity identifies rows. If not, PostgreSQL refuses published updates and deletes."""
    publishes_old_rows: bool
    """Whether updates or deletes are published. These need a replica identity."""


@dataclass(frozen=True, slots=True)
class LoadableTable:
    """A published table, and whether the role can read its rows.

    ``is_hidden`` means that row security would hide rows from the role. ``is_trusted`` is as in
    :class:`pgsluice.snapshot.Shape`. ``has_event_key`` means that the table's events have a key even if no rule names
    one. ``key`` has the columns by which the rows can be sorted.
    """

    oid: int
    schema: str
    name: str
    is_readable: bool
    is_hidden: bool
    is_trusted: bool
    has_event_key: bool
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table that a caller has asked for, or one of its partitions. The table need not be published.

    ``asked`` has the schema and the name that the caller has asked for. ``is_logged`` is false for temporary and
    unlogged tables, ``has_rows`` for partition roots. ``has_usage``: on the schema. ``has_select``: on the table.
    """

    asked: tuple[str, str]
    schema: str
    name: str
    is_logged: bool
    has_rows: bool
    has_identity: bool
    has_usage: bool
    has_select: bool


@dataclass(frozen=True, slots=True)
class IdentityConflict:
    """A row filter or column list that makes PostgreSQL refuse updates and deletes of the table."""

    schema: str
    name: str
    publication: str


class Catalog:
    """Queries the server's catalog. It connects for the first query, and again after the connection was lost.

    No query waits for a lock on a user's table. Methods raise SourceUnavailable, PermissionDenied or ConfigError, as
    :mod:`pgsluice.postgres.failures` decides.
    """

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

    def break_off(self) -> bool:
        """Break the connection, so that the current query fails immediately. Return whether there was a connection."""
        if self._connection is None or self._connection.closed:
            return False
        break_off(self._connection.pgconn)
        return True

    async def server(self) -> Server:
        """Return the server's properties."""
        ((*answers,),) = await self._rows(queries.SERVER)
        return Server(await self._version(), *answers)

    async def setting(self, name: str) -> str | None:
        """Return a setting of the server in its base unit, or None if the server does not know it."""
        rows = await self._rows(queries.SETTING, [name])
        return rows[0][0] if rows else None

    async def slot(self, name: str) -> SlotState | None:
        """Return the slot's state, or None if there is no such slot."""
        rows = await self._rows(slot_query(await self._version(), "slot_name = %s"), [name])
        return parse_slot(rows[0]) if rows else None

    async def slot_xmin_age(self, name: str) -> int | None:
        """Return the age of the slot's catalog_xmin in transactions, or None if there is no such slot."""
        rows = await self._rows(queries.SLOT_XMIN_AGE, [name])
        return None if not rows or rows[0][0] is None else int(rows[0][0])

    async def slot_statistics(self, name: str) -> SlotStatistics | None:
        """Return the server's statistics of the slot, or None if there are none."""
        if await self._version() < STATISTICS_SINCE:
            return None
        rows = await self._rows(queries.SLOT_STATISTICS, [name])
        return SlotStatistics(*map(int, rows[0])) if rows else None

    async def slots_in_use(self) -> int:
        """Return how many replication slots there are in the whole cluster."""
        ((count,),) = await self._rows(queries.SLOTS_IN_USE)
        return int(count)

    async def wal_senders_in_use(self) -> int:
        """Return how many walsenders run."""
        ((count,),) = await self._rows(queries.WAL_SENDERS_IN_USE)
        return int(count)

    async def slot_creation_blockers(self, backend_pid: int) -> list[str]:
        """Return descriptions of what the creation of a slot in backend ``backend_pid`` is waiting for now."""
        blockers = [_blocker(*row) for row in await self._rows(queries.SLOT_CREATION_BLOCKERS, [backend_pid])]
        if not blockers and (await self.server()).in_recovery:
            return ["the primary to log its running transactions: run SELECT pg_log_standby_snapshot() there"]
        return blockers

    async def prepared_transactions(self) -> list[str]:
        """Return descriptions of the cluster's prepared transactions. The creation of a slot waits for their end."""
        return [_prepared(*row) for row in await self._rows(queries.PREPARED_TRANSACTIONS)]

    async def current_wal_lsn(self) -> int:
        """Return the end of the server's flushed WAL. On a standby, return the end of its replayed WAL."""
        ((lsn,),) = await self._rows(queries.CURRENT_LSN)
        return parse_lsn(lsn)

    async def wal_end(self) -> int | None:
        """Return the end of the server's WAL. If a standby has neither received nor replayed any, return None."""
        ((lsn,),) = await self._rows(queries.WAL_END)
        return None if lsn is None else parse_lsn(lsn)

    async def has_process(self, backend_pid: int) -> bool:
        """Return whether the server has a backend with this PID."""
        return bool(await self._rows(queries.PROCESS, [backend_pid]))

    async def wants_to_end(self, backend_pid: int) -> bool:
        """Return whether a walsender has to end but cannot, because its client does not read the error message.

        Until the walsender ends, the process that wants to terminate it has to wait. If the slot is being invalidated,
        the waiting process is the checkpointer.
        """
        rows = await self._rows(queries.BLOCKED_BY_CLIENT, [backend_pid])
        return rows == [(True,)]

    async def publications(self, names: Sequence[str]) -> list[Publication]:
        """Return the publications with these ``names``, as far as they exist in this database."""
        return [Publication(*row) for row in await self._rows(published_queries.PUBLICATIONS, [list(names)])]

    async def missing_publications(self, names: Sequence[str]) -> list[str]:
        """Return those of the ``names`` that are not publications in this database."""
        found = {publication.name for publication in await self.publications(names)}
        return [name for name in names if name not in found]

    async def published_tables(self, publications: Sequence[str]) -> list[PublishedTable]:
        """Return the tables whose rows the publications carry. In place of a partition root, return its leaves."""
        rows = await self._rows(published_queries.published_tables(await self._version()), [list(publications)])
        return [PublishedTable(*row) for row in rows]

    async def identity_conflicts(self, publications: Sequence[str]) -> list[IdentityConflict]:
        """Return the row filters and column lists that contradict the replica identity of their table."""
        if await self._version() < queries.ROW_FILTERS_SINCE:
            return []
        rows = await self._rows(published_queries.IDENTITY_CONFLICTS_SINCE_15, [list(publications)])
        return [IdentityConflict(*row) for row in rows]

    async def differing_columns(self, publications: Sequence[str]) -> list[tuple[str, str]]:
        """Return schema and name of the tables for which the publications send different columns."""
        rows = await self._rows(published_queries.differing_columns(await self._version()), [list(publications)])
        return [(schema, name) for schema, name in rows]

    async def may_replicate(self) -> bool:
        """Return whether the attributes of the role allow replication connections."""
        return await self._rows(queries.MAY_REPLICATE) == [(True,)]

    async def named_tables(self, names: Sequence[tuple[str, str]]) -> list[NamedTable]:
        """Return the tables with these schemas and names, each with all its partitions. Leave out missing tables."""
        schemas, tables = [schema for schema, _ in names], [table for _, table in names]
        rows = await self._rows(published_queries.NAMED_TABLES, [schemas, tables])
        return [NamedTable((schema, table), *found) for schema, table, *found in rows]

    async def partition_identities(self, publications: Sequence[str]) -> list[tuple[Identity, Identity]]:
        """Return the identity of each root under whose name rows are sent, with the identity of each partition."""
        sql = published_queries.partition_identities(await self._version())
        rows = await self._rows(sql, [list(publications)])
        return [(_identity(*row[:5]), _identity(*row[5:])) for row in rows]

    async def carried_names(self, publications: Sequence[str]) -> set[tuple[str, str]]:
        """Return schema and name of the tables that the publications carry, including both roots and partitions."""
        sql = published_queries.carried_names(await self._version())
        return {(schema, name) for schema, name in await self._rows(sql, [list(publications)])}

    async def published_names(self, publications: Sequence[str]) -> list[PublishedName]:
        """Return the tables under whose names the publications send rows."""
        rows = await self._rows(published_queries.published_names(await self._version()), [list(publications)] * 2)
        return [PublishedName(*row) for row in rows]

    async def published_relations(
        self, publications: Sequence[str], tables: Sequence[PublishedName]
    ) -> AsyncIterator[Relation]:
        """Yield these tables as Relation messages would describe them now, but without their keys.

        Leave out tables that do not exist any more.
        """
        sql = published_queries.published_columns(await self._version())
        for some in in_portions(tables):
            rows = await self._rows(sql, [list(publications), [table.oid for table in some]])
            for (oid, schema, table, identity), columns in itertools.groupby(rows, key=lambda row: row[:4]):
                described = tuple(
                    Column(name, PgType(type_oid, namespace, type_name), typmod, is_key=False)
                    for *_, name, type_oid, namespace, type_name, typmod, _ in columns
                )
                yield Relation(oid, schema, table, identity, described)

    async def layouts(self, oids: Sequence[int], publications: Sequence[str]) -> dict[int, Layout]:
        """Return the layouts of these tables, with all columns, by oid. Leave out tables that do not exist any more."""
        asked = {"oids": list(oids), "publications": list(publications)}
        rows = await self._rows(queries.layouts(await self._version()), asked)
        return {
            oid: Layout(tuple(map(_column_layout, columns or ())), attnums, storage or "", filter_ or "")
            for oid, columns, attnums, storage, filter_ in rows
        }

    async def loadable_tables(self, publications: Sequence[str]) -> list[LoadableTable]:
        """Return the tables under whose names rows are published, and whether their rows can be read."""
        rows = await self._rows(published_queries.loadable_tables(await self._version()), [list(publications)] * 2)
        return [LoadableTable(*(*facts, tuple(key or ()))) for *facts, key in rows]

    async def table_sizes(self, oids: Sequence[int]) -> dict[int, TableSize]:
        """Return the sizes of tables, by oid. The size of a root is the sum of its partitions."""
        return {oid: TableSize(rows, size) for oid, rows, size in await self._rows(queries.TABLE_SIZES, [list(oids)])}

    async def primary_key(self, relation_oid: int) -> tuple[str, ...] | None:
        """Return the primary key's columns in order, or () without a key. None means that there is no such table."""
        rows = await self._rows(queries.PRIMARY_KEY, [relation_oid])
        return tuple(name for (name,) in rows if name is not None) if rows else None

    async def identity(self, relation_oid: int) -> frozenset[str]:
        """Return the columns of the replica identity. It is empty if the table does not exist any more."""
        rows = await self._rows(queries.IDENTITY_COLUMNS, [relation_oid])
        return frozenset(rows[0][0]) if rows else frozenset()

    async def partitions(self, root: int, publications: Sequence[str]) -> Partitions | None:
        """Return the partitions of a table, or None if the table exists and is not partitioned."""
        rows = await self._rows(queries.PARTITIONS, {"root": root, "publications": list(publications)})
        if not rows:
            return Partitions({})
        is_root, tree, unique, sends_old_rows = rows[0]
        keys = {oid: frozenset(key) for oid, key in tree or ()}
        return Partitions(keys, tuple(map(frozenset, unique or ())), bool(sends_old_rows)) if is_root else None

    async def describe_types(self, oids: Sequence[int]) -> list[TypeDescription]:
        """Return these types and all types that they consist of, without built-in types.

        If types are nested too deeply, the result has one level more than ``LEVELS_MAX``, so that the caller notices
        the problem. Raise TableRefused if there are too many parts.
        """
        sql = queries.TYPES_SINCE_14 if await self._version() >= queries.MULTIRANGES_SINCE else queries.TYPES
        described: dict[int, TypeDescription] = {}
        wanted, asked = set(oids), set[int]()
        for _ in range(LEVELS_MAX + 1):
            if not wanted:
                break
            oids = sorted(wanted)
            for at in range(0, len(oids), TYPES_AT_ONCE):
                rows = await self._rows(sql, [oids[at : at + TYPES_AT_ONCE]])
                for oid, namespace, name, send, parts, delimiter in rows:
                    described[oid] = TypeDescription(oid, namespace, name, send, tuple(parts), delimiter)
                _check_number(described.values())
            asked |= wanted
            parts = {part for description in described.values() for part in description.parts}
            wanted = {part for part in parts - asked if not is_built_in(part)}
        return list(described.values())

    async def _version(self) -> int:
        async with self._lock:
            return (await self._connected()).info.server_version

    async def _rows(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Run a query. If the connection turns out to be lost, run the query once more on a new connection."""
        async with self._lock:
            was_open = self._is_open()
            try:
                return await self._execute(sql, parameters)
            except SourceUnavailable:
                if not was_open or self._is_open():
                    raise
                return await self._execute(sql, parameters)

    async def _execute(self, sql: str, parameters: Parameters) -> list[tuple[Any, ...]]:
        connection = await self._connected()
        try:
            with answered_within(connection.pgconn, ANSWER_TIMEOUT_S):
                cursor = await connection.execute(sql.encode(), parameters)
                return await cursor.fetchall()
        except psycopg.Error as error:
            raise failures.query_failed(error, "reading PostgreSQL's catalog") from error

    async def _connected(self) -> AsyncConnection[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            conninfo = await self._options.current_conninfo(_SESSION_SETTINGS)
            try:
                self._connection = await AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=None)
            except (psycopg.OperationalError, psycopg.ProgrammingError) as error:
                raise failures.cannot_connect(error) from error
        return self._connection

    def _is_open(self) -> bool:
        return self._connection is not None and not self._connection.closed


def _identity(
    schema: str, table: str, kind: str, key: Sequence[str], unique: Sequence[Sequence[str]] | None = None
) -> Identity:
    return Identity(schema, table, kind, frozenset(key), tuple(map(frozenset, unique or ())))


def _column_layout(found: Sequence[str]) -> ColumnLayout:
    attnum, name, type_oid, typmod, xmin, is_filled = found
    return ColumnLayout(int(attnum), name, int(type_oid), int(typmod), int(xmin), is_filled=is_filled == "1")


def _check_number(described: Collection[TypeDescription]) -> None:
    if sum(len(one.parts) + 1 for one in described) > PARTS_MAX:
        raise TableRefused(
            f"The types of a table's columns contain more than {PARTS_MAX} other types. Give the columns simpler "
            "types, or leave the table out with tables.exclude."
        )


def _blocker(pid: int | None, role: str | None, database: str | None, *prepared: str | None) -> str:
    if pid is None:
        return _prepared(*prepared)
    return f"a transaction of process {pid} (role {quoted(str(role))}, database {quoted(str(database))})"


def _prepared(gid: str | None, owner: str | None, database: str | None, since: str | None) -> str:
    whose = f"of {quoted(str(owner))} in database {quoted(str(database))}"
    return f"prepared transaction {gid!r} {whose}, prepared {since}"
