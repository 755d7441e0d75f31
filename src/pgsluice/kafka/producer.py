"""One transactional producer instance, from fencing to its end. Every method blocks.

An instance is never used again after an error: a commit whose answer was lost could otherwise commit half of
the next transaction. Whoever gets an error out of it makes a new one and reads from Kafka what became of the last.

https://kafka.apache.org/documentation/#semantics and KIP-98.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pgsluice.errors import DeadlineMissed, Fenced, PgsluiceError, PoisonError, SinkUnavailable
from pgsluice.librdkafka import MAX_RECORD_BYTES, ClientOptions, failure

log = structlog.get_logger(__name__)

SLICE_S = 0.5
"""Longest single blocking call, so that giving up is noticed soon."""

RETRY_S = 0.05
"""Between two tries of a call that failed at once, as while a coordinator loads."""

INIT_S = 30.0
"""How long to wait for the transaction coordinator."""

DEADLINE_SHARE = 0.9
"""The part of the transaction timeout that we use: the broker's clock starts with the first partition registered."""

FULL_S = 0.01
"""How long to wait for room in librdkafka's queue: it says nothing of what was delivered well."""

RECORD_OVERHEAD_BYTES = 512
"""What librdkafka holds for a record beside its value, key included; its own limit counts the values only."""

_ABORT_S = 5.0


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """``queue_bytes``: what librdkafka may hold; ``timeout_s``: of a transaction, at most what brokers allow."""

    client: ClientOptions
    transactional_id: str
    queue_bytes: int
    timeout_s: float


class TransactionalProducer:
    """Made by :meth:`fence`; any error out of its methods is its end, except for :meth:`close`."""

    def __init__(self, options: ProducerOptions, given_up: threading.Event) -> None:
        self._options = options
        self._given_up = given_up
        self._refused: PgsluiceError | None = None
        self._refused_bytes = 0
        self._deadline = 0.0
        self._open = False
        self._producer = options.client.make(Producer, self._properties())

    def _properties(self) -> dict[str, object]:
        timeout_ms = int(self._options.timeout_s * 1000)
        return {
            "transactional.id": self._options.transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            "message.max.bytes": MAX_RECORD_BYTES,
            "queue.buffering.max.messages": max(1, self._options.queue_bytes // RECORD_OVERHEAD_BYTES),
            "queue.buffering.max.kbytes": max(1, self._options.queue_bytes // 1024),
            "delivery.report.only.error": True,
            "on_delivery": self._on_delivery,
            "allow.auto.create.topics": False,
        }

    def fence(self) -> None:
        """From here on no earlier instance with this transactional.id can commit anything."""
        with self._judging("Registering the transactional producer"):
            self._until(self._producer.init_transactions, time.monotonic() + INIT_S)
            self._recovered()

    def begin(self) -> None:
        """Start a transaction."""
        self._deadline = time.monotonic() + self._options.timeout_s * DEADLINE_SHARE
        with self._judging("Beginning a Kafka transaction"):
            self._producer.begin_transaction()
        self._open = True

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: int = 0) -> None:
        """Queue a record; waits while librdkafka's queue is full."""
        while True:
            try:
                # by position, which is faster: the callback has two names, so two places
                self._producer.produce(topic, value, key, partition, None, None, timestamp_ms)
            except BufferError:
                self._check_fits(topic, partition, value or b"")
                self.check(FULL_S)
            except KafkaException as error:
                raise self._broken(error, f"Producing to {topic}") from error
            else:
                return

    def check(self, wait_s: float = 0.0) -> None:
        """Raise when a record was refused, the session was given up, or the transaction took too long."""
        with self._judging("Writing to Kafka"):
            self._producer.poll(wait_s)
        if self._refused is not None:
            # The deadline's own doing: what could not be written in time is given up by librdkafka, too.
            raise self._too_late() if self._is_late and isinstance(self._refused, SinkUnavailable) else self._refused
        if self._given_up.is_set():
            raise SinkUnavailable("The Kafka transaction was given up because the session ends.")
        if self._is_late:
            raise self._too_late()

    def flush(self) -> None:
        """Return when everything queued is in Kafka."""
        with self._judging("Writing to Kafka"):
            while self._producer.flush(SLICE_S):
                self.check()
        self.check()

    def commit(self) -> None:
        """Commit: the outcome is certain only when this returns."""
        with self._judging("Committing a Kafka transaction"):
            try:
                self._until(self._producer.commit_transaction, self._deadline)
            except KafkaException as error:
                # Otherwise it may have been committed: aborting could hit the next one.
                self._open = error.args[0].txn_requires_abort()
                raise
            self._open = False
            self._recovered()

    def close(self) -> None:
        """Abort what was not committed, as far as Kafka answers: readers need not wait for its timeout."""
        if not self._open:
            return
        try:
            with self._judging("Aborting a Kafka transaction"):
                self._producer.abort_transaction(_ABORT_S)
        except (Fenced, DeadlineMissed):
            pass  # the new owner has aborted it, or the broker
        except PgsluiceError as error:
            log.warning("a Kafka transaction stays open until its timeout", reason=str(error))

    def _until(self, call: Callable[[float], None], end: float) -> None:
        """Repeat a resumable call in slices until it succeeds; KafkaException when it fails or time is up."""
        while True:
            try:
                call(SLICE_S)
            except KafkaException as error:
                self._producer.poll(0)  # has it report errors
                if not error.args[0].retriable() or time.monotonic() > end or self._given_up.wait(RETRY_S):
                    raise
            else:
                return

    def _recovered(self) -> None:
        self._producer.poll(0)  # what it still has to report is from before
        self._options.client.errors.recovered()

    def _check_fits(self, topic: str, partition: int, value: bytes) -> None:
        if len(value) > self._options.queue_bytes:
            raise PoisonError(
                f"A record for {topic} [{partition}] has a value of {len(value)} bytes, more than the producer may "
                f"hold ({self._options.queue_bytes} bytes): raise delivery.inflight_max."
            )

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Keep the first refusal: it says which record, where the transaction's error only says that one failed.

        What is too large is refused with all its batch: of those, the largest.
        """
        key, value = message.key() or b"", message.value() or b""
        size = len(key) + len(value)
        if error is None or (self._refused is not None and size <= self._refused_bytes):
            return
        doing = f"Writing a record to {message.topic()} [{message.partition()}]"
        found = failure(error, doing, self._options.client.errors)
        if isinstance(found, PoisonError):
            self._refused_bytes = size
            self._refused = PoisonError(f"{found} The record: key {len(key)} bytes, value {len(value)} bytes.")
        elif self._refused is None:
            self._refused = found

    @contextmanager
    def _judging(self, doing: str) -> Iterator[None]:
        """Raise what an error of librdkafka means; a fatal one may come out of any call that serves callbacks."""
        try:
            yield
        except KafkaException as error:
            raise self._broken(error, doing) from error
        except SystemError as error:
            # So Python complains when a delivery report is taken while a fatal error is on its way out.
            if not isinstance(error.__cause__, KafkaException):
                raise
            raise self._broken(error.__cause__, doing) from error

    def _broken(self, error: KafkaException, doing: str) -> PgsluiceError:
        found = failure(error, doing, self._options.client.errors)
        if not isinstance(found, Fenced):
            return self._refused or found
        return self._too_late() if self._is_late and self._deadline else found

    @property
    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _too_late(self) -> DeadlineMissed:
        return DeadlineMissed(
            f"A Kafka transaction did not finish within {self._options.timeout_s:.0f} s, so it is given up "
            "(delivery.transaction_timeout, and the brokers' transaction.max.timeout.ms)."
        )
