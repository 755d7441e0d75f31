"""The changes of publications, read from PostgreSQL through a temporary slot.

PostgreSQL drops the slot when the connection ends. The slot counts towards ``max_replication_slots``. The stream begins
at the creation of the slot, so no earlier changes are shown.

``tests/integration/test_tail.py`` covers this module.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

from pgsluice.app.tail.shown import Row, Shown
from pgsluice.errors import ProtocolError
from pgsluice.identity import with_noted_identity
from pgsluice.pgoutput import messages
from pgsluice.pgoutput.decoder import Decoder
from pgsluice.pgoutput.framing import MESSAGE_AT, Keepalive, XLogData
from pgsluice.pgoutput.messages import UNCHANGED, ColumnValue, TupleData
from pgsluice.postgres.source import PostgresSource, SourceOptions
from pgsluice.relation import Column, Relation
from pgsluice.transaction import Change, Committed, Delivered, Emitted, Event, Transaction
from pgsluice.transactions import Transactions
from pgsluice.waiting import WaitingRows

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


class _NothingWaits:
    """The spool of a stream in which every transaction arrives whole, so no rows wait for a commit."""

    def open(self) -> WaitingRows:
        raise ProtocolError("PostgreSQL sent a part of a transaction, although it was not asked to; please report it.")


def options_of_tail(options: SourceOptions) -> SourceOptions:
    """Return the options for reading changes: a temporary slot of our own, values as text, and whole transactions."""
    stream = replace(options.stream, streaming="off", two_phase=False, binary=False)
    return replace(options, slot=f"pgsluice_tail_{uuid4().hex[:12]}", is_temporary=True, failover=False, stream=stream)


async def changes(options: SourceOptions, ready: Callable[[], None]) -> AsyncIterator[list[Shown]]:
    """Yield the changes that are committed from now on, in lists. Call ``ready`` when the slot exists.

    Raise the same errors as a session of the pipeline if the server cannot be used, or ends the stream.
    """
    source = await PostgresSource.open(options)
    try:
        await source.create_slot()
        stream = await source.start()
        ready()
        tail = _Tail(source)
        while True:
            frames = await stream.read()
            yield [shown for frame in frames for shown in await tail.take(frame)]
            stream.report(tail.position, tail.position)
    finally:
        await source.close()


class _Tail:
    """Turns the frames of one stream into changes. ``position`` is the LSN up to which the stream is processed."""

    def __init__(self, source: PostgresSource) -> None:
        self.position = 0
        self._source = source
        self._transactions = Transactions(Delivered(0, 0, 0), _NothingWaits())
        self._decoder = Decoder()
        self._identified: dict[int, tuple[Relation, Relation | None]] = {}
        """By oid: the relation for which :meth:`_identity_of` was last called, and what it returned."""

    async def take(self, frame: XLogData | Keepalive) -> list[Shown]:
        if isinstance(frame, Keepalive):
            if self._transactions.is_between:
                self.position = max(self.position, frame.wal_end)
            return []
        shown = []
        for event in self._transactions.receive(frame[MESSAGE_AT:]):
            if isinstance(event, Committed):
                self.position = max(self.position, event.end_lsn)
            shown += await self._shown(event)
        return shown

    async def _shown(self, event: Event) -> list[Shown]:
        if isinstance(event, Change):
            message: Any = self._decoder.decode(event.message)
            return [_change(event, message, await self._identity_of(event.relation))]
        return [_emitted(event)] if isinstance(event, Emitted) else []

    async def _identity_of(self, relation: Relation) -> Relation | None:
        """Return ``relation`` with the replica identity of its rows, which decides what old rows contain.

        The rows of a partitioned table have the replica identity of their partition. Return None if the partitions have
        different replica identities.
        """
        if not relation.partition_keys:
            return relation
        known = self._identified.get(relation.oid)
        if known is None or known[0] is not relation:
            noted = self._transactions.relations.partitions.get(relation.oid, {})
            found = await self._source.partitions(relation.oid)
            known = self._identified[relation.oid] = relation, with_noted_identity(relation, noted, found)
        return known[1]


def _change(
    event: Change,
    message: messages.Insert | messages.Update | messages.Delete | messages.Truncate,
    identified: Relation | None,
) -> Shown:
    relation, transaction = event.relation, event.transaction
    shown = Shown(
        "c",
        transaction.commit_lsn,
        transaction.xid,
        _time(transaction),
        relation.namespace,
        relation.name,
        origin=transaction.origin,
    )
    if isinstance(message, messages.Truncate):
        flags = {"cascade": message.cascade, "restart_identity": message.restart_identity}
        return replace(shown, op="t", flags=tuple(name for name, is_set in flags.items() if is_set))
    if not isinstance(message, messages.Insert):
        shown = _with_before(shown, message, relation, identified)
    if isinstance(message, messages.Delete):
        return replace(shown, op="d")
    unchanged = tuple(column.name for column, value in _cells(relation, message.new) if value is UNCHANGED)
    op = "u" if isinstance(message, messages.Update) else "c"
    return replace(shown, op=op, after=_row(_cells(relation, message.new)), unchanged=unchanged)


def _with_before(
    shown: Shown, message: messages.Update | messages.Delete, relation: Relation, identified: Relation | None
) -> Shown:
    """Add the columns of the old row that were sent. PostgreSQL sends null for all others, so they are left out."""
    old = message.old if message.old is not None else message.key
    if old is None:
        return shown
    cells = _cells(relation, old)
    if identified is None:
        # It is unknown which columns are the key. But a key column is never null, so every null stands for a column
        # outside of the key, whose value was not sent.
        return replace(shown, before=_row(cell for cell in cells if cell[1] is not None), before_image="key")
    if message.old is not None and identified.replica_identity == "f":
        return replace(shown, before=_row(cells), before_image="full")
    key = {column.name for column in identified.columns if column.is_key}
    return replace(shown, before=_row(cell for cell in cells if cell[0].name in key), before_image="key")


def _cells(relation: Relation, values: TupleData) -> list[tuple[Column, ColumnValue]]:
    if len(values) != len(relation.columns):
        raise ProtocolError(f"A row of table {relation} has {len(values)} values for {len(relation.columns)} columns.")
    return list(zip(relation.columns, values, strict=True))


def _row(cells: Iterable[tuple[Column, ColumnValue]]) -> Row:
    # In a database with encoding SQL_ASCII, a text can have any bytes. They are kept as surrogate escapes.
    return {
        column.name: None if value is None else value.decode("utf-8", "surrogateescape")
        for column, value in cells
        if value is not UNCHANGED
    }


def _emitted(event: Emitted) -> Shown:
    message, transaction = event.message, event.transaction
    after = {"prefix": message.prefix, "content": message.content.decode("utf-8", "surrogateescape")}
    if transaction is None:
        return Shown("m", message.lsn, None, None, after=after)
    return Shown(
        "m", transaction.commit_lsn, transaction.xid, _time(transaction), after=after, origin=transaction.origin
    )


def _time(transaction: Transaction) -> str:
    """Return the time of the commit as ISO 8601. A time beyond Python's calendar becomes a number: µs since 2000."""
    try:
        moment = _EPOCH + timedelta(microseconds=transaction.commit_ts)
    except OverflowError:
        return str(transaction.commit_ts)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
