"""A session's account of the topics it writes to, compared with the cluster: at its start, at cuts, when writes hang.

Used by the sink, in its worker thread. Kafka itself notices nothing: a producer goes on in a topic made anew as if it
were the former one, and waits for a deleted one to come back.
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
from pgsluice.kafka.account import Account, LastCuts, Place, TopicState, changes
from pgsluice.kafka.tail import Tail
from pgsluice.kafka.topics import Topics

log = structlog.get_logger(__name__)

FULL_CUT_S = 45.0
"""When the next cut is a full one: with a cut every 10 s at least, there is one a minute."""

CONFIRM_S = 5.0
"""How long every answer has to show a change: brokers hear of a topic, and of its new leaders, one after the other,
and one that lost touch with its cluster does not hear of them at all."""

DISTRUST_S = 600.0
"""How long to go without predictions after one turned out wrong: whatever caused that may do so again."""

AGAIN_S = 0.25
"""Between two answers about a change, each of which is asked for by a client of its own."""

_PARTITIONS_SHOWN = 10

_REMEDY = (
    'See to the consumers, then start once with kafka.topics.changed = "accept": it goes on with the topics as they '
    f"are. If the consumers lack rows, {LOAD_AGAIN}"
)


class OffsetPrediction:
    """Whether the end offsets of a cut can be predicted. All sessions of a process share it."""

    def __init__(self) -> None:
        self._wrong_at = float("-inf")

    @property
    def is_clear(self) -> bool:
        """Whether no prediction has turned out wrong lately."""
        return time.monotonic() - self._wrong_at > DISTRUST_S

    def failed(self) -> None:
        """Note that a prediction turned out wrong."""
        self._wrong_at = time.monotonic()


class Ledger:
    """Topics with their ids, partitions and ends. Every method may block, until ``given_up`` is set at the latest."""

    def __init__(
        self,
        topics: Topics,
        given_up: threading.Event,
        *,
        accept: bool,
        is_atomic: bool = True,
        prediction: OffsetPrediction | None = None,
    ) -> None:
        """``accept``: a new session goes on with what changed, instead of none. ``is_atomic``: in transactions."""
        self._topics = topics
        self._given_up = given_up
        self._accept = accept
        self._is_atomic = is_atomic
        self._prediction = prediction or OffsetPrediction()
        self._known = Account()
        self._marked: set[Place] = set()
        """Partitions whose known end is followed by the marker of a transaction, which takes an offset, too."""
        self._unlisted: set[str] = set()
        self._full_at = float("-inf")
        self._memory = ""
        self._missing: list[str] = []
        """Replicas, as last said."""

    @property
    def full_is_due(self) -> bool:
        """Whether the next cut has to list everything."""
        return time.monotonic() - self._full_at > FULL_CUT_S

    def __contains__(self, topic: str) -> bool:
        return topic in self._known.topics

    def partitions(self, topic: str) -> int:
        """Return how many partitions a pinned topic has."""
        return self._known.topics[topic].partitions

    def ids(self) -> dict[str, str]:
        """Return the topics' ids."""
        return {topic: state.id for topic, state in self._known.topics.items()}

    def end(self, place: Place) -> int:
        """Return where a partition ended at the last cut."""
        return self._known.ends.get(place, 0)

    def watch(self, topic: str, state: TopicState) -> None:
        """From now on the topic must stay what it is."""
        self._known.topics[topic] = state

    def rely_on(self, topic: str, state: TopicState) -> None:
        """As :meth:`watch`; this one tells where to go on, so nothing can be accepted."""
        self._memory = topic
        self.watch(topic, state)

    def pin(self, states: Mapping[str, TopicState], reached: Mapping[Place, int] | None = None) -> None:
        """Watch topics that changes are written to, with their ends, which have ``reached`` these offsets at least."""
        places = [(topic, partition) for topic, state in states.items() for partition in range(state.partitions)]
        # An outdated broker may not know all that was reached, and the next cut would begin inside a former one.
        ends = self._topics.next_offsets(places)
        self._known.ends |= {place: max(end, (reached or {}).get(place, 0)) for place, end in ends.items()}
        self._known.topics |= states
        self._unlisted |= states.keys()

    def recall(self, last: LastCuts, lost: str | None, others: Iterable[str], described: Collection[str]) -> None:
        """Pin what earlier sessions wrote to. HistoryError when something happened to it since, unless accepted.

        ``lost`` says what happened to the cut records themselves; ``others`` may have been written to, too. What is
        not ``described`` has lost its schema; once accepted, it is out of the account until its next row.
        """
        known = last.account
        forgotten = known.topics.keys() - described
        found, changed = self._compare(known)
        sentences = list(changed.values())
        for topic in forgotten:
            found.topics.pop(topic, None)
        if forgotten:
            sentences.insert(0, _undescribed(sorted(forgotten)))
        if lost is not None:
            sentences.insert(0, lost)
        if sentences and not self._accept:
            raise HistoryError(_in_words(sentences))
        for sentence in sentences:
            log.warning("a topic has changed, which is accepted", change=sentence)
        new = self._topics.describe([topic for topic in others if topic not in known.topics])
        self.pin(found.topics | new, found.ends)

    def examine(self) -> None:
        """Raise if something happened to a topic; also while a transaction waits for Kafka.

        Say which replicas are missing, if that may be why: librdkafka tries again without a word.
        """
        try:
            _, changed = self._compare(Account(self._known.topics))
            missing = self._topics.out_of_sync(self._known.topics)
        except SinkUnavailable:
            return  # then this is the reason for waiting, and no topic
        self._raise_if(changed)
        if missing and missing != self._missing:
            log.warning(
                "Kafka takes nothing where fewer replicas are in sync than min.insync.replicas",
                partitions=missing[:_PARTITIONS_SHOWN],
            )
        self._missing = missing

    def following(self, cut: Cut, *, full: bool) -> dict[Place, int]:
        """Return the ends of the partitions that ``cut`` has to list; raise if something happened to a topic.

        Everything in ``cut`` is in Kafka by then.
        """
        produced = cut.produced()
        ends = self._ends_behind(produced, self._known.ends.keys() if full else self._listed(cut, produced))
        if full:
            return self._agreed(Account(self._known.topics, ends)).ends
        found = self._topics.next_offsets(list(ends))
        if all(found[place] >= end for place, end in ends.items()):
            return found
        return self._agreed(Account(self._known.topics, ends)).ends

    def predict(self, cut: Cut) -> dict[Place, int] | None:
        """Return the end offsets that ``cut`` will have to list once it is written; None if they cannot be predicted.

        The records need not be in Kafka yet, so the cut record can be sent together with them. Call :meth:`mismatch`
        before the commit to find out whether the prediction was right.
        """
        if not self._prediction.is_clear:
            return None
        produced = cut.produced()
        return self._ends_behind(produced, self._listed(cut, produced))

    def mismatch(self, predicted: Mapping[Place, int]) -> SinkUnavailable | None:
        """Return what is wrong if partitions do not end where they were predicted to; None if all do.

        All records of the cut have to be in Kafka by now. Raises if something happened to a topic.
        """
        found = self._topics.next_offsets(list(predicted))
        if any(found[place] < end for place, end in predicted.items()):
            found = self._agreed(Account(self._known.topics, dict(predicted))).ends
        wrong = sorted(place for place, end in predicted.items() if found[place] != end)
        if not wrong:
            return None
        self._prediction.failed()
        behind = {place: predicted[place] + 1 for place in wrong}
        if behind == {place: found[place] for place in wrong} == self._topics.stable_offsets(wrong):
            # Nothing but a marker, behind the cut's records, and it has ended the transaction there. As a late copy of
            # the former transaction's it shows them to readers, and giving the cut up would write them again. Or this
            # transaction was ended for good: then Kafka refuses the commit.
            return None
        topic, partition = wrong[0]
        return SinkUnavailable(
            f"Partition {partition} of topic {topic} ends at offset {found[wrong[0]]} instead of "
            f"{predicted[wrong[0]]}: somebody else has written to it, or Kafka has marked a transaction twice. The cut "
            "is given up, and written again. Only pgsluice may write to its topics: take that right away from others."
        )

    def committed(self, cut: Cut, following: Mapping[Place, int], *, full: bool) -> None:
        """Note that ``cut``, with these ends, is in Kafka."""
        # Where nothing was written, the marker of the transaction before may still be on its way.
        self._marked -= {place for place, end in following.items() if end > self._known.ends[place]}
        if self._is_atomic:
            self._marked |= cut.produced().keys()
        self._known.ends |= following
        self._unlisted -= {topic for topic, _ in following}
        self._missing = []
        if full:
            self._full_at = time.monotonic()

    def _ends_behind(self, produced: Mapping[Place, int], places: Iterable[Place]) -> dict[Place, int]:
        """Return where ``places`` end behind what was ``produced``, if nobody else has written.

        The marker of the transaction before is in all its partitions before Kafka takes anything of the next one.
        Without it, the end that an outdated broker knows, marker included, would pass for the one behind our record.
        """
        ends = self._known.ends
        return {
            place: ends[place] + (produced[place] + (place in self._marked) if place in produced else 0)
            for place in places
        }

    def _listed(self, cut: Cut, produced: Mapping[Place, int]) -> set[Place]:
        """Return the partitions that ``cut`` has to list, unless it is a full one."""
        new = self._unlisted & cut.topics.keys()  # of these all partitions, so that their number can be read back
        return {(topic, number) for topic in new for number in range(self.partitions(topic))} | produced.keys()

    def _agreed(self, known: Account) -> Account:
        found, changed = self._compare(known)
        self._raise_if(changed)
        return found

    def _compare(self, known: Account) -> tuple[Account, dict[str, str]]:
        """Return what the cluster has of the topics known, and what has changed, if every answer for a while shows it.

        One answer that agrees with what is known is enough: then the others were outdated.
        """
        found = self._topics.account(known)
        end = time.monotonic() + CONFIRM_S
        while changes(known, found) and time.monotonic() <= end:
            if self._given_up.wait(AGAIN_S):
                raise SinkUnavailable("Comparing topics was given up because the session ends.")
            with closing(self._topics.another()) as others:
                again = others.account(known)
            if not changes(known, again) or not found.is_newer(again):
                found = again
        return found, changes(known, found)

    def _raise_if(self, changed: Mapping[str, str]) -> None:
        """End the session if something has changed.

        Only the start of a session stops the process: it asks with clients of its own, and compares with what the cut
        records say. Here a broker with an outdated view may still be the reason.
        """
        if not changed:
            return
        if self._memory in changed:
            raise SinkUnavailable(
                f"Topic {self._memory}, which tells how far changes were delivered, was deleted or changed, or a "
                "broker has an outdated view of it. A new session looks again, and stops if the checkpoint is lost."
            )
        what = _shortened(list(changed.values()))
        if self._accept:
            raise SinkUnavailable(f"{what} A new session goes on with the topics as they are.")
        raise SinkUnavailable(
            f"{what} If a broker with an outdated view has said so, nothing is wrong. A new session looks again, and "
            "stops if it finds the same."
        )


