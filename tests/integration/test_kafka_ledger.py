"""Tests that pgsluice reports what other programs do to topics, between sessions and during a session."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from threading import Event, Timer
from typing import Any

import pytest
import structlog

from pgsluice import cut as cuts
from pgsluice.checkpoint import last_checkpoint
from pgsluice.cut import Cut
from pgsluice.errors import HistoryError, SinkUnavailable
from pgsluice.kafka import ledger, producer, topics
from pgsluice.kafka.account import Account, LastCuts, Partition, TopicState
from pgsluice.kafka.ledger import Ledger, OffsetPrediction, lost_cuts, read_last_cuts
from pgsluice.kafka.tail import FIRST_WINDOW, Tail
from pgsluice.kafka.topic_spec import TopicSpec
from pgsluice.kafka.topics import Topics
from pgsluice.record import Target
from sandbox.kafka import Kafka
from tests.support.kafka import (
    TIMEOUT_S,
    add_partitions,
    client_options,
    commit,
    create_topic,
    delete_records,
    delete_topic,
    end_of,
    paused,
    read_committed,
    transaction,
    wait_for_end,
)
from tests.support.sink import Session, cut_records, insert, offsets, policy

REMEDY = r'.*start once with kafka\.topics\.changed = "accept"'
LOOKS_AGAIN = r".*A new session checks again, and stops if it finds the same\."
PARTITIONS = 2


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "CONFIRM_S", 0.5)
    monkeypatch.setattr(producer, "STALL_S", 1.0)


@pytest.fixture
def _always_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "FULL_CUT_S", 0.0)


@pytest.fixture
def items(prefix: str) -> Target:
    return Target(f"{prefix}.public.items", 21, 22)


def delete(kafka: Kafka, topic: str) -> None:
    delete_topic(kafka, topic)


def create_again(kafka: Kafka, topic: str) -> None:
    delete_topic(kafka, topic)
    create_topic(kafka, topic, PARTITIONS)


def raise_partitions(kafka: Kafka, topic: str) -> None:
    add_partitions(kafka, topic, PARTITIONS + 3)


Interference = Callable[[Kafka, str], None]
INTERFERENCES = pytest.mark.parametrize(
    ("interference", "sentence"),
    [
        (delete, "Topic {} was deleted. Consumers miss"),
        (create_again, "Topic {} was deleted and created again. Consumers miss"),
        (raise_partitions, "Topic {} has 5 partitions now instead of 2, so keys move"),
    ],
)


async def written(kafka: Kafka, prefix: str, *targets: Target) -> None:
    """Write to topics in a separate session."""
    async with Session(kafka, prefix) as session:
        for target in targets:
            await session.sink.open_topic(policy(target, PARTITIONS), keyed=True)
            await session.deliver(*(insert(target, n) for n in range(10)))


async def refuses_to_start(kafka: Kafka, prefix: str, sentence: str) -> None:
    with pytest.raises(HistoryError, match=sentence):
        async with Session(kafka, prefix):
            pass


async def deliver_with(session: Session, described: list[str]) -> None:
    """Deliver a cut in a session in which only the topics in ``described`` have a schema."""
    try:
        await session.sink.prepare()
        await session.sink.fence()
        session.checkpoint = last_checkpoint(await session.sink.checkpoints()) or session.checkpoint
        await session.sink.recorded()
        await session.sink.open_topics(session.checkpoint.cut, described, described)
        await session.deliver()
    finally:
        await session.sink.close()


async def last_cut(kafka: Kafka, prefix: str) -> dict[str, Any]:
    return (await asyncio.to_thread(cut_records, kafka, prefix))[-1]


class TestBetweenSessions:
    @INTERFERENCES
    async def test_a_change_stops_every_start_until_it_is_accepted(
        self, kafka: Kafka, prefix: str, orders: Target, items: Target, interference: Interference, sentence: str
    ) -> None:
        await written(kafka, prefix, orders, items)
        await asyncio.to_thread(interference, kafka, orders.topic)
        said = sentence.format(orders.topic)
        await refuses_to_start(kafka, prefix, said + REMEDY)
        await refuses_to_start(kafka, prefix, said + REMEDY)
        with structlog.testing.capture_logs() as lines:
            async with Session(kafka, prefix, accept=True) as session:
                await session.deliver()
        (line,) = [line for line in lines if line["log_level"] == "warning"]
        assert line["change"].startswith(said)
        full = await last_cut(kafka, prefix)
        assert full["full"]
        partitions = [at[1] for at in offsets(full) if at[0] == orders.topic]
        assert len(partitions) == (
            0 if interference is delete else 5 if interference is raise_partitions else PARTITIONS
        )
        assert [at[1] for at in offsets(full) if at[0] == items.topic] == [0, 1]
        async with Session(kafka, prefix) as session:
            await session.sink.open_topic(policy(orders, PARTITIONS), keyed=True)
            await session.deliver(*(insert(orders, n) for n in range(10)))
        found = {
            place: ends for place, ends in offsets(await last_cut(kafka, prefix)).items() if place[0] == orders.topic
        }
        assert len(found) == (5 if interference is raise_partitions else PARTITIONS)
        assert {place: end_of(kafka, *place) for place in found} == {
            place: end + 1 for place, (_, end) in found.items()
        }

    async def test_records_that_were_lost_between_sessions_are_noticed(
        self, kafka: Kafka, prefix: str, orders: Target
    ) -> None:
        """An unclean leader election loses records. Here, the cut record claims more records than were written."""
        await written(kafka, prefix, orders)
        cut = await last_cut(kafka, prefix)
        written_to = cut["topics"][0]["offsets"][1]["next"]
        cut["topics"][0]["offsets"][1]["next"] += 100
        await asyncio.to_thread(commit, kafka, f"{prefix}.transactions", json.dumps(cut).encode())
        end = written_to + 100
        sentence = rf"Partition 1 of topic {orders.topic} ends at offset {written_to + 1}, although .* up to {end}"
        await refuses_to_start(kafka, prefix, sentence + REMEDY)

    async def test_a_start_ignores_records_that_retention_deleted(
        self, kafka: Kafka, prefix: str, orders: Target
    ) -> None:
        await written(kafka, prefix, orders)
        for partition in range(PARTITIONS):
            await asyncio.to_thread(delete_records, kafka, orders.topic, partition)
        async with Session(kafka, prefix) as session:
            await session.deliver()
        await asyncio.to_thread(delete_records, kafka, f"{prefix}.transactions")
        async with Session(kafka, prefix) as session:
            await session.open_topics(orders.topic)
            await session.deliver()
        await asyncio.to_thread(delete, kafka, orders.topic)
        await refuses_to_start(kafka, prefix, f"Topic {orders.topic} was deleted")

    async def test_deleted_cut_records_are_noticed(self, kafka: Kafka, prefix: str, orders: Target) -> None:
        await written(kafka, prefix, orders)
        await asyncio.to_thread(delete, kafka, f"{prefix}.transactions")
        sentence = rf"Topic {prefix}.transactions is empty, but cut 1 was committed: it was deleted"
        await refuses_to_start(kafka, prefix, sentence + REMEDY)
        async with Session(kafka, prefix, accept=True) as session:
            await session.open_topics(orders.topic)
            await session.deliver()
        assert offsets(await last_cut(kafka, prefix)).keys() == {(orders.topic, n) for n in range(PARTITIONS)}

    async def test_schemas_that_no_longer_exist_are_noticed(
        self, kafka: Kafka, prefix: str, orders: Target, items: Target
    ) -> None:
        """After the loss is accepted, a topic's schema may be missing until the topic's next row registers it again."""
        await written(kafka, prefix, orders, items)
        described = [items.topic]
        with pytest.raises(HistoryError, match=f"The schemas of topic {orders.topic} are not registered any more"):
            await deliver_with(Session(kafka, prefix), described)
        await deliver_with(Session(kafka, prefix, accept=True), described)
        assert {topic for topic, _ in offsets(await last_cut(kafka, prefix))} == set(described)
        await deliver_with(Session(kafka, prefix), described)

    async def test_cut_records_that_end_too_soon_are_noticed(self, kafka: Kafka, prefix: str, orders: Target) -> None:
        await written(kafka, prefix, orders)
        cut = await last_cut(kafka, prefix)
        async with Session(kafka, prefix) as session:
            await session.deliver()
        await asyncio.to_thread(delete, kafka, f"{prefix}.transactions")
        await asyncio.to_thread(create_topic, kafka, f"{prefix}.transactions")
        await asyncio.to_thread(commit, kafka, f"{prefix}.transactions", json.dumps(cut).encode())
        await refuses_to_start(kafka, prefix, f"Topic {prefix}.transactions ends with cut 1, but cut 2 was committed")

    async def test_a_foreign_record_among_the_cut_records_is_noticed(
        self, kafka: Kafka, prefix: str, orders: Target
    ) -> None:
        await written(kafka, prefix, orders)
        await asyncio.to_thread(commit, kafka, f"{prefix}.transactions", b"foreign")
        await refuses_to_start(
            kafka, prefix, f"Topic {prefix}.transactions has a record that is not a cut record: at offset "
        )
        async with Session(kafka, prefix, accept=True) as session:
            await session.open_topics(orders.topic)
            await session.deliver()

    async def test_changes_are_noticed_if_the_last_full_cut_is_old_and_in_parts(
        self, kafka: Kafka, prefix: str, orders: Target, items: Target, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await written(kafka, prefix, orders, items)
        monkeypatch.setattr(cuts, "MAX_PART_BYTES", 1)
        async with Session(kafka, prefix) as session:
            for _ in range(FIRST_WINDOW):
                await session.deliver()
            await session.sink.open_topic(policy(items, PARTITIONS), keyed=True)
            await session.deliver(insert(items, 1))
        records = await asyncio.to_thread(cut_records, kafka, prefix)
        assert [cut["parts"] for cut in records if cut["full"]] == [1, 2, 2]
        await asyncio.to_thread(raise_partitions, kafka, items.topic)
        await asyncio.to_thread(delete, kafka, orders.topic)
        both = f"Topic {items.topic} has 5 partitions now instead of 2.* Topic {orders.topic} was deleted"
        await refuses_to_start(kafka, prefix, both)

    async def test_the_first_cut_of_a_topic_lists_all_its_partitions(
        self, kafka: Kafka, prefix: str, orders: Target, items: Target
    ) -> None:
        """No full cut lists the topic's partitions yet, so the first cut of the topic must list all of them."""
        async with Session(kafka, prefix) as session:
            await session.deliver()
            for target in (orders, items):
                await session.sink.open_topic(policy(target, PARTITIONS), keyed=True)
            await session.deliver(insert(orders, 1))
            await session.deliver(insert(orders, 2))
        _, first, second = (offsets(cut) for cut in await asyncio.to_thread(cut_records, kafka, prefix))
        assert first.keys() == {(orders.topic, 0), (orders.topic, 1)}
        assert len(second) == 1
        await asyncio.to_thread(raise_partitions, kafka, orders.topic)
        await refuses_to_start(kafka, prefix, f"Topic {orders.topic} has 5 partitions now instead of 2")

    @pytest.mark.usefixtures("_always_full")
    async def test_a_topic_without_changes_is_in_no_cut(
        self, kafka: Kafka, prefix: str, orders: Target, items: Target
    ) -> None:
        """The schemas of a topic without changes may not be registered yet.

        If a cut listed the topic, the next start would report that its schemas are missing.
        """
        async with Session(kafka, prefix) as session:
            await session.sink.prepare_topics([policy(orders, PARTITIONS), policy(items, PARTITIONS)])
            await session.sink.open_topic(policy(orders, PARTITIONS), keyed=True)
            await session.deliver()
            await session.deliver(insert(orders, 1))
            await session.deliver()
        listed = [offsets(cut).keys() for cut in await asyncio.to_thread(cut_records, kafka, prefix)]
        both = {(orders.topic, 0), (orders.topic, 1)}
        assert listed == [set(), both, both]


