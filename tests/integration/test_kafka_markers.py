"""Tests transaction markers of Kafka that are late, repeated, or in the middle of the next transaction.

Markers take offsets, so the prediction of a cut's offsets depends on them. Brokers send markers to one another. In
these tests, a proxy intercepts them. https://cwiki.apache.org/confluence/display/KAFKA/KIP-98 (WriteTxnMarkers)
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from pgsluice.errors import SinkUnavailable
from pgsluice.kafka.ledger import Ledger
from pgsluice.record import Target
from sandbox.broker import Listener
from sandbox.kafka import Kafka
from tests.support.kafka import end_of, read_committed
from tests.support.kafka_proxy import WRITE_TXN_MARKERS, KafkaProxy, Request
from tests.support.sink import Partition, Session, cut_records, insert, offsets, policy

BETWEEN = "BETWEEN"
"""The listener that brokers use among themselves, through the proxy. A broker also uses it to reach itself."""

GIVEN_UP = "somebody else has written to it, or Kafka has marked a transaction twice. The cut is aborted"


@pytest.fixture(scope="module")
def proxied() -> Iterator[tuple[Kafka, KafkaProxy]]:
    with KafkaProxy() as proxy:
        listeners = [Listener(BETWEEN, advertised={1: proxy.address})]
        with Kafka(settings={"inter.broker.listener.name": BETWEEN}, listeners=listeners) as kafka:
            proxy.target = kafka.addresses(BETWEEN)
            yield kafka, proxy


async def deliver_to(session: Session, target: Target, last: int) -> None:
    """Deliver the values from the session's position up to ``last``, each in its own cut."""
    for number in range(session.checkpoint.cut + 1, last + 1):
        await session.deliver(insert(target, number))


def assert_complete(kafka: Kafka, prefix: str, target: Target, last: int) -> None:
    """Check that every value exists once, at the offset in its cut record."""
    messages, records = read_committed(kafka, target.topic), cut_records(kafka, prefix)
    assert [message.value() for message in messages] == [b"value %d" % number for number in range(1, last + 1)]
    assert [record["cut"] for record in records] == list(range(1, last + 1))
    for message, record in zip(messages, records, strict=True):
        first, following = offsets(record)[target.topic, 0]
        assert (first <= message.offset(), following) == (True, message.offset() + 1)


def slowly(request: Request) -> None:
    time.sleep(0.3)
    request.forward()


async def test_a_cut_waits_for_the_markers_of_the_previous_cut(
    proxied: tuple[Kafka, KafkaProxy], prefix: str, orders: Target
) -> None:
    """If a cut did not wait, a marker could be written after the prediction of the offsets, but before the records."""
    kafka, proxy = proxied

    async with Session(kafka, prefix) as session:
        await session.sink.open_topic(policy(orders), keyed=True)
        proxy.on(WRITE_TXN_MARKERS, slowly)
        await deliver_to(session, orders, 4)
        assert session.prediction.is_clear
        proxy.forward()
    await asyncio.to_thread(assert_complete, kafka, prefix, orders, 4)


async def test_a_full_cut_may_list_a_partition_before_its_marker_comes(
    proxied: tuple[Kafka, KafkaProxy], prefix: str, orders: Target
) -> None:
    kafka, proxy = proxied

    async with Session(kafka, prefix) as session:
        await session.sink.open_topic(policy(orders), keyed=True)
        proxy.on(WRITE_TXN_MARKERS, slowly)
        await session.deliver(insert(orders, 1))
        session.sink._ledger._full_at = float("-inf")
        await session.deliver()
        await session.deliver(insert(orders, 2))
        assert session.prediction.is_clear
        proxy.forward()


