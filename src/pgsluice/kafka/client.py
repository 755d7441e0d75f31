"""Creates all Kafka clients, and translates the errors that librdkafka reports.

``kafka/`` and ``registry/`` use this module. librdkafka retries in the background, and reports the reason of each
failure only to its error callback. So we add the last reported reason to errors that only say "timed out".

https://docs.confluent.io/platform/current/clients/librdkafka/html/md_INTRODUCTION.html
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Lock
from time import monotonic
from typing import Any, Final, TypeVar

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from pgsluice.errors import ConfigError, Fenced, PermissionDenied, PgsluiceError, PoisonError, SinkUnavailable

log = structlog.get_logger(__name__)

T = TypeVar("T")

MAX_RECORD_BYTES: Final = 1_000_000_000
"""The highest ``message.max.bytes`` that librdkafka allows. With this value, only the limits of topics and brokers
apply."""

STALE_S: Final = 5.0
"""After an answer from Kafka, this time has to pass before we log that Kafka cannot be reached. A client reports an
error only when it is polled, so the error may be older than the answer."""

IDLE_REPORTS_MAX: Final = 5
"""We ignore this many reports that give no reason, because idle connections may have caused them. When a broker closes
an idle connection, librdkafka reports the same as for a broker that went down. But closed idle
connections cause only one such report for each client, and a pipeline has at most this many clients. So if there are
more reports, they have another cause."""

OAUTH_S: Final = 60.0
"""For this time after a client has reported that it gets no token, we take this as the reason for time-outs. The client
tries again every ten seconds, and reports each failure."""

LOOK_S: Final = 2.0
"""How long :func:`has_lost_brokers` waits for each client to find a broker."""
_SLICE_S: Final = 0.5

# The names of librdkafka's own errors begin with an underscore, in Python as well. Names of brokers' errors do not.
PARTITION_EOF: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - librdkafka's name
FATAL: Final = KafkaError._FATAL  # noqa: SLF001 - librdkafka's name
"""The error with which every call of a producer fails after a fatal error."""
_ALL_BROKERS_DOWN: Final = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 - librdkafka's name
_NO_BROKER: Final = KafkaError._TRANSPORT  # noqa: SLF001 - librdkafka's name
"""The error of a request if the client has no connection to any broker, and gets none in time."""
PURGED: Final = frozenset(
    (
        KafkaError._PURGE_QUEUE,  # noqa: SLF001 - librdkafka's name
        KafkaError._PURGE_INFLIGHT,  # noqa: SLF001 - librdkafka's name
    )
)
"""The errors that librdkafka reports for records that it drops because their transaction failed."""
_UNEXPLAINED: Final = PURGED | frozenset(
    (
        KafkaError._TIMED_OUT,  # noqa: SLF001 - librdkafka's name
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001 - librdkafka's name
    )
)
"""Errors that do not name their cause. librdkafka has reported the cause to the error callback."""

UNKNOWN_TOPIC: Final = frozenset(
    (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - librdkafka's name
    )
)
_FENCED: Final = frozenset(
    (
        KafkaError._FENCED,  # noqa: SLF001 - librdkafka's name
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    )
)
_CREDENTIALS: Final = frozenset(
    (
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - librdkafka's name
        KafkaError.SASL_AUTHENTICATION_FAILED,
    )
)
_DENIED: Final = _CREDENTIALS | frozenset(
    (
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)
_CONFIG: Final = frozenset(
    (
        KafkaError._INVALID_ARG,  # noqa: SLF001 - librdkafka's name
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
    )
)

_TOO_LARGE: Final = (
    "Raise the topic's max.message.bytes, or the brokers' message.max.bytes. Kafka applies these limits to whole "
    "batches, so batch.size under kafka.client has to be lower."
)
_TIMESTAMP: Final = 'Compare the clocks of the hosts, or set kafka.timestamp = "produce".'
_INVALID: Final = (
    "A topic with cleanup.policy=compact takes no record without key. Every topic takes only timestamps within "
    f"its message.timestamp.before.max.ms and .after.max.ms. {_TIMESTAMP}"
)
_REFUSED: Final = (
    "Check the credentials under kafka.client (or the password from kafka.password_file or kafka.password_command), "
    "and the user's ACLs."
)
_MEANING: Final[Mapping[int, tuple[type[PgsluiceError], str]]] = {
    **dict.fromkeys(_DENIED, (PermissionDenied, _REFUSED)),
    **dict.fromkeys(_CONFIG, (ConfigError, "Check the [kafka] section, and the brokers' limits.")),
    **dict.fromkeys(_FENCED, (Fenced, "Another producer with our transactional.id has taken over.")),
    KafkaError.INVALID_TRANSACTION_TIMEOUT: (
        ConfigError,
        "Lower delivery.transaction_timeout, or raise transaction.max.timeout.ms on the brokers.",
    ),
    KafkaError.MSG_SIZE_TOO_LARGE: (PoisonError, _TOO_LARGE),
    KafkaError.RECORD_LIST_TOO_LARGE: (PoisonError, _TOO_LARGE),
    KafkaError.INVALID_RECORD: (PoisonError, _INVALID),
    KafkaError.INVALID_TIMESTAMP: (PoisonError, _TIMESTAMP),
    KafkaError._UNSUPPORTED_FEATURE: (  # noqa: SLF001 - librdkafka's name
        ConfigError,
        'The brokers lack a feature that this operation needs. delivery.mode = "at_least_once" needs no transactions.',
    ),
    # The replication factor is too high for this cluster, or some brokers are still starting.
    KafkaError.INVALID_REPLICATION_FACTOR: (
        SinkUnavailable,
        "Fewer brokers are up than replication_factor asks for.",
    ),
}
"""What an error means, and what to do about it. All other errors mean that Kafka is not available now."""


_TLS: Final[Mapping[str, str]] = {
    "certificate verify failed": (
        "The broker's certificate has expired, names another host, or is signed by an authority that is "
        "not in ssl.ca.location. Correct ssl.ca.location or kafka.bootstrap_servers, or renew the certificate."
    ),
    r"alert (\w+ )?(certificate|ca)\b": (
        "The broker does not accept the client's certificate, or received none. Check ssl.certificate.location and "
        "ssl.key.location, and renew a certificate that has expired."
    ),
    r"ssl\.(ca|certificate|key|keystore|crl)\.\w+ failed|key values mismatch|No such file": (
        "Check the files under kafka.client: whether they exist, belong together, and may be read."
    ),
}
"""What to do about failures of TLS, by a pattern that matches the error's text. librdkafka has only one code for all of
them.

