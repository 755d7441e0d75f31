"""A session's account of the topics it writes to, and the comparison of this account with the cluster.

The sink uses the ledger in its worker thread, at the start of a session, at every cut, and if writes make no progress.
Kafka's clients do not report that a topic has changed. A producer continues to write to a topic that was deleted and
created again, and it waits for a deleted topic to come back.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from typing import Any

import structlog

from pgsluice.cut import Cut
from pgsluice.errors import HistoryError, SinkUnavailable
from pgsluice.history import LOAD_AGAIN
from pgsluice.kafka.account import Account, LastCuts, Partition, TopicState, changes
from pgsluice.kafka.tail import Tail
from pgsluice.kafka.topics import Topics

log = structlog.get_logger(__name__)

FULL_CUT_S = 45.0
"""A full cut is due this long after the previous one. By default, there is a cut at least every 10 s while the server's
WAL grows, and otherwise one every 60 s. So about one cut a minute is full."""

CONFIRM_S = 5.0
"""We believe that a topic has changed only if all answers show the change for this long. Brokers learn of a new topic
or leader at different times. A broker that has lost touch with its cluster never learns of such changes."""

DISTRUST_S = 600.0
"""After a wrong prediction, we make no predictions for this long, because the cause may occur again."""

AGAIN_S = 0.25
"""The pause between two requests that show whether an answer was outdated. Each request is made by a new client."""

_PARTITIONS_SHOWN = 10

_REMEDY = (
    'Repair the consumers first. Then start once with kafka.topics.changed = "accept", which continues with the '
    f"topics as they are. If the consumers lack rows, {LOAD_AGAIN}"
)


class OffsetPrediction:
    """Tracks whether the end offsets of cuts can be predicted. All sessions of a process share it.

    A prediction assumes that only pgsluice writes to its topics. If a prediction is wrong, another program probably
    writes to them, and could make us abort one cut after the other. So for DISTRUST_S, we ask Kafka for the offsets
    before we write a cut record.
    """

    def __init__(self) -> None:
        self._wrong_at = float("-inf")

    @property
    def is_clear(self) -> bool:
        """Whether no prediction has been wrong within DISTRUST_S."""
        return time.monotonic() - self._wrong_at > DISTRUST_S

    def failed(self) -> None:
        """Record that a prediction was wrong."""
        self._wrong_at = time.monotonic()


class Ledger:
    """The topics of a session, with their ids, their partitions and the ends of the partitions.

    Every method may block until Kafka answers, or until ``given_up`` is set.
    """

    def __init__(
        self,
        topics: Topics,
        given_up: threading.Event,
        *,
        accept: bool,
        is_atomic: bool = True,
        prediction: OffsetPrediction | None = None,
    ) -> None:
        """Create an empty ledger.

        If ``accept`` is set, a session continues with topics that have changed. Otherwise, no session starts until
        somebody has accepted the changes. ``is_atomic`` says whether cuts are written in Kafka transactions.
        """
        self._topics = topics
        self._given_up = given_up
        self._accept = accept
        self._is_atomic = is_atomic
        self._prediction = prediction or OffsetPrediction()
        self._known = Account()
        self._marked: set[Partition] = set()
        """Partitions in which our last transaction's marker comes after the known end. A marker takes one offset."""
        self._unlisted: set[str] = set()
        """Topics that no committed cut of this session has listed yet."""
        self._unwritten: set[str] = set()
        """Topics that were opened in this session, and that no committed cut has written to. No cut lists them, because
        their schemas may not be registered yet, and the next start would report the schemas as missing."""
        self._full_at = float("-inf")
        self._memory = ""
        """The topic of checkpoints."""
        self._missing: list[str] = []
        """The partitions with missing replicas that were logged last."""

    @property
    def full_is_due(self) -> bool:
        """Whether the next cut has to list every partition of every topic."""
        return time.monotonic() - self._full_at > FULL_CUT_S

    def __contains__(self, topic: str) -> bool:
        return topic in self._known.topics

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic in the ledger."""
        return self._known.topics[topic].partitions

    def ids(self) -> dict[str, str]:
        """Return the id of each topic."""
        return {topic: state.id for topic, state in self._known.topics.items()}

    def end(self, partition: Partition) -> int:
        """Return the end offset that a partition had at the last cut."""
        return self._known.ends.get(partition, 0)

    def watch(self, topic: str, state: TopicState) -> None:
        """Watch ``topic``. If it changes from now on, the session ends."""
        self._known.topics[topic] = state

    def rely_on(self, topic: str, state: TopicState) -> None:
        """Watch the topic of checkpoints. A change of this topic cannot be accepted."""
        self._memory = topic
        self.watch(topic, state)

    def pin(self, states: Mapping[str, TopicState], reached: Mapping[Partition, int] | None = None) -> None:
        """Watch topics that changes are written to, and note the end of each partition.

        ``reached`` has offsets that these partitions have certainly reached.
        """
        partitions = [(topic, partition) for topic, state in states.items() for partition in range(state.partitions)]
        # An outdated broker may report a lower end than the partition really has. If we used that end, the next cut
        # would begin inside an earlier cut.
        ends = self._topics.next_offsets(partitions)
        self._known.ends |= {partition: max(end, (reached or {}).get(partition, 0)) for partition, end in ends.items()}
        self._known.topics |= states
        self._unlisted |= states.keys()
        self._unwritten |= states.keys()

    def recall(self, last: LastCuts, lost: str | None, others: Iterable[str], described: Collection[str]) -> None:
        """Pin the topics that earlier sessions wrote to.

        Raise HistoryError if one of them has changed since, unless such changes are accepted. ``lost`` says what
        happened to the topic of cut records itself, or is None. ``others`` are topics that may have been written to
        without a cut record.

        The schemas of ``described`` topics are registered. A topic without a registered schema is treated as changed.
        If the settings accept that change, the topic stays out of the account until its next row arrives.
        """
        known = last.account
        forgotten = known.topics.keys() - described
        found, changed = compare(self._topics, known, self._given_up)
        sentences = list(changed.values())
        for topic in forgotten:
            found.topics.pop(topic, None)
        if forgotten:
            sentences.insert(0, _undescribed(sorted(forgotten)))
        if lost is not None:
            sentences.insert(0, lost)
        if sentences and not self._accept:
            raise HistoryError(in_words(sentences))
        for sentence in sentences:
            log.warning("a topic has changed, which is accepted", change=sentence)
        new = self._topics.describe([topic for topic in others if topic not in known.topics])
        self.pin(found.topics | new, found.ends)
        self._unwritten.clear()

    def examine(self) -> None:
        """Raise an error if a topic has changed. This also works while a transaction waits for Kafka.

        Log which replicas are missing, because that may be the reason for the wait. librdkafka does not report this
        reason. It only tries again.
        """
        try:
            _, changed = compare(self._topics, Account(self._known.topics), self._given_up)
            missing = self._topics.out_of_sync(self._known.topics)
        except SinkUnavailable:
            return  # Kafka does not answer, which explains the wait
        self._raise_if(changed)
        if missing and missing != self._missing:
            log.warning(
                "Kafka takes no records where fewer replicas are in sync than min.insync.replicas",
                partitions=missing[:_PARTITIONS_SHOWN],
            )
        self._missing = missing

    def following(self, cut: Cut, *, full: bool) -> dict[Partition, int]:
        """Return the end offset of each partition that ``cut`` has to list.

        All records of ``cut`` have to be in Kafka already. Raise an error if a topic has changed.
        """
        produced = cut.produced()
        ends = self._ends_after(produced, self._written(cut) if full else self._listed(cut, produced))
        if full:
            return self._agreed(Account(self._known.topics, ends)).ends
        found = self._topics.next_offsets(list(ends))
        if all(found[partition] >= end for partition, end in ends.items()):
            return found
        return self._agreed(Account(self._known.topics, ends)).ends

    def predict(self, cut: Cut) -> dict[Partition, int] | None:
        """Return the end offsets that ``cut`` will have to list once it is written, or None if they are uncertain.

        The records need not be in Kafka yet, so the cut record can be sent together with them. Call :meth:`mismatch`
        before the commit to find out whether the prediction was right.
        """
        if not self._prediction.is_clear:
            return None
        produced = cut.produced()
        return self._ends_after(produced, self._listed(cut, produced))

    def mismatch(self, predicted: Mapping[Partition, int]) -> SinkUnavailable | None:
        """Return an error if a partition does not end at the predicted offset.

        Return None if all predictions were right, or if transaction markers alone explain the difference.

        All records of the cut have to be in Kafka already. Raise an error if a topic has changed.
        """
        found = self._topics.next_offsets(list(predicted))
        if any(found[partition] < end for partition, end in predicted.items()):
            found = self._agreed(Account(self._known.topics, dict(predicted))).ends
        wrong = sorted(partition for partition, end in predicted.items() if found[partition] != end)
        if not wrong:
            return None
        self._prediction.failed()
        one_more = {partition: predicted[partition] + 1 for partition in wrong}
        if one_more == {partition: found[partition] for partition in wrong} == self._topics.stable_offsets(wrong):
            # Each of these partitions has exactly one more offset than predicted, after the records of this cut, and no
            # transaction is open there. So the additional record is a marker, and it has ended our transaction in this
            # partition. There are two explanations.
            #
            # * A second copy of the previous transaction's marker arrived late. In this case, readers already see the
            #   records of this cut. If we aborted the cut, the next session would write them again, and readers would
            #   see them twice.
            # * Kafka has ended this transaction, for example because it timed out. In this case, Kafka refuses the
            #   commit, so it is safe to try it.
            return None
        topic, partition = wrong[0]
        return SinkUnavailable(
            f"Partition {partition} of topic {topic} ends at offset {found[wrong[0]]} instead of "
            f"{predicted[wrong[0]]}: somebody else has written to it, or Kafka has marked a transaction twice. "
            "The cut is aborted and written again. Only pgsluice may write to its topics, so withdraw that right "
            "from others."
        )

    def committed(self, cut: Cut, following: Mapping[Partition, int], *, full: bool) -> None:
        """Record that ``cut`` is in Kafka, and that partitions end at ``following``."""
        # In a partition that has grown, the marker of the previous transaction has been written. In the others, it may
        # still arrive.
        self._marked -= {partition for partition, end in following.items() if end > self._known.ends[partition]}
        if self._is_atomic:
            self._marked |= cut.produced().keys()
        self._known.ends |= following
        self._unlisted -= {topic for topic, _ in following}
        self._unwritten -= cut.topics.keys()
        self._missing = []
        if full:
            self._full_at = time.monotonic()

    def _ends_after(self, produced: Mapping[Partition, int], partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return where ``partitions`` end after the ``produced`` records, if no other program has written to them.

        A partition in ``_marked`` gets one offset more, for the marker of the previous transaction. Kafka accepts no
        record of a new transaction before that marker is in all partitions of the previous transaction. If we did not
        count the marker, an outdated broker could deceive us. It may have the marker, but not our new record. Then the
        end that it reports would equal the end that we expect after our record.
        """
        ends = self._known.ends
        return {
            one: ends[one] + (produced[one] + (one in self._marked) if one in produced else 0) for one in partitions
        }

    def _written(self, cut: Cut) -> list[Partition]:
        """Return the partitions that a full cut has to list."""
        unwritten = self._unwritten - cut.topics.keys()
        return [partition for partition in self._known.ends if partition[0] not in unwritten]

    def _listed(self, cut: Cut, produced: Mapping[Partition, int]) -> set[Partition]:
        """Return the partitions that ``cut`` has to list if it is not a full cut.

        It lists all partitions of a new topic, so that readers can count them.
        """
        new = self._unlisted & cut.topics.keys()
        return {(topic, number) for topic in new for number in range(self.partitions(topic))} | produced.keys()

    def _agreed(self, known: Account) -> Account:
        found, changed = compare(self._topics, known, self._given_up)
        self._raise_if(changed)
        return found

    def _raise_if(self, changed: Mapping[str, str]) -> None:
        """End the session if a topic has changed.

        The error never stops the process, because a broker with an outdated view may be its cause. Only the start of a
        session stops the process, because it uses new clients, and compares the cluster with the cut records.
        """
        if not changed:
            return
        if self._memory in changed:
            raise SinkUnavailable(
                f"Topic {self._memory}, which says how far changes were delivered, was deleted or changed, or a "
                "broker has an outdated view of it. A new session checks again, and stops if the checkpoint is lost."
            )
        what = _shortened(list(changed.values()))
        if self._accept:
            raise SinkUnavailable(f"{what} A new session continues with the topics as they are.")
        raise SinkUnavailable(
            f"{what} Or the broker that answered has an outdated view of its cluster. A new session checks again, and "
            "stops if it finds the same."
        )


