"""A cut: whole transactions that are written to Kafka together, in one Kafka transaction.

The cut record in ``<prefix>.transactions`` lists all partitions that the cut touched. For each of them, ``next`` is the
offset after the last record of the cut. So a reader that reads every listed partition up to ``next`` has only whole
transactions, up to one position in the WAL.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pgsluice.avro.binary import POSTGRES_EPOCH_US
from pgsluice.commands import Answer, CommandState
from pgsluice.loads import Load, Loaded, LoadMark, LoadPosition
from pgsluice.pgoutput.messages import LogicalMessage
from pgsluice.record import Record, Target
from pgsluice.transaction import Transaction, WholeTransactions

EPOCH_MAX = 2**30
"""The highest epoch that is accepted in a record: half the range of an Avro int, so that further epochs can follow."""

CUT_MAX = 2**62
"""The highest number of a cut that is accepted in a record: half the range of an Avro long."""

MAX_PART_BYTES = 512 * 1024
"""The largest estimated size of one part of a cut record: half of what a broker accepts by default."""

_TOPIC_BYTES, _PARTITION_BYTES, _ID_BYTES = 85, 25, 5
"""Upper limits of encoded sizes, in bytes. The first is for a topic's entry without its name, its partitions and its
schema ids. The second is for a partition, which is an int and two longs. The third is for a schema id."""

Offsets = Mapping[tuple[str, int], tuple[int, int]]
"""Maps (topic, partition) to the offsets (first, next)."""


@dataclass(slots=True)
class TopicUse:
    """What a cut wrote to one topic."""

    schema_ids: dict[int, None] = field(default_factory=dict)
    """The ids of the schemas that were used, in the order of their last use. The last one is the table's schema at the
    end of the cut."""
    last_schema_id: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    produced: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The information that a session takes from the cut records when it starts.

    ``epoch``, ``cut`` and ``end_lsn`` describe the last cut, and are 0 if there is none. ``topics``: all topics to
    which cuts have written so far. ``positions``: the epoch and end_lsn of the last two cuts, by cut number, as far as
    Kafka still has their records.
    """

    epoch: int = 0
    cut: int = 0
    end_lsn: int = 0
    topics: frozenset[str] = frozenset()
    positions: Mapping[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Cut:
    """Committed transactions with their encoded records, in order, and counts of what was written to each topic."""

    records: list[Record] = field(default_factory=list)
    size: int = 0
    transactions: int = 0
    events: int = 0
    first: Transaction | None = None
    last: tuple[Transaction, int] | None = None
    """The last transaction, with its end LSN."""
    last_message: tuple[int, str] | None = None
    """The last message outside transactions: its LSN and its :func:`message_crc`."""
    end_lsn: int = 0
    topics: dict[str, TopicUse] = field(default_factory=dict)
    loads: Sequence[Load] | None = None
    """The loads in progress at the end of the cut. None: the same as at the end of the previous cut."""
    load_position: LoadPosition | None = None
    """The position of the last rows that were read. None: the cut has no such rows."""
    marks: list[LoadMark] = field(default_factory=list)
    loaded: list[Loaded] = field(default_factory=list)
    """The tables whose load ends in this cut, or that count as loaded from this cut on."""
    tracks_loads: bool = False
    """Whether ``loaded`` has all tables that count as loaded because an earlier version delivered their changes."""
    commands: CommandState | None = None
    """The state of commands at the end of the cut. None: the same as at the end of the previous cut."""
    answers: list[Answer] = field(default_factory=list)
    opens_commands: bool = False
    """Whether this is the first cut that records an offset for reading commands. Clients wait for this cut before they
    send a command."""

    @property
    def is_empty(self) -> bool:
        """Whether the cut has no content: no records, marks, ended loads, or effects of commands."""
        return not (self.records or self.marks or self.loaded or self.answers or self.opens_commands)

    def add_records(self, records: Iterable[Record], size: int, events: int) -> None:
        """Add records that belong to no transaction, or to a transaction that is passed to :meth:`add`."""
        self.records.extend(records)
        self.size += size
        self.events += events

    def add(self, transaction: Transaction, end_lsn: int) -> None:
        """Add a committed transaction."""
        self.transactions += 1
        if self.first is None:
            self.first = transaction
        self.last = (transaction, end_lsn)

    def add_whole(self, whole: WholeTransactions) -> None:
        """Add the transactions of ``whole`` that have records. There has to be at least one."""
        assert whole.first is not None, "at least one transaction has records"
        assert whole.last is not None, "at least one transaction has records"
        self.transactions += whole.count
        self.first = self.first or whole.first
        self.last = (whole.last, whole.last_end_lsn)

    def add_message(self, message: LogicalMessage) -> None:
        """Add a message outside transactions."""
        self.last_message = (message.lsn, message_crc(message))

    def add_load(
        self, loads: Sequence[Load], load_position: LoadPosition, marks: Iterable[LoadMark], loaded: Iterable[Loaded]
    ) -> None:
        """Add the progress of loads up to ``load_position``: loads in progress, their marks, and ended loads."""
        self.loads, self.load_position = loads, load_position
        self.marks.extend(marks)
        self.loaded.extend(loaded)

    def add_commands(
        self, commands: CommandState, answers: Iterable[Answer], loads: Sequence[Load], loaded: Iterable[Loaded]
    ) -> None:
        """Add the effects of commands: their state, answers, the loads in progress, and loads that were cancelled."""
        self.commands, self.loads = commands, loads
        self.answers.extend(answers)
        self.loaded.extend(loaded)

    def add_assumed(self, assumed: Iterable[Loaded]) -> None:
        """Add the tables that count as loaded because an earlier version delivered their changes."""
        self.loaded.extend(assumed)
        self.tracks_loads = True

    def produced(self) -> dict[tuple[str, int], int]:
        """Return how many records went to each partition."""
        return {(topic, number): count for topic, use in self.topics.items() for number, count in use.produced.items()}

    def count(self, target: Target, ops: Mapping[str, int], produced: Mapping[int, int]) -> None:
        """Count the records of one target.

        ``ops``: how many records have each op, without tombstones. ``produced``: how many went to each partition.
        """
        use = self.topics.get(target.topic)
        if use is None:
            use = self.topics[target.topic] = TopicUse()
        for partition, count in produced.items():
            use.produced[partition] = use.produced.get(partition, 0) + count
        for op, count in ops.items():
            use.counts[op] = use.counts.get(op, 0) + count
        identifier = target.value_schema_id
        if ops and identifier != use.last_schema_id:
            use.schema_ids.pop(identifier, None)
            use.schema_ids[identifier] = None
            use.last_schema_id = identifier


def message_crc(message: LogicalMessage) -> str:
    """Return the CRC-32 of a message's prefix and content, in hex.

    A message outside transactions has neither an xid nor a time, so this CRC identifies it.
    """
    return f"{zlib.crc32(message.content, zlib.crc32(message.prefix.encode())):08x}"


def cut_records(
    cut: Cut, identity: Mapping[str, Any], offsets: Offsets, topic_ids: Mapping[str, str], *, full: bool
) -> list[dict[str, Any]]:
    """Return the parts of the cut record, as values for the schema Cut.

    There is one part, unless the cut wrote to very many partitions.

    ``identity`` holds ``pipeline``, ``cut`` and ``epoch``. A topic without an entry in ``topic_ids`` gets an empty id.
    """
    chunks = _chunks(_topics(cut, offsets, topic_ids))
    last = cut.last[0] if cut.last else None
    common = {
        **identity,
        "first_lsn": cut.first.commit_lsn if cut.first else None,
        "last_lsn": last.commit_lsn if last else None,
        "end_lsn": cut.end_lsn,
        "ts": last.commit_ts + POSTGRES_EPOCH_US if last else None,
        "transactions": cut.transactions,
        "events": cut.events,
        "full": full,
        "parts": len(chunks),
    }
    marks = [asdict(mark) for mark in cut.marks]
    return [
        {**common, "part": part, "topics": topics, "snapshots": [] if part else marks}
        for part, topics in enumerate(chunks)
    ]


def _topics(cut: Cut, offsets: Offsets, topic_ids: Mapping[str, str]) -> list[dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    for (topic, partition), (first, following) in sorted(offsets.items()):
        use = cut.topics.get(topic, TopicUse())
        if topic not in entries:
            entries[topic] = {
                "topic": topic,
                "topic_id": topic_ids.get(topic, ""),
                "schema_ids": list(use.schema_ids),
                "offsets": [],
                "counts": dict(sorted(use.counts.items())),
            }
        entries[topic]["offsets"].append({"partition": partition, "first": first, "next": following})
    return list(entries.values())


def _chunks(topics: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Split the entries into parts of at most MAX_PART_BYTES.

    A part may be larger, because a topic's entry is never split.
    """
    chunks: list[list[dict[str, Any]]] = [[]]
    room = MAX_PART_BYTES
    for topic in topics:
        size = _entry_bytes(topic)
        if size > room and chunks[-1]:
            chunks.append([])
            room = MAX_PART_BYTES
        chunks[-1].append(topic)
        room -= size
    return chunks


def _entry_bytes(topic: dict[str, Any]) -> int:
    lists = _PARTITION_BYTES * len(topic["offsets"]) + _ID_BYTES * len(topic["schema_ids"])
    return len(topic["topic"]) + _TOPIC_BYTES + lists
