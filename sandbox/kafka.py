"""Kafka clusters in KRaft mode, of one broker or three.

    with Kafka(brokers=3) as kafka: Producer({"bootstrap.servers": kafka.bootstrap_servers})

https://kafka.apache.org/documentation/#kraft
"""

import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sandbox.artifacts import fetch
from sandbox.broker import PLAIN, Broker, Listener
from sandbox.prerequisites import require

METADATA_TIMEOUT_S = 5

SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.retention.ms": "-1",  # records with old timestamps are here to stay
    # a dead broker is noticed in seconds
    "broker.heartbeat.interval.ms": "1000",
    "broker.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "5000",
}
"""Limits of size are Kafka's own: a topic's ``max.message.bytes`` may go up to 100 MB."""


class Kafka:
    """A cluster; everything it stored is gone when the context ends. Brokers are numbered from 1."""

    def __init__(
        self,
        brokers: int = 1,
        settings: Mapping[str, str] | None = None,
        *,
        listeners: Sequence[Listener] = (),
        format_options: Sequence[str] = (),
    ) -> None:
        """Choose the size; ``settings`` add to ``SETTINGS`` or override them.

        ``listeners`` come beside the plain one; ``format_options`` go to ``StorageTool format``.
        """
        self._size = brokers
        self._settings = {**SETTINGS, **_replication(brokers), **(settings or {})}
        self._listeners = listeners
        self._format_options = format_options
        self._brokers: dict[int, Broker] = {}
        self._context = ExitStack()

    def __enter__(self) -> Self:
        require(fetching=False)
        libraries = fetch("kafka")
        with ExitStack() as context:
            for node in range(1, self._size + 1):
                self._brokers[node] = Broker(node, self._listeners, libraries)
                context.callback(self._brokers[node].remove)
            self._format()
            self.start()
            self._context = context.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()
        self._brokers.clear()

    @property
    def bootstrap_servers(self) -> str:
        """The plain addresses of all brokers."""
        return self.addresses(PLAIN.name)

    def addresses(self, listener: str) -> str:
        """Return the addresses of all brokers for a listener, whatever they advertise."""
        return ",".join(broker.address(listener) for broker in self._brokers.values())

    def pid(self, node: int = 1) -> int:
        """Return the pid of a broker; ServerError while it is down."""
        return self._brokers[node].pid

    def start(self, *nodes: int) -> None:
        """Start brokers, all that are down unless told which; a client sees them when this returns.

        After ``kill`` this takes ``broker.session.timeout.ms`` longer: the cluster waits for the dead.
        """
        chosen = self._chosen(nodes, running=False)
        for broker in chosen:
            broker.launch()
        for broker in chosen:
            broker.wait_until_started()
        for broker in chosen:
            broker.wait_until(self._is_complete)

    def stop(self, *nodes: int) -> None:
        """Stop brokers in good order, all that run unless told which."""
        chosen = self._chosen(nodes, running=True)
        for broker in chosen:
            broker.send(signal.SIGTERM)
        for broker in chosen:
            broker.wait_until_stopped()

    def kill(self, *nodes: int) -> None:
        """``kill -9``."""
        for broker in self._chosen(nodes, running=True):
            broker.kill()

    def pause(self, *nodes: int) -> None:
        """Freeze brokers: connections stay open, and nothing answers."""
        for broker in self._chosen(nodes, running=True):
            broker.send(signal.SIGSTOP)

    def resume(self, *nodes: int) -> None:
        """Let frozen brokers go on."""
        for broker in self._chosen(nodes, running=True):
            broker.send(signal.SIGCONT)

    def log_text(self, node: int = 1) -> str:
        """Return what a broker has logged since the context began."""
        return self._brokers[node].log_text()

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
        """Whether a client sees every broker that runs."""
        running = {broker.node for broker in self._brokers.values() if broker.running}
        client = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        with suppress(KafkaException):
            return running.issubset(client.list_topics(timeout=METADATA_TIMEOUT_S).brokers)
        return False


def _replication(brokers: int) -> dict[str, str]:
    replicas, in_sync = str(brokers), str(max(1, brokers - 1))
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
    }
