"""What the last cut records say about the topics (the account), and its comparison with the present topics."""

from typing import Any

import pytest

from pgsluice.kafka.account import Account, LastCuts, TopicState, changes

ORDERS, ITEMS = "shop.public.orders", "shop.public.items"


def record(cut: int, topics: dict[str, dict[int, int]], *, full: bool = False, part: int = 0) -> dict[str, Any]:
    entries = [
        {
            "topic": topic,
            "topic_id": f"id of {topic}",
            "offsets": [{"partition": partition, "first": 0, "next": end} for partition, end in ends.items()],
        }
        for topic, ends in topics.items()
    ]
    return {"cut": cut, "end_lsn": 100 * cut, "epoch": 1 + cut // 4, "full": full, "part": part, "topics": entries}


def last_cuts(*records: dict[str, Any]) -> LastCuts:
    found = LastCuts()
    for one in records:
        found.add(one)
    return found


def state(topic: str, partitions: int) -> TopicState:
    return TopicState(f"id of {topic}", partitions)


class TestLastCuts:
    def test_without_records_the_account_is_empty(self) -> None:
        found = last_cuts()
        assert (found.number, found.epoch, found.is_complete, found.account) == (0, 0, False, Account())

    def test_the_last_cut_has_the_highest_number(self) -> None:
        found = last_cuts(record(1, {}), record(3, {}), record(2, {}))
        assert (found.number, found.end_lsn) == (3, 300)

    def test_the_positions_of_the_last_two_cuts_are_known(self) -> None:
        """If two records have the same number, the later one counts, because the cut of the earlier one was aborted."""
        aborted = {**record(3, {}), "epoch": 9, "end_lsn": 7}
        assert last_cuts(record(1, {}), record(2, {}), aborted, record(3, {})).positions == {2: (1, 200), 3: (1, 300)}
        assert last_cuts(record(3, {}), record(1, {})).positions == {3: (1, 300)}

    def test_the_account_begins_at_the_last_full_cut(self) -> None:
        found = last_cuts(
            record(1, {"dropped": {0: 5}}, full=True),
            record(2, {ORDERS: {0: 7, 1: 8}}, full=True),
            record(3, {ORDERS: {1: 10}}),
            record(4, {ITEMS: {0: 1, 1: 0, 2: 0}}),
            record(5, {ITEMS: {2: 4}}),
        )
        assert (found.number, found.epoch, found.is_complete) == (5, 2, True)
        assert found.account.topics == {ORDERS: state(ORDERS, 2), ITEMS: state(ITEMS, 3)}
        assert found.account.ends == {(ORDERS, 0): 7, (ORDERS, 1): 10, (ITEMS, 0): 1, (ITEMS, 1): 0, (ITEMS, 2): 4}

    def test_a_full_cut_may_have_several_parts(self) -> None:
        parts = record(2, {ORDERS: {0: 7}}, full=True), record(2, {ITEMS: {0: 1}}, full=True, part=1)
        found = last_cuts(record(1, {"dropped": {0: 5}}), *parts)
        assert found.account.topics == {ORDERS: state(ORDERS, 1), ITEMS: state(ITEMS, 1)}

    def test_a_full_cut_without_its_first_part_is_incomplete(self) -> None:
        found = last_cuts(record(2, {ITEMS: {0: 1}}, full=True, part=1), record(3, {ORDERS: {1: 3}}))
        assert not found.is_complete
        assert found.account.topics == {ORDERS: state(ORDERS, 0), ITEMS: state(ITEMS, 0)}

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"cut": 2**63 - 1}, "its 'cut' is 9223372036854775807, outside 0 to 4611686018427387904"),
            ({"epoch": -1}, "its 'epoch' is -1, outside 0 to 1073741824"),
            ({"end_lsn": -1}, "its 'end_lsn' is -1"),
            ({"part": -1}, "its 'part' is -1"),
            ({"topics": record(1, {"a/b": {}})["topics"]}, "it names a topic that Kafka cannot have"),
            ({"topics": record(1, {"": {}})["topics"]}, "it names a topic that Kafka cannot have"),
            ({"topics": record(1, {"..": {}})["topics"]}, "it names a topic that Kafka cannot have"),
            ({"topics": record(1, {ORDERS: {2**31 - 1: 1}})["topics"]}, "its 'partition' is 2147483647, outside"),
            ({"topics": record(1, {ORDERS: {0: -1}})["topics"]}, "its 'next' is -1, outside"),
        ],
    )
    def test_impossible_records_are_refused(self, change: dict[str, Any], complaint: str) -> None:
        found = LastCuts()
        with pytest.raises(ValueError, match=f"^{complaint}"):
            found.add({**record(1, {}), **change})
        assert found.account == Account()


KNOWN = Account({ORDERS: state(ORDERS, 2)}, {(ORDERS, 0): 10, (ORDERS, 1): 20})


class TestChanges:
    @pytest.mark.parametrize("ends", [(10, 20), (11, 25)])
    def test_new_records_are_not_a_change(self, ends: tuple[int, int]) -> None:
        found = Account({ORDERS: state(ORDERS, 2)}, {(ORDERS, number): end for number, end in enumerate(ends)})
        assert changes(KNOWN, found) == {}

    def test_unknown_values_are_not_compared(self) -> None:
        assert changes(Account({ORDERS: TopicState("", 0)}), Account({ORDERS: state(ORDERS, 7)})) == {}
        assert changes(Account({ORDERS: state(ORDERS, 7)}), Account({ORDERS: TopicState("", 7)})) == {}

    @pytest.mark.parametrize(
        ("found", "beginning"),
        [
            (Account(), f"Topic {ORDERS} was deleted. Consumers miss"),
            (Account({ORDERS: TopicState("other", 2)}), f"Topic {ORDERS} was deleted and created again. Consumers"),
            (
                Account({ORDERS: state(ORDERS, 3)}, dict(KNOWN.ends)),
                f"Topic {ORDERS} has 3 partitions now instead of 2, so keys move",
            ),
            (
                Account({ORDERS: state(ORDERS, 2)}, {(ORDERS, 0): 10, (ORDERS, 1): 19}),
                f"Partition 1 of topic {ORDERS} ends at offset 19, although records were written to it up to 20. ",
            ),
            (
                Account({ORDERS: state(ORDERS, 2)}, {(ORDERS, 0): 9, (ORDERS, 1): 19}),
                (
                    f"Partition 0 of topic {ORDERS} ends at offset 9, although records were written to it up to 10. "
                    "Records are missing in 1 more of its partitions as well. The topic was emptied"
                ),
            ),
        ],
    )
    def test_the_change_of_a_topic_is_described(self, found: Account, beginning: str) -> None:
        (sentence,) = changes(KNOWN, found).values()
        assert sentence.startswith(beginning)

    def test_the_changes_of_all_topics_are_described(self) -> None:
        known = Account({ORDERS: state(ORDERS, 2), ITEMS: state(ITEMS, 1), "same": state("same", 1)})
        found = changes(known, Account({"same": state("same", 1)}))
        assert [(topic, sentence.split()[1]) for topic, sentence in found.items()] == [(ITEMS, ITEMS), (ORDERS, ORDERS)]


def test_the_answer_of_a_later_leader_is_newer() -> None:
    former, later = (Account(leader_epochs={(ORDERS, 0): epoch}) for epoch in (3, 4))
    assert later.is_newer(former)
    assert not former.is_newer(later)
    assert not later.is_newer(Account())
