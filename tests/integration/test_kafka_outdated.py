"""Tests a broker that is isolated from its cluster. It still answers as the leader, with its outdated state.

The controllers elect new leaders, but the broker is not informed. https://kafka.apache.org/documentation/#kraft
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from threading import Event
from uuid import uuid4

import pytest
from confluent_kafka import IsolationLevel, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from pgsluice.checkpoint import Checkpoint, last_checkpoint
from pgsluice.errors import SinkUnavailable
from pgsluice.kafka import probe as probes
from pgsluice.kafka.account import Account, TopicState
from pgsluice.kafka.checkpoint import read_checkpoints
from pgsluice.kafka.client import ClientOptions
from pgsluice.kafka.ledger import compare
from pgsluice.kafka.probe import Probe
from pgsluice.kafka.tail import Tail
from pgsluice.kafka.topics import Topics
from sandbox.broker import Listener
from sandbox.kafka import Kafka
from tests.support.kafka import TIMEOUT_S
from tests.support.links import Links
from tests.support.sink import Session

NODE = 1
"""The broker that is isolated."""

ALONE = "ALONE"
"""A listener whose clients reach only the first broker, because the others advertise an unused address."""

NOBODY = "127.0.0.1:9"

LATEST = IsolationLevel.READ_UNCOMMITTED

FORMER, LAST = 1, 4
"""The cut numbers of two checkpoints: the last one on the isolated broker, and the last one in the cluster."""


@dataclass(frozen=True)
class Cluster:
    """Three brokers. :meth:`outdated` isolates the first one."""

    kafka: Kafka
    links: Links

    def options(self, *nodes: int) -> ClientOptions:
        """Return the options of a client that first connects to these brokers."""
        return ClientOptions({"bootstrap.servers": self._addresses(*nodes)}, "pgsluice-test")

    def _addresses(self, *nodes: int) -> str:
        addresses = self.kafka.bootstrap_servers.split(",")
        return ",".join(addresses[node - 1] for node in nodes)

    def options_alone(self) -> ClientOptions:
        """Return the options of a client that reaches only the first broker."""
        return ClientOptions({"bootstrap.servers": self.kafka.addresses(ALONE).split(",")[NODE - 1]}, "pgsluice-test")

    def create(self, *topics: str) -> None:
        """Create topics whose leader is the first broker, and wait until clients see them."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers})
        compacted = {"cleanup.policy": "compact"}
        new = [NewTopic(topic, 1, replica_assignment=[[1, 2, 3]], config=compacted) for topic in topics]
        for future in admin.create_topics(new).values():
            future.result(TIMEOUT_S)
        for topic in topics:
            self.wait_for_leader(topic, {1})

    def _admin(self) -> AdminClient:
        """Return a new client of the brokers that are not isolated."""
        return AdminClient({"bootstrap.servers": self._addresses(2, 3)})

    def wait_for_leader(self, topic: str, nodes: set[int]) -> None:
        """Wait until the connected brokers report that one of ``nodes`` leads the topic."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            found = self._admin().list_topics(topic, TIMEOUT_S).topics[topic].partitions
            if found and found[0].leader in nodes:
                return
            time.sleep(0.2)
        raise TimeoutError(f"none of {nodes} leads {topic}")

    def wait_for_end(self, topic: str, end: int, *nodes: int) -> None:
        """Wait until clients of ``nodes`` see this end offset. A marker is written slightly after the commit."""
        deadline, place = time.monotonic() + TIMEOUT_S, (topic, 0)
        with closing(Topics(self.options(*nodes), Event())) as topics:
            while topics.next_offsets([place])[place] < end:
                assert time.monotonic() < deadline, f"{topic} does not get to {end}"
                time.sleep(0.05)

    @contextmanager
    def outdated(self, *topics: str) -> Iterator[None]:
        """Isolate the first broker. The block begins when the other brokers have replaced it as the leader.

        After the block, the first broker rejoins the cluster.
        """
        self.links.isolate(NODE, silently=True)
        try:
            for topic in topics:
                self.wait_for_leader(topic, {2, 3})
            yield
        finally:
            self.links.heal()
            while NODE not in self._admin().list_topics(timeout=TIMEOUT_S).brokers:
                time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    alone = Listener(ALONE, advertised=dict.fromkeys((2, 3), NOBODY))
    links = Links()
    with Kafka(brokers=3, listeners=[alone], forward=links.forward) as kafka:
        yield Cluster(kafka, links)


def checkpoint(cut: int) -> Checkpoint:
    return Checkpoint("shop", "pgsluice_shop", "7000000000000000001", 1, 1, cut, end_lsn=cut * 256)


def write(options: ClientOptions, topic: str, *cuts: int, probe: bytes | None = None) -> None:
    """Commit a checkpoint for each of ``cuts``. Then write the probe in a transaction that is aborted."""
    producer = Producer({**options.properties, "transactional.id": topic})
    producer.init_transactions(TIMEOUT_S)
    for value in (*(checkpoint(cut).to_json() for cut in cuts), *([] if probe is None else [probe])):
        producer.begin_transaction()
        producer.produce(topic, value, b"shop", 0)
        assert producer.flush(TIMEOUT_S) == 0
        if value == probe:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)


def read(options: ClientOptions, topic: str, reach: int = 0) -> Checkpoint | None:
    given_up = Event()
    topics = Topics(options, given_up)
    with Tail(options, topics, topic, patience_s=10, given_up=given_up, reach=reach) as tail:
        return last_checkpoint(read_checkpoints(tail, "shop", is_atomic=True))


@pytest.mark.long
def test_the_probe_reveals_the_outdated_broker(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = f"shop-{uuid4().hex[:8]}.checkpoint"
    cluster.create(topic)
    write(cluster.options(2, 3), topic, FORMER)
    everybody, cut_off = cluster.options(1, 2, 3), cluster.options_alone()
    cluster.wait_for_end(topic, 2, 1, 2, 3)
    with cluster.outdated(topic):
        write(cluster.options(2, 3), topic, *range(FORMER + 1, LAST + 1), probe=b"a probe")
        assert read(cut_off, topic) == checkpoint(FORMER), "the broker is not outdated"
        probe = Probe(everybody, Event())
        probe.find(b"a probe", [topic], Topics(cut_off, Event()))
        assert read(cluster.options(2, 3), topic, probe.end(topic)) == checkpoint(LAST)
        with pytest.raises(SinkUnavailable, match=f"answers for topic {topic} has an outdated view"):
            read(cut_off, topic, probe.end(topic))
        monkeypatch.setattr(probes, "OUTDATED_S", 3.0)
        with pytest.raises(SinkUnavailable, match=f"answers for topic {topic} has an outdated view"):
            Probe(cut_off, Event()).find(b"a probe", [topic], Topics(cut_off, Event()))


@pytest.mark.long
def test_records_that_the_outdated_broker_lacks_do_not_count_as_deleted(cluster: Cluster) -> None:
    """One client gets its answer from the isolated broker, and a second client gets the answer of the new leader."""
    topic = f"shop-{uuid4().hex[:8]}.public.orders"
    cluster.create(topic)
    write(cluster.options(2, 3), topic, FORMER)
    cluster.wait_for_end(topic, 2, 1, 2, 3)
    with cluster.outdated(topic):
        write(cluster.options(2, 3), topic, LAST)
        cluster.wait_for_end(topic, 4, 2, 3)
        place = topic, 0
        known = Account({topic: TopicState("", 1)}, {place: 4})
        # Query only the offsets. For a query about the topic, the client could choose another broker.
        former_end, epoch = Topics(cluster.options_alone(), Event())._answers([place], LATEST)[place]
        former = Account(known.topics, {place: former_end}, {} if epoch is None else {place: epoch})
        now = Topics(cluster.options(2, 3), Event()).account(known)
        assert (former.ends[place], now.ends[place]) == (2, 4)
        assert now.is_newer(former)

        class CutOff(Topics):
            def account(self, _known: Account) -> Account:
                return former

            def another(self) -> Topics:
                return Topics(cluster.options(2, 3), Event())

        found, changed = compare(CutOff(cluster.options_alone(), Event()), known, Event())
        assert (found.ends[place], changed) == (4, {})


@pytest.mark.long
async def test_sessions_continue_after_the_last_checkpoint(cluster: Cluster) -> None:
    """Sessions that query the outdated broker may fail, but none may start at an older checkpoint than the last one."""
    prefix = f"shop-{uuid4().hex[:8]}"
    names = f"{prefix}.checkpoint", f"{prefix}.transactions"
    cluster.create(*names)
    async with Session(cluster.kafka, prefix, client=cluster.options(2, 3)) as session:
        await session.deliver()
    for name in names:
        await asyncio.to_thread(cluster.wait_for_end, name, 4, 1, 2, 3)
    with cluster.outdated(*names):
        async with Session(cluster.kafka, prefix, client=cluster.options(2, 3)) as session:
            for _ in range(3):
                await session.deliver()
            last = session.checkpoint.cut
        began = []
        for _ in range(6):
            try:
                async with Session(cluster.kafka, prefix, client=cluster.options(1, 2, 3)) as session:
                    began.append(session.checkpoint.cut)
            except SinkUnavailable:
                continue
        assert began
        assert {*began} == {last}
