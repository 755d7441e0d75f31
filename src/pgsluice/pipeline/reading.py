"""Reads the rows of a table in chunks, and inserts each chunk at its position in the stream.

Each chunk is read at a snapshot that is taken between two transactions. From then on, a :class:`pgsluice.round.Round`
decides which transactions the session processes immediately, and which wait until the chunk is in the open cut.

``tests/unit/pipeline/test_loader.py`` covers this module.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import structlog

from pgsluice.errors import (
    PoisonError,
    ReadTooSlow,
    SourceUnavailable,
    TableRefused,
    TableUnreadable,
    ValueRefused,
)
from pgsluice.loads import Load
from pgsluice.metrics import Metrics
from pgsluice.pipeline.begun import Begun
from pgsluice.pipeline.encoders import Encoders, Rows
from pgsluice.pipeline.ends import Reader, Source
from pgsluice.pipeline.inserter import Inserter, Opened
from pgsluice.pipeline.pace import Pace
from pgsluice.pipeline.requests import Requests
from pgsluice.pipeline.rounds import Rounds, Seams
from pgsluice.pipeline.trust import check_trusted
from pgsluice.relation import Relation
from pgsluice.snapshot import Chunk, Shape, TableSize

log = structlog.get_logger(__name__)

VOIDS_MAX: Final = 8
"""The rows of a chunk may fit no position in the stream (see :class:`pgsluice.round.Round`). If this happens to more
consecutive chunks of a table than VOIDS_MAX, the load of the table waits. After each of these chunks, the next read
takes half as many rows."""

WRITERS_S: Final = 0.1
"""The interval at which the loader checks whether the transactions that were changing a table have ended."""

WRITERS_MAX_S: Final = 2.0
"""If the transactions that were changing a table do not end within this time, the loader continues with other
tables."""

MOVED_AT_ONCE: Final = 500
"""The maximum number of rows that are read again by their keys in one read."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How tables are loaded.

    ``chunk_rows`` and ``chunk_bytes`` limit the size of a chunk. ``without_key_max`` is the size in bytes of the
    largest table that may be read without a key. ``max_rows_per_s`` limits how many rows are read per second from
    tables with a key. None means no limit.

    * If ``replaces`` is set, consumers may remove, at the end of a load, all rows that the load has not read, because
      the table does not have these rows any more. ``replaces`` is not set if the stream has only some of the changes
      (postgres.origin).
    * If ``in_each_epoch`` is set, tables are loaded again in each new epoch, because a new epoch begins when changes
      may be missing.
    * If ``is_initial`` is set, every published table is loaded once, even if no command requests it.
    * If ``is_altered`` is set, a table is loaded again after an alteration that gave its rows values which the stream
      did not send.
    * If ``assumes`` is set, tables whose changes an earlier version of pgsluice has delivered count as loaded, because
      nobody has chosen whether to load them.
    """

    chunk_rows: int
    chunk_bytes: int
    without_key_max: int
    replaces: bool
    in_each_epoch: bool
    is_initial: bool = True
    is_altered: bool = True
    assumes: bool = False
    max_rows_per_s: int | None = None


@dataclass(slots=True)
class LoadingTable:
    """A table that is being loaded, or is to be loaded."""

    relation: Relation
    size: TableSize | None = None
    """The estimated size. None until the server was asked for it."""
    opened: Opened | None = None
    voids: int = 0
    """How many consecutive chunks, up to the last one, fitted no position in the stream."""
    is_out: bool = False
    """Whether the table is left out until its description changes or a command requests its load."""
    due_at: float = 0.0
    failures: int = 0
    said: str | None = None
    """The reason why the table is not being read."""
    moved_at_once: int = 1
    """The number of rows that the next read takes if rows are read again by their keys. It begins low, because these
    rows may be very large: an update leaves out only large values."""
    writers: tuple[str, set[str]] | None = None
    """The digest of the table's shape, and the unfinished transactions that were changing the table. Set while we wait
    for these transactions before the table is opened."""

    @property
    def name(self) -> tuple[str, str]:
        """Return schema and table."""
        return self.relation.namespace, self.relation.name


@dataclass(frozen=True, slots=True)
class LoadingSession:
    """The objects that the loads of one session work with."""

    source: Source
    reader: Reader
    encoders: Encoders
    seams: Seams
    options: LoadOptions
    metrics: Metrics
    begun: Begun
    requests: Requests


class TableReading:
    """Reads the tables of one session."""

    def __init__(
        self,
        session: LoadingSession,
        rounds: Rounds,
        inserter: Inserter,
        tables: Mapping[int, LoadingTable],
        on_end: Callable[[Opened], None],
        on_progress: Callable[[], None],
    ) -> None:
        """``tables`` has the tables that are being loaded, by oid. ``on_end`` is called when a load has ended."""
        self._source = session.source
        self._reader = session.reader
        self._encoders = session.encoders
        self._seams = session.seams
        self._options = session.options
        self._metrics = session.metrics
        self._begun = session.begun
        self._requests = session.requests
        self._rounds = rounds
        self._inserter = inserter
        self._tables = tables
        self._on_end = on_end
        self._on_progress = on_progress
        self._pace = Pace(session.options.max_rows_per_s)

    def wait_s(self, now: float) -> float:
        """Return how long to wait before the next chunk."""
        return self._pace.wait_s(now)

    async def read(self, table: LoadingTable, opened: Opened) -> None:
        """Read the next rows, or all rows of a table without key. May raise TableUnreadable."""
        if opened.shape.key:
            await self._read_chunk(table, opened)
        else:
            await self._read_whole(table, opened)

    async def open(self, table: LoadingTable) -> Opened | None:
        """Find out how to read the table, and wait for the transactions that are changing it.

        Return None if the table cannot be loaded.

        The wait is necessary because the changes of such a transaction may be missing both from the snapshot and from
        the stream. They are missing from the stream if they were made before the table was published, or before this
        session began.
        """
        # Read the layout first, so that it is not newer than the rows. Otherwise an alteration could remain unnoticed.
        layout = (await self._source.layouts([table.relation.oid])).get(table.relation.oid)
        shape = await self._reader.shape(table.relation)
        if shape is None or layout is None:
            # The table does not exist or is not published now. If it is published again before the loader looks for
            # tables, changes from the time between are missing, so its load begins again.
            self._begun.drop(table.relation.oid)
            return None
        policy = self._encoders.possible_policy(shape.relation)
        check_trusted(shape.relation, is_trusted=shape.is_trusted or self._encoders.names(shape.relation))
        if not shape.key:
            await self._check_size(shape)
        shape = replace(shape, where=self._requests.where(table.name) or ("" if policy is None else policy.where))
        await self._reader.check_readable(shape)
        await self._wait_for_writers(table, shape)
        rows = await self._make_encoder(table, shape)
        if rows is None:
            return None
        assert rows.encoder is not None, "only tables that are published are read"
        if shape.key and rows.encoder.key is None:
            # While chunks are read, changes between the chunks are delivered. A consumer may then have a row before it
            # gets the chunk with this row. If the events have no key, the row of the chunk cannot replace it.
            shape = replace(shape, key=())
            await self._check_size(shape)
        load = self._continued(shape)
        is_whole = self._options.replaces and shape.replaces and not shape.where
        log.info("loading", table=str(shape.relation), rows_before=load.rows if load else 0)
        layout = layout.only([one.name for one in shape.relation.columns])
        return Opened(shape, rows, is_whole and policy is not None and policy.truncate, layout)

    async def _make_encoder(self, table: LoadingTable, shape: Shape) -> Rows | None:
        """Return an encoder for the rows. If the table cannot be encoded, note the reason and return None."""
        async with self._seams.pause():
            try:
                return await self._encoders.of_loaded(shape.relation, is_root=shape.is_root)
            except (TableRefused, PoisonError) as error:
                table.said = str(error)
                log.error(  # noqa: TRY400 - this is no defect, so the log needs no traceback
                    "a table cannot be loaded", table=str(shape.relation), reason=table.said
                )
                self._requests.end(table.name, "ended", table.said)
                table.is_out = True
                return None

    def _continued(self, shape: Shape) -> Load | None:
        """Return the load in progress. Return None if no load has begun, or if it has to begin again.

        Without a key, it is not known which rows have been read, so the load begins again. It also begins again if it
        was begun with another key, because the shape does not show whether the events have a key.
        """
        load = self._begun.of(shape.relation.oid)
        if load is not None and shape.key and (load.key, load.shape) == (shape.key, shape.read_digest):
            return load
        self._begun.drop(shape.relation.oid)
        return None

    async def _check_size(self, shape: Shape) -> None:
        """Raise TableUnreadable if the table is too large to be read as a whole while all changes wait."""
        size, limit = await self._reader.size(shape), self._options.without_key_max
        if size > limit:
            raise TableUnreadable(
                f"Table {shape.relation} is left out: it takes {size:,} bytes, and without a key it would be read in "
                "one piece while all changes wait. Add a primary key, or make a unique index over published columns "
                f"that are NOT NULL its replica identity; or raise snapshot.without_key_max, which is {limit:,}."
            )

    async def _wait_for_writers(self, table: LoadingTable, shape: Shape) -> None:
        """Wait for the transactions that are changing the table.

        Raise TableUnreadable if this takes long, so that other tables can be read meanwhile. The next try waits for the
        same transactions, unless the table's shape has changed. It is not necessary to wait for later transactions,
        because the stream has their changes.
        """
        if table.writers is None or table.writers[0] != shape.digest:
            table.writers = shape.digest, set(await self._reader.writers(shape))
        _, writers = table.writers
        give_up_at = time.monotonic() + WRITERS_MAX_S
        while writers:
            if time.monotonic() > give_up_at:
                raise TableUnreadable(
                    f"Table {shape.relation} is not read until the transactions that are changing it have ended."
                )
            await asyncio.sleep(WRITERS_S)
            writers.intersection_update(await self._reader.writers(shape))
        table.writers = None

    async def _read_chunk(self, table: LoadingTable, opened: Opened) -> None:
        """Read one chunk, and insert it at its position in the stream."""
        async with self._round(opened.shape) as timestamp:
            load = self._begun.of(opened.oid)
            moved = load.moved[: table.moved_at_once] if load is not None and load.is_read else ()
            began = time.monotonic()
            chunk = await self._rows(table, opened.shape, load, moved)
            read = time.monotonic()
            self._pace.on_read(len(chunk.frames), read)
            await self._reader.end()
            lsn = await self._rounds.wait_complete()
            await self._reader.confirm()
            if lsn is not None:
                await self._insert(opened, load, chunk, lsn, timestamp, moved)
        self._pace.on_round(self._rounds.held_s, read - began)
        self._note_fit(table, fits=lsn is not None)

    async def _read_whole(self, table: LoadingTable, opened: Opened) -> None:
        """Read all rows at one snapshot, in portions. Changes that the snapshot does not see wait meanwhile."""
        self._begun.drop(opened.oid)
        options = self._options
        async with self._round(opened.shape) as timestamp:
            await self._reader.open_rows(opened.shape)
            lsn = await self._rounds.wait_complete(is_locked=True)
            await self._reader.confirm()
            is_last = lsn is None
            while lsn is not None and not is_last:
                chunk = await self._reader.next_rows(opened.shape, options.chunk_rows, options.chunk_bytes)
                await self._insert(opened, self._begun.of(opened.oid), chunk, lsn, timestamp)
                is_last = chunk.is_last or not self._is_current(opened)
        self._note_fit(table, fits=lsn is not None)

    @asynccontextmanager
    async def _round(self, shape: Shape) -> AsyncIterator[int]:
        """Lock the table, take a snapshot, and yield the time of the snapshot.

        Changes that the snapshot does not see wait until the block ends.
        """
        began = time.monotonic()
        try:
            await self._reader.begin(shape)
            taken = await self._rounds.take()
            try:
                yield taken.timestamp
            except (TableUnreadable, SourceUnavailable):
                await self._end_round()
                raise
            await self._end_round()
            self._metrics.count_round(time.monotonic() - began)
        except (TableUnreadable, SourceUnavailable):
            self._metrics.snapshot_rounds.labels("failed").inc()
            raise
        finally:
            await self._reader.end()

    async def _end_round(self) -> None:
        async with self._seams.pause():
            await self._rounds.end()

    async def _insert(
        self,
        opened: Opened,
        load: Load | None,
        chunk: Chunk,
        lsn: int,
        timestamp: int,
        moved: Sequence[tuple[str, ...]] = (),
    ) -> None:
        """Put the chunk into the open cut. ``load`` is the state of the load when the chunk was read."""
        async with self._seams.pause():
            # Since the chunk was read, a command may have cancelled the load. Or too many rows may have got new keys,
            # so that the load has to begin again.
            if self._is_current(opened) and (load is None) == (self._begun.of(opened.oid) is None):
                self._seams.progress.on_received(lsn)
                await self._inserter.insert(opened, chunk, lsn, timestamp, moved)
                if self._begun.of(opened.oid) is None:
                    self._on_end(opened)
        self._on_progress()

    def _is_current(self, opened: Opened) -> bool:
        """Return whether this load of the table is still in progress.

        It is not in progress if it was cancelled, even if another load of the table has begun since.
        """
        table = self._tables.get(opened.oid)
        return table is not None and table.opened is opened

    def _note_fit(self, table: LoadingTable, *, fits: bool) -> None:
        self._metrics.snapshot_rounds.labels("placed" if fits else "no_place").inc()
        table.voids = 0 if fits else table.voids + 1
        if table.voids > VOIDS_MAX:
            raise TableUnreadable("The table's transactions do not become visible in the order in which they commit.")

    async def _rows(
        self, table: LoadingTable, shape: Shape, load: Load | None, moved: Sequence[tuple[str, ...]]
    ) -> Chunk:
        """Read the next rows of the table. If all rows have been read, read the rows with the keys ``moved`` again."""
        try:
            if load is not None and load.is_read:
                return await self._rows_again(table, shape, moved)
            return await self._rows_after(table, shape, load.last if load is not None else ())
        except ValueRefused:
            if load is not None and not await self._has_valid_keys(shape, load, moved):
                self._begun.drop(shape.relation.oid)  # the next try reads the table from the beginning
            raise

    async def _rows_after(self, table: LoadingTable, shape: Shape, after: Sequence[str]) -> Chunk:
        limit = self._pace.at_once(max(1, self._options.chunk_rows >> table.voids))
        try:
            return await self._reader.rows(shape, after, limit, self._options.chunk_bytes)
        except ReadTooSlow:
            self._pace.on_timeout()
            raise

    async def _rows_again(self, table: LoadingTable, shape: Shape, moved: Sequence[tuple[str, ...]]) -> Chunk:
        """Read the rows with these keys, and decide how many the next read takes."""
        try:
            chunk = await self._reader.rows_of(shape, moved, self._options.chunk_bytes)
        except ReadTooSlow:
            table.moved_at_once = max(1, len(moved) // 2)
            raise
        fit = self._options.chunk_bytes * len(moved) // max(1, chunk.bytes)
        table.moved_at_once = max(1, min(MOVED_AT_ONCE, 2 * len(moved), fit))
        return chunk

    async def _has_valid_keys(self, shape: Shape, load: Load, moved: Sequence[tuple[str, ...]]) -> bool:
        """Return whether PostgreSQL accepts the keys at which a load continues, after it has refused some value.

        For example, it refuses a key with the former label of an enum. If it accepts the keys, the refused value
        belongs to a condition on the rows.
        """
        await self._reader.end()  # after the refusal, PostgreSQL refuses all commands of the transaction
        try:
            await self._reader.check_keys(shape, load.last, moved)
        except ValueRefused:
            return False
        return True
