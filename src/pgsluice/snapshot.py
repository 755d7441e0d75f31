"""A database snapshot: the transactions that a query sees, and the matching position in the WAL.

``round`` uses the snapshot to find the position in the stream for the rows that were read at this snapshot. As in
PostgreSQL (XidInMVCCSnapshot), the ids of top-level transactions alone decide which transactions are visible.

https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-PG-SNAPSHOT
"""

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Self

from pgsluice.pgoutput.framing import XLogData
from pgsluice.relation import Relation

_TEXT: Final = re.compile(r"(\d{1,20}):(\d{1,20}):((?:\d{1,20}(?:,\d{1,20})*)?)", re.ASCII)

_EPOCH: Final = 2**32

FLUSH_PREFIX: Final = "pgsluice.flush"
"""The prefix of logical messages whose only purpose is to make the stream advance. They are not published."""

_PAGE_HEADER_BYTES: Final = 24
_SEGMENT_HEADER_BYTES: Final = 40


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The result of pg_current_snapshot(), with 64-bit transaction ids.

    When the snapshot was taken, all transactions below ``xmin`` had ended, and no transaction from ``xmax`` on had
    ended. Of the transactions between the two, those in ``running`` had not ended, and all others had.
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the snapshot that PostgreSQL writes as ``xmin:xmax:xip,xip``. Raise ValueError for anything else."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"not a snapshot: {text!r} (expected xmin:xmax:xip_list)")
        xmin, xmax, running = found.groups()
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def is_visible(self, xid: int) -> bool:
        """Return whether the snapshot sees the committed transaction with this ``xid`` of the stream (32 bits)."""
        full = self._widened(xid)
        return full < self.xmin or (full < self.xmax and full not in self.running)

    def _widened(self, xid: int) -> int:
        """Return the 64-bit id closest to ``xmax`` that ends with these 32 bits.

        All ids in use lie within 2^31 of ``xmax``. If two ids are equally close, 2^31 away, return the older one, as
        TransactionIdPrecedes does.
        """
        full = self.xmax - self.xmax % _EPOCH + xid
        if full >= self.xmax + _EPOCH // 2:
            return full - _EPOCH
        return full + _EPOCH if full < self.xmax - _EPOCH // 2 else full


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot that was taken at ``timestamp`` (µs since 2000-01-01).

    ``end_lsn``: a position after all changes that the snapshot sees.
    """

    snapshot: Snapshot
    end_lsn: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of a table as frames with Insert messages. ``is_last``: no more rows follow."""

    frames: list[XLogData]
    is_last: bool

    @property
    def bytes(self) -> int:
        """The size of the frames."""
        return sum(map(len, self.frames))


@dataclass(frozen=True, slots=True)
class Shape:
    """Describes how one table is read.

    ``relation``: its columns are those that the publications send. ``is_root``: it is the root of a partitioned table,
    and is read with all partitions. ``key``: the columns that order the rows and identify each of them; empty if there
    are none, or if they cannot be used because the table's events have no key. ``filter``: the SQL condition of the
    publications; empty if there is none. ``replaces``: all deletes and truncates are published, so consumers may remove
    rows that the load did not read. ``is_trusted``: superusers or the database's owner own the table, its partitions
    and its schema, or a publication names the table. So the functions that may run when the table is read are trusted.
    The caller also trusts tables that the settings name. ``digest`` changes when the table changes in any of the above.
    ``where``: a further condition, if a command or a rule selects only some of the rows.
    """

    relation: Relation
    is_root: bool
    key: tuple[str, ...]
    filter: str
    replaces: bool
    is_trusted: bool
    digest: str
    where: str = ""

    @property
    def read_digest(self) -> str:
        """A digest of everything that decides which rows and columns are read, and in which order.

        If the digest changes during a load, the load begins again.
        """
        return f"{self.digest}-{sha256(self.where.encode()).hexdigest()[:16]}" if self.where else self.digest

    @property
    def key_places(self) -> tuple[int, ...]:
        """The indexes of the key's columns among all columns."""
        names = [column.name for column in self.relation.columns]
        return tuple(names.index(name) for name in self.key)


@dataclass(frozen=True, slots=True)
class TableSize:
    """Rows and bytes of a table, by PostgreSQL's last estimate. Both are 0 if there is no estimate."""

    rows: int = 0
    bytes: int = 0


def reached_at(insert_lsn: int, segment_bytes: int, page_bytes: int) -> int:
    """Return the position at which a stream has received everything that was inserted before ``insert_lsn``.

    At the start of a page or segment, the insert position lies after the header. But an idle server never reports a
    position after a header until a record follows, so the stream would never reach the insert position itself.

    ``segment_bytes`` and ``page_bytes`` are the server's wal_segment_size and wal_block_size.
    """
    if insert_lsn % segment_bytes == _SEGMENT_HEADER_BYTES:
        return insert_lsn - _SEGMENT_HEADER_BYTES
    if insert_lsn % page_bytes == _PAGE_HEADER_BYTES:
        return insert_lsn - _PAGE_HEADER_BYTES
    return insert_lsn
