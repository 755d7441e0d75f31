"""Loads tables: reads their rows in chunks while the stream goes on, and puts each chunk where it belongs.

Runs beside the session's work. A chunk is read at a snapshot that is taken between two transactions. From then on a
:class:`pgsluice.round.Round` decides which transactions go on, until the chunk is in the open cut; the others wait. So
at the end of every cut, the rows that were read and the changes behind them are what the table was at that position.

What goes wrong here is logged, and tried again later: loading never stops the stream.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from typing import Final, NoReturn

import structlog

from pgsluice.envelope import Stamp
from pgsluice.errors import PoisonError, SourceUnavailable, TableRefused, TableUnreadable
from pgsluice.loads import FIRST_SEQ, Load, Loaded, Mark, Place, State, moved_key
from pgsluice.pgoutput.decoder import Decoder
from pgsluice.pgoutput.messages import Insert, TupleData
from pgsluice.pipeline.encoders import Encoders, Rows
from pgsluice.pipeline.ends import Reader, Source, Stream
from pgsluice.pipeline.outbox import Outbox
from pgsluice.progress import Progress
from pgsluice.relation import Relation
from pgsluice.round import Round
from pgsluice.snapshot import Chunk, Shape, Taken
from pgsluice.tables import TablePolicy
from pgsluice.transaction import Transaction, Transactions

log = structlog.get_logger(__name__)

LOOK_S: Final = 10.0
"""How often the publications are asked for tables that are not loaded yet."""

AGAIN_S: Final = 2.0
AGAIN_MAX_S: Final = 60.0
"""When a table that could not be read is tried again, at first and at most."""

SEEN_S: Final = 0.1
"""How long the stream waits for transactions that were sent before they became visible: with synchronous replication
they do so once a standby has answered."""

SEEN_AGAIN_S: Final = 0.002

TAKE_S: Final = 2.0
"""How long the stream waits for a server that does not answer."""

PAUSE_S: Final = 5.0
"""How long the table stays locked until no transaction is half done."""

VOIDS_MAX: Final = 8
"""How often in a row a chunk may turn out to fit nowhere. Each time, half as many rows are read."""

ASK_S: Final = 0.02
"""How often the server is asked how far the stream has come."""

FLUSH_S: Final = 0.05
"""When something is written to move the stream: what a transaction in progress has written may stay unflushed."""

FLUSH_AGAIN_S: Final = 1.0

ROUND_S: Final = 20.0
"""How long a round may wait for the stream, while transactions wait for it."""

WRITERS_S: Final = 0.1
"""How often it is looked whether those who were changing a table have ended."""

WRITERS_SAY_S: Final = 10.0

MOVED_MAX: Final = 1000
MOVED_BYTES_MAX: Final = 64 * 1024
"""Rows with a new key that are read again before the end, and what their keys may take in each checkpoint until then.
If there are more, the load begins again."""

MOVED_AT_ONCE: Final = 500

TURN: Final = 1000
"""Rows after which everybody else on the event loop has a turn."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How much is read at once. ``replaces``: rows that were not read, and are older, are gone.

    That is not so where only a part of the changes is followed (postgres.origin).
    """

    chunk_rows: int
    chunk_bytes: int
    replaces: bool


@dataclass(slots=True)
class _Table:
    """A table that is being loaded, or is to be."""

    relation: Relation
    load: Load | None = None
    shape: Shape | None = None
    rows: Rows | None = None
    replaces: bool = False
    voids: int = 0
    """How many chunks in a row fitted nowhere."""
    is_out: bool = False
    """Whether it is left out until something about it changes."""
    due_at: float = 0.0
    failures: int = 0
    said: str | None = None

    @property
    def name(self) -> tuple[str, str]:
        """Schema and table."""
        return self.relation.namespace, self.relation.name


@dataclass(slots=True)
class Seams:
    """What the loader needs of the session.

    ``pause``: hold up the session's work while no transaction is half done. ``go_on``: take what was held, in a pause.
    ``wake``: have the session look whether its cut is due.
    """

    transactions: Transactions
    outbox: Outbox
    progress: Progress
    pause: Callable[[], AbstractAsyncContextManager[None]]
    go_on: Callable[[], Awaitable[None]]
    wake: Callable[[], None]


class Loader:
    """The loads of one session."""

    def __init__(  # noqa: PLR0913 - the ends, and what is known of former sessions
        self,
        source: Source,
        stream: Stream,
        encoders: Encoders,
        seams: Seams,
        options: LoadOptions,
        *,
        epoch: int,
        commit_timestamps: bool,
        loads: Sequence[Load],
        place: Place,
        loaded: Mapping[tuple[str, str], Loaded],
    ) -> None:
        self._source = source
        self._reader: Reader = source.reader()
        self._stream = stream
        self._encoders = encoders
        self._seams = seams
        self._options = options
        self._epoch = epoch
        self._commit_timestamps = commit_timestamps
        self._place = place
        self._former = {load.name: load for load in loads}
        """Those of the last session that have not been taken up again."""
        self._loaded = dict(loaded)
        self._tables: dict[tuple[str, str], _Table] = {}
        self._round: Round | None = None
        self._is_loading = False
        """Whether there is any table to load. While there is none, nothing is noted of transactions: when the next one
        is opened, those who are changing it are waited for."""
        self._unseen: set[int] = set()
        """Transactions that went on while it was so and may not be visible to others yet."""
        self._has_moved = False
        """Whether keys were kept that no cut has recorded yet."""
        for load in loads:
            encoders.watch(load.oid, self._on_incomplete)

    def on_commit(self, transaction: Transaction) -> None:
        """Take notice that ``transaction`` goes on: no snapshot that does not see it is of use.

        It is called before the transaction joins its cut: the keys of rows that it has moved are recorded there.
        """
        if self._is_loading:
            self._unseen.add(transaction.xid)
        if self._has_moved:
            self._has_moved = False
            self._seams.outbox.note_loads(self._loads())

    def _on_incomplete(self, relation: Relation, new: TupleData) -> None:
        """Keep the key of a row that lacks values, if its table is being read."""
        table = next((one for one in self._tables.values() if one.relation.oid == relation.oid), None)
        name = (relation.namespace, relation.name) if table is None else table.name
        load = self._former.get(name) if table is None else table.load
        if load is None or load.oid != relation.oid or not load.last:
            return  # whatever its key, it will be read
        self._has_moved = True
        names = [column.name for column in relation.columns]
        key = moved_key([new[names.index(one)] for one in load.key]) if set(load.key) <= set(names) else None
        moved = load.moved if key is None or key in load.moved else (*load.moved, key)
        if key is None or len(moved) > MOVED_MAX or sum(len(part) for one in moved for part in one) > MOVED_BYTES_MAX:
            log.info("loading begins again: too many rows have got another key", table=str(load))
            self._keep(name, None)
        else:
            self._keep(name, replace(load, moved=moved))

    def _keep(self, name: tuple[str, str], load: Load | None) -> None:
        """Let the load of a table be ``load``; None: it begins again."""
        table = self._tables.get(name)
        if table is not None:
            table.load = load
        elif load is None:
            del self._former[name]
        else:
            self._former[name] = load

    def _loads(self) -> list[Load]:
        """Return the loads in progress."""
        present = [one.load for one in self._tables.values() if one.load is not None]
        return [*present, *self._former.values()]

    def on_position(self, lsn: int) -> None:
        """Take notice that, between two transactions, the server says that it has come to ``lsn``."""
        if self._round is not None:
            self._round.reach(lsn)

    async def run(self) -> NoReturn:
        """Load what is to be loaded, and look again and again whether there is more."""
        try:
            if await self._source.is_standby():
                log.warning("tables cannot be loaded from a standby: connect to the primary")
                await asyncio.Future()
            while True:
                try:
                    await self._look()
                    await self._load_all()
                    await self._prune()
                    await asyncio.sleep(LOOK_S)
                except SourceUnavailable as error:
                    log.warning("tables cannot be read now", reason=str(error))
                    await self._reader.close()
                    await asyncio.sleep(AGAIN_S)
        finally:
            await self._reader.close()

    async def _until_shown(self) -> None:
        """Wait until it is certain that this is the server that was followed."""
        while self._seams.progress.owes:  # noqa: ASYNC110 - nobody is told when that ends
            await asyncio.sleep(ASK_S)

    async def _look(self) -> None:
        """Find the published tables that were never loaded."""
        await self._until_shown()
        found = {(one.namespace, one.name): one for one in await self._source.published_relations()}
        for known in (self._tables, self._former):
            for name in known.keys() - found.keys():
                del known[name]
        for name, relation in found.items():
            loaded = self._loaded.get(name)
            table = self._tables.get(name)
            if loaded is not None and loaded.oid == relation.oid:
                continue
            if (table is None or table.relation != relation) and self._policy(relation) is not None:
                self._tables[name] = _Table(relation)
        self._note_if_loading()

    def _note_if_loading(self) -> None:
        self._is_loading = any(not one.is_out for one in self._tables.values())

    async def _prune(self) -> None:
        """Forget the transactions that are visible by now, and all of them if no table is to be loaded."""
        self._note_if_loading()
        if not self._is_loading:
            self._unseen.clear()
        elif self._unseen:
            snapshot = await self._reader.look()
            self._unseen = {xid for xid in self._unseen if not snapshot.is_visible(xid)}

    def _policy(self, relation: Relation) -> TablePolicy | None:
        """Return how the table is published; None if it is not, or cannot be."""
        try:
            return self._encoders.policy(relation)
        except TableRefused:
            return None  # its first change will tell

    async def _load_all(self) -> None:
        """Read until every table is loaded, or has to wait."""
        look_at = time.monotonic() + LOOK_S
        while time.monotonic() < look_at:
            now = time.monotonic()
            ready = [one for one in self._tables.values() if not one.is_out and one.due_at <= now]
            if not ready:
                return
            # One after the other: every checkpoint has those that are begun.
            await self._advance(min(ready, key=lambda one: one.load is None))

    async def _advance(self, table: _Table) -> None:
        try:
            if table.shape is None:
                await self._open(table)
            if not table.is_out:
                await self._read(table)
                table.failures, table.said = 0, None
        except TableUnreadable as error:
            table.shape = None
            table.due_at = time.monotonic() + min(AGAIN_S * 2**table.failures, AGAIN_MAX_S)
            table.failures = min(table.failures + 1, 10)
            if str(error) != table.said:
                table.said = str(error)
                log.warning("a table cannot be read now", table=str(table.relation), reason=table.said)

    async def _open(self, table: _Table) -> None:
        """Find out how the table is read, and wait for those who are changing it.

        Whoever has changed it already and has not ended may be neither in the snapshot nor in the stream: the table may
        have been published, or this session begun, after he wrote.
        """
        shape = await self._reader.shape(table.relation)
        if shape is None:
            table.is_out = True  # it is gone, which the next look will show
            return
        if not shape.key:
            raise TableUnreadable(
                f"Table {shape.relation} is left out until it has a primary key, or another unique index over "
                "published columns that are NOT NULL: its rows cannot be read in an order."
            )
        load = self._former.pop(table.name, table.load)
        table.load = load if load is not None and (load.oid, load.shape) == (table.relation.oid, shape.digest) else None
        await self._wait_for_writers(shape)
        async with self._seams.pause():
            try:
                table.rows = await self._encoders.of_loaded(shape.relation)
            except (TableRefused, PoisonError) as error:
                table.is_out = True
                log.error(  # noqa: TRY400 - it is no defect
                    "a table cannot be loaded", table=str(shape.relation), reason=str(error)
                )
                return
            self._encoders.watch(shape.relation.oid, self._on_incomplete)
        policy = self._policy(shape.relation)
        # In a shared topic, the mark's rows cannot be told from those of other tables.
        table.replaces = (self._options.replaces and shape.replaces) and (
            policy is not None and policy.truncate and not policy.shared
        )
        table.shape = shape
        log.info("loading", table=str(shape.relation), rows_before=table.load.rows if table.load else 0)

    async def _wait_for_writers(self, shape: Shape) -> None:
        writers = set(await self._reader.writers(shape))
        say_at = time.monotonic() + WRITERS_SAY_S
        while writers:
            await asyncio.sleep(WRITERS_S)
            writers &= set(await self._reader.writers(shape))
            if time.monotonic() > say_at:
                say_at += 6 * WRITERS_SAY_S
                log.info(
                    "loading waits for transactions that are changing the table",
                    table=str(shape.relation),
                    transactions=len(writers),
                )

    async def _read(self, table: _Table) -> None:
        """Read one chunk, and put it where it belongs."""
        shape = table.shape
        assert shape is not None, "_open() has found it"
        try:
            await self._reader.begin(shape)
            taken = await self._take()
            load = table.load
            moved = load.moved[:MOVED_AT_ONCE] if load is not None and load.is_read else ()
            try:
                chunk = await self._rows(table, shape, moved)
                await self._reader.end()
                await self._wait_complete()
            except (TableUnreadable, SourceUnavailable):
                async with self._seams.pause():
                    await self._end_round()
                raise
            async with self._seams.pause():
                round_ = self._round
                assert round_ is not None, "_take() has begun it"
                # Meanwhile so many rows may have moved that the load begins again.
                if not round_.is_void and (load is None) == (table.load is None):
                    await self._insert(table, chunk, moved, taken, round_.lsn)
                await self._end_round()
            table.voids = table.voids + 1 if round_.is_void else 0
            if table.voids > VOIDS_MAX:
                raise TableUnreadable("Its transactions become visible in another order than they commit in.")
        finally:
            await self._reader.end()

    async def _rows(self, table: _Table, shape: Shape, moved: Sequence[tuple[str, ...]]) -> Chunk:
        """Read the next rows of the table; once all have been read, those that have ``moved``."""
        load, options = table.load, self._options
        if load is not None and load.is_read:
            return await self._reader.rows_of(shape, moved)
        after = load.last if load is not None else ()
        return await self._reader.rows(shape, after, max(1, options.chunk_rows >> table.voids), options.chunk_bytes)

    async def _take(self) -> Taken:
        """Take the snapshot between two transactions; from now on the round decides which go on."""
        seams = self._seams
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(PAUSE_S):
                    await stack.enter_async_context(seams.pause())
            except TimeoutError:
                raise TableUnreadable(f"A transaction takes more than {PAUSE_S:g} s to be received.") from None
            try:
                async with asyncio.timeout(TAKE_S):
                    await self._see_all()
                    taken = await self._reader.take()
            except TimeoutError:
                await self._reader.close()
                raise SourceUnavailable(f"PostgreSQL took no snapshot within {TAKE_S:g} s.") from None
            self._round = seams.transactions.gate = Round(taken.snapshot, taken.end_lsn)
            seams.progress.hold_back(taken.end_lsn)
            return taken

    async def _see_all(self) -> None:
        """Wait until everything that went on is visible to others."""
        give_up_at = time.monotonic() + SEEN_S
        await self._prune()
        while self._unseen:
            if time.monotonic() > give_up_at:
                raise TableUnreadable("Transactions that PostgreSQL has sent are not visible to others yet.")
            await asyncio.sleep(SEEN_AGAIN_S)
            await self._prune()

    async def _wait_complete(self) -> None:
        """Wait until the stream has come to where the chunk belongs, and see to it that it does."""
        round_ = self._round
        assert round_ is not None, "_take() has begun it"
        began = time.monotonic()
        flush_at = began + FLUSH_S
        while not (round_.is_complete or round_.is_void):
            now = time.monotonic()
            if now - began > ROUND_S:
                raise TableUnreadable(f"The stream has not come to the snapshot within {ROUND_S:g} s.")
            if now >= flush_at:
                await self._reader.flush()
                flush_at = now + FLUSH_AGAIN_S
            self._stream.ask_position()
            await asyncio.sleep(ASK_S)

    async def _end_round(self) -> None:
        """Let go on what has waited; in a pause."""
        seams = self._seams
        self._round = seams.transactions.gate = None
        beyond = seams.progress.let_go()
        await seams.go_on()
        seams.progress.on_received(beyond)
        seams.wake()

    async def _insert(
        self, table: _Table, chunk: Chunk, moved: Sequence[tuple[str, ...]], taken: Taken, lsn: int
    ) -> None:
        """Put the rows of the chunk into the open cut, at ``lsn``; ``moved``: the keys by which they were read."""
        shape, rows = table.shape, table.rows
        assert shape is not None, "_open() has found it"
        assert rows is not None, "and made its encoder"
        self._seams.progress.on_received(lsn)
        self._place = self._place.at(lsn)
        if table.load is None:
            relation = shape.relation
            table.load = Load(
                uuid.uuid4().hex, relation.namespace, relation.name, relation.oid, shape.digest, shape.key
            )
            await self._join(table, "begin")
        at = 0
        while at < len(chunk.messages):
            at = await self._insert_some(table, chunk.messages, at, taken.timestamp)
        rest = table.load.moved[len(moved) :]
        table.load = replace(table.load, is_read=table.load.is_read or chunk.is_last, moved=rest)
        if table.load.is_read and not rest:
            await self._join(table, "end")

    async def _insert_some(self, table: _Table, messages: Sequence[bytes], at: int, timestamp: int) -> int:
        """Put rows from ``messages[at]`` on into the open cut until it is full; where that ended."""
        rows, pending, load, place = table.rows, self._seams.outbox.pending, table.load, self._place
        assert rows is not None, "_open() has made it"
        assert load is not None, "_insert() has begun it"
        transaction = Transaction(0, place.lsn, timestamp)
        stamp = Stamp(transaction, self._epoch, commit_timestamps=self._commit_timestamps)
        stamp.next_seq = place.seq
        began = at
        while at < len(messages) and not pending.full:
            rows.add(messages[at], stamp, pending, is_streamed=False)
            at += 1
            if at % TURN == 0:
                await asyncio.sleep(0)
        self._place = Place(place.lsn, stamp.next_seq - FIRST_SEQ)
        last = load.last if load.is_read else self._key(table, messages[at - 1])
        table.load = replace(load, last=last, rows=load.rows + at - began)
        await self._join(table, "rows")
        return at

    async def _join(self, table: _Table, state: State) -> None:
        """Let what was added join the open cut, with a mark of how far the load has come."""
        load, rows, place = table.load, table.rows, self._place
        assert load is not None, "_insert() has begun it"
        assert rows is not None, "_open() has made it"
        assert rows.encoder is not None, "the table is published"
        topic = rows.encoder.target.topic
        mark = Mark(topic, load.id, state, self._epoch, place.lsn, place.seq, load.rows, table.replaces)
        self._place = place.behind(1)
        ended = []
        if state == "end":
            del self._tables[load.name]
            self._encoders.watch(load.oid, None)
            self._loaded[load.name] = Loaded(load.id, load.schema, load.table, load.oid, load.rows, self._epoch)
            ended.append(self._loaded[load.name])
            log.info("loaded", table=str(load), topic=topic, rows=load.rows)
        self._has_moved = False
        await self._seams.outbox.join_load(self._loads(), self._place, [mark], ended)

    def _key(self, table: _Table, message: bytes) -> tuple[str, ...]:
        """Return the values of the row's key, as text."""
        assert table.shape is not None, "_open() has found it"
        decoded = Decoder().decode(message)
        assert isinstance(decoded, Insert), "insert_message() has made it"
        values = [decoded.new[place] for place in table.shape.key_places]
        return tuple(value.decode() for value in values if isinstance(value, bytes))