async def test_a_marker_whose_answer_was_lost_is_written_twice(
    proxied: tuple[Kafka, KafkaProxy], prefix: str, orders: Target
) -> None:
    kafka, proxy = proxied

    def twice(request: Request) -> None:
        proxy.forward()
        request.lose_answer()

    async with Session(kafka, prefix) as session:
        await session.sink.open_topic(policy(orders), keyed=True)
        proxy.on(WRITE_TXN_MARKERS, twice)
        with pytest.raises(SinkUnavailable, match=GIVEN_UP):
            await deliver_to(session, orders, 2)
        prediction = session.prediction
    async with Session(kafka, prefix, prediction=prediction) as session:
        await session.sink.open_topic(policy(orders), keyed=True)
        await deliver_to(session, orders, 4)
    await asyncio.to_thread(assert_complete, kafka, prefix, orders, 4)


@pytest.mark.parametrize("moment", ["before the comparison", "after it"])
async def test_a_marker_that_is_repeated_in_the_middle_of_the_next_cut(
    proxied: tuple[Kafka, KafkaProxy], prefix: str, orders: Target, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The marker makes the cut's records visible. If the cut were abandoned, its records would come twice."""
    kafka, proxy = proxied
    kept: list[Request] = []
    mismatch = Ledger.mismatch

    def keep(request: Request) -> None:
        proxy.forward()
        kept.append(request)
        request.cut()

    def beside(self: Ledger, predicted: Mapping[Partition, int]) -> SinkUnavailable | None:
        monkeypatch.setattr(Ledger, "mismatch", mismatch)
        if moment == "before the comparison":
            kept.pop().send_late()
        found = mismatch(self, predicted)
        if moment == "after it":
            kept.pop().send_late()
        return found

    async with Session(kafka, prefix) as session:
        await session.sink.open_topic(policy(orders), keyed=True)
        proxy.on(WRITE_TXN_MARKERS, keep)
        await deliver_to(session, orders, 1)
        await asyncio.to_thread(wait_for, lambda: bool(kept) and end_of(kafka, orders.topic) == 2)
        monkeypatch.setattr(Ledger, "mismatch", beside)
        await deliver_to(session, orders, 2)
        if moment == "after it":
            with pytest.raises(SinkUnavailable, match=GIVEN_UP):
                await deliver_to(session, orders, 3)
        prediction = session.prediction
        assert not kept
    async with Session(kafka, prefix, prediction=prediction) as session:
        assert not prediction.is_clear
        await session.sink.open_topic(policy(orders), keyed=True)
        await deliver_to(session, orders, 4)
    await asyncio.to_thread(assert_complete, kafka, prefix, orders, 4)


async def test_a_cut_whose_checkpoint_is_visible_is_committed(
    proxied: tuple[Kafka, KafkaProxy], prefix: str, orders: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated marker has made the checkpoint visible, but not all records. The cut must be committed nevertheless.

    Otherwise, the next session would continue after the checkpoint, and the invisible records would be lost.
    """
    kafka, proxy = proxied
    kept: list[Request] = []
    items = Target(f"{prefix}.public.items", 11, 12)

    def keep(request: Request) -> None:
        proxy.forward()
        kept.append(request)
        request.cut()

    def between_records(_ledger: Ledger, _predicted: Mapping[Partition, int]) -> SinkUnavailable:
        kept.pop().send_late()
        return SinkUnavailable("A marker stands between the records of a partition.")

    async with Session(kafka, prefix) as session:
        for target in orders, items:
            await session.sink.open_topic(policy(target), keyed=True)
        proxy.on(WRITE_TXN_MARKERS, keep)
        await deliver_to(session, orders, 1)
        await asyncio.to_thread(wait_for, lambda: bool(kept) and end_of(kafka, orders.topic) == 2)
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "mismatch", between_records)
            await session.deliver(insert(orders, 2), insert(items, 2))
    async with Session(kafka, prefix) as session:
        assert session.checkpoint.cut == 2
    for target, values in (orders, [b"value 1", b"value 2"]), (items, [b"value 2"]):
        found = await asyncio.to_thread(read_committed, kafka, target.topic)
        assert [message.value() for message in found] == values


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)
