"""The registry's Kafka clients: their options, and their retries.

:mod:`.follower` and :mod:`.builtin` use this module. ``kafka.client`` creates the clients, and decides what errors
mean, as it does for all of pgsluice.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

import structlog

from pgsluice.errors import SinkUnavailable
from pgsluice.kafka.client import ClientErrors, ClientOptions

log = structlog.get_logger(__name__)

T = TypeVar("T")

RETRY_FIRST_S: Final = 0.02
RETRY_S: Final = 1.0
"""The pause before the first retry is at most RETRY_FIRST_S. The pauses grow up to RETRY_S. Brokers usually learn of a
new topic in milliseconds, so the first pause is short."""

CONNECT_S: Final = 1.0
"""At the start, we wait at most this long for each of the two requests that only connect a client. If there is no
answer in time, the client connects with its first real request."""


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """The options of the registry.

    ``replication_factor`` (-1 is the broker's default) and ``topic_config`` apply only when the registry creates the
    topic.
    """

    client: ClientOptions
    replication_factor: int = -1
    topic_config: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 30.0
    """If Kafka takes longer than this for one operation, the operation raises SinkUnavailable."""
    count_version: Callable[[], object] = lambda: None
    """Called whenever a new version of a schema is registered."""


def pauses() -> Iterator[float]:
    """Yield how long to wait before each further try."""
    longest = RETRY_FIRST_S
    while True:
        yield random.uniform(0.5, 1) * longest  # noqa: S311 - spreads load, and need not be unpredictable
        longest = min(RETRY_S, 2 * longest)


class Retry:
    """Retries operations on Kafka until they succeed or the time is up, and reports why they failed."""

    def __init__(self, errors: ClientErrors) -> None:
        self._errors = errors
        self._retried = ""
        """The reason why the last attempt failed."""
        self.has_expired = False
        """Whether the time was up at least once with the present clients. This may mean that a client has lost all
        brokers, and never finds them again (see ``kafka.client.has_lost_brokers``)."""
        self._renewals = 0

    @asynccontextmanager
    async def time_limit(self, seconds: float, doing: str) -> AsyncIterator[None]:
        """Limit the time of this block. Raise SinkUnavailable if it takes longer. ``doing`` describes the block.

        If a broker has refused the credentials or a right, raise PermissionDenied instead.
        """
        self._retried, renewals = "", self._renewals
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            self.has_expired |= renewals == self._renewals
            self._errors.raise_if_denied(doing)
            last = self._errors.last
            reason = last.str() if last is not None else self._retried
            raise SinkUnavailable(f"{doing}: {reason or 'Kafka did not answer in time'}") from None

    def renewed(self) -> None:
        """Note that the clients were replaced. A time limit that began earlier says nothing about the new clients."""
        self._renewals += 1
        self.has_expired = False

    async def persist(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Return what ``operation`` returns. Try again while Kafka is not available."""
        again = pauses()
        while True:
            try:
                return await operation()
            except SinkUnavailable as error:
                self._retried = str(error)
                log.debug("trying again", reason=str(error))
            await asyncio.sleep(next(again))
