"""How a Kafka client of the registry is made, and what its errors mean.

Used by :mod:`.topic`, :mod:`.follower` and :mod:`.builtin`. librdkafka retries in the background and says why
only to its error callback; what it said last makes the difference between "timed out" and a usable sentence.

https://docs.confluent.io/platform/current/clients/librdkafka/html/md_INTRODUCTION.html
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from pgsluice.errors import ConfigError, PermissionDenied, PgsluiceError, PoisonError, SinkUnavailable

logger = logging.getLogger("pgsluice.registry")
# properties are set for all clients at once: that a reader ignores how a writer compresses is as it should be
logger.addFilter(lambda record: "will be ignored by this" not in record.getMessage())

T = TypeVar("T")

RETRY_S: Final = 1.0
"""At most between two attempts; connecting again has librdkafka's own back-off."""

# librdkafka's own errors, as opposed to the broker's, begin with an underscore in Python too.
_DENIED: Final = frozenset(
    (
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - as above
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    )
)
_POISON: Final = frozenset((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_RECORD))
_CONFIG: Final = frozenset(
    (
        KafkaError._INVALID_ARG,  # noqa: SLF001 - as above
        KafkaError.INVALID_CONFIG,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
    )
)


@dataclass(slots=True)
class ClientErrors:
    """What went wrong last, as far as it is known."""

    last: KafkaError | None = None
    """Reported in the background since :meth:`forget`."""
    retried: str = ""
    """The failure that was last answered by trying again."""

    def __call__(self, error: KafkaError) -> None:
        """Take a report; this is ``error_cb``, called in whichever thread serves the client."""
        # that all brokers are down follows the reason why
        if self.last is None or error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - as above
            self.last = error

    def forget(self) -> None:
        """Start anew: what was reported before has nothing to do with what comes now."""
        self.last = None

    def raise_if_denied(self, doing: str) -> None:
        """Raise PermissionDenied if a broker refused the credentials; waiting would not change that."""
        if self.last is not None and self.last.code() in _DENIED:
            raise failure(self.last, doing)

    @asynccontextmanager
    async def time_limit(self, seconds: float, doing: str) -> AsyncIterator[None]:
        """Let ``doing`` take no longer; SinkUnavailable when it does, PermissionDenied if that is why."""
        self.retried = ""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            self.raise_if_denied(doing)
            reason = self.last.str() if self.last is not None else self.retried
            raise SinkUnavailable(f"{doing}: {reason or 'Kafka did not answer in time'}") from None

    async def persist(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Return what ``operation`` returns, trying again while Kafka is not available."""
        while True:
            try:
                return await operation()
            except SinkUnavailable as error:
                self.retried = str(error)
                logger.debug("trying again: %s", error)
            await asyncio.sleep(random.uniform(0.5, 1) * RETRY_S)  # noqa: S311 - spreads load, guards nothing


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """How to reach Kafka: ``properties`` are librdkafka's, those that every kind of client takes.

    ``replication_factor`` (-1: the broker's default) and ``topic_config`` are for a topic yet to be made.
    """

    properties: Mapping[str, str]
    client_id: str = "pgsluice-registry"
    replication_factor: int = -1
    topic_config: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 30.0
    """How long Kafka may take for what is asked of it; then the caller decides."""

    def client(self, kind: Callable[[dict[str, object]], T], errors: ClientErrors, **own: object) -> T:
        """Return a client of this kind; ``own`` with underscores for the dots in a property's name."""
        config = {
            **self.properties,
            **{name.replace("_", "."): value for name, value in own.items()},
            "client.id": self.client_id,
            "error_cb": errors,
            "logger": logger,
        }
        try:
            return kind(config)
        except KafkaException as error:
            raise failure(error, "Setting up a Kafka client") from error


def failure(error: KafkaException | KafkaError, doing: str) -> PgsluiceError:
    """Return ``error`` as one of ours, with a sentence that begins with what was being done."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    sentence = f"{doing}: {cause.str()} ({cause.name()})."
    if cause.code() in _DENIED:
        return PermissionDenied(f"{sentence} Check the credentials under kafka.client, and the user's ACLs.")
    if cause.code() in _POISON:
        return PoisonError(f"{sentence} Raise the topic's max.message.bytes and kafka.client's message.max.bytes.")
    if cause.code() in _CONFIG:
        return ConfigError(f"{sentence} Check the [kafka] section.")
    return SinkUnavailable(sentence)