def compare(topics: Topics, known: Account, given_up: threading.Event) -> tuple[Account, dict[str, str]]:
    """Return the cluster's account of the known topics, and a sentence for each topic that has changed.

    We believe in a change only if every answer within CONFIRM_S shows it. If one answer agrees with ``known``, we
    dismiss the change, because the other answers must be outdated.
    """
    found = topics.account(known)
    end = time.monotonic() + CONFIRM_S
    while changes(known, found) and time.monotonic() <= end:
        if given_up.wait(AGAIN_S):
            raise SinkUnavailable("Comparing topics was abandoned because the session ends.")
        with closing(topics.another()) as others:
            again = others.account(known)
        if not changes(known, again) or not found.is_newer(again):
            found = again
    return found, changes(known, found)


def read_last_cuts(
    tail: Tail,
    decode: Callable[[bytes], Mapping[str, Any]],
    committed: int | None = None,
) -> LastCuts:
    """Return the last full cut and the cuts after it, but at least two cuts.

    Leave out the cuts after cut ``committed``. If a record is not a cut record, the result has only the reason, with
    the offset of that record. If retention has deleted all records, the result is empty, which is not an error.
    """
    last = LastCuts()
    for values in tail.windows():
        last = LastCuts()
        try:
            for record in map(decode, values):
                if committed is None or record["cut"] <= committed:
                    last.add(record)
        except ValueError as error:
            return LastCuts(unreadable=f"at offset {tail.offset}, {error}")
        if last.is_complete and len(last.positions) > 1:
            break
    return last


