"""Kafka clusters in KRaft mode, with one broker or three.

    with Kafka(brokers=3) as kafka: Producer({"bootstrap.servers": kafka.bootstrap_servers})

https://kafka.apache.org/documentation/#kraft
"""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, PartitionMetadata

from sandbox.artifacts import cache_root, fetch, make_entry
from sandbox.broker import PLAIN, Broker, Link, Listener
from sandbox.errors import ServerError
from sandbox.java import build_id
from sandbox.prerequisites import require

METADATA_TIMEOUT_S = 5

METADATA_ATTEMPTS = 50

SYNC_TIMEOUT_S = 60
SYNC_POLL_S = 0.1

ARCHIVE = "classes.jsa"
ARCHIVE_TIMEOUT_S = 300

Place = tuple[str, int]
"""A topic and a partition."""

SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.retention.ms": "-1",  # records with old timestamps must not be deleted
    # With the following settings, the cluster notices a dead broker within seconds.
    "broker.heartbeat.interval.ms": "1000",
    "broker.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "5000",
}
"""Settings of all clusters. By default, Kafka accepts requests of 100 MB, so ``max.message.bytes`` may be that high."""


class Kafka:
    """A cluster, which is removed when the context ends. Brokers are numbered from 1."""

    def __init__(
        self,
        brokers: int = 1,
        settings: Mapping[str, str] | None = None,
        *,
        listeners: Sequence[Listener] = (),
        format_options: Sequence[str] = (),
        java_options: Sequence[str] = (),
        forward: Callable[[Sequence[Link]], AbstractContextManager[object]] | None = None,
    ) -> None:
        """Prepare a cluster of ``brokers`` brokers.

        ``settings`` add to ``SETTINGS`` or override them. ``listeners`` are added to the plain listener.
        ``format_options`` are passed to ``StorageTool format``, and ``java_options`` to Java. If ``forward`` is given,
        the brokers reach each other only by links, which ``forward`` serves until its context ends. ``forward`` can
        then disconnect a broker from the other brokers while the broker's clients stay connected.
        """
        self._size = brokers
        self._settings = {**SETTINGS, **_replication(brokers), **(settings or {})}
        self._listeners = listeners
        self._format_options = format_options
        self._java_options = java_options
        self._forward = forward
        self._brokers: dict[int, Broker] = {}
        self._context = ExitStack()

    def __enter__(self) -> Self:
        require(fetching=False)
        libraries, options = fetch("kafka"), [f"-XX:SharedArchiveFile={class_archive()}", *self._java_options]
        linked = self._forward is not None
        with ExitStack() as context:
            for node in range(1, self._size + 1):
                self._brokers[node] = Broker(node, self._listeners, libraries, java_options=options, linked=linked)
                context.callback(self._brokers[node].remove)
            if self._forward is not None:
                context.enter_context(self._forward(self._link()))
            self._format()
            self.start()
            self._context = context.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()
        self._brokers.clear()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the plain listeners of all brokers."""
        return self.addresses(PLAIN.name)

    def addresses(self, listener: str) -> str:
        """Return the addresses of the brokers for this listener, even if the brokers advertise other addresses."""
        return ",".join(broker.address(listener) for broker in self._brokers.values())

    def pid(self, node: int = 1) -> int:
        """Return the pid of a broker. Raise ServerError if the broker is not running."""
        return self._brokers[node].pid

    def start(self, *nodes: int) -> None:
        """Start these brokers, or by default all that are down. Wait until a client sees them.

        After ``kill``, this takes ``broker.session.timeout.ms`` longer, because the cluster waits for the dead brokers.
        """
        chosen = self._chosen(nodes, running=False)
        for broker in chosen:
            broker.launch()
        for broker in chosen:
            broker.wait_until_started()
        for broker in chosen:
            broker.wait_until(self._is_complete)

    def stop(self, *nodes: int) -> None:
        """Stop these brokers, or by default all that run, in an orderly way."""
        chosen = self._chosen(nodes, running=True)
        for broker in chosen:
            broker.send(signal.SIGTERM)
        for broker in chosen:
            broker.wait_until_stopped()

    def kill(self, *nodes: int) -> None:
        """Kill these brokers, or by default all that run, with SIGKILL."""
        for broker in self._chosen(nodes, running=True):
            broker.kill()

    def pause(self, *nodes: int) -> None:
        """Freeze these brokers. Their connections stay open, but they do not answer."""
        for broker in self._chosen(nodes, running=True):
            broker.send(signal.SIGSTOP)

    def resume(self, *nodes: int) -> None:
        """Let these frozen brokers continue."""
        for broker in self._chosen(nodes, running=True):
            broker.send(signal.SIGCONT)

    def led(self, node: int = 1) -> list[Place]:
        """Return the partitions of which a broker believes itself to be the leader."""
        return [place for place, leader in self._leaders(node).items() if leader == node]

    def rivals(self, node: int = 1) -> int:
        """Count the partitions that a broker claims to lead, while another broker names a different leader."""
        others = [self._leaders(peer) for peer in self._brokers if peer != node]
        return sum(any(leaders.get(place, node) != node for leaders in others) for place in self.led(node))

    def wait_until_in_sync(self, timeout_s: float = SYNC_TIMEOUT_S) -> None:
        """Wait until all replicas of each partition are in sync, and all brokers know the same leaders."""
        deadline = time.monotonic() + timeout_s
        while not self._is_in_sync():
            if time.monotonic() > deadline:
                raise ServerError(f"the replicas are not in sync after {timeout_s:g} s")
            time.sleep(SYNC_POLL_S)

    def log_text(self, node: int = 1) -> str:
        """Return everything that a broker has logged since the context began."""
        return self._brokers[node].log_text()

    def _link(self) -> list[Link]:
        """Configure how each broker reaches the others. Return all links between the brokers."""
        links = []
        for node, broker in self._brokers.items():
            ours = [link for peer in self._brokers.values() if peer is not broker for link in peer.links_from(node)]
            broker.know_links(ours)
            links += ours
        return links

    def _format(self) -> None:
        voters = ",".join(broker.voter for broker in self._brokers.values())
        settings = {"controller.quorum.voters": voters, **self._settings}
        for broker in self._brokers.values():
            broker.format(settings, self._format_options)

    def _chosen(self, nodes: Sequence[int], *, running: bool) -> list[Broker]:
        if nodes:
            return [self._brokers[node] for node in nodes]
        return [broker for broker in self._brokers.values() if broker.running == running]

    def _is_complete(self) -> bool:
        """Return whether a client sees every running broker."""
        running = {broker.node for broker in self._brokers.values() if broker.running}
        with suppress(KafkaException):
            return running.issubset(_metadata(self.bootstrap_servers).brokers)
        return False

    def _is_in_sync(self) -> bool:
        """Return whether all brokers agree on the leaders, and all replicas of all partitions are in sync."""
        with suppress(KafkaException):
            views = [_partitions(self._metadata_of(node)) for node in self._brokers]
            complete = all(set(one.isrs) == set(one.replicas) for view in views for one in view.values())
            leaders = [{place: one.leader for place, one in view.items()} for view in views]
            return complete and all(view == leaders[0] for view in leaders)
        return False

    def _leaders(self, node: int) -> dict[Place, int]:
        """Return the leader of each partition according to a broker, or nothing if the broker does not answer."""
        with suppress(KafkaException):
            return {place: one.leader for place, one in _partitions(self._metadata_of(node)).items()}
        return {}

    def _metadata_of(self, node: int) -> ClusterMetadata:
        """Return the metadata of the cluster from the point of view of one broker.

        Try repeatedly, because the client learns the addresses of all brokers, and may ask another broker.
        """
        for _ in range(METADATA_ATTEMPTS):
            found = _metadata(self._brokers[node].address(PLAIN.name))
            if found.orig_broker_id == node:
                return found
        raise ServerError(f"no request for metadata reached broker {node} in {METADATA_ATTEMPTS} attempts")


def class_archive() -> Path:
    """Return an archive of a broker's Java classes, which halves the time of a start. Create it if necessary.

    Java ignores an archive that it cannot use.

    https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html
    """
    return make_entry(cache_root(), f"kafka-classes-{build_id()}", _archive_classes) / ARCHIVE


def _archive_classes(entry: Path) -> None:
    """Start and stop a broker. Java writes the archive when it exits."""
    broker = Broker(1, (), fetch("kafka"), java_options=[f"-XX:ArchiveClassesAtExit={entry / ARCHIVE}"])
    try:
        broker.format({"controller.quorum.voters": broker.voter, **SETTINGS, **_replication(1)}, ())
        broker.launch()
        broker.wait_until_started()
        broker.send(signal.SIGTERM)
        broker.wait_until_stopped(ARCHIVE_TIMEOUT_S)
    finally:
        broker.remove()


def _metadata(bootstrap_servers: str) -> ClusterMetadata:
    client = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    return client.list_topics(timeout=METADATA_TIMEOUT_S)


def _partitions(metadata: ClusterMetadata) -> dict[Place, PartitionMetadata]:
    return {(name, number): one for name, topic in metadata.topics.items() for number, one in topic.partitions.items()}


def _replication(brokers: int) -> dict[str, str]:
    replicas, in_sync = str(brokers), str(max(1, brokers - 1))
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
    }
