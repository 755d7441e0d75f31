"""Reads rows of tables in chunks at a database snapshot, on ordinary connections.

``ChunkReader`` implements ``pipeline.ends.Reader``. Each chunk is read in its own short transaction, so that locks do
not last long, and VACUUM is not delayed.

``tests/integration/test_snapshots.py`` covers this module.

https://www.postgresql.org/docs/current/sql-copy.html
https://www.postgresql.org/docs/current/transaction-iso.html#XACT-REPEATABLE-READ
"""

import hashlib
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import AsyncConnection, pq

from pgsluice.errors import (
    PgsluiceError,
    PrimaryUnavailable,
    ReadTooSlow,
    SourceUnavailable,
    TableUnreadable,
    ValueRefused,
)
from pgsluice.lsn import parse_lsn
from pgsluice.native.speedups import COMPILED
from pgsluice.pgoutput.copy import insert_frame
from pgsluice.pgoutput.framing import XLogData
from pgsluice.postgres import failures, published_queries, queries
from pgsluice.postgres.async_libpq import Wire, answered_within
from pgsluice.postgres.failures import ServerError
from pgsluice.postgres.options import ConnectionOptions
from pgsluice.postgres.primary import Primary
from pgsluice.postgres.row_commands import (
    array,
    copy_next,
    copy_those,
    select_all,
    select_condition,
    select_those,
    table_name,
)
from pgsluice.relation import Column, PgType, Relation, TableId
from pgsluice.snapshot import FLUSH_PREFIX, Chunk, Shape, Snapshot, Taken, reached_at

if TYPE_CHECKING or not COMPILED:
    from pgsluice.pgoutput.copy import row_frame
else:
    from pgsluice.native.copy import row_frame

STATEMENT_TIMEOUT_MS: Final = 30_000
"""The time limit for one chunk, which usually takes about ten milliseconds."""

LOCK_TIMEOUT_MS: Final = 2_000
"""The time limit for locking a table. While we wait, sessions that request a conflicting lock wait behind us."""

IDLE_TIMEOUT_MS: Final = 30_000
"""The time after which the server ends our transaction if it is idle. An open transaction delays VACUUM and ALTER
TABLE."""

WHOLE_IDLE_TIMEOUT_MS: Final = 300_000
"""The idle time-out while a table is read in portions. Between two portions, rows are written to Kafka."""

_CURSOR: Final = "pgsluice_rows"
_STATEMENT: Final = "pgsluice_shape"

_SESSION_SETTINGS: Final = {
    "statement_timeout": str(STATEMENT_TIMEOUT_MS),
    "lock_timeout": str(LOCK_TIMEOUT_MS),
    "idle_in_transaction_session_timeout": str(IDLE_TIMEOUT_MS),
    "row_security": "off",  # raises an error if a policy hides rows; otherwise the rows would be missing silently
    "synchronous_commit": "local",  # so that flush() does not wait for a synchronous standby
}

_FETCHED_AT_ONCE: Final = 100
"""The number of rows that one command fetches from a cursor. It is small, because all of them are in memory at once,
and rows can have any size."""

_SHAPE_DIGITS: Final = 16

_NO_LIMIT: Final = sys.maxsize
"""The size limit for a single row, which has to be read whatever its size is."""

_CANCELLED: Final = "57014"
"""The SQLSTATE of a cancelled statement."""
_REFUSALS: Final[Mapping[str, type[TableUnreadable]]] = {_CANCELLED: ReadTooSlow, "22P02": ValueRefused}