def lost_cuts(topic: str, last: LastCuts, low: int, committed: int) -> str | None:
    """Return a sentence if the topic of cut records is not as earlier sessions left it. Otherwise return None.

    ``low`` is the first offset of the topic. ``committed`` is the number of the last cut that is known to be committed.
    """
    if last.unreadable is not None:
        return f"Topic {topic} has a record that is not a cut record: {last.unreadable}. Only pgsluice may write to it."
    # If retention has deleted records, the first offset of the topic is above 0. The topic may have no cut record left.
    # Its only record may be the session's probe, which is not a cut record.
    if last.number >= committed or (low and not last.number):
        return None
    held = f"ends with cut {last.number}" if last.number else "is empty"
    sentence = (
        f"Topic {topic} {held}, but cut {committed} was committed: it was deleted, or Kafka lost records. "
        "Consumers that use its records to read consistent states miss some cuts."
    )
    if last.number != committed - 1:
        return sentence
    return (
        f"{sentence} Or cut {committed} was aborted, but a transaction marker that arrived late makes its checkpoint "
        "visible, and compaction has deleted the checkpoint before it. In this case, no topic has the changes of that "
        "cut, and they will not be delivered, so compare the tables."
    )


def _undescribed(topics: list[str]) -> str:
    others = f" (and those of {len(topics) - 1} more topics)" if len(topics) > 1 else ""
    return (
        f"The schemas of topic {topics[0]}{others} are not registered any more: the topic of schemas was deleted, or "
        "lost records, or the broker that answered has lost touch with its cluster. First start pgsluice "
        "again, because such a broker can cause this message. If the message comes again, consumers cannot read the "
        "records in the topic. Restore the topic of schemas from a copy. Without a copy, the schemas in use are "
        "registered again, under the same ids, as rows are published."
    )


def in_words(sentences: list[str]) -> str:
    """Return one message with all sentences and the remedy."""
    return f"{_shortened(sentences)} {_REMEDY}"


def _shortened(sentences: list[str]) -> str:
    """Return the first few sentences, and the number of the others."""
    shown, rest = sentences[:5], len(sentences) - 5
    more = f" And {rest} more topics have changed." if rest > 0 else ""
    return f"{' '.join(shown)}{more}"
