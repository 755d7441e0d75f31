"""The network between brokers, which can cut off one of them while clients still reach it.

    links = Links()
    with Kafka(brokers=3, forward=links.forward) as kafka: links.isolate(1)

The broker that is cut off learns nothing of what the others decide: it goes on as the leader of its partitions until
the link is there again, while the others have elected new leaders. No privilege is needed: each pair of brokers has
addresses of its own, and a proxy listens at each.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from sandbox.broker import HOST, Link
from tests.support.proxy import Proxy


class Links:
    """One proxy for each way from one broker to a listener of another."""

    def __init__(self) -> None:
        self._proxies: dict[Link, Proxy] = {}

    @contextmanager
    def forward(self, links: Sequence[Link]) -> Iterator[None]:
        """Serve the links; a cluster calls this before its brokers start."""
        with ExitStack() as context:
            for link in links:
                self._proxies[link] = context.enter_context(Proxy(HOST, link.port, at=(link.host, link.port)))
            yield

    def isolate(self, node: int, *, silently: bool = False) -> None:
        """Cut off a broker from all others, in both directions, until ``heal``.

        ``silently``: connections stay open, and what is sent meanwhile arrives late, as TCP would have it after a
        network without answers. Otherwise connections are reset, and new ones refused.
        """
        for link, proxy in self._proxies.items():
            if node in (link.source, link.target):
                if silently:
                    proxy.stall()
                else:
                    proxy.refuse()
                    proxy.cut()

    def heal(self) -> None:
        """Let all brokers reach one another again."""
        for proxy in self._proxies.values():
            proxy.resume()
