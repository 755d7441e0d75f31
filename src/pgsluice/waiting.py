"""Rows that wait for the commit of their transaction, as the bytes in which they arrived.

Rows of streamed and prepared transactions wait, and so do the rows of all transactions that a
:class:`pgsluice.transactions.Gate` does not admit yet. Each transaction has its own :class:`Waiting`. The spool keeps
the bytes, in memory and on disk.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pgsluice.pgoutput.decoder import Decoder
from pgsluice.relation import Relation, packed, size_of, unpacked
from pgsluice.transaction import Change, Emitted, Paused, Transaction


class WaitingRows(Protocol):
    """The waiting rows of one transaction, as entries in the order of arrival. An entry is a number and some bytes."""

    def append(self, number: int, data: bytes) -> None:
        """Add an entry. ``number`` is an unsigned 32-bit integer."""

    def __iter__(self) -> Iterator[tuple[int, bytes] | None]:
        """Yield all entries, oldest first. Yield None if more has to be loaded before the next entry."""

    def discard(self) -> None:
        """Delete all entries."""


class Spool(Protocol):
    """Keeps the rows that wait."""

    def open(self) -> WaitingRows:
        """Return an empty :class:`WaitingRows` for one more transaction."""


class _Xids:
    """A compact set of subtransaction ids.

    A loop with an EXCEPTION clause can roll back millions of subtransactions.
    """

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}
        """A bit for each id. Each value has the bits of 256 ids, and its key is their common upper bits. The dict is
        small, because ids that were rolled back are usually close together."""

    def add(self, xid: int) -> None:
        self._bits[xid >> 8] = self._bits.get(xid >> 8, 0) | 1 << (xid & 255)

    def __contains__(self, xid: int) -> bool:
        return bool(self._bits.get(xid >> 8, 0) >> (xid & 255) & 1)

    def __bool__(self) -> bool:
        return bool(self._bits)


@dataclass(slots=True)
class Waiting:
    """A transaction whose rows wait. ``is_streamed``: the rows contain the id of their (sub)transaction.

    Each row needs the version of its table that was valid when the row arrived, because the table may be altered before
    the commit. So each row is kept with a number. The numbers 1, 2 and so on refer to the versions in ``relations``.
    Versions for which memory has no room are written between the rows: an entry with the number ``_VERSION`` is a
    version, and the rows after it that have the number ``_WRITTEN`` belong to this version.
    """

    xid: int
    rows: WaitingRows
    is_streamed: bool
    versions_bytes: Callable[[], int]
    """Returns the memory that the table versions of all waiting transactions take, in bytes."""
    bytes: int = 0
    """The memory that the versions in ``relations`` take, in bytes."""
    relations: list[Relation] = field(default_factory=list)
    """The first table versions that the rows used. There are at most VERSIONS_MAX. Together, the versions that all
    transactions keep in memory take at most VERSIONS_BYTES_MAX."""
    numbers: dict[Relation, int] = field(default_factory=dict)
    """The index of each version in ``relations``, plus one."""
    last: dict[int, tuple[Relation, int]] = field(default_factory=dict)
    """The version of each table's last row, and the version's number, by the table's OID. A version that is not in
    ``relations`` is left out."""
    written: Relation | None = None
    """The last version that was written between the rows."""
    aborted: _Xids = field(default_factory=_Xids)
    """Subtransactions that were rolled back."""
    origin: str | None = None
    has_rows: bool = False

    def number(self, relation: Relation) -> int:
        """Return the number for a row of this version of the table. The caller has to append the row next."""
        last = self.last.get(relation.oid)
        if last is not None and last[0] is relation:
            return last[1]
        if self.written is relation:
            return _WRITTEN
        number = self._number_of(relation)
        if number == _WRITTEN:
            self.rows.append(_VERSION, packed(relation))
            self.written = relation
        else:
            self.last[relation.oid] = relation, number
        return number

    def _number_of(self, relation: Relation) -> int:
        """Return the number of a version.

        Equal versions have the same number. They occur if one ALTER TABLE undoes another.
        """
        number = self.numbers.get(relation)
        if number is None and self._has_room(size := size_of(relation)):
            self.bytes += size
            self.relations.append(relation)
            number = self.numbers[relation] = len(self.relations)
        return _WRITTEN if number is None else number

    def _has_room(self, size: int) -> bool:
        return len(self.relations) < VERSIONS_MAX and self.versions_bytes() + size <= VERSIONS_BYTES_MAX


VERSIONS_MAX: Final = 4000
"""The maximum number of table versions that one transaction keeps in memory. Most transactions touch fewer tables."""

VERSIONS_BYTES_MAX: Final = 32 * 1024 * 1024
"""The limit of the estimated memory of the versions that all transactions keep. This is enough for 10,000 versions with
20 columns, or 100 with 1,600 columns."""

NO_RELATION: Final = 0
"""The number of a message of pg_logical_emit_message, which has no table."""
_VERSION: Final = 2**32 - 1
"""The number of an entry that is a version of a table, and not a row."""
_WRITTEN: Final = 2**32 - 2
"""The number of the rows whose version is the last one that was written between the rows."""

_unpack_xid = struct.Struct(">xI").unpack_from

SKIPPED_AT_ONCE: Final = 10_000
"""The number of rows of rolled-back subtransactions that are skipped before other tasks get a turn."""


def changes(waiting: Waiting, transaction: Transaction) -> Iterator[Change | Emitted | Paused]:
    """Return the changes that have waited, without those of subtransactions that were rolled back."""
    decoder = Decoder()
    decoder.in_stream = waiting.is_streamed
    aborted, relations = waiting.aborted, waiting.relations
    skipped = 0
    written: Relation | None = None
    for piece in waiting.rows:
        if piece is None:
            yield Paused()
            continue
        number, payload = piece
        if number == _VERSION:
            written = unpacked(payload)
            continue
        if aborted and _unpack_xid(payload)[0] in aborted:
            skipped += 1
            if skipped % SKIPPED_AT_ONCE == 0:
                yield Paused()
            continue
        if number == NO_RELATION:
            message: Any = decoder.decode(payload)
            yield Emitted(transaction, message)
        else:
            relation = written if number == _WRITTEN else relations[number - 1]
            assert relation is not None, "a version is written before its rows"
            yield Change(transaction, relation, payload, waiting.is_streamed)
