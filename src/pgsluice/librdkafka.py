"""What all Kafka clients have in common: how they are configured, what librdkafka's errors mean, who hears of them.

Used by ``kafka/`` and ``registry/``, which know nothing of each other.

https://docs.confluent.io/platform/current/clients/confluent-kafka-python/html/index.html
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from confluent_kafka import KafkaError, KafkaException

from pgsluice.errors import ConfigError, PermissionDenied, PgsluiceError, PoisonError, SinkUnavailable

log = structlog.get_logger(__name__)

# librdkafka's own errors, as opposed to the brokers', begin with an underscore in Python too.
TIMED_OUT: Final = KafkaError._TIMED_OUT  # noqa: SLF001 - as above
PARTITION_EOF: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - as above
_ALL_BROKERS_DOWN: Final = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 - as above

UNKNOWN_TOPIC: Final = frozenset(
    (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - as above
    )
)
FENCED: Final = frozenset(
    (
        KafkaError._FENCED,  # noqa: SLF001 - as above
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    )
)
_DENIED: Final = frozenset(
    (
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - as above
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)
_POISON: Final = frozenset(
    (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
    )
)
_CONFIG: Final = frozenset(
    (
        KafkaError._INVALID_ARG,  # noqa: SLF001 - as above
        KafkaError._SSL,  # noqa: SLF001 - as above
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
    )
)


def _to_debug(record: logging.LogRecord) -> bool:
    """Keep librdkafka's chatter for those who debug: what matters of it comes through ClientErrors."""
    record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


_chatter = logging.getLogger("pgsluice.librdkafka.log")
_chatter.addFilter(_to_debug)


@dataclass(slots=True)
class ClientErrors:
    """What the clients of one cluster report in the background; their calls often end only in a time-out."""

    last: KafkaError | None = None
    """Reported since :meth:`forget`."""
    count: int = 0
    is_away: bool = False
    """Whether it has been said that Kafka is away, and not yet that it is back."""

    def __call__(self, error: KafkaError) -> None:
        """Take a report; this is ``error_cb``, called in whichever thread serves the client."""
        self.count += 1
        # That all brokers are down follows the reason why.
        if self.last is None or error.code() != _ALL_BROKERS_DOWN:
            self.last = error
        if not self.is_away:
            self.is_away = True
            log.warning("Kafka cannot be reached, or refuses us", reason=error.str())

    def forget(self) -> None:
        """Start anew: what was reported before has nothing to do with what comes now."""
        self.last = None

    def recovered(self) -> None:
        """Note that Kafka answers."""
        if self.is_away:
            self.is_away = False
            log.info("Kafka answers again")

    def raise_if_denied(self, doing: str) -> None:
        """Raise PermissionDenied if a broker refused the credentials; waiting would not change that."""
        if self.last is not None and self.last.code() in _DENIED:
            raise failure(self.last, doing)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """``properties``: librdkafka's, with ``bootstrap.servers`` and whatever the user set under kafka.client."""

    properties: Mapping[str, str]
    client_id: str
    errors: ClientErrors = field(default_factory=ClientErrors)

    def config(self, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the configuration of one client, with the properties that are its ``own``."""
        common = {"client.id": self.client_id, "error_cb": self.errors, "logger": _chatter}
        return {**self.properties, **common, **(own or {})}


def failure(error: KafkaException | KafkaError, doing: str, errors: ClientErrors | None = None) -> PgsluiceError:
    """Return what ``error`` means, with a sentence that begins with what was being done."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    code, sentence = cause.code(), f"{doing}: {cause.str()} ({cause.name()})"
    if code == TIMED_OUT and errors is not None and errors.last is not None:
        if errors.last.code() in _DENIED | _CONFIG:
            return failure(errors.last, doing)
        sentence = f"{sentence}; last reported: {errors.last.str()}"
    if code in _DENIED:
        return PermissionDenied(f"{sentence}. Check the credentials under kafka.client, and the user's ACLs.")
    if code in _POISON:
        return PoisonError(f"{sentence}. Kafka refuses the record for what it is.")
    if code in _CONFIG:
        return ConfigError(f"{sentence}. Check the [kafka] section, and the brokers' limits.")
    return SinkUnavailable(f"{sentence}.")
