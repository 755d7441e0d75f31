"""Kafka clusters in KRaft mode, of one broker or three, each broker a controller too.

    with Kafka(brokers=3) as kafka: Producer({"bootstrap.servers": kafka.bootstrap_servers})

https://kafka.apache.org/documentation/#kraft
"""

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sandbox.account import Account, current_account
from sandbox.artifacts import fetch
from sandbox.java import class_path, java
from sandbox.ports import ReservedPort
from sandbox.process import Server, ServerError, make_directory

START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 15

CLUSTER_ID = "c2x1aWNlLXNhbmRib3gtMQ"

JVM_OPTIONS = (
    "-Xms64m",
    "-Xmx768m",  # records of 50 MB are in memory several times
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",  # no files in /tmp that a kill leaves behind
)

SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.retention.ms": "-1",  # tests write old timestamps
    # a dead broker is noticed in seconds
    "broker.heartbeat.interval.ms": "1000",
    "broker.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "5000",
}


class Broker:
    """One broker process with its own directory."""

    def __init__(self, node: int, libraries: Path, account: Account) -> None:
        self.node = node
        self.client_port = ReservedPort.any()
        self.controller_port = ReservedPort.any()
        self.directory = make_directory(account)
        self.log = self.directory / "log"
        self.server: Server | None = None
        self._libraries = libraries
        self._account = account

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.client_port.number}"

    @property
    def voter(self) -> str:
        """This broker in ``controller.quorum.voters``."""
        return f"{self.node}@127.0.0.1:{self.controller_port.number}"

    def format(self, settings: Mapping[str, str]) -> None:
        """Write the configuration, and prepare the log directory, as a cluster's first start needs."""
        own = {
            "node.id": str(self.node),
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{self.controller_port.number}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": str(self.directory / "data"),
        }
        lines = (f"{name}={value}\n" for name, value in {**own, **settings}.items())
        self._properties.write_text("".join(lines))
        self._run_storage_tool("format", "-t", CLUSTER_ID, "-c", str(self._properties))

    def launch(self) -> None:
        """Start the process; ``wait_until_started`` comes next."""
        self._started_before = self._starts()
        command = [*self._java(), "kafka.Kafka", str(self._properties)]
        self.server = Server(command, self.directory, self.log, self._account, signal.SIGKILL)

    def wait_until_started(self) -> None:
        """Return once the broker is registered and unfenced."""
        self.running().wait_until(lambda: self._starts() > self._started_before, START_TIMEOUT_S)

    def running(self) -> Server:
        """Return the process; ServerError if there is none."""
        if self.server is None:
            raise ServerError(f"broker {self.node} is not running")
        return self.server

    def forget(self) -> None:
        """Note that the process has ended."""
        self.running().dismiss()
        self.server = None

    def remove(self) -> None:
        """Give everything back."""
        if self.server is not None:
            self.server.kill()
            self.forget()
        shutil.rmtree(self.directory)
        self.client_port.release()
        self.controller_port.release()

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _java(self, *options: str) -> list[str]:
        temporary = f"-Djava.io.tmpdir={self.directory}"
        return [java(), *JVM_OPTIONS, temporary, *options, "-cp", class_path(self._libraries)]

    def _run_storage_tool(self, *arguments: str) -> None:
        command = [*self._java(), "kafka.tools.StorageTool", *arguments]
        tool = subprocess.run(command, capture_output=True, text=True, check=False)
        if tool.returncode != 0:
            raise ServerError(f"formatting the log directory failed:\n{tool.stdout}{tool.stderr}")

    def _starts(self) -> int:
        return self.log.read_text(errors="replace").count("Kafka Server started") if self.log.exists() else 0


class Kafka:
    """A cluster; everything it stored is gone when the context ends. Brokers are numbered from 1."""

    def __init__(self, brokers: int = 1, settings: Mapping[str, str] | None = None) -> None:
        """Choose the size; ``settings`` override ``SETTINGS`` and what a broker is given."""
        self._size = brokers
        self._settings = {**SETTINGS, **_replication(brokers), **(settings or {})}
        self._brokers: dict[int, Broker] = {}

    def __enter__(self) -> Self:
        libraries = fetch("kafka")
        account = current_account()
        try:
            for node in range(1, self._size + 1):
                self._brokers[node] = Broker(node, libraries, account)
            voters = ",".join(broker.voter for broker in self._brokers.values())
            for broker in self._brokers.values():
                broker.format({"controller.quorum.voters": voters, **self._settings})
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self._brokers.values():
            broker.remove()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers."""
        return ",".join(broker.address for broker in self._brokers.values())

    def start(self, *nodes: int) -> None:
        """Start brokers, all that are down unless told which; the cluster serves them when this returns."""
        chosen = self._chosen(nodes, running=False)
        for broker in chosen:
            broker.launch()
        for broker in chosen:
            broker.wait_until_started()
        if chosen:
            chosen[-1].running().wait_until(self._is_complete, START_TIMEOUT_S)

    def stop(self, *nodes: int) -> None:
        """Stop brokers in good order, all that run unless told which; one without a quorum is killed."""
        chosen = self._chosen(nodes, running=True)
        for broker in chosen:
            broker.running().send(signal.SIGTERM)
        for broker in chosen:
            try:
                broker.running().wait(STOP_TIMEOUT_S)
            except ServerError:
                broker.running().kill()
            broker.forget()

    def kill(self, *nodes: int) -> None:
        """``kill -9``."""
        for broker in self._chosen(nodes, running=True):
            broker.running().kill()
            broker.forget()

    def pause(self, *nodes: int) -> None:
        """Stop brokers in their tracks: connections stay open and nothing answers."""
        for broker in self._chosen(nodes, running=True):
            broker.running().send(signal.SIGSTOP)

    def resume(self, *nodes: int) -> None:
        """Let paused brokers go on."""
        for broker in self._chosen(nodes, running=True):
            broker.running().send(signal.SIGCONT)

    def log_text(self, node: int = 1) -> str:
        """Return what a broker has logged since the context began."""
        return self._brokers[node].log.read_text(errors="replace")

    def _chosen(self, nodes: Sequence[int], *, running: bool) -> list[Broker]:
        if nodes:
            return [self._brokers[node] for node in nodes]
        return [broker for broker in self._brokers.values() if (broker.server is not None) == running]

    def _is_complete(self) -> bool:
        """Whether a client sees every broker that runs."""
        running = {broker.node for broker in self._brokers.values() if broker.server is not None}
        client = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        with contextlib.suppress(KafkaException):
            return running.issubset(client.list_topics(timeout=5).brokers)
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