class TestDuringASession:
    @INTERFERENCES
    @pytest.mark.usefixtures("_always_full")
    async def test_a_change_is_detected_without_traffic(
        self, kafka: Kafka, prefix: str, orders: Target, interference: Interference, sentence: str
    ) -> None:
        """The next full cut must detect the change."""
        async with Session(kafka, prefix) as session:
            await session.sink.open_topic(policy(orders, PARTITIONS), keyed=True)
            await session.deliver(insert(orders, 1))
            await asyncio.to_thread(interference, kafka, orders.topic)
            with pytest.raises(SinkUnavailable, match=sentence.format(orders.topic) + LOOKS_AGAIN):
                await session.deliver()
        assert len(await asyncio.to_thread(cut_records, kafka, prefix)) == 1
        await refuses_to_start(kafka, prefix, sentence.format(orders.topic) + REMEDY)

    @pytest.mark.usefixtures("_always_full")
    async def test_if_the_change_is_accepted_the_next_session_continues(
        self, kafka: Kafka, prefix: str, orders: Target
    ) -> None:
        async with Session(kafka, prefix, accept=True) as session:
            await session.sink.open_topic(policy(orders, PARTITIONS), keyed=True)
            await session.deliver(insert(orders, 1))
            await asyncio.to_thread(raise_partitions, kafka, orders.topic)
            with pytest.raises(SinkUnavailable, match=r"has 5 partitions now .* A new session continues"):
                await session.deliver()
        async with Session(kafka, prefix, accept=True) as session:
            await session.sink.open_topic(policy(orders, PARTITIONS), keyed=True)
            await session.deliver(*(insert(orders, n) for n in range(50)))
        assert {number for _, number in offsets(await last_cut(kafka, prefix))} == set(range(5))

    @INTERFERENCES
    async def test_a_change_is_detected_when_the_topic_is_written_to(
        self, kafka: Kafka, prefix: str, orders: Target, interference: Interference, sentence: str
    ) -> None:
        """Additional partitions do no harm before the next full cut, because records go to the former partitions."""
        async with Session(kafka, prefix, timeout_s=600) as session:
            await session.sink.open_topic(policy(orders, PARTITIONS), keyed=True)
            await session.deliver(*(insert(orders, n) for n in range(10)))
            await asyncio.to_thread(interference, kafka, orders.topic)
            if interference is raise_partitions:
                await session.deliver(*(insert(orders, n) for n in range(10)))
                return
            async with asyncio.timeout(180):
                with pytest.raises(SinkUnavailable, match=sentence.format(orders.topic) + LOOKS_AGAIN):
                    await session.deliver(*(insert(orders, n) for n in range(10)))
        await refuses_to_start(kafka, prefix, sentence.format(orders.topic) + REMEDY)

    @pytest.mark.parametrize("opened", [False, True], ids=["its first row", "a table's next version"])
    async def test_a_change_is_detected_when_the_topic_is_opened(
        self, kafka: Kafka, prefix: str, orders: Target, monkeypatch: pytest.MonkeyPatch, *, opened: bool
    ) -> None:
        """A topic that existed at the session's start must not be created again."""
        monkeypatch.setattr(topics, "REQUEST_S", 1.0)
        await written(kafka, prefix, orders)
        async with Session(kafka, prefix) as session:
            if opened:
                await session.sink.open_topic(policy(orders, PARTITIONS), keyed=True)
            await asyncio.to_thread(delete_topic, kafka, orders.topic)
            with pytest.raises(SinkUnavailable, match=f"Topic {orders.topic} was deleted. Consumers miss"):
                await session.sink.open_topic(policy(orders, PARTITIONS), keyed=True)
        await refuses_to_start(kafka, prefix, f"Topic {orders.topic} was deleted" + REMEDY)

    async def test_a_change_is_detected_while_the_queue_is_full(
        self, kafka: Kafka, prefix: str, orders: Target
    ) -> None:
        async with Session(kafka, prefix, timeout_s=600, queue_bytes=64 * 1024) as session:
            await session.sink.open_topic(policy(orders), keyed=True)
            await session.deliver(insert(orders, 1))
            await asyncio.to_thread(delete, kafka, orders.topic)
            async with asyncio.timeout(180):
                with pytest.raises(SinkUnavailable, match=f"Topic {orders.topic} was deleted" + LOOKS_AGAIN):
                    await session.deliver(*(insert(orders, n, 1000) for n in range(1000)))
        await refuses_to_start(kafka, prefix, f"Topic {orders.topic} was deleted" + REMEDY)

    @pytest.mark.parametrize("topic", ["transactions", "checkpoint"])
    async def test_changes_of_service_topics_are_detected(self, kafka: Kafka, prefix: str, topic: str) -> None:
        """If Kafka aborts the transaction before the topics are examined, the next session must report the reason."""
        async with Session(kafka, prefix, timeout_s=600) as session:
            await session.deliver()
            await asyncio.to_thread(delete, kafka, f"{prefix}.{topic}")
            async with asyncio.timeout(180):
                with pytest.raises(SinkUnavailable):
                    await session.deliver()
        if topic == "transactions":
            # Each start adds a probe to the new topic, which is still considered empty.
            for _ in range(2):
                await refuses_to_start(kafka, prefix, f"Topic {prefix}.transactions is empty, but cut 1 was committed")
        else:
            async with Session(kafka, prefix) as session:
                assert session.checkpoint.cut == 0

    @pytest.mark.parametrize("predicted", [True, False])
    async def test_records_that_are_lost_during_a_session_are_detected(
        self, kafka: Kafka, prefix: str, orders: Target, *, predicted: bool
    ) -> None:
        """An unclean leader election loses records. Here, the ledger claims more records than were written."""
        async with Session(kafka, prefix) as session:
            await session.sink.open_topic(policy(orders), keyed=True)
            await session.deliver(insert(orders, 1))
            if not predicted:
                session.prediction.failed()
            session.sink._ledger._known.ends[orders.topic, 0] += 100
            sentence = rf"Partition 0 of topic {orders.topic} ends at offset \d+, although"
            with pytest.raises(SinkUnavailable, match=sentence + LOOKS_AGAIN):
                await session.deliver(insert(orders, 2))

    @pytest.mark.usefixtures("_always_full")
    async def test_a_session_ignores_records_that_retention_deleted(
        self, kafka: Kafka, prefix: str, orders: Target
    ) -> None:
        async with Session(kafka, prefix) as session:
            await session.sink.open_topic(policy(orders), keyed=True)
            await session.deliver(insert(orders, 1))
            await asyncio.to_thread(delete_records, kafka, orders.topic)
            await session.deliver(insert(orders, 2))
            await session.deliver()

    async def test_a_slow_broker_is_not_mistaken_for_a_deleted_topic(
        self, own_kafka: Kafka, prefix: str, orders: Target
    ) -> None:
        """The search for the reason of a stall must not end a delivery that would have succeeded."""
        async with Session(own_kafka, prefix, timeout_s=600) as session:
            await session.sink.open_topic(policy(orders), keyed=True)
            await session.deliver(insert(orders, 1))
            with paused(own_kafka):
                delivering = asyncio.create_task(session.deliver(insert(orders, 2)))
                await asyncio.sleep(5)
                assert not delivering.done()
            await delivering