class ChunkReader:
    """Reads rows and makes the stream advance, on connections that are opened when they are first needed.

    There are two connections. The first one has the transaction with the snapshot, and is busy while it reads rows.
    Meanwhile, the second one finds out which transactions are visible, and writes messages to the WAL, which make the
    stream advance.
    """

    def __init__(self, options: ConnectionOptions, publications: Sequence[str], primary: Primary | None = None) -> None:
        """``primary`` identifies the server from which rows must be read. None means the server of the stream."""
        self._options = options
        self._publications = publications
        self._primary = primary
        self._connection: _Connection | None = None
        self._side: _Connection | None = None
        """The connection for queries while ``_connection`` reads rows."""

    async def shape(self, table: TableId) -> Shape | None:
        """Return the present shape of the table, or None if it does not exist or is not published any more."""
        connection = await self._reading()
        sql = published_queries.shape(connection.version, table.oid, array(self._publications))
        rows = await connection.query_again(sql, table)
        return _shape(table.oid, str(rows[0][0])) if rows else None

    async def writers(self, shape: Shape) -> Collection[str]:
        """Return an identifier of each unfinished transaction that may have changed the table."""
        connection = await self._reading()
        rows = await connection.query(queries.WRITERS.format(oid=shape.relation.oid), shape.relation)
        return {str(name) for (name,) in rows}

    async def begin(self, shape: Shape) -> None:
        """Begin a transaction and lock the table.

        This takes no snapshot yet. So the later snapshot sees all transactions that had to end before we got the lock.
        """
        connection = await self._reading()
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        await connection.query(f"{begin}; LOCK TABLE {table_name(shape)} IN ACCESS SHARE MODE", shape.relation)

    async def look(self) -> Snapshot:
        """Return a snapshot that says which transactions are visible now."""
        return (await _taken(await self._beside())).snapshot

    async def take(self) -> Taken:
        """Take the snapshot of the current transaction."""
        return await _taken(await self._reading())

    async def rows(self, shape: Shape, after: Sequence[str], limit: int, size: int) -> Chunk:
        """Return the rows that follow the key ``after``, in the order of the key.

        Return at most ``limit`` rows, and stop once they have ``size`` bytes. Raise TableUnreadable if the table does
        not have this ``shape`` any more. It may have been altered before it was locked. Raise ValueRefused if ``after``
        is not a valid key any more.
        """
        await self._check_shape(shape)
        connection = await self._reading()
        frames, is_cut = await connection.copy(copy_next(shape, after, limit), shape.relation, size)
        return Chunk(frames, is_last=not is_cut and len(frames) < limit)

    async def rows_of(self, shape: Shape, keys: Sequence[Sequence[str]], size: int) -> Chunk:
        """Return the rows with these keys (:func:`pgsluice.loads.moved_key`). Raise the same errors as :meth:`rows`.

        Raise ReadTooSlow if several rows together have more than ``size`` bytes.
        """
        await self._check_shape(shape)
        connection = await self._reading()
        found = await connection.texts(keys, _key_types(shape))
        limit = size if len(keys) > 1 else _NO_LIMIT
        frames, is_cut = await connection.copy(copy_those(shape, found), shape.relation, limit)
        if is_cut:
            raise ReadTooSlow(f"{len(keys)} rows of table {shape.relation} together have more than {size:,} bytes.")
        return Chunk(frames, is_last=True)

    async def check_keys(self, shape: Shape, after: Sequence[str], keys: Sequence[Sequence[str]]) -> None:
        """Raise ValueRefused if PostgreSQL does not accept ``after`` or one of ``keys`` as a key of the table."""
        connection = await self._reading()
        found = await connection.texts(keys, _key_types(shape))
        if after:
            found.append(tuple(after))
        if found:
            every = replace(shape, where="", filter="")  # conditions may have refused a value as well
            await connection.run_one(f"{select_those(every, found)} LIMIT 0", shape.relation)

    async def size(self, shape: Shape) -> int:
        """Return how many bytes the table takes on disk, with its partitions and without indexes."""
        connection = await self._reading()
        ((size,),) = await connection.query(queries.SIZE.format(oid=shape.relation.oid), shape.relation)
        return int(str(size))

    async def open_rows(self, shape: Shape) -> None:
        """Prepare to read all rows, in any order.

        Raise TableUnreadable if the table does not have this ``shape`` any more.
        """
        await self._check_shape(shape)
        connection = await self._reading()
        # Between two portions, the rows are written to Kafka, which may take a long time.
        await connection.query(f"SET LOCAL idle_in_transaction_session_timeout = {WHOLE_IDLE_TIMEOUT_MS}")
        await connection.run_one(f"DECLARE {_CURSOR} NO SCROLL CURSOR FOR {select_all(shape)}", shape.relation)

    async def next_rows(self, shape: Shape, limit: int, size: int) -> Chunk:
        """Return the next rows, at most ``limit``. Stop soon after the rows have ``size`` bytes."""
        connection = await self._reading()
        frames: list[XLogData] = []
        is_last = False
        while not is_last and len(frames) < limit and size > 0:
            step = min(_FETCHED_AT_ONCE, limit - len(frames))
            rows = await connection.fetch(f"FETCH FORWARD {step} FROM {_CURSOR}", shape.relation)
            new = [insert_frame(shape.relation.oid, row) for row in rows]
            frames += new
            size -= sum(map(len, new))
            is_last = len(rows) < step
        return Chunk(frames, is_last=is_last)

    async def check_readable(self, shape: Shape) -> None:
        """Raise TableUnreadable if we may not read the rows, or if ``shape.where`` is not a valid condition on them."""
        connection = await self._reading()
        await connection.run_one(f"{select_all(shape)} LIMIT 0", shape.relation)
        if shape.where:
            await connection.run_one(f"{select_condition(shape)} LIMIT 0", shape.relation)

    async def _check_shape(self, shape: Shape) -> None:
        present = await self.shape(shape.relation)
        if present is None or present.digest != shape.digest:
            raise TableUnreadable(f"Table {shape.relation} was altered, so its rows are read again from the beginning.")

    async def confirm(self) -> None:
        """Check that we still read from the primary of the stream, and that it has not restarted since we connected.

        In a crash, the primary can lose a transaction that the snapshot saw, and then write other transactions in its
        place. A crash ends all connections. So if the connection with the snapshot still works, there was no crash.
        """
        if self._primary is None:
            return  # the stream comes from the same server, so a crash would have ended the stream as well
        if self._connection is None:
            raise PrimaryUnavailable("The connection to the primary was lost.")
        await self._primary.check(self._connection.query)

    async def end(self) -> None:
        """End the transaction, if there is one. Close a connection that does not answer."""
        if self._connection is not None:
            try:
                await self._connection.query("COMMIT")
            except SourceUnavailable:
                await self.close()

    async def flush(self) -> None:
        """Make the server write a message to its WAL, so that the stream advances even if nobody else writes.

        If the role may not do this, do nothing.
        """
        connection = await self._beside()
        with suppress(TableUnreadable):
            await connection.query(f"SELECT pg_logical_emit_message(true, '{FLUSH_PREFIX}', '')")

    async def close(self) -> None:
        """Close every connection."""
        connections = self._connection, self._side
        self._connection = self._side = None
        for connection in connections:
            if connection is not None:
                await connection.close()

    async def _reading(self) -> "_Connection":
        if self._connection is None:
            self._connection = await self._open()
        return self._connection

    async def _beside(self) -> "_Connection":
        if self._side is None:
            self._side = await self._open()
        return self._side

    async def _open(self) -> "_Connection":
        if self._primary is None:
            return await _Connection.open(self._options)
        try:
            connection = await _Connection.open(self._options)
        except PgsluiceError as error:  # even a refused password must not stop the stream
            raise self._primary.unreachable(error) from error
        try:
            await self._primary.check(connection.query)
        except BaseException:
            await connection.close()
            raise
        return connection


