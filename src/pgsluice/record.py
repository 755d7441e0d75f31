"""Kafka records before they are produced: where they go, what they hold, and those of one transaction in progress.

Made by ``envelope`` and its compiled twin, kept by the outbox, produced by the sink.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

OVERHEAD_BYTES: Final = 160
"""What a record takes in memory beside its bytes: the object, the headers of two bytes objects, its place in a list."""


def held_bytes(size: int, records: int) -> int:
    """Return what ``records`` take in memory whose keys and values have ``size`` bytes."""
    return size + OVERHEAD_BYTES * records


@dataclass(frozen=True, slots=True)
class Target:
    """Where the rows of one relation version go. Without a key all of them go to one partition."""

    topic: str
    value_schema_id: int
    key_schema_id: int | None


class Record(NamedTuple):
    """One Kafka record. ``op`` None is a tombstone; a truncate (``t``) goes to every partition; ``m``: a message.

    ``timestamp_ms`` 0: the time of producing.
    """

    target: Target
    op: str | None
    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 0


class Pending:
    """The records of the transaction that is being received; ``limit``: the bytes at which it is ``full``."""

    __slots__ = ("events", "limit", "records", "size")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.records: list[Record] = []
        self.size = 0
        """Bytes of keys and values."""
        self.events = 0
        """Records that are no tombstones."""

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return held_bytes(self.size, len(self.records))

    @property
    def full(self) -> bool:
        """Whether it is time to make room."""
        return self.held >= self.limit

    def add(self, records: Iterable[Record]) -> None:
        """Take the records of one more change."""
        for record in records:
            self.records.append(record)
            self.size += len(record.key or b"") + len(record.value or b"")
            self.events += record.op is not None

    def clear(self) -> None:
        """Forget them: they are somebody else's now."""
        self.records = []
        self.size = self.events = 0
