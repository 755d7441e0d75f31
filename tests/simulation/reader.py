"""Reads the rows of the scripted tables. :class:`Reader` implements :class:`pgsluice.pipeline.ends.Reader`.

A reader returns the rows that a real query with the same snapshot would return, and holds the same locks.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pgsluice.errors import SourceUnavailable, TableUnreadable
from pgsluice.layout import ColumnLayout, Layout
from pgsluice.pgoutput.copy import insert_frame
from pgsluice.relation import BUILTIN_TYPES, Column, Relation, TableId
from pgsluice.snapshot import Chunk, Shape, Snapshot, Taken
from tests.simulation.orders import SOME
from tests.simulation.tables import Table, TableWal, Visible, attnum
from tests.simulation.wal import Values

if TYPE_CHECKING:
    from tests.simulation.server import Connection, Server

LOCK_TIMEOUT_S = 2.0

LOST = 0.01
"""The probability that a connection is lost during a request."""


def relation_of(table: Table) -> Relation:
    """Return the table as the catalog shows it to all sessions."""

    def is_key(name: str) -> bool:
        return table.identity == "f" or (table.identity == "d" and name == "id")

    columns = tuple(
        Column(name, BUILTIN_TYPES[type_], -1, is_key(name))
        for name, type_ in table.shown
        if not (table.hides and name == "w")
    )
    return Relation(table.oid, "public", table.name, table.identity, columns)


def layout_of(table: Table) -> Layout:
    """Return the columns of the table as the catalog shows them to all sessions.

    Clients only add and drop columns, so nothing else in the layout changes.
    """
    columns = tuple(
        ColumnLayout(attnum(name), name, type_, -1, 0, is_filled=name in table.filled) for name, type_ in table.shown
    )
    return Layout(columns, table.attnums, "")


class Reader:
    """The connection on which one session reads rows, besides its replication connection."""

    def __init__(self, server: "Server", wal: TableWal, session: "Connection", dice: random.Random) -> None:
        self.session = session
        self._process = session.process
        self._server = server
        self._wal = wal
        self._dice = dice
        self._visible: Visible | None = None
        self._unread: list[bytes] = []
        """The rows that the cursor has not returned yet, as messages."""

    async def shape(self, table: TableId) -> Shape | None:
        await self._ask()
        found = self._wal.table(table.oid)
        return None if found is None else _shape(found)

    async def writers(self, shape: Shape) -> set[str]:
        await self._ask()
        table = self._wal.table(shape.relation.oid)
        return set() if table is None else {str(xid) for xid in table.users}

    async def check_readable(self, shape: Shape) -> None:
        await self._ask()
        await self._lock(shape)
        self.release()

    async def begin(self, shape: Shape) -> None:
        """Begin a transaction, and lock the table."""
        await self._ask()
        await self._lock(shape)

    async def _lock(self, shape: Shape) -> None:
        give_up_at = asyncio.get_running_loop().time() + LOCK_TIMEOUT_S
        while (table := self._wal.table(shape.relation.oid)) is not None and table.owner is not None:
            if asyncio.get_running_loop().time() > give_up_at:
                raise TableUnreadable("canceling statement due to lock timeout")
            self._server.on_reading()
            await asyncio.sleep(0.05)
            self._check()
        if table is None:
            raise TableUnreadable("the table does not exist")
        table.readers.add(self)

    async def look(self) -> Snapshot:
        await self._ask()
        return _snapshot(self._wal.look())

    async def take(self) -> Taken:
        await self._ask()
        self._visible = self._wal.look()
        self._server.on_reading()
        await asyncio.sleep(self._dice.choice((0.0, 0.001)))
        self._check()
        return Taken(_snapshot(self._visible), self._wal.end, 800_000_000_000_000)

    async def rows(self, shape: Shape, after: Sequence[str], limit: int, size: int) -> Chunk:
        rows = await self._rows(shape)
        left = [key for key in rows if not after or int(key) > int(after[0])]
        found: list[bytes] = []
        while len(found) < min(limit, len(left)) and size > 0:
            found.append(_message(shape, rows[left[len(found)]]))
            size -= len(found[-1])
        return Chunk(found, is_last=size > 0 and len(found) < limit)

    async def check_keys(self, _shape: Shape, _after: Sequence[str], _keys: Sequence[Sequence[str]]) -> None:
        await self._ask()

    async def rows_of(self, shape: Shape, keys: Sequence[Sequence[str]], _size: int) -> Chunk:
        rows = await self._rows(shape)
        wanted = {value[1:].encode() for (value,) in keys}
        return Chunk([_message(shape, row) for key, row in rows.items() if key in wanted], is_last=True)

    async def size(self, shape: Shape) -> int:
        await self._ask()
        table = self._wal.table(shape.relation.oid)
        return 0 if table is None else len(table.rows)

    async def open_rows(self, shape: Shape) -> None:
        self._unread = [_message(shape, row) for row in (await self._rows(shape)).values()]

    async def next_rows(self, _shape: Shape, limit: int, _size: int) -> Chunk:
        await self._ask()
        found, self._unread = self._unread[:limit], self._unread[limit:]
        return Chunk(found, is_last=len(found) < limit)

    async def _rows(self, shape: Shape) -> dict[bytes, Values]:
        await self._ask()
        table = self._wal.table(shape.relation.oid)
        if table is None or _shape(table) != replace(shape, where=""):
            raise TableUnreadable("the table was altered")
        assert self._visible is not None, "take() comes first"
        found = self._wal.rows_at(table, self._visible)
        if shape.where:
            assert shape.where == SOME, "the only condition of commands in these worlds"
            found = {key: row for key, row in found.items() if int(key) % 2 == 0}
        await asyncio.sleep(self._dice.choice((0.0, 0.01, 0.3)))
        self._check()
        return dict(sorted(found.items(), key=lambda one: int(one[0])))

    async def confirm(self) -> None:
        self._check()

    async def end(self) -> None:
        self.release()
        self._process.step()
        await asyncio.sleep(0)

    async def flush(self) -> None:
        await self._ask()
        self._wal.move_stream()
        self._server.wake()

    async def close(self) -> None:
        self.release()

    def release(self) -> None:
        """End the transaction."""
        self._visible = None
        for table in self._wal.tables:
            table.readers.discard(self)

    async def _ask(self) -> None:
        self._process.step()
        self._server.on_reading()
        await asyncio.sleep(self._dice.choice((0.0, 0.001, 0.02)))
        if self._dice.random() < LOST:
            self.release()
            raise SourceUnavailable("the connection was lost")
        self._check()

    def _check(self) -> None:
        server = self._server
        if not (server.is_up and self._process.alive and self in server.readers) or server.shutting_down:
            self.release()
            raise SourceUnavailable("the server is gone")


def _shape(table: Table) -> Shape:
    relation = relation_of(table)
    return Shape(
        relation,
        is_root=False,
        key=("id",) if table.has_key else (),
        filter="",
        replaces=True,
        is_trusted=True,
        digest=_digest(relation),
    )


def _digest(relation: Relation) -> str:
    return f"{relation.oid} {[column.name for column in relation.columns]}"


def _snapshot(visible: Visible) -> Snapshot:
    return Snapshot(min(visible.running, default=visible.xmax), visible.xmax, visible.running)


def _message(shape: Shape, row: Values) -> bytes:
    relation = shape.relation
    return insert_frame(relation.oid, [row.get(column.name) for column in relation.columns])
