"""A cut: whole transactions that go to Kafka together, in one Kafka transaction.

Its record in ``<prefix>.transactions`` names the offsets of the partitions it touched, so a reader that
takes every listed partition up to ``next`` has a consistent prefix of the database's history.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pgsluice.avro.binary import POSTGRES_EPOCH_US
from pgsluice.commands import Answer, CommandState
from pgsluice.loads import Load, Loaded, Mark, Place
from pgsluice.pgoutput.messages import LogicalMessage
from pgsluice.record import Record, Target
from pgsluice.transaction import Transaction

EPOCH_MAX = 2**30
"""Epochs and cuts that are read back go up to here: half of what Avro's int and long hold, so others can follow."""

CUT_MAX = 2**62

MAX_PART_BYTES = 512 * 1024
"""Size of one part of a cut record, as estimated: half of what a broker takes by default."""

_TOPIC_BYTES, _PARTITION_BYTES, _ID_BYTES = 85, 25, 5
"""At most, in Avro: counts and lengths of a topic's entry, and its id; an int and two longs; a schema id."""

Offsets = Mapping[tuple[str, int], tuple[int, int]]
"""(topic, partition) to (first, next)."""


@dataclass(slots=True)
class TopicUse:
    """What a cut wrote to one topic."""

    schema_ids: dict[int, None] = field(default_factory=dict)
    """In the order of their last use: the last one tells what the table looks like at the cut's end."""
    last_schema_id: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    produced: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the cut records tell: epoch, number and end of the last cut (0: none), the topics written so far.

    ``positions``: epoch and end_lsn of the last cut and of the one before it, by number, as far as Kafka has them.
    """

    epoch: int = 0
    cut: int = 0
    end_lsn: int = 0
    topics: frozenset[str] = frozenset()
    positions: Mapping[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Cut:
    """Committed transactions with their encoded records, in order, and the account of them."""

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
    """The loads in progress at its end; None: they are those of the cut before it."""
    place: Place | None = None
    """The last place at which it has rows that were read; None: it has none."""
    marks: list[Mark] = field(default_factory=list)
    loaded: list[Loaded] = field(default_factory=list)
    """The tables whose load ends in it, or that count as loaded from it on."""
    tracks_loads: bool = False
    """Whether ``loaded`` has what counts as loaded because an earlier version has delivered its changes."""
    commands: CommandState | None = None
    """What commands have left behind at its end; None: as in the cut before it."""
    answers: list[Answer] = field(default_factory=list)
    opens_commands: bool = False
    """Whether it says for the first time from where on commands are read: whoever gives some waits for that."""

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing that anybody waits for: no records, no marks, no news of tables or commands."""
        return not (self.records or self.marks or self.loaded or self.answers or self.opens_commands)

    def add_records(self, records: Iterable[Record], size: int, events: int) -> None:
        """Join records that belong to no transaction, or to the one that :meth:`add` names."""
        self.records.extend(records)
        self.size += size
        self.events += events

    def add(self, transaction: Transaction, end_lsn: int) -> None:
        """Join a committed transaction to the cut."""
        self.transactions += 1
        if self.first is None:
            self.first = transaction
        self.last = (transaction, end_lsn)

    def add_message(self, message: LogicalMessage) -> None:
        """Join a message that belongs to no transaction to the cut."""
        self.last_message = (message.lsn, message_crc(message))

    def add_load(self, loads: Sequence[Load], place: Place, marks: Iterable[Mark], loaded: Iterable[Loaded]) -> None:
        """Join what was read of tables, up to ``place``: the loads in progress after that, their marks and ends."""
        self.loads, self.place = loads, place
        self.marks.extend(marks)
        self.loaded.extend(loaded)

    def add_commands(
        self, commands: CommandState, answers: Iterable[Answer], loads: Sequence[Load], loaded: Iterable[Loaded]
    ) -> None:
        """Join what commands have left behind: the loads in progress after that, answers, loads that were cancelled."""
        self.commands, self.loads = commands, loads
        self.answers.extend(answers)
        self.loaded.extend(loaded)

    def add_assumed(self, assumed: Iterable[Loaded]) -> None:
        """Join the tables that count as loaded because an earlier version has delivered their changes."""
        self.loaded.extend(assumed)
        self.tracks_loads = True

    def produced(self) -> dict[tuple[str, int], int]:
        """Return how many records went to each topic's partition."""
        return {(topic, number): count for topic, use in self.topics.items() for number, count in use.produced.items()}

    def count(self, target: Target, ops: Mapping[str, int], produced: Mapping[int, int]) -> None:
        """Account for records of one target: how many of each op, tombstones left out, and to each partition."""
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
    """Return the CRC-32 of a message's prefix and content, in hex: it has no xid or time to be recognised by."""
    return f"{zlib.crc32(message.content, zlib.crc32(message.prefix.encode())):08x}"


def cut_records(
    cut: Cut, identity: Mapping[str, Any], offsets: Offsets, topic_ids: Mapping[str, str], *, full: bool
) -> list[dict[str, Any]]:
    """Return the cut record's parts (one, unless it names very many partitions), ready for the Cut schema.

    ``identity`` holds ``pipeline``, ``cut`` and ``epoch``; a topic without an entry in ``topic_ids`` has none.
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
    """Split between topics, so that a part stays below MAX_PART_BYTES (unless a single topic is larger)."""
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
