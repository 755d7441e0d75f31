"""Simulates the network between brokers, and can isolate one broker from the others while clients still reach it.

    links = Links()
    with Kafka(brokers=3, forward=links.forward) as kafka: links.isolate(1)

The isolated broker does not learn of the others' decisions. It continues as the leader of its partitions until the link
is restored, although the others have elected new leaders. The isolation needs no privileges, because each pair of
brokers has its own addresses, and a proxy listens on each address.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from sandbox.broker import HOST, Link
from tests.support.proxy import Proxy


class Links:
    """A proxy for each connection from one broker to a listener of another."""

    def __init__(self) -> None:
        self._proxies: dict[Link, Proxy] = {}

    @contextmanager
    def forward(self, links: Sequence[Link]) -> Iterator[None]:
        """Serve the links until the block ends. A cluster calls this before its brokers start."""
        with ExitStack() as context:
            for link in links:
                self._proxies[link] = context.enter_context(Proxy(HOST, link.port, at=(link.host, link.port)))
            yield

    def isolate(self, node: int, *, silently: bool = False) -> None:
        """Isolate a broker from all others, in both directions, until ``heal`` is called.

        If ``silently`` is true, connections stay open, and data that is sent during the isolation arrives late, as with
        TCP on a network that drops all packets for a while. Otherwise, connections are reset, and new ones are refused.
        """
        for link, proxy in self._proxies.items():
            if node in (link.source, link.target):
                if silently:
                    proxy.stall()
                else:
                    proxy.refuse()
                    proxy.cut()

    def heal(self) -> None:
        """Let all brokers reach each other again."""
        for proxy in self._proxies.values():
            proxy.resume()
