"""Adds the rows that a load has read to the open cut, with marks that show the progress of the load."""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from pgsluice.envelope import Stamp
from pgsluice.layout import Layout
from pgsluice.loads import FIRST_SEQ, Load, Loaded, LoadMark, LoadPosition, State
from pgsluice.pgoutput.decoder import Decoder
from pgsluice.pgoutput.framing import MESSAGE_AT, XLogData
from pgsluice.pgoutput.messages import Insert
from pgsluice.pipeline.begun import Begun
from pgsluice.pipeline.encoders import Rows, add_run
from pgsluice.pipeline.outbox import Outbox
from pgsluice.pipeline.requests import Requests
from pgsluice.snapshot import Chunk, Shape
from pgsluice.transaction import Transaction

log = structlog.get_logger(__name__)

TURN: Final = 1000
"""After this many rows, other tasks on the event loop may run."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A table whose rows are being read, and the encoder of the rows.

    If ``replaces`` is set, consumers may remove, at the end of the load, all rows that the load has not read, because
    the table does not have these rows any more. ``layout`` is the table's layout when the table was opened, or None if
    the layout is not known.
    """

    shape: Shape
    rows: Rows
    replaces: bool
    layout: Layout | None = None

    @property
    def oid(self) -> int:
        """Return the table's oid."""
        return self.shape.relation.oid

    @property
    def topic(self) -> str:
        """Return the topic of the rows."""
        assert self.rows.encoder is not None, "the table is published"
        return self.rows.encoder.target.topic


class Inserter:
    """Inserts loaded rows into the stream during one session. Call the methods while the session's work is paused."""

    def __init__(
        self,
        outbox: Outbox,
        begun: Begun,
        requests: Requests,
        load_position: LoadPosition,
        *,
        epoch: int,
        commit_timestamps: bool,
    ) -> None:
        self._outbox = outbox
        self._begun = begun
        self._requests = requests
        self._position = load_position
        self._epoch = epoch
        self._commit_timestamps = commit_timestamps

    async def insert(
        self, table: Opened, chunk: Chunk, lsn: int, timestamp: int, moved: Sequence[tuple[str, ...]] = ()
    ) -> None:
        """Add the rows of the chunk to the open cut, at ``lsn``.

        If the chunk has rows that were read again because an UPDATE had changed their keys, ``moved`` has their new
        keys. They are the first keys in ``Load.moved``. This method removes them from ``Load.moved``.
        """
        self._position = self._position.at(lsn)
        load = self._begun.of(table.oid)
        if load is None:
            relation = table.shape.relation
            name, digest = (relation.namespace, relation.name), table.shape.read_digest
            load = Load(uuid.uuid4().hex, *name, relation.oid, digest, table.shape.key)
            await self._join(table, load, "begin")
        at = 0
        while at < len(chunk.frames):
            load, at = await self._insert_some(table, load, chunk.frames, at, timestamp)
        rest = load.moved[len(moved) :]
        load = replace(load, is_read=load.is_read or chunk.is_last, moved=rest)
        self._begun.put(load)
        if load.is_read and not rest:
            await self._join(table, load, "end")
            log.info("loaded", table=str(load), topic=table.topic, rows=load.rows)

    async def note(self, loaded: Loaded, lsn: int, topic: str | None = None) -> None:
        """Add the table's new record in ``<prefix>.snapshots`` to the open cut.

        If ``topic`` is given, also add a mark with the state "stale".
        """
        marks = []
        if topic is not None:
            self._position = self._position.at(max(lsn, self._position.lsn))
            marks.append(self._mark(topic, loaded, "stale", replaces=False))
        await self._outbox.join_load(self._begun.all(), self._position, marks, [self._begun.replace(loaded)])

    async def _insert_some(
        self, table: Opened, load: Load, frames: list[XLogData], at: int, timestamp: int
    ) -> tuple[Load, int]:
        """Add rows to the open cut, beginning with ``frames[at]``, until the cut is full.

        Return the load and the next index.
        """
        pending, load_position, began = self._outbox.pending, self._position, at
        transaction = Transaction(0, load_position.lsn, timestamp)
        stamp = Stamp(transaction, self._epoch, commit_timestamps=self._commit_timestamps)
        stamp.next_seq = load_position.seq
        relations, ready = {table.oid: table.rows.relation}, {table.oid: table.rows}
        while at < len(frames) and not pending.full:
            added = add_run(frames[at : at + TURN], 0, relations, ready, stamp, pending)
            assert added, "these are rows of the table"
            at += added
            await asyncio.sleep(0)
        self._position = LoadPosition(load_position.lsn, stamp.next_seq - FIRST_SEQ)
        last = load.last if load.is_read else _key(table.shape, frames[at - 1])
        load = replace(load, last=last, rows=load.rows + at - began)
        await self._join(table, load, "rows")
        return load, at

    def _mark(self, topic: str, load: Load | Loaded, state: State, *, replaces: bool) -> LoadMark:
        """Return a mark with the progress of the load. Later rows and marks have positions after this mark."""
        load_position, name = self._position, (load.schema, load.table)
        self._position = load_position.after(1)
        return LoadMark(
            topic, *name, load.id, state, self._epoch, load_position.lsn, load_position.seq, load.rows, replaces
        )

    async def _join(self, table: Opened, load: Load, state: State) -> None:
        """Add the pending rows to the open cut, with a mark that has the progress of the load."""
        marks, ended = [self._mark(table.topic, load, state, replaces=table.replaces)], []
        if state != "end":
            self._begun.put(load)
        elif self._requests.where(load.name):
            self._begun.drop(load.oid)  # a command requested only some rows, so the table does not count as loaded
            former = self._begun.loaded(table.shape.relation)
            if former is not None and former.state == "stale":
                marks.append(self._mark(table.topic, former, "stale", replaces=False))
        else:
            ended.append(self._begun.finish(load, table.layout))
        if state == "end":
            self._requests.end(load.name, "loaded", rows=load.rows)
        await self._outbox.join_load(self._begun.all(), self._position, marks, ended)


def _key(shape: Shape, frame: XLogData) -> tuple[str, ...]:
    """Return the values of the row's key, as text."""
    decoded = Decoder().decode(frame[MESSAGE_AT:])
    assert isinstance(decoded, Insert), "insert_frame() has made this message"
    values = [decoded.new[index] for index in shape.key_places]
    return tuple(value.decode() for value in values if isinstance(value, bytes))