def read_last_cuts(
    tail: Tail,
    decode: Callable[[bytes], Mapping[str, Any]],
    committed: int | None = None,
) -> LastCuts:
    """Return the last full cut with those after it, two cuts at least; nothing of them where a record is no cut record.

    Records of cuts behind ``committed`` are left out. When retention has deleted every record, nothing is known, and
    nothing is wrong.
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
    """Return a sentence if the topic of cut records, which begins at ``low``, is not what earlier sessions left.

    ``committed``: the number of the last cut that is known to be committed.
    """
    if last.unreadable is not None:
        return f"Topic {topic} has a record that is no cut record: {last.unreadable}. Only pgsluice may write to it."
    # Where retention has deleted something, the beginning has moved. The mark is always there, and no cut record.
    if last.number >= committed or (low and not last.number):
        return None
    held = f"ends with cut {last.number}" if last.number else "is empty"
    sentence = (
        f"Topic {topic} {held}, but cut {committed} was committed: it was deleted, or Kafka lost records. Those who "
        "read consistent states by its records miss some."
    )
    if last.number != committed - 1:
        return sentence
    return (
        f"{sentence} Or cut {committed} was aborted, a transaction marker that arrived late shows its checkpoint, and "
        "Kafka has compacted the one before away. Then no topic has the changes of that cut, and they will not be "
        "delivered: compare the tables."
    )


def _undescribed(topics: list[str]) -> str:
    others = f" (and those of {len(topics) - 1} more topics)" if len(topics) > 1 else ""
    return (
        f"The schemas of topic {topics[0]}{others} are not registered any more: the topic of schemas was deleted, or "
        "lost records, or the broker that answered has lost touch with its cluster. Start again first: then the last "
        "of these is over. If it was another, consumers cannot read what is there without them. Bring them back from "
        "a copy, if there is one; else those that are in use come back, under the same ids, as rows are published."
    )


def _in_words(sentences: list[str]) -> str:
    """Return one message for all that happened, with what to do about it."""
    return f"{_shortened(sentences)} {_REMEDY}"


def _shortened(sentences: list[str]) -> str:
    """Return what happened in a few sentences, short enough to be read."""
    shown, rest = sentences[:5], len(sentences) - 5
    more = f" And {rest} more topics have changed." if rest > 0 else ""
    return f"{' '.join(shown)}{more}"