A new session tries again, with new clients, which read the certificate files again.
"""


_UNSET: Final = "OAuth token not set"
"""Part of the error of a client that cannot be made, because its callback returns no token."""
_NO_OAUTH: Final = re.compile(f"Failed to acquire SASL OAUTHBEARER token|{_UNSET}")
"""Matches errors of a client that has no token. librdkafka reports them with the codes of refused credentials."""
_OAUTH_REFUSED: Final = re.compile(
    r'"error"\s*:\s*"(access_denied|invalid_\w+|unauthorized_client|unsupported_grant_type)"'
)
"""Matches the answer with which a token endpoint refuses a client (RFC 6749, section 5.2)."""
_CALLBACK_FAILED: Final = "OAuth callback raised exception"
"""The end of librdkafka's report of a callback that has failed. The callback has reported the reason itself."""
_OAUTH_ADVICE: Final = (
    "Kafka's client gets no token. Check that sasl.oauthbearer.token.endpoint.url under kafka.client answers or, with "
    "kafka.aws_msk_region, that AWS's credentials can be found. pgsluice tries again."
)

_USUAL_ADVICE: Final = (
    "check that the brokers run, and check kafka.bootstrap_servers and the credentials under kafka.client (or the "
    "password from kafka.password_file or kafka.password_command)"
)


def _tls_advice(words: str) -> str:
    """Return what to do about a failure of TLS, or an empty text if ``words`` do not describe one."""
    return next((advice for pattern, advice in _TLS.items() if re.search(pattern, words)), "")


def _lacks_token(error: KafkaError) -> bool:
    """Return whether a client has no token, although nobody has refused its credentials."""
    return _NO_OAUTH.search(error.str()) is not None and _OAUTH_REFUSED.search(error.str()) is None


def _advice(error: KafkaError) -> str:
    """Return what to do about a report, or an empty text if there is no special advice."""
    return _OAUTH_ADVICE if _lacks_token(error) else _tls_advice(error.str())


_QUOTED_SECRET: Final = re.compile(r"(sasl\.oauthbearer\.config beginning at: ).+", re.DOTALL)
"""If librdkafka refuses ``sasl.oauthbearer.config``, its error message quotes the property's secret value, beginning at
the first word that librdkafka does not know."""


