"""A database snapshot: which transactions' changes a query sees, and where in the WAL that is the case.

Used by ``round``, which inserts rows that were read at a snapshot into the stream. What is visible is decided by
top-level transaction ids alone, as PostgreSQL does it (XidInMVCCSnapshot).

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
"""The prefix of logical messages that have no other purpose than to move the stream; they are not published."""

_PAGE_BYTES: Final = 8192
"""Of the WAL (XLOG_BLCKSZ). A server that was built with another size reports positions that need no correction."""

_PAGE_HEADER_BYTES: Final = 24
_SEGMENT_HEADER_BYTES: Final = 40


@dataclass(frozen=True, slots=True)
class Snapshot:
    """pg_current_snapshot(): 64-bit transaction ids.

    All below ``xmin`` have ended, none from ``xmax`` on had, and those in ``running`` between the two had not.
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the snapshot that PostgreSQL writes as ``xmin:xmax:xip,xip``; ValueError for anything else."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"not a snapshot: {text!r} (expected xmin:xmax:xip_list)")
        xmin, xmax, running = found.groups()
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def is_visible(self, xid: int) -> bool:
        """Return whether the changes of committed transaction ``xid``, as the stream names it (32 bits), are seen."""
        full = self._widened(xid)
        return full < self.xmin or (full < self.xmax and full not in self.running)

    def _widened(self, xid: int) -> int:
        """Return the 64-bit id next to ``xmax`` that ends with these 32 bits; ids in use lie within 2^31 of it.

        One that is 2^31 away is the older one, as in TransactionIdPrecedes.
        """
        full = self.xmax - self.xmax % _EPOCH + xid
        if full >= self.xmax + _EPOCH // 2:
            return full - _EPOCH
        return full + _EPOCH if full < self.xmax - _EPOCH // 2 else full


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot, where the stream has passed all that it sees, and its time (µs since 2000-01-01 UTC)."""

    snapshot: Snapshot
    end_lsn: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of a table as frames with Insert messages; ``is_last``: none follow."""

    frames: list[XLogData]
    is_last: bool

    @property
    def bytes(self) -> int:
        """What the frames take."""
        return sum(map(len, self.frames))


@dataclass(frozen=True, slots=True)
class Shape:
    """A table as it is read.

    ``is_root``: of a partitioned table, read with all partitions. ``columns`` are those that the publications send,
    ``key`` the columns that put the rows into an order and tell them apart (empty: there are none), and ``filter`` the
    SQL condition that the publications set, empty if there is none. ``replaces``: all deletes and truncates are
    published, so rows that are not among those read are gone. ``is_trusted``: functions that may run when it is
    read are those of people who may do anything anyway, or somebody has chosen to trust. ``digest`` changes when
    anything of this does. ``where``: a further condition, of a command or a rule that wants only some of the rows.
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
        """What decides which rows and columns are read, and in which order: if it changes, a load begins again."""
        return f"{self.digest}-{sha256(self.where.encode()).hexdigest()[:16]}" if self.where else self.digest

    @property
    def key_places(self) -> tuple[int, ...]:
        """Where the columns of the key stand among the columns."""
        names = [column.name for column in self.relation.columns]
        return tuple(names.index(name) for name in self.key)


@dataclass(frozen=True, slots=True)
class TableSize:
    """Rows and bytes of a table, as PostgreSQL has estimated them last; both are 0 where it has not."""

    rows: int = 0
    bytes: int = 0


def reached_at(insert_lsn: int, segment_bytes: int) -> int:
    """Return the position at which a stream has passed everything inserted before ``insert_lsn``.

    At the start of a page or segment the insert position lies behind the header, and an idle server never reports
    a position behind a header that nothing follows.
    """
    if insert_lsn % segment_bytes == _SEGMENT_HEADER_BYTES:
        return insert_lsn - _SEGMENT_HEADER_BYTES
    if insert_lsn % _PAGE_BYTES == _PAGE_HEADER_BYTES:
        return insert_lsn - _PAGE_HEADER_BYTES
    return insert_lsn
