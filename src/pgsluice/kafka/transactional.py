"""Writes each cut in a Kafka transaction. ``sink`` uses this producer if ``delivery.mode`` is ``exactly_once``.

``tests/integration/test_kafka_sink.py`` covers this module.

https://kafka.apache.org/documentation/#semantics and KIP-98.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from pgsluice.errors import DeadlineMissed, Fenced, PermissionDenied, PgsluiceError, SinkUnavailable
from pgsluice.kafka.client import connect, failure
from pgsluice.kafka.probe import new_probe
from pgsluice.kafka.producer import LOST_S, SLICE_S, CutProducer, ProducerOptions
from pgsluice.kafka.rest import LONGEST_S, Rest

log = structlog.get_logger(__name__)

RETRY_S = 0.05
"""The pause between two tries of a call that failed immediately, for example because a coordinator is loading."""

SMALL_BYTES = 64 * 1024
"""A transaction with more records takes long for other reasons than a refusal."""

INIT_S = 30.0
"""How long a session waits for the transaction coordinator, and then for Kafka to accept the probe."""

DEADLINE_SHARE = 0.9
"""Our deadline is this fraction of the transaction timeout, so it passes before the broker's timeout. The broker starts
to measure the timeout when the first partition is added to the transaction."""

TOPICS_NAMED = 10
"""If a right is missing, the message names at most this many of the topics that we were writing to. Kafka does not say
for which of them the right is missing."""

_ABORT_S = 5.0

TRY_S = 15.0
"""How long ``pgsluice check`` waits for the transaction coordinator."""

REFUSED_TIMEOUT_MS: Final = 2**31 - 1
"""The longest transaction timeout that a client can ask for. Most brokers refuse it. A request that is refused fences
nobody."""


class TransactionalProducer(CutProducer):
    """Writes each cut in a Kafka transaction, so readers see it once and as a whole, or not at all.

    Every transaction has a deadline, which is earlier than the brokers' timeout. When that timeout has passed, a broker
    aborts the transaction and then refuses our writes with the same error as if another owner had fenced us. With our
    own deadline, we know which of the two has happened.
    """

    is_atomic = True

    _deadline = 0.0
    _ended_at = 0.0
    _rested: tuple[float, float] | None = None
    """When this transaction was to begin, and the rest before it. None if we do not measure how long it takes."""
    _open = False

    @cached_property
    def _rest(self) -> Rest:
        return Rest()

    def _properties(self) -> dict[str, object]:
        timeout_ms = int(self._options.timeout_s * 1000)
        return {
            "transactional.id": self._options.transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
        }

    def fence(self, topic: str) -> None:
        """Fence all earlier producers with this transactional.id. They can commit nothing after this returns."""
        self._known_topic = topic
        connect(self._producer, topic, SLICE_S)
        with self._judging("Registering the transactional producer"):
            self._until("init_transactions", time.monotonic() + INIT_S)
            self._recovered()

    def write_probe(self, topics: Sequence[str], key: bytes) -> bytes:
        """Write the probe in a transaction, and abort the transaction. Raise SinkUnavailable if this takes too long."""
        value = new_probe()
        self.begin()
        self._deadline = time.monotonic() + INIT_S
        try:
            for topic in topics:
                self.send(topic, 0, key, value)
            self.flush()
        except DeadlineMissed as error:
            last = self._options.client.errors.last
            reason = f": {last.str()}" if last else ""
            raise SinkUnavailable(
                f"Kafka did not accept a record for {topics[0]} within {INIT_S:.0f} s{reason}"
            ) from error
        self.abort()
        self._ended_at = time.monotonic()
        return value

    def begin(self) -> None:
        """Start a transaction, after a rest."""
        now, self._rested = time.monotonic(), None
        if now < self._ended_at + LONGEST_S:
            rest_s = self._rest.choose()
            self._rested = now, rest_s
            self._given_up.wait(max(0.0, self._ended_at + rest_s - now))
        self._deadline = time.monotonic() + self._options.timeout_s * DEADLINE_SHARE
        with self._judging("Beginning a Kafka transaction"):
            self._producer.begin_transaction()
        self._open = True

    def flush(self) -> None:
        """Wait until all queued records are in Kafka. Raise SinkUnavailable if certificate files have changed."""
        queued, rested, self._rested = self._unsent, self._rested, None
        super().flush()
        if rested is not None and queued <= SMALL_BYTES:
            asked_at, rest_s = rested
            self._rest.on_written(rest_s, time.monotonic() - asked_at)

    def check(self, wait_s: float = 0.0) -> None:
        """Raise an error if a record was refused, the session was abandoned, or the transaction took too long."""
        try:
            super().check(wait_s)
        except SinkUnavailable as error:
            # librdkafka drops records that it could not write in time (message.timeout.ms). If our deadline has passed
            # as well, report the missed deadline as the reason.
            raise self._too_late() if self._failed is not None and self._is_late else error from None
        if self._is_late:
            raise self._too_late()

    def _why_purged(self) -> PgsluiceError:
        """Return why the transaction failed.

        librdkafka states the reason only when it refuses to begin another transaction, so we try to begin one.
        """
        try:
            with self._judging("Writing to Kafka"):
                self._producer.begin_transaction()
        except PermissionDenied as error:
            topics = ", ".join(sorted(self._purged)[:TOPICS_NAMED])
            return PermissionDenied(f"{error} pgsluice was writing to {topics}.")
        except PgsluiceError as error:
            return error
        return super()._why_purged()

    def commit(self) -> None:
        """Commit the transaction. If this raises an error, Kafka may have committed it nevertheless."""
        if self._open:
            self.flush()  # commit_transaction would flush as well, but only our flush finds the reason of a stall
        # If this fails, abort only if librdkafka asks for it. In all other cases, Kafka may have committed this
        # transaction, and an abort could affect the next transaction.
        self._open = False
        with self._judging("Committing a Kafka transaction"):
            try:
                self._until("commit_transaction", self._deadline)
            except KafkaException as error:
                self._open = error.args[0].txn_requires_abort()
                raise
            self._ended_at = time.monotonic()
            self._recovered()

    def abort(self) -> None:
        """Abort the transaction. This raises Fenced if another producer has taken over."""
        with self._judging("Aborting a Kafka transaction"):
            try:
                self._producer.abort_transaction(_ABORT_S)
            except KafkaException as error:
                # INVALID_TXN_STATE means that the coordinator knows no open transaction, so there is nothing to abort.
                if error.args[0].code() != KafkaError.INVALID_TXN_STATE:
                    raise
        self._open = False

    def abandon(self) -> None:
        """Do nothing, because readers never see uncommitted records."""

    def _end(self) -> None:
        """Abort the open transaction, so that readers need not wait for its timeout."""
        if not self._open:
            return
        try:
            self.abort()
        except (Fenced, DeadlineMissed):
            pass  # the new owner or the broker has already aborted it
        except PgsluiceError as error:
            log.warning("a Kafka transaction stays open until its timeout", reason=str(error))

    def _waited(self, _left: int) -> None:
        """Do nothing, because the deadline of the transaction limits the wait."""

    def _until(self, call: str, end: float) -> None:
        """Repeat a resumable call until it succeeds.

        Raise KafkaException if it fails, or if it has not succeeded by ``end``.

        ``call`` is the name of a method. If the caller passed a bound method, a traceback that refers to this method
        would keep the client alive.
        """
        look_at = time.monotonic() + LOST_S
        while True:
            try:
                getattr(self._producer, call)(SLICE_S)
            except KafkaException as error:
                self._producer.poll(0)  # makes the client report errors
                self._files.check()
                if not error.args[0].retriable() or time.monotonic() > end or self._given_up.wait(RETRY_S):
                    raise
                if time.monotonic() > look_at:
                    self._check_brokers("Committing a Kafka transaction")
                    look_at = time.monotonic() + LOST_S
            else:
                return

    def _broken(self, error: KafkaException, doing: str) -> PgsluiceError:
        found = super()._broken(error, doing)
        # If Kafka has aborted our transaction because of its timeout, it gives the same error as if we had been fenced.
        return self._too_late() if isinstance(found, Fenced) and self._is_late and self._deadline else found

    @property
    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _too_late(self) -> DeadlineMissed:
        return DeadlineMissed(
            f"A Kafka transaction did not finish within {self._options.timeout_s:.0f} s, so pgsluice aborts it and "
            "tries again (delivery.transaction_timeout, and the brokers' transaction.max.timeout.ms)."
        )


def try_transactional_id(options: ProducerOptions) -> None:
    """Raise PermissionDenied if a right to the transactional id is missing. This does not register a producer.

    Call this only if the brokers refuse ``REFUSED_TIMEOUT_MS``. They check the rights first and then the timeout, so
    they refuse this request before they fence anybody. Raise any other error of Kafka as a pgsluice error.
    """
    properties = {"transactional.id": options.transactional_id, "transaction.timeout.ms": REFUSED_TIMEOUT_MS}
    producer = options.client.make(Producer, properties)
    end = time.monotonic() + TRY_S
    while True:
        try:
            producer.init_transactions(SLICE_S)
        except KafkaException as error:
            with suppress(KafkaException, SystemError):  # poll raises a fatal error a second time
                producer.poll(0)  # makes the client report errors
            if error.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                return
            if not error.args[0].retriable() or time.monotonic() > end:
                doing = f"Asking for transactional id {options.transactional_id}"
                raise failure(error, doing, options.client.errors) from error
        else:
            return