class TestPrediction:
    """A cut record contains the end offsets of its cut before Kafka has reported them."""

    async def test_the_offsets_of_a_cut_are_as_predicted(
        self, kafka: Kafka, prefix: str, orders: Target, items: Target
    ) -> None:
        """Topics can be new, or have the markers of earlier transactions."""
        async with Session(kafka, prefix) as session:
            await session.deliver()
            for target in (orders, items):
                await session.sink.open_topic(policy(target, PARTITIONS), keyed=True)
                for count in (1, 0, 3, 20):
                    await session.deliver(*(insert(target, n) for n in range(count)))
                    ends = {place: end for place, (_, end) in offsets(await last_cut(kafka, prefix)).items()}
                    assert all(end_of(kafka, *place) - end in (0, 1) for place, end in ends.items())
                    assert sum(end_of(kafka, *place) - end for place, end in ends.items()) == min(count, PARTITIONS)
            assert session.prediction.is_clear

    async def test_a_full_cut_does_not_wait_for_outstanding_markers(
        self, kafka: Kafka, prefix: str, orders: Target
    ) -> None:
        """A full cut without records must not wait for the markers of the previous cut."""
        async with Session(kafka, prefix) as session:
            await session.sink.open_topic(policy(orders, 50), keyed=True)
            for _ in range(5):
                await session.deliver(*(insert(orders, n) for n in range(200)))
                session.sink._ledger._full_at = float("-inf")
                await session.deliver()
            await session.deliver(insert(orders, 1))
            assert session.prediction.is_clear

    async def test_a_cut_is_abandoned_if_another_program_writes_to_its_topic(
        self, kafka: Kafka, prefix: str, orders: Target
    ) -> None:
        """The cut must be abandoned. The next session must wait for the actual offsets."""
        prediction = OffsetPrediction()
        async with Session(kafka, prefix, prediction=prediction) as session:
            await session.sink.open_topic(policy(orders), keyed=True)
            await session.deliver(insert(orders, 1))
            await session.deliver(insert(orders, 2))
            await asyncio.to_thread(commit, kafka, orders.topic, b"foreign")
            sentence = rf"Partition 0 of topic {orders.topic} ends at offset 7 instead of 5: somebody else has written"
            with pytest.raises(SinkUnavailable, match=sentence):
                await session.deliver(insert(orders, 3))
        async with Session(kafka, prefix, prediction=prediction) as session:
            await session.sink.open_topic(policy(orders), keyed=True)
            await session.deliver(insert(orders, 3))
            await asyncio.to_thread(commit, kafka, orders.topic, b"foreign")
            await session.deliver(insert(orders, 4))
        visible = await asyncio.to_thread(read_committed, kafka, orders.topic)
        values = [b"value 1", b"value 2", b"foreign", b"value 3", b"foreign", b"value 4"]
        assert [message.value() for message in visible] == values
        records = await asyncio.to_thread(cut_records, kafka, prefix)
        assert [cut["cut"] for cut in records] == [1, 2, 3, 4]
        assert visible[-1].offset() + 1 == offsets(records[-1])[orders.topic, 0][1]

    def test_prediction_is_used_again_later(self, monkeypatch: pytest.MonkeyPatch) -> None:
        prediction = OffsetPrediction()
        prediction.failed()
        assert not prediction.is_clear
        monkeypatch.setattr(ledger, "DISTRUST_S", 0.0)
        time.sleep(0.001)
        assert prediction.is_clear