class _Connection:
    """An ordinary session. Only :meth:`run_one` and :meth:`texts` use the extended query protocol."""

    def __init__(self, connection: AsyncConnection[tuple[Any, ...]]) -> None:
        self.version = connection.pgconn.server_version
        self._connection = connection
        self._wire = Wire(connection.pgconn)
        self._planned: str | None = None
        """The query of the prepared statement, if there is one."""

    @classmethod
    async def open(cls, options: ConnectionOptions) -> "_Connection":
        conninfo = await options.current_conninfo(_SESSION_SETTINGS)
        try:
            connection = await AsyncConnection.connect(conninfo, autocommit=True)
        except (psycopg.OperationalError, psycopg.ProgrammingError) as error:
            raise failures.cannot_connect(error) from error
        return cls(connection)

    async def query(self, sql: str, about: TableId | None = None) -> list[tuple[str | None, ...]]:
        """Return the rows of ``sql`` as text. Raise TableUnreadable, with the name of ``about``, if ``sql`` fails."""
        return [tuple(map(_text, row)) for row in await self.fetch(sql, about)]

    async def query_again(self, sql: str, about: TableId | None = None) -> list[tuple[str | None, ...]]:
        """Do the same as :meth:`query`. If the last call had the same ``sql``, PostgreSQL does not parse it again."""
        if self._planned != sql:
            if self._planned is not None:
                await self.query(f"DEALLOCATE {_STATEMENT}")
            self._planned = None
            await self.query(f"PREPARE {_STATEMENT} AS {sql}", about)
            self._planned = sql
        return await self.query(f"EXECUTE {_STATEMENT}", about)

    async def fetch(self, sql: str, about: TableId | None) -> list[list[bytes | None]]:
        """Return the rows of ``sql`` as bytes. Raise the same errors as :meth:`query`."""
        result = (await self._run(sql, about))[-1]
        return [[result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)]

    async def texts(self, keys: Sequence[Sequence[str]], oids: Sequence[int]) -> list[tuple[str, ...]]:
        """Return the keys in text format, even if they came in binary format (see :func:`pgsluice.loads.moved_key`)."""
        values = [bytes.fromhex(value[1:]) for key in keys for value in key if value.startswith("b")]
        if not values:
            return [tuple(value[1:] for value in key) for key in keys]
        types = [oid for key in keys for value, oid in zip(key, oids, strict=True) if value.startswith("b")]
        # Use concat instead of a cast, because a cast may be a function of the type's owner, which would run with our
        # rights.
        listed = ", ".join(f"(concat(${place}))" for place in range(1, len(values) + 1))
        pgconn = self._wire.pgconn
        pgconn.send_query_params(f"VALUES {listed}".encode(), values, types, [1] * len(values))
        try:
            with answered_within(pgconn, STATEMENT_TIMEOUT_MS / 1000):
                (result,) = await self._wire.results()
        except psycopg.OperationalError as error:
            raise failures.connection_lost(error) from error
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise _refused(ServerError.of(result), None)
        found = iter([(result.get_value(row, 0) or b"").decode() for row in range(result.ntuples)])
        return [tuple(next(found) if value.startswith("b") else value[1:] for value in key) for key in keys]

    async def copy(self, sql: str, about: Relation, size: int) -> tuple[list[XLogData], bool]:
        """Return the rows of a COPY as frames, and whether the COPY was cancelled because it reached ``size`` bytes."""
        columns, oid = len(about.columns), about.oid
        found: list[XLogData] = []
        await self.run_one(sql, about)
        try:
            with answered_within(self._wire.pgconn, STATEMENT_TIMEOUT_MS / 1000):
                while row := await self._next_row():
                    if size > 0:
                        found.append(row_frame(row, oid, columns))
                        size -= len(row)
                        if size <= 0:
                            await self._connection.cancel_safe()
                results = await self._wire.results()
        except psycopg.OperationalError as error:
            raise failures.connection_lost(error) from error
        for result in results:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                refusal = ServerError.of(result)
                if not (size <= 0 and refusal.sqlstate == _CANCELLED):
                    raise _refused(refusal, about)
        return found, size <= 0

    async def _next_row(self) -> bytes:
        """Return the next row of the current COPY, or an empty string at its end."""
        pgconn = self._wire.pgconn
        while True:
            length, data = pgconn.get_copy_data(1)
            if length > 0:
                return bytes(data)
            if length < 0:
                return b""
            await self._wire.readable()
            pgconn.consume_input()

    async def run_one(self, sql: str, about: Relation) -> None:
        """Run ``sql``, up to its end or to the COPY that it opens. Raise TableUnreadable if the server refuses ``sql``.

        Use the extended protocol, because ``sql`` may contain a condition that a user has written, and only this
        protocol refuses a second command in ``sql``.
        """
        pgconn = self._wire.pgconn
        try:
            pgconn.send_query_params(sql.encode(), None)
            with answered_within(pgconn, STATEMENT_TIMEOUT_MS / 1000):
                results = await self._wire.results()
        except psycopg.OperationalError as error:
            raise failures.connection_lost(error) from error
        for result in results:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise _refused(ServerError.of(result), about)

    async def _run(self, sql: str, about: TableId | None) -> list[pq.abc.PGresult]:
        try:
            return await self._wire.query(sql)
        except ServerError as error:
            raise _refused(error, about) from error
        except psycopg.OperationalError as error:
            raise failures.connection_lost(error) from error

    async def close(self) -> None:
        await self._connection.close()


