"""How a librdkafka client is made here, and what its errors mean for us.

https://docs.confluent.io/platform/current/clients/confluent-kafka-python/html/index.html
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from pgsluice.errors import ConfigError, PermissionDenied, PgsluiceError, PoisonError, SinkUnavailable

logger = logging.getLogger("pgsluice.kafka")
# Every client gets all of the user's properties and ignores those of the other kinds: not worth a warning.
logger.addFilter(lambda record: "CONFWARN" not in record.getMessage())

_PERMISSION: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - librdkafka's local errors are named with an underscore
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_POISON: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.RECORD_LIST_TOO_LARGE,
    }
)
_CONFIG: Final = frozenset(
    {
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_CONFIG,
        KafkaError.POLICY_VIOLATION,
        KafkaError._INVALID_ARG,  # noqa: SLF001 - as above
        KafkaError._SSL,  # noqa: SLF001 - as above
    }
)


@dataclass(slots=True)
class ClientErrors:
    """The last reason that librdkafka gave in the background: its calls often end only in a time-out."""

    last: KafkaError | None = None
    count: int = 0

    def note(self, error: KafkaException, doing: str) -> None:
        """Take an error that changes nothing any more."""
        self.count += 1
        logger.warning("%s: %s", doing, error.args[0])

    def __call__(self, error: KafkaError) -> None:
        """Take an error from ``error_cb``."""
        self.count += 1
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self.last is None:  # noqa: SLF001 - the one that says least
            self.last = error
        logger.warning("Kafka client: %s", error.str())


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """``properties``: librdkafka's, with ``bootstrap.servers`` and whatever the user set under kafka.client."""

    properties: Mapping[str, str]
    client_id: str
    errors: ClientErrors = field(default_factory=ClientErrors)

    def config(self, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the configuration of one client, with the properties that are its ``own``."""
        common = {"client.id": self.client_id, "error_cb": self.errors, "logger": logger}
        return {**self.properties, **common, **(own or {})}


def failure(error: KafkaException | KafkaError, doing: str, errors: ClientErrors | None = None) -> PgsluiceError:
    """Return what ``error`` means, as an error whose sentence names what was being done."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(cause, KafkaError):
        return ConfigError(f"{doing}: {cause}. Check the [kafka] section.")
    code, reason = cause.code(), f"{cause.str()} ({cause.name()})"
    if errors is not None and errors.last is not None and code == KafkaError._TIMED_OUT:  # noqa: SLF001 - as above
        if errors.last.code() in _PERMISSION | _CONFIG:
            return failure(errors.last, doing)
        reason = f"{reason}; last reported: {errors.last.str()}"
    if code in _PERMISSION:
        return PermissionDenied(f"{doing}: Kafka refuses it: {reason}. Check kafka.client's credentials and the ACLs.")
    if code in _POISON:
        return PoisonError(f"{doing}: Kafka refuses the record for what it holds: {reason}.")
    if code in _CONFIG:
        return ConfigError(f"{doing}: {reason}. Check the [kafka] section and the broker's limits.")
    return SinkUnavailable(f"{doing}: {reason}.")