class Outdated(Topics):
    """A client whose broker is out of date, and therefore does not know the topics."""

    def __init__(self, kafka: Kafka) -> None:
        super().__init__(client_options(kafka), Event())
        self.answers = 0

    def account(self, known: Account) -> Account:
        self.answers += 1
        return Account({}, super().account(known).ends)


class Stopped(Topics):
    """A client whose broker is out of date after :meth:`stop`. Other clients get correct answers."""

    def __init__(self, kafka: Kafka) -> None:
        super().__init__(client_options(kafka), Event())
        self._ends: dict[Partition, int] = {}

    def stop(self, *places: Partition) -> None:
        self._ends = super().next_offsets(places)

    def next_offsets(self, places: Sequence[Partition]) -> dict[Partition, int]:
        return super().next_offsets(places) | self._ends

    def account(self, known: Account) -> Account:
        found = super().account(known)
        return Account(found.topics, found.ends | self._ends)


class TestLedger:
    @pytest.mark.parametrize("full", [False, True])
    def test_the_previous_cuts_marker_is_not_mistaken_for_a_record(
        self, kafka: Kafka, orders: Target, *, full: bool
    ) -> None:
        """The outdated broker reports end offset 2, which is the end after the marker of the previous cut.

        The ledger must not mistake offset 2 for the end of the current cut, whose record ends at offset 3.
        """
        topics, place = Stopped(kafka), (orders.topic, 0)
        known = Ledger(topics, Event(), accept=False)
        known.pin({orders.topic: topics.ensure(TopicSpec(orders.topic, 1))[0]})
        cut = Cut()
        cut.count(orders, {"c": 1}, {0: 1})
        with transaction(kafka, orders.topic, [b"a row"]) as producer:
            known.committed(cut, known.following(cut, full=False), full=False)
            producer.commit_transaction(TIMEOUT_S)
        wait_for_end(kafka, orders.topic, 2)
        topics.stop(place)
        with transaction(kafka, orders.topic, [b"another"]) as producer:
            assert topics.next_offsets([place]) == {place: 2}, "the broker is not outdated"
            assert known.following(cut, full=full) == {place: 3}
            producer.commit_transaction(TIMEOUT_S)

    def test_the_answer_of_a_single_broker_is_not_trusted(self, kafka: Kafka, orders: Target) -> None:
        """One broker's answer must not be trusted, even if it is repeated. Another client gets a different answer."""
        topics = Outdated(kafka)
        known = Ledger(topics, Event(), accept=False)
        known.watch(orders.topic, *topics.ensure(TopicSpec(orders.topic, 1)))
        known.examine()
        assert topics.answers == 1

    def test_brokers_that_report_their_leader_epoch_are_compared_by_it(self, kafka: Kafka, orders: Target) -> None:
        topics = Topics(client_options(kafka), Event())
        topics.ensure(TopicSpec(orders.topic, 1))
        found = topics.account(Account({orders.topic: TopicState("", 1)}, {(orders.topic, 0): 0}))
        assert found.leader_epochs == {(orders.topic, 0): 0}

    def test_a_caller_that_gives_up_is_not_kept_waiting(
        self, kafka: Kafka, orders: Target, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ledger, "CONFIRM_S", 3600.0)
        given_up, topics = Event(), Topics(client_options(kafka), Event())
        known = Ledger(topics, given_up, accept=False)
        (state,) = topics.ensure(TopicSpec(orders.topic, 1))
        known.watch(orders.topic, state)
        known.watch(f"{orders.topic}-gone", state)
        Timer(0.5, given_up.set).start()
        started = time.monotonic()
        known.examine()
        assert time.monotonic() - started < 60

    def test_one_message_names_the_changes_of_several_topics(self, kafka: Kafka, orders: Target) -> None:
        topics = Topics(client_options(kafka), Event())
        known = Ledger(topics, Event(), accept=False)
        (state,) = topics.ensure(TopicSpec(orders.topic, 1))
        for number in range(8):
            known.watch(f"{orders.topic}-{number}", state)
        with pytest.raises(SinkUnavailable, match=r"And 3 more topics have changed\. ") as caught:
            known.examine()
        assert str(caught.value).count("was deleted") == 5