def _without_secret(error: KafkaError) -> KafkaError:
    words, found = _QUOTED_SECRET.subn(r"\1***", error.str())
    return KafkaError(error.code(), words) if found else error


def _to_debug(record: logging.LogRecord) -> bool:
    """Lower a log line of librdkafka to level debug, because ClientErrors logs the important errors.

    Return whether the line is logged.
    """
    record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return _chatter.isEnabledFor(logging.DEBUG)


_chatter = logging.getLogger("pgsluice.kafka.client.log")
_chatter.addFilter(_to_debug)


@dataclass(slots=True)
class ClientErrors:
    """The errors that the clients of one cluster report in the background. They explain calls that "timed out".

    All clients of a cluster share one instance, so the log says only once that Kafka cannot be reached, and only once
    that it answers again.
    """

    credentials_change: bool = False
    """Whether new clients may get other credentials. If so, refused credentials end only the session, and not the
    process."""
    refused: bool = False
    """Whether a broker has refused the credentials of a client. The code that replaces the clients resets this."""
    last: KafkaError | None = None
    """The last report since Kafka's last answer."""
    counts: Counter[str] = field(default_factory=Counter)
    """The reports since the start, by the name of the error."""
    is_away: bool = False
    """Whether the log has said that Kafka cannot be reached, and has not yet said that Kafka answers again."""
    _advice: str = ""
    """The advice that was logged last. If the advice changes, the warning is logged again with the new advice, for
    example if a broker comes back with another certificate."""
    _reports: int = 0
    """The number of reports since Kafka's last answer."""
    _all_down: bool = False
    _no_oauth: KafkaError | None = None
    """The last report that a client gets no token. Answers to other clients, which still have one, do not clear it."""
    _no_oauth_at: float = float("-inf")
    _answered_at: float = float("-inf")
    clock: Callable[[], float] = monotonic
    _lock: Lock = field(default_factory=Lock)

    def __call__(self, error: KafkaError) -> None:
        """Handle a report. This is librdkafka's ``error_cb``, which runs in the thread that polls the client."""
        error = _without_secret(error)
        with self._lock:
            self.counts[error.name()] += 1
            self._reports += 1
            self.refused |= error.code() in _CREDENTIALS
            self._all_down |= error.code() == _ALL_BROKERS_DOWN
            # "All brokers are down" says less than the report of the reason, which comes before or after it.
            says_less = error.code() == _ALL_BROKERS_DOWN or error.str().endswith(_CALLBACK_FAILED)
            if self.last is None or not says_less:
                self.last = error
                if _lacks_token(error):
                    self._no_oauth, self._no_oauth_at = error, self.clock()
            explained = self.last.code() != _ALL_BROKERS_DOWN or self._reports > IDLE_REPORTS_MAX
            fresh = self.clock() - self._answered_at > STALE_S
            advice = _advice(self.last)
            news = not self.is_away or advice not in ("", self._advice)
            if self._all_down and explained and fresh and news:
                self.is_away, self._advice = True, advice
                log.warning(
                    "Kafka cannot be reached, or refuses us", reason=self.last.str(), to_do=advice or _USUAL_ADVICE
                )

    def recovered(self) -> None:
        """Record that Kafka answers. Forget earlier reports, because they do not explain later errors."""
        if not self._reports:
            return
        with self._lock:
            self.last, self._reports, self._all_down = None, 0, False
            self._answered_at = self.clock()
            if self.is_away:
                self.is_away = False
                log.info("Kafka answers again")

    def raise_if_denied(self, doing: str) -> None:
        """Raise PermissionDenied if a broker refused the credentials or a right, because waiting would not help.

        If it refused the credentials, but new clients may get other ones, raise SinkUnavailable instead. A client that
        gets no token may still have a valid one, so this is not an error.
        """
        last = self.last
        if last is not None and last.code() in _DENIED and not _lacks_token(last):
            if self.credentials_change:
                self.forget()
            raise failure(last, doing, self)

    @property
    def reason(self) -> KafkaError | None:
        """The last report, or a recent report that a client gets no token."""
        is_recent = self.clock() - self._no_oauth_at < OAUTH_S
        return self.last or (self._no_oauth if is_recent else None)

    def forget(self) -> None:
        """Forget the last report, because it is about clients that are no longer used."""
        self.last = None


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options of every client. ``properties`` has ``bootstrap.servers`` and everything under kafka.client."""

    properties: Mapping[str, str]
    client_id: str
    errors: ClientErrors = field(default_factory=ClientErrors)
    credentials: Callable[[], Mapping[str, Any]] = dict
    """Returns the properties that may change from client to client, such as a password. It may block."""

    def make(self, kind: Callable[[dict[str, Any]], T], own: Mapping[str, Any] | None = None) -> T:
        """Return a client of this kind. ``own`` are its additional properties. This may block.

        Raise ConfigError if a property is wrong. Errors that ``credentials`` raises are passed on.
        """
        common = {"client.id": self.client_id, "error_cb": self.errors, "logger": _chatter}
        try:
            return kind({**self.properties, **self.credentials(), **common, **(own or {})})
        except KafkaException as error:
            if error.args[0].code() == KafkaError._INVALID_ARG:  # noqa: SLF001 - librdkafka's name
                words = _without_secret(error.args[0]).str()
                advice = _tls_advice(words) or "Correct kafka.client."
                raise ConfigError(f"librdkafka refuses a property: {words}. {advice}") from error
            raise failure(error, "Setting up a Kafka client", self.errors) from error

    def make_if_possible(self, kind: Callable[[dict[str, Any]], T], own: Mapping[str, Any] | None = None) -> T | None:
        """Return a client as :meth:`make` does, or None if its password or its token cannot be obtained now."""
        with suppress(SinkUnavailable):
            return self.make(kind, own)
        return None


def connect(client: Producer | Consumer, topic: str, timeout_s: float) -> None:
    """Connect ``client`` before it is used. This takes at most twice ``timeout_s``.

    If the client cannot connect, raise no error, because later calls will show the problem. Without this function, the
    first call of the client would find no connection. A producer repeats such a call only after half a second, and a
    consumer after a second. ``topic`` has to exist, and we need the right to describe it.
    """
    with suppress(KafkaException):
        client.list_topics(topic, timeout_s)  # connects to an address of bootstrap.servers
        client.list_topics(topic, timeout_s)  # connects to the broker itself


def has_lost_brokers(
    client: Producer | Consumer, topic: str, options: ClientOptions, given_up: Event | None = None
) -> bool:
    """Return whether ``client`` finds no broker any more, although a new client does.

    A broker that shuts down may answer, right before its connections end, that the cluster has no brokers. librdkafka
    then forgets all brokers, and never connects again. Only a new client helps. ``topic`` has to exist, and we need the
    right to describe it. Return False as well if no new client can be made, or as soon as ``given_up`` is set.

    https://github.com/confluentinc/librdkafka/issues/5301
    """
    given_up = given_up or Event()
    if _finds_broker(client, topic, given_up):
        return False
    try:
        with options.make(AdminClient, {"allow.auto.create.topics": False}) as another:
            kafka_answers = _finds_broker(another, topic, given_up)
    except PgsluiceError:
        return False
    return kafka_answers and not _finds_broker(client, topic, given_up)


def _finds_broker(client: Producer | Consumer | AdminClient, topic: str, given_up: Event) -> bool:
    """Return whether ``client`` has a connection to a broker, or gets one within LOOK_S."""
    for _ in range(round(LOOK_S / _SLICE_S)):
        if given_up.is_set():
            return False
        try:
            client.list_topics(topic, _SLICE_S)
        except KafkaException as error:
            if error.args[0].code() != _NO_BROKER:  # a broker that only takes long causes another error
                return True
        else:
            return True
    return False


def failure(error: KafkaException | KafkaError, doing: str, errors: ClientErrors | None = None) -> PgsluiceError:
    """Return the pgsluice error for ``error``, with a message that begins with the operation (``doing``).

    If the error does not say why, the last report in ``errors`` explains it.
    """
    cause = error.args[0] if isinstance(error, KafkaException) else error
    sentence = f"{doing}: {cause.str()} ({cause.name()})"
    is_explained = cause.code() not in _UNEXPLAINED and _UNSET not in cause.str()
    last = errors.reason if errors is not None and not is_explained else None
    if last is not None:
        if last.code() in _MEANING:
            return failure(last, doing, errors)
        sentence = f"{sentence}; last reported: {last.str()}"
    kind, advice = _MEANING.get(cause.code(), (SinkUnavailable, ""))
    if errors is not None and errors.credentials_change and cause.code() in _CREDENTIALS:
        kind = SinkUnavailable
    if _lacks_token(cause):
        kind, advice = SinkUnavailable, _OAUTH_ADVICE
    else:
        advice = _tls_advice(sentence) or advice
    return kind(f"{sentence}. {advice}".rstrip())