async def _taken(connection: _Connection) -> Taken:
    ((text, lsn, timestamp, segment_bytes, page_bytes),) = await connection.query(queries.SNAPSHOT)
    end_lsn = reached_at(parse_lsn(str(lsn)), int(str(segment_bytes)), int(str(page_bytes)))
    return Taken(Snapshot.parse(str(text)), end_lsn, int(str(timestamp)))


def _refused(error: ServerError, about: TableId | None) -> TableUnreadable:
    what = "PostgreSQL's snapshots" if about is None else f"the rows of table {about}"
    kind = _REFUSALS.get(error.sqlstate, TableUnreadable)
    return kind(f"Reading {what}: {error}")


def _shape(oid: int, text: str) -> Shape:
    found = json.loads(text)
    identity, names = found["identity"], found["identity_columns"] or []
    columns = tuple(
        Column(name, PgType(type_oid, namespace, type_name), typmod, is_key=identity == "f" or name in names)
        for _, name, type_oid, namespace, type_name, typmod, _ in found["columns"]
    )
    key = tuple(found["key"] or ())
    partition_keys = tuple(map(frozenset, found["partition_keys"] or ()))
    if not all(one.issuperset(key) for one in partition_keys):
        key = ()  # the stream does not send the key of every old row, so a row that gets another key could be missed
    described = Relation(oid, found["schema"], found["table"], identity, columns)
    digest = hashlib.sha256(text.encode()).hexdigest()[:_SHAPE_DIGITS]
    return Shape(
        described,
        is_root=found["kind"] == "p",
        key=key,
        filter=found["filter"] or "",
        replaces=bool(found["replaces"]),
        is_trusted=found["trusted"],
        digest=digest,
    )


def _key_types(shape: Shape) -> list[int]:
    """Return the oids of the types of the key."""
    types = {column.name: column.type.oid for column in shape.relation.columns}
    return [types[name] for name in shape.key]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