def test_cut_records_are_read_back_to_the_last_full_cut(kafka: Kafka, prefix: str) -> None:
    topic = f"{prefix}.transactions"
    create_topic(kafka, topic)
    topics = Topics(client_options(kafka), Event())

    def read(committed: int, upto: int | None = None) -> tuple[LastCuts, str | None]:
        with Tail(client_options(kafka), topics, topic, patience_s=60, given_up=Event()) as tail:
            last = read_last_cuts(tail, json.loads, upto)
            return last, lost_cuts(topic, last, tail.low, committed)

    assert read(0)[1] is None
    entries = [
        {"full": number == 5, "part": 0, "epoch": 1, "cut": number, "end_lsn": number, "topics": []}
        for number in range(1, 3 * FIRST_WINDOW)
    ]
    commit(kafka, topic, *(json.dumps(entry).encode() for entry in entries))
    wait_for_end(kafka, topic, len(entries) + 1)
    last, lost = read(len(entries))
    assert (last.number, last.is_complete, lost) == (len(entries), True, None)
    last, lost = read(len(entries) - 1, len(entries) - 1)
    assert (last.number, last.is_complete, lost) == (len(entries) - 1, True, None)
    _, lost = read(len(entries) + 1)
    assert lost is not None
    assert "no topic has the changes of that cut" in lost, "only its checkpoint may have become visible"
    _, lost = read(len(entries) + 2)
    assert lost is not None
    assert "no topic has" not in lost
