"""The account of topics: the id of each topic, and the end offsets of its partitions.

This module does no I/O. A session keeps an account of the topics it writes to. Cut records carry the account to the
next session (:class:`LastCuts`). Comparing the account with the cluster shows whether somebody else has changed a
topic.

https://cwiki.apache.org/confluence/display/KAFKA/KIP-516%3A+Topic+Identifiers
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pgsluice.avro.binary import INT_MAX, LONG_MAX
from pgsluice.cut import CUT_MAX, EPOCH_MAX

Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic at one moment. ``id`` is empty and ``partitions`` is 0 if they are not known."""

    id: str
    partitions: int
    has_leaders: bool = True


@dataclass(slots=True)
class Account:
    """Topics, and the end of each partition, which is the offset after its last record."""

    topics: dict[str, TopicState] = field(default_factory=dict)
    ends: dict[Partition, int] = field(default_factory=dict)
    leader_epochs: dict[Partition, int] = field(default_factory=dict)
    """How many leaders each partition has had, if brokers report it. An end is more reliable if a newer leader reports
    it."""

    def is_newer(self, other: "Account") -> bool:
        """Return whether this account comes from newer leaders than ``other``."""
        both = self.leader_epochs.keys() & other.leader_epochs.keys()
        return sum(self.leader_epochs[partition] - other.leader_epochs[partition] for partition in both) > 0


class LastCuts:
    """The account of topics, built from the records of the last full cut and of all later cuts, added in order.

    A full cut lists all partitions of every topic that this pipeline has written to.
    """

    def __init__(self, *, unreadable: str | None = None) -> None:
        self.unreadable = unreadable
        """Why a record is not a cut record, or None. If this is set, nothing else is known."""
        self.number = self.epoch = self.end_lsn = 0
        """Number, epoch and end_lsn of the highest cut, or 0 if there is none."""
        self.positions: dict[int, tuple[int, int]] = {}
        """Epoch and end_lsn of the highest cut and of the cut before it, by cut number. If a cut has several records,
        the last one counts."""
        self.is_complete = False
        """Whether a full cut was read. If not, topics that only earlier cuts list may be missing in the account."""
        self._ids: dict[str, str] = {}
        self._ends: dict[Partition, int] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the next record.

        The parts of one cut follow one another. Raise ValueError if the content of the record is impossible.
        """
        _check(record)
        if record["full"] and record["part"] == 0:
            self._ids.clear()
            self._ends.clear()
            self.is_complete = True
        if record["cut"] >= self.number:
            self.number, self.end_lsn = record["cut"], record["end_lsn"]
        self._take_position(record)
        self.epoch = max(self.epoch, record["epoch"])
        for entry in record["topics"]:
            topic = entry["topic"]
            self._ids[topic] = entry["topic_id"]
            for at in entry["offsets"]:
                self._ends[topic, at["partition"]] = at["next"]

    def _take_position(self, record: Mapping[str, Any]) -> None:
        self.positions[record["cut"]] = record["epoch"], record["end_lsn"]
        for number in [one for one in self.positions if one < self.number - 1]:
            del self.positions[number]

    @property
    def account(self) -> Account:
        """The topics as the last cuts left them.

        A full cut lists all partitions of every topic that was written to before. Later, the first cut of a session
        that writes to a topic lists all partitions of this topic. So if a full cut was read, the partitions can be
        counted.
        """
        counts = dict.fromkeys(self._ids, 0)
        if self.is_complete:
            for topic, partition in self._ends:
                counts[topic] = max(counts[topic], partition + 1)
        topics = {topic: TopicState(identifier, counts[topic]) for topic, identifier in self._ids.items()}
        return Account(topics, dict(self._ends))


_BOUNDS: Final = {"cut": (0, CUT_MAX), "epoch": (0, EPOCH_MAX), "end_lsn": (0, LONG_MAX), "part": (0, INT_MAX)}
_TOPIC: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}", re.ASCII)


def _check(record: Mapping[str, Any]) -> None:
    for name, bounds in _BOUNDS.items():
        _check_number(name, record[name], *bounds)
    for entry in record["topics"]:
        if not _TOPIC.fullmatch(entry["topic"]):
            raise ValueError("it names a topic that Kafka cannot have")
        for at in entry["offsets"]:
            _check_number("partition", at["partition"], 0, INT_MAX - 1)
            _check_number("next", at["next"], 0, LONG_MAX)


def _check_number(name: str, number: int, lowest: int, highest: int) -> None:
    if not lowest <= number <= highest:
        raise ValueError(f"its {name!r} is {number}, outside {lowest} to {highest}")


def changes(known: Account, found: Account) -> dict[str, str]:
    """Return a sentence for each known topic that has changed."""
    short = _short(known, found)
    return {topic: sentence for topic in sorted(known.topics) for sentence in _changes(topic, known, found, short)}


_Short = Mapping[str, list[tuple[int, int, int]]]
"""By topic, the partitions that end before their known end: the partition's number, its end now, and its known end."""


def _short(known: Account, found: Account) -> _Short:
    """Return the partitions that have lost records at their end. Retention deletes records only at the beginning."""
    short: dict[str, list[tuple[int, int, int]]] = {}
    for (topic, partition), end in known.ends.items():
        is_at = found.ends.get((topic, partition), end)
        if is_at < end:
            short.setdefault(topic, []).append((partition, is_at, end))
    return short


def _changes(topic: str, known: Account, found: Account, short: _Short) -> Iterator[str]:
    before, now = known.topics[topic], found.topics.get(topic)
    if now is None:
        yield (
            f"Topic {topic} was deleted. Consumers miss the records that they had not read, and new consumers miss "
            "all its records."
        )
    elif before.id and now.id and before.id != now.id:
        yield (
            f"Topic {topic} was deleted and created again. Consumers miss the records of the former topic that "
            "they had not read, and their offsets are not valid in the new topic."
        )
    elif before.partitions not in (0, now.partitions):
        yield (
            f"Topic {topic} has {now.partitions} partitions now instead of {before.partitions}, so keys move to other "
            "partitions. Consumers may see changes of a row in the wrong order. If they keep state for each partition, "
            "this state now belongs to other keys."
        )
    elif topic in short:
        yield _lost(topic, sorted(short[topic]))


def _lost(topic: str, short: list[tuple[int, int, int]]) -> str:
    """Return the sentence about partitions that end before their known end."""
    partition, is_at, was_at = short[0]
    others = f" Records are missing in {len(short) - 1} more of its partitions as well." if len(short) > 1 else ""
    return (
        f"Partition {partition} of topic {topic} ends at offset {is_at}, although records were written to it up to "
        f"{was_at}.{others} The topic was emptied, or Kafka lost records, for example after an unclean leader "
        "election. Consumers miss them."
    )
