"""One Kafka broker, which is also a controller, with its ports, its files and its process. ``kafka`` uses this module.

https://kafka.apache.org/documentation/#brokerconfigs
"""

import shutil
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.account import current_account, run_as
from sandbox.errors import ServerError
from sandbox.java import class_path
from sandbox.ports import ReservedPort
from sandbox.prerequisites import java
from sandbox.process import Server, make_directory

HOST = "127.0.0.1"

START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 15

CLUSTER_ID = "c2x1aWNlLXNhbmRib3gtMQ"

JVM_OPTIONS = (
    "-Xms64m",
    "-Xmx768m",  # enough for several copies of a record of 50 MB
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",  # with performance data, a killed broker leaves files in /tmp
)

STARTED = "Kafka Server started"
"""The log contains this text when the broker is registered and ready."""

LINK_HOSTS = "127.77.{source}.{target}"
"""The address that one broker uses to reach another. All addresses in 127.0.0.0/8 belong to this machine, so each pair
of brokers can have its own address without privileges."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener with its name.

    ``advertised`` maps the number of a broker to the ``host:port`` that this broker advertises to clients. A broker
    that is not in the mapping advertises the address on which it listens.
    """

    name: str
    protocol: str = "PLAINTEXT"
    advertised: Mapping[int, str] = field(default_factory=dict)


PLAIN = Listener("PLAINTEXT")
CONTROLLER = Listener("CONTROLLER")
INTERNAL = Listener("INTERNAL")
"""The listener that linked brokers use among themselves. Brokers without links use the plain listener instead."""

PRIVATE = (CONTROLLER, INTERNAL)
"""The listeners that only brokers connect to."""


@dataclass(frozen=True, slots=True)
class Link:
    """The connection from one broker to a listener of another: ``source`` connects to ``host`` to reach ``target``.

    A proxy must listen on ``host`` and ``port``, and forward to the same port of the target's own host.
    """

    source: int
    target: int
    port: int

    @property
    def host(self) -> str:
        """The address that only the source uses, and only to reach the target."""
        return LINK_HOSTS.format(source=self.source, target=self.target)


