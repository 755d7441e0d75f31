"""Kafka records before they are produced: their target, their content, and the records of the transaction in progress.

``envelope`` and the compiled twin of ``rows`` create records, the outbox keeps them, and the sink produces them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

OVERHEAD_BYTES: Final = 160
"""Memory of a record in addition to its bytes: the tuple, the headers of two bytes objects, and an entry in a list."""


def held_bytes(size: int, records: int) -> int:
    """Return how many bytes ``records`` records take in memory, if their keys and values have ``size`` bytes."""
    return size + OVERHEAD_BYTES * records


@dataclass(frozen=True, slots=True)
class Target:
    """The topic and the schemas for the rows of one version of a relation.

    If the table has no key, ``key_schema_id`` is None, and all rows go to one partition.
    """

    topic: str
    value_schema_id: int
    key_schema_id: int | None


class Record(NamedTuple):
    """One Kafka record.

    ``op``: the op of the envelope, ``m`` for a message, ``dead_letter`` for a dead letter, or None for a tombstone. A
    truncate (``t``) goes to every partition. If ``timestamp_ms`` is 0, the record gets the time at which it is
    produced.
    """

    target: Target
    op: str | None
    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 0


class Pending:
    """The records of the transaction that is being received. ``limit``: the bytes that they may take in memory."""

    __slots__ = ("events", "limit", "records", "size")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.records: list[Record] = []
        self.size = 0
        """Bytes of keys and values."""
        self.events = 0
        """Records that are not tombstones."""

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return held_bytes(self.size, len(self.records))

    @property
    def full(self) -> bool:
        """Whether the limit is reached, so that the caller has to make room."""
        return self.held >= self.limit

    def add(self, records: Iterable[Record]) -> None:
        """Add the records of one more change."""
        for record in records:
            self.records.append(record)
            self.size += len(record.key or b"") + len(record.value or b"")
            self.events += record.op is not None

    def clear(self) -> None:
        """Start a new list of records. The previous list now belongs to the caller."""
        self.records = []
        self.size = self.events = 0
