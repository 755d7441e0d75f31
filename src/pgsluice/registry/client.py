"""What the registry asks Kafka for, and how long it waits for an answer.

Used by :mod:`.topic`, :mod:`.follower` and :mod:`.builtin`. Clients are made and errors judged where all of
pgsluice does it (``librdkafka``).
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
"""At most between two attempts, at first and later: brokers hear of a new topic within milliseconds, mostly."""

CONNECT_S: Final = 1.0
"""How long a start waits for each of two look-ups that connect; without them, whatever comes first connects."""


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """``replication_factor`` (-1: the broker's default) and ``topic_config`` are for a topic yet to be made."""

    client: ClientOptions
    replication_factor: int = -1
    topic_config: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 30.0
    """How long Kafka may take for what is asked of it; then the caller decides."""
    count_version: Callable[[], object] = lambda: None
    """Called for every new version of a schema that was registered."""


def pauses() -> Iterator[float]:
    """Yield how long to wait before each further attempt."""
    longest = RETRY_FIRST_S
    while True:
        yield random.uniform(0.5, 1) * longest  # noqa: S311 - spreads load, guards nothing
        longest = min(RETRY_S, 2 * longest)


class Retry:
    """Tries operations on Kafka again until they succeed or time is up, and says why they did not."""

    def __init__(self, errors: ClientErrors) -> None:
        self._errors = errors
        self._retried = ""
        """The failure that was last answered by trying again."""

    @asynccontextmanager
    async def time_limit(self, seconds: float, doing: str) -> AsyncIterator[None]:
        """Let ``doing`` take no longer; SinkUnavailable when it does, PermissionDenied if that is why."""
        self._retried = ""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            self._errors.raise_if_denied(doing)
            last = self._errors.last
            reason = last.str() if last is not None else self._retried
            raise SinkUnavailable(f"{doing}: {reason or 'Kafka did not answer in time'}") from None

    async def persist(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Return what ``operation`` returns, trying again while Kafka is not available."""
        again = pauses()
        while True:
            try:
                return await operation()
            except SinkUnavailable as error:
                self._retried = str(error)
                log.debug("trying again", reason=str(error))
            await asyncio.sleep(next(again))
