"""Tests the delivery of cuts to a real broker. An independent read_committed consumer reads them as events.md says."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import structlog
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import ConfigResource

from pgsluice.checkpoint import last_checkpoint
from pgsluice.errors import ConfigError, DeadlineMissed, Fenced, PoisonError, SinkUnavailable, TableRefused
from pgsluice.kafka import transactional
from pgsluice.kafka.client import ClientOptions
from pgsluice.kafka.ledger import Ledger
from pgsluice.kafka.partitioner import partition_for
from pgsluice.kafka.topics import Topics
from pgsluice.record import Record, Target
from pgsluice.registry.builtin import BuiltinRegistry
from pgsluice.registry.client import RegistryOptions
from sandbox.kafka import Kafka
from tests.support.kafka import client_options, configure, create_topic, end_of, paused, read_committed, wait_for_end
from tests.support.sink import Partition, Session, cut_records, insert, offsets, policy

SECRET = b"row data"

Content = dict[Partition, list[tuple[bytes | None, bytes | None]]]
"""The keys and values in each partition."""


@pytest.fixture
def logs(prefix: str) -> Target:
    """Provide a table without a key."""
    return Target(f"{prefix}.public.logs", 13, None)


def content(kafka: Kafka, cut: dict[str, Any]) -> Content:
    """Return the content of a cut. A consumer needs only the cut record to find it."""
    found = {}
    for (topic, partition), (first, following) in offsets(cut).items():
        messages = read_committed(kafka, topic, partition, end=following)
        found[topic, partition] = [(one.key(), one.value()) for one in messages if one.offset() >= first]
    return found


def expected(records: Sequence[Record], partitions: int) -> Content:
    places: Content = {}
    for record in records:
        partition = partition_for(record.key, partitions) if record.key is not None else 0
        places.setdefault((record.target.topic, partition), []).append((record.key, record.value))
    return places


class TestTheNumberOfTopics:
    """A user who may create tables must not be able to create an unlimited number of topics in Kafka."""

    async def test_no_more_topics_are_created_than_allowed(self, kafka: Kafka, prefix: str) -> None:
        tables = [Target(f"{prefix}.public.t{number}", 13, 14) for number in range(4)]
        async with Session(kafka, prefix, topics_max=2) as session:
            for table in tables[:2]:
                await session.sink.open_topic(policy(table), keyed=True)
            await session.deliver(*(insert(table, 1) for table in tables[:2]))
            with pytest.raises(ConfigError, match=r"t2 was not created, .* already has 2 topics, .* may have 2"):
                await session.sink.open_topic(policy(tables[2]), keyed=True)
            await session.sink.open_topic(policy(tables[0]), keyed=True)
            await session.deliver(insert(tables[0], 2))
        async with Session(kafka, prefix, topics_max=2) as session:  # the limit includes topics of earlier sessions
            with pytest.raises(ConfigError, match="t2 was not created"):
                await session.sink.open_topic(policy(tables[2]), keyed=True)
            create_topic(kafka, tables[3].topic)  # another user may create any topic
            await session.sink.open_topic(policy(tables[3]), keyed=True)
            await session.deliver(insert(tables[3], 3))
            assert tables[2].topic not in session.sink._topics.describe([table.topic for table in tables])
        async with Session(kafka, prefix, topics_max=4) as session:
            await session.sink.open_topic(policy(tables[2]), keyed=True)
            await session.deliver(insert(tables[2], 4))

    async def test_topics_are_reserved_for_the_tables_in_the_settings(self, kafka: Kafka, prefix: str) -> None:
        named, other = Target(f"{prefix}.public.orders", 13, 14), Target(f"{prefix}.public.other", 13, 14)
        async with Session(kafka, prefix, topics_max=1, reserved_topics=frozenset({named.topic})) as session:
            with pytest.raises(ConfigError, match=r"other was not created, .* already has 1 topics, including"):
                await session.sink.open_topic(policy(other), keyed=True)
            await session.sink.open_topic(policy(named), keyed=True)


class TestPreparedTopics:
    """Topics of many tables are created together. The session opens each topic at the first row of its table."""

    async def test_prepared_topics_are_ready(self, kafka: Kafka, prefix: str) -> None:
        tables = [Target(f"{prefix}.public.t{number}", 13, 14) for number in range(3)]
        async with Session(kafka, prefix) as session:
            await session.sink.open_topic(policy(tables[0], 2), keyed=True)
            await session.sink.prepare_topics([policy(table, 2) for table in tables])
            for table in tables:
                await session.sink.open_topic(policy(table, 2), keyed=True)
            await session.deliver(*(insert(table, 1) for table in tables))
        (cut,) = await asyncio.to_thread(cut_records, kafka, prefix)
        assert set(offsets(cut)) >= {(table.topic, number) for table in tables for number in range(2)}

    async def test_a_refused_topic_is_refused_again_with_its_reason(self, kafka: Kafka, prefix: str) -> None:
        good, bad = Target(f"{prefix}.public.good", 13, 14), Target(f"{prefix}.public.bad", 13, 14)
        async with Session(kafka, prefix) as session:
            await session.sink.prepare_topics([policy(bad, 0), policy(good)])
            await session.sink.open_topic(policy(good), keyed=True)
            with pytest.raises(TableRefused, match=r"Creating topic .*\.public\.bad: .*partitions"):
                await session.sink.open_topic(policy(bad, 0), keyed=True)
            await session.deliver(insert(good, 1))

    async def test_nothing_is_created_beyond_the_limit(self, kafka: Kafka, prefix: str) -> None:
        tables = [Target(f"{prefix}.public.t{number}", 13, 14) for number in range(3)]
        async with Session(kafka, prefix, topics_max=2) as session:
            await session.sink.prepare_topics([policy(table) for table in tables])
            assert session.sink._topics.describe([table.topic for table in tables]) == {}
            await session.sink.prepare_topics([policy(table) for table in tables[:2]])
            assert len(session.sink._topics.describe([table.topic for table in tables])) == 2

    async def test_service_topics_of_others_are_not_created(self, kafka: Kafka, prefix: str) -> None:
        theirs = Target(f"{prefix}.public.checkpoint", 13, 14)
        async with Session(kafka, prefix) as session:
            await session.sink.prepare_topics([policy(theirs)])
            assert session.sink._topics.describe([theirs.topic]) == {}


class TestTheProbe:
    """Before a session reads a service topic, it writes a probe, so that it recognises a broker's outdated answer."""

    async def test_an_outdated_answer_hides_no_checkpoint(
        self, kafka: Kafka, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The broker reports the topics' ends from before the last cuts."""
        async with Session(kafka, prefix) as session:
            await session.deliver()
            names = f"{prefix}.checkpoint", f"{prefix}.transactions"
            former = {name: session.sink._topics.bounds(name, 0) for name in names}
            for _ in range(3):
                await session.deliver()
        monkeypatch.setattr(Topics, "bounds", lambda _self, topic, _partition: former[topic])
        async with Session(kafka, prefix) as session:
            assert session.checkpoint.cut == 4
            assert session._recorded.cut == 4

    async def test_readers_do_not_see_the_probe(self, kafka: Kafka, prefix: str) -> None:
        async with Session(kafka, prefix) as session:
            await session.deliver()
        async with Session(kafka, prefix):
            pass
        for name in f"{prefix}.checkpoint", f"{prefix}.transactions":
            assert end_of(kafka, name) == 6  # two probes and a cut, each with its marker
            assert len(await asyncio.to_thread(read_committed, kafka, name)) == 1


class TestDelivery:
    async def test_a_cut_is_at_the_offsets_in_its_record(
        self, kafka: Kafka, prefix: str, orders: Target, logs: Target
    ) -> None:
        first = [*(insert(orders, n) for n in range(20)), *(insert(logs, n) for n in range(3))]
        second = [insert(orders, n) for n in (7, 7, 8)]
        async with Session(kafka, prefix) as session:
            assert session.checkpoint.cut == 0
            await session.sink.open_topic(policy(orders, 3), keyed=True)
            await session.sink.open_topic(policy(logs, 2), keyed=False)
            await session.deliver(*first)
            await session.deliver(*second)
            await session.deliver()
            assert last_checkpoint(await session.sink.checkpoints()) == session.checkpoint
        one, two, three = await asyncio.to_thread(cut_records, kafka, prefix)
        everywhere = {(orders.topic, 0), (orders.topic, 1), (orders.topic, 2), (logs.topic, 0), (logs.topic, 1)}
        assert (one["full"], two["full"], three["full"]) == (True, False, False)
        assert offsets(one).keys() == everywhere
        brought = await asyncio.to_thread(content, kafka, one)
        assert {place: records for place, records in brought.items() if records} == expected(first, 3)
        assert await asyncio.to_thread(content, kafka, two) == expected(second, 3)
        assert all(offsets(one)[place][1] == begin for place, (begin, _) in offsets(two).items())
        assert three["topics"] == []
        assert [(cut["cut"], cut["end_lsn"], cut["last_lsn"], cut["events"]) for cut in (one, two, three)] == [
            (1, 256, 248, 23),
            (2, 512, 504, 3),
            (3, 768, None, 0),
        ]
        entries = {topic["topic"]: (topic["counts"], topic["schema_ids"]) for topic in one["topics"]}
        assert entries == {orders.topic: ({"c": 20}, [11]), logs.topic: ({"c": 3}, [13])}

    async def test_a_truncate_goes_to_every_partition(self, kafka: Kafka, prefix: str, orders: Target) -> None:
        truncate, tombstone = Record(orders, "t", None, b"truncated"), Record(orders, None, b"key", None)
        async with Session(kafka, prefix) as session:
            await session.sink.open_topic(policy(orders, 3), keyed=True)
            await session.deliver(insert(orders, 1), truncate, tombstone)
        (cut,) = await asyncio.to_thread(cut_records, kafka, prefix)
        wanted: Content = {(orders.topic, partition): [(None, truncate.value)] for partition in range(3)}
        wanted[orders.topic, partition_for(b"key 1", 3)].insert(0, (b"key 1", b"value 1"))
        wanted[orders.topic, partition_for(b"key", 3)].append((b"key", None))
        assert await asyncio.to_thread(content, kafka, cut) == wanted
        assert cut["topics"][0]["counts"] == {"c": 1, "t": 1}

    async def test_the_first_cut_of_a_session_lists_everything(
        self, kafka: Kafka, prefix: str, orders: Target, logs: Target
    ) -> None:
        """The cut must list the topics of earlier sessions, but no topics that do not exist or have no records."""
        async with Session(kafka, prefix) as session:
            await session.sink.open_topic(policy(orders, 2), keyed=True)
            await session.deliver(*(insert(orders, n) for n in range(10)))
            reached = session.checkpoint
        async with Session(kafka, prefix) as session:
            assert session.checkpoint == reached
            await session.open_topics(orders.topic, f"{prefix}.never-made")
            await session.sink.open_topic(policy(orders, 2), keyed=True)
            await session.sink.open_topic(policy(logs, 1), keyed=False)
            await session.deliver()
        earlier, full = await asyncio.to_thread(cut_records, kafka, prefix)
        ends = {(orders.topic, partition): end_of(kafka, orders.topic, partition) for partition in range(2)}
        assert offsets(full) == {place: (end, end) for place, end in ends.items()}
        # Since the records of ``earlier``, only their marker has been written.
        assert {place: following + 1 for place, (_, following) in offsets(earlier).items()} == ends

    async def test_a_large_transaction_is_written_in_parts(self, kafka: Kafka, prefix: str, orders: Target) -> None:
        async with Session(kafka, prefix) as session:
            await session.sink.open_topic(policy(orders, 3), keyed=True)
            cut, checkpoint = await session.produce(*(insert(orders, n) for n in range(100)))
            await session.sink.produce(cut, [insert(orders, n) for n in range(100, 200)])
            await session.sink.commit(cut, checkpoint)
        (record,) = await asyncio.to_thread(cut_records, kafka, prefix)
        assert await asyncio.to_thread(content, kafka, record) == expected([insert(orders, n) for n in range(200)], 3)

    async def test_the_announcement_of_a_new_slot_writes_only_a_checkpoint(self, kafka: Kafka, prefix: str) -> None:
        async with Session(kafka, prefix) as session:
            await session.sink.announce(session.checkpoint)
            assert last_checkpoint(await session.sink.checkpoints()) == session.checkpoint
        assert not await asyncio.to_thread(read_committed, kafka, f"{prefix}.transactions")

    @pytest.mark.parametrize("size", [1000, 0])  # the limit is a number of bytes, or a number of records
    async def test_a_queue_may_be_smaller_than_a_cut(
        self, kafka: Kafka, prefix: str, orders: Target, size: int
    ) -> None:
        records = [insert(orders, n, size) for n in range(2000)]
        async with Session(kafka, prefix, queue_bytes=64 * 1024) as session:
            await session.sink.open_topic(policy(orders), keyed=True)
            await session.deliver(*records)
        (cut,) = await asyncio.to_thread(cut_records, kafka, prefix)
        assert await asyncio.to_thread(content, kafka, cut) == expected(records, 1)


class TestOwners:
    async def test_a_new_owner_fences_the_former_one(self, kafka: Kafka, prefix: str, orders: Target) -> None:
        async with Session(kafka, prefix) as former:
            await former.sink.open_topic(policy(orders), keyed=True)
            await former.deliver(insert(orders, 1))
            lost = await former.produce(insert(orders, 2))
            async with Session(kafka, prefix) as owner:
                assert owner.checkpoint == former.checkpoint
                with pytest.raises(Fenced, match=r"Another producer .* has taken over"):
                    await former.sink.commit(*lost)
                await owner.sink.open_topic(policy(orders), keyed=True)
                await owner.deliver(insert(orders, 3))
        cuts = await asyncio.to_thread(cut_records, kafka, prefix)
        assert [cut["cut"] for cut in cuts] == [1, 2]
        visible = await asyncio.to_thread(read_committed, kafka, orders.topic)
        assert [message.value() for message in visible] == [b"value 1", b"value 3"]

    @pytest.mark.parametrize("begun", [False, True], ids=["before a transaction", "within a transaction"])
    async def test_an_owner_that_is_fenced_between_two_records_reports_the_reason(
        self, kafka: Kafka, prefix: str, orders: Target, *, begun: bool
    ) -> None:
        """After the fencing, librdkafka accepts no more records, and reports the reason only on request."""
        async with Session(kafka, prefix) as former:
            await former.sink.open_topic(policy(orders), keyed=True)
            if begun:
                await former.produce(insert(orders, 1))
                await asyncio.to_thread(wait_for_end, kafka, orders.topic, 1)
            async with Session(kafka, prefix):
                pass
            live = former.sink._live
            if not begun:
                live.begin()
            with pytest.raises(KafkaException, match=r"_FATAL|_STATE"):
                await asyncio.to_thread(produce_until_refused, live._producer, orders.topic)
            with pytest.raises(Fenced, match=r"Another producer .* has taken over"):
                await asyncio.to_thread(live.send, orders.topic, 0, b"key", b"value")

    async def test_a_former_owner_does_not_report_truncated_topics(
        self, kafka: Kafka, prefix: str, orders: Target
    ) -> None:
        """The former owner's records no longer arrive, so the topics' ends differ from the expected ends."""
        async with Session(kafka, prefix) as former:
            await former.sink.open_topic(policy(orders), keyed=True)
            await former.deliver(insert(orders, 1))
            async with Session(kafka, prefix):
                with pytest.raises(Fenced, match=r"Another producer .* has taken over"):
                    await former.deliver(insert(orders, 2))

    async def test_a_former_owner_recognises_its_successor(
        self, kafka: Kafka, prefix: str, orders: Target, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The successor aborts the cut in progress, which leaves markers in the topics."""
        loop, owner = asyncio.get_running_loop(), Session(kafka, prefix)
        mismatch = Ledger.mismatch

        def too_late(self: Ledger, predicted: Mapping[Partition, int]) -> SinkUnavailable | None:
            monkeypatch.setattr(Ledger, "mismatch", mismatch)
            asyncio.run_coroutine_threadsafe(owner.start(), loop).result(30)
            return mismatch(self, predicted)

        async with Session(kafka, prefix) as former:
            await former.sink.open_topic(policy(orders), keyed=True)
            await former.deliver(insert(orders, 1))
            monkeypatch.setattr(Ledger, "mismatch", too_late)
            with pytest.raises(Fenced, match=r"Another producer .* has taken over"):
                await former.deliver(insert(orders, 2))
        await owner.sink.close()
        assert len(await asyncio.to_thread(cut_records, kafka, prefix)) == 1

    async def test_a_late_refusal_does_not_stop_a_newer_epoch(self, kafka: Kafka, prefix: str) -> None:
        """The operator started the newer epoch while the former owner was about to record its refusal."""
        async with Session(kafka, prefix) as former:
            await former.deliver()
            async with Session(kafka, prefix) as session:
                await session.sink.announce(replace(session.checkpoint, epoch=session.checkpoint.epoch + 1))
            await former.sink.refuse(replace(former.checkpoint, refused="It was restored."))
            found = await former.sink.present_checkpoint()
        assert found is not None
        assert (found.epoch, found.refused) == (former.checkpoint.epoch + 1, "")

    async def test_a_refusal_of_the_present_epoch_is_recorded(self, kafka: Kafka, prefix: str) -> None:
        async with Session(kafka, prefix) as session:
            await session.deliver()
            await session.sink.refuse(replace(session.checkpoint, refused="It was restored."))
            found = await session.sink.present_checkpoint()
        assert found is not None
        assert found.refused == "It was restored."

    async def test_an_abandoned_cut_blocks_no_reader(self, kafka: Kafka, prefix: str, orders: Target) -> None:
        async with Session(kafka, prefix, timeout_s=900) as session:
            await session.sink.open_topic(policy(orders), keyed=True)
            await session.produce(insert(orders, 1))
            assert end_of(kafka, orders.topic) == 1
        assert await asyncio.to_thread(read_committed, kafka, orders.topic) == []

    async def test_transactions_have_a_deadline(self, kafka: Kafka, prefix: str, orders: Target) -> None:
        async with Session(kafka, prefix, timeout_s=1.0) as session:
            await session.sink.open_topic(policy(orders), keyed=True)
            cut, _ = await session.produce(insert(orders, 1))
            await asyncio.sleep(1.0)
            with pytest.raises(DeadlineMissed, match=r"did not finish within 1 s.*delivery.transaction_timeout"):
                await session.sink.produce(cut, [insert(orders, 2)])
        assert await asyncio.to_thread(read_committed, kafka, orders.topic) == []

    async def test_the_brokers_deadline_is_not_mistaken_for_another_owner(
        self, own_kafka: Kafka, prefix: str, orders: Target
    ) -> None:
        async with Session(own_kafka, prefix, timeout_s=1.0) as session:
            await session.sink.open_topic(policy(orders), keyed=True)
            lost = await session.produce(insert(orders, 1))
            await asyncio.to_thread(wait_for_end, own_kafka, orders.topic, 2)
            with pytest.raises(DeadlineMissed):
                await session.sink.commit(*lost)

    async def test_the_deadline_is_not_mistaken_for_another_owner_if_the_client_notices_it_first(
        self, own_kafka: Kafka, prefix: str, orders: Target
    ) -> None:
        """The client refuses a record before the deadline is checked. Another owner would cause the same error."""
        async with Session(own_kafka, prefix, timeout_s=1.0) as session:
            await session.sink.open_topic(policy(orders), keyed=True)
            lost = await session.produce(insert(orders, 1))
            await asyncio.to_thread(wait_for_end, own_kafka, orders.topic, 2)
            session.sink._live._producer.produce(orders.topic, b"late", partition=0)
            with pytest.raises(DeadlineMissed):
                await session.sink.commit(*lost)
        assert await asyncio.to_thread(read_committed, own_kafka, orders.topic) == []

    async def test_service_topics_with_wrong_settings_are_refused(self, kafka: Kafka, prefix: str) -> None:
        create_topic(kafka, f"{prefix}-1.transactions", 2)
        with pytest.raises(ConfigError, match=f"Topic {prefix}-1.transactions has 2 partitions, but it is one of"):
            async with Session(kafka, f"{prefix}-1"):
                pass
        create_topic(kafka, f"{prefix}-2.checkpoint", cleanup_policy="delete")
        with pytest.raises(ConfigError, match=f"Topic {prefix}-2.checkpoint has cleanup.policy=delete"):
            async with Session(kafka, f"{prefix}-2"):
                pass


def produce_until_refused(producer: Producer, topic: str) -> None:
    """Produce records until the client has noticed a problem and refuses a record. Raise the client's error."""
    while True:
        producer.produce(topic, b"late", partition=0)
        time.sleep(0.01)


class TestRefusals:
    async def test_a_record_too_large_for_its_topic_is_refused(self, kafka: Kafka, prefix: str, orders: Target) -> None:
        large = Record(orders, "c", SECRET, SECRET * 1000)
        client = ClientOptions({**client_options(kafka).properties, "batch.size": "2000"}, "pgsluice-test")
        async with Session(kafka, prefix, client=client) as session:
            await session.sink.open_topic(policy(orders, max_message_bytes="2000"), keyed=True)
            await session.deliver(insert(orders, 1))
            with pytest.raises(PoisonError, match=rf"{orders.topic} \[0\].*key 8 bytes, value 8000 bytes") as caught:
                await session.deliver(insert(orders, 2), large)
        assert "max.message.bytes" in str(caught.value)
        assert SECRET.decode() not in str(caught.value)
        visible = await asyncio.to_thread(read_committed, kafka, orders.topic)
        assert [message.value() for message in visible] == [b"value 1"]
        assert len(await asyncio.to_thread(cut_records, kafka, prefix)) == 1

    async def test_a_record_too_large_for_the_allowed_memory_is_refused(
        self, kafka: Kafka, prefix: str, orders: Target
    ) -> None:
        async with Session(kafka, prefix, queue_bytes=64 * 1024) as session:
            await session.sink.open_topic(policy(orders), keyed=True)
            await session.deliver(insert(orders, 1, 60_000))
            with pytest.raises(PoisonError, match=r"70007 bytes.* larger than the 65536 bytes.*delivery.inflight_max"):
                await session.deliver(insert(orders, 2, 70_000))

    async def test_a_record_without_key_is_refused_by_a_compacted_topic(
        self, kafka: Kafka, prefix: str, logs: Target
    ) -> None:
        async with Session(kafka, prefix) as session:
            truncated_never = replace(policy(logs, cleanup_policy="compact"), truncate=False)
            await session.sink.open_topic(truncated_never, keyed=True)
            with pytest.raises(PoisonError, match=r"public.logs \[0\].*cleanup.policy=compact takes no record without"):
                await session.deliver(insert(logs, 1))

    async def test_small_records_in_a_batch_that_is_too_large_are_refused(
        self, kafka: Kafka, prefix: str, orders: Target
    ) -> None:
        async with Session(kafka, prefix) as session:
            sentence = rf"{orders.topic} takes 2000 bytes .*1000000 \(batch.size\).*set batch.size under .* to 2000 or"
            with pytest.raises(ConfigError, match=sentence):
                await session.sink.open_topic(policy(orders, max_message_bytes="2000"), keyed=True)

    async def test_an_existing_topic_is_refused_at_its_first_row(
        self, kafka: Kafka, prefix: str, orders: Target, logs: Target
    ) -> None:
        """The start must not refuse the topic. The topic is checked at its first row, and again after an ALTER."""
        orders_topic = ConfigResource(ConfigResource.Type.TOPIC, orders.topic)
        create_topic(kafka, orders.topic, cleanup_policy="compact")
        create_topic(kafka, logs.topic, max_message_bytes="2000")
        async with Session(kafka, prefix) as session:
            await session.open_topics(orders.topic, logs.topic, f"{prefix}.never-made")
            with pytest.raises(
                TableRefused, match=f"{orders.topic} has cleanup.policy=compact, but truncates or rows without a key"
            ):
                await session.sink.open_topic(policy(orders), keyed=False)
            with pytest.raises(ConfigError, match=rf"{logs.topic} takes 2000 bytes .*set batch.size under .* to 2000"):
                await session.sink.open_topic(policy(logs), keyed=False)
        async with Session(kafka, prefix) as session:
            await session.open_topics(orders.topic, logs.topic)
            await session.sink.open_topic(replace(policy(orders), truncate=False), keyed=True)
            configure(kafka, ConfigResource(ConfigResource.Type.TOPIC, logs.topic), "max.message.bytes", "2000000")
            await session.sink.open_topic(policy(logs), keyed=False)
            configure(kafka, orders_topic, "max.message.bytes", "3000")
            with pytest.raises(ConfigError, match=f"{orders.topic} takes 3000 bytes"):
                await session.sink.open_topic(replace(policy(orders), truncate=False), keyed=True)


class TestOutages:
    @pytest.mark.parametrize("step", ["prepare", "fence", "deliver"])
    async def test_a_session_can_end_without_an_answer(
        self, own_kafka: Kafka, prefix: str, orders: Target, step: str
    ) -> None:
        session = Session(own_kafka, prefix, timeout_s=900)
        if step != "prepare":
            await session.sink.prepare()
        if step == "deliver":
            await session.start()
            await session.sink.open_topic(policy(orders), keyed=True)
        with paused(own_kafka):
            call = session.deliver(insert(orders, 1)) if step == "deliver" else getattr(session.sink, step)()
            working = asyncio.create_task(call)
            await asyncio.sleep(1)
            assert not working.done()
            async with asyncio.timeout(180):
                await session.sink.close()
            with pytest.raises(SinkUnavailable):
                await working
        if step != "prepare":
            # The topic contains only the probe and its marker.
            assert end_of(own_kafka, f"{prefix}.transactions") == (2 if step == "deliver" else 0)

    async def test_a_transaction_that_cannot_be_aborted_ends_with_its_timeout(
        self, own_kafka: Kafka, prefix: str, orders: Target, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transactional, "_ABORT_S", 0.5)
        with structlog.testing.capture_logs() as lines, ExitStack() as stack:
            async with Session(own_kafka, prefix, timeout_s=5) as session:
                await session.sink.open_topic(policy(orders), keyed=True)
                await session.produce(insert(orders, 1))
                stack.enter_context(paused(own_kafka))
        assert [line["event"] for line in lines] == ["a Kafka transaction stays open until its timeout"]
        assert await asyncio.to_thread(read_committed, own_kafka, orders.topic) == []

    async def test_an_outage_is_logged_once(self, own_kafka: Kafka, prefix: str) -> None:
        """Either of the two clients may notice the outage first."""
        client = client_options(own_kafka)
        registry = BuiltinRegistry(RegistryOptions(client, timeout_s=2.0), f"{prefix}.schemas")
        await registry.start()
        try:
            async with Session(own_kafka, prefix, client=client) as session:
                await session.deliver()
                with structlog.testing.capture_logs() as lines:
                    own_kafka.stop()
                    while not client.errors.is_away:
                        session.sink._live._producer.poll(0.1)
                        await asyncio.sleep(0)
                    await asyncio.sleep(1)
                    own_kafka.start()
                    await session.deliver()
                    await registry.start()
                    await asyncio.sleep(1)
        finally:
            await registry.close()
        said = [line["event"] for line in lines if line["log_level"] != "debug"]
        assert said == ["Kafka cannot be reached, or refuses us", "Kafka answers again"]