class Broker:
    """One broker. It keeps its ports and its directory until ``remove`` is called."""

    def __init__(
        self,
        node: int,
        listeners: Sequence[Listener],
        libraries: Path,
        *,
        java_options: Sequence[str] = (),
        linked: bool = False,
    ) -> None:
        """Reserve ports and a directory for the broker with the id ``node``.

        If ``linked`` is true, the broker reaches its peers by links, and ``know_links`` must be called before
        ``format``.
        """
        self.node = node
        self._java_options = java_options
        self._linked = linked
        self._listeners = (PLAIN, INTERNAL, *listeners) if linked else (PLAIN, *listeners)
        self._libraries = libraries
        self._server: Server | None = None
        with ExitStack() as context:
            self._ports = {listener.name: ReservedPort.any() for listener in (CONTROLLER, *self._listeners)}
            for port in self._ports.values():
                context.callback(port.release)
            self._directory = make_directory(current_account())
            context.callback(shutil.rmtree, self._directory)
            self._context = context.pop_all()

    @property
    def voter(self) -> str:
        """The broker's entry in ``controller.quorum.voters``."""
        return f"{self.node}@{self.address(CONTROLLER.name)}"

    @property
    def running(self) -> bool:
        """Whether the process was started, and nobody has stopped or killed it since."""
        return self._server is not None

    @property
    def pid(self) -> int:
        """The pid of the process. Raises ServerError if it is not running."""
        return self._process().pid

    def address(self, listener: str) -> str:
        """Return ``host:port`` of a listener.

        For a private listener of a linked broker, the host is a name. The broker's peers resolve the name to the hosts
        of their links.
        """
        private = self._linked and listener in {each.name for each in PRIVATE}
        return f"{_name(self.node) if private else HOST}:{self._ports[listener].number}"

    def links_from(self, source: int) -> list[Link]:
        """Return the links that the broker ``source`` needs to reach this broker."""
        return [Link(source, self.node, self._ports[listener.name].number) for listener in PRIVATE]

    def know_links(self, links: Iterable[Link]) -> None:
        """Write the hosts file of this broker's Java. It maps the names of the peers to the hosts of ``links``."""
        hosts = {"localhost": HOST, _name(self.node): HOST} | {_name(link.target): link.host for link in links}
        self._hosts.write_text("".join(f"{host} {name}\n" for name, host in hosts.items()))

    def format(self, settings: Mapping[str, str], options: Sequence[str]) -> None:
        """Write the configuration, and format the log directory for the first start."""
        lines = (f"{name}={value}\n" for name, value in {**self.own_settings(), **settings}.items())
        self._properties.write_text("".join(lines))
        tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", self._properties]
        run_as(current_account(), [*self._java(), *tool, *options])

    def launch(self) -> None:
        """Start the process. Call ``wait_until_started`` afterwards."""
        self._started_before = self._starts()
        command = [*self._java(), "kafka.Kafka", str(self._properties)]
        self._server = Server(command, self._directory, self._log, current_account(), signal.SIGKILL)

    def wait_until_started(self) -> None:
        """Wait until the broker is registered and ready."""
        self.wait_until(lambda: self._starts() > self._started_before)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready()`` is true. Raise ServerError if the process ends before that."""
        self._process().wait_until(ready, START_TIMEOUT_S)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self._process().send(number)

    def wait_until_stopped(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Wait until the process has ended.

        Kill it after ``timeout_s``, because a broker that has lost its quorum does not end by itself.
        """
        try:
            self._process().wait(timeout_s)
        except ServerError:
            self._process().kill()
        self._forget()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process().kill()
        self._forget()

    def remove(self) -> None:
        """Kill the process if it runs, release the ports and remove the directory."""
        if self.running:
            self.kill()
        self._context.close()

    def log_text(self) -> str:
        """Return everything that the broker has logged."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def own_settings(self) -> dict[str, str]:
        """Return the settings for the broker's id, its log directory and its listeners."""
        everywhere = (CONTROLLER, *self._listeners)
        addresses = {listener.name: self.address(listener.name) for listener in everywhere}
        advertised = {
            listener.name: listener.advertised.get(self.node, addresses[listener.name]) for listener in self._listeners
        }
        return {
            "node.id": str(self.node),
            "log.dirs": str(self._directory / "data"),
            "listeners": _urls(addresses),
            "advertised.listeners": _urls(advertised),
            "listener.security.protocol.map": ",".join(f"{each.name}:{each.protocol}" for each in everywhere),
            "controller.listener.names": CONTROLLER.name,
            "inter.broker.listener.name": INTERNAL.name if self._linked else PLAIN.name,
        }

    @property
    def _properties(self) -> Path:
        return self._directory / "server.properties"

    @property
    def _hosts(self) -> Path:
        return self._directory / "hosts"

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def _java(self) -> list[str]:
        # The broker has its own temporary directory, because compression libraries unpack themselves there.
        return [
            java(),
            *JVM_OPTIONS,
            *self._java_options,
            *([f"-Djdk.net.hosts.file={self._hosts}"] if self._linked else []),
            f"-Djava.io.tmpdir={self._directory}",
            "-cp",
            class_path(self._libraries),
        ]

    def _starts(self) -> int:
        return self.log_text().count(STARTED)

    def _process(self) -> Server:
        if self._server is None:
            raise ServerError(f"broker {self.node} is not running")
        return self._server

    def _forget(self) -> None:
        self._process().dismiss()
        self._server = None


def _name(node: int) -> str:
    return f"broker-{node}"


def _urls(addresses: Mapping[str, str]) -> str:
    return ",".join(f"{name}://{address}" for name, address in addresses.items())
