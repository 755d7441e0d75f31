"""The producer of ``delivery.mode = "exactly_once"``: a Kafka transaction for each cut. Used by ``sink``.

https://kafka.apache.org/documentation/#semantics and KIP-98.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from pgsluice.errors import DeadlineMissed, Fenced, PermissionDenied, PgsluiceError, SinkUnavailable
from pgsluice.kafka.client import connect, failure
from pgsluice.kafka.mark import new_mark
from pgsluice.kafka.producer import SLICE_S, CutProducer, ProducerOptions

log = structlog.get_logger(__name__)

RETRY_S = 0.05
"""Between two tries of a call that failed at once, as while a coordinator loads."""

REST_S = 0.002
"""Between two transactions: Kafka answers a commit before it has marked its end everywhere, for which it takes a
millisecond or two. Whoever writes before that is refused, and librdkafka then waits for 20 ms."""

INIT_S = 30.0
"""How long to wait for the transaction coordinator."""

DEADLINE_SHARE = 0.9
"""The part of the transaction timeout that we use: the broker's clock starts with the first partition registered."""

TOPICS_NAMED = 10
"""In a sentence, at most: Kafka does not say for which of them a right is missing."""

_ABORT_S = 5.0

TRY_S = 15.0
"""How long a check waits for the transaction coordinator."""

REFUSED_TIMEOUT_MS: Final = 2**31 - 1
"""The longest timeout of a transaction that a client can ask for, longer than brokers allow, as a rule."""


class TransactionalProducer(CutProducer):
    """A Kafka transaction for each cut: seen once, whole, or not at all."""

    is_atomic = True

    _deadline = 0.0
    _ended_at = 0.0
    _open = False

    def _properties(self) -> dict[str, object]:
        timeout_ms = int(self._options.timeout_s * 1000)
        return {
            "transactional.id": self._options.transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
        }

    def fence(self, topic: str) -> None:
        """From here on no earlier instance with this transactional.id can commit anything."""
        connect(self._producer, topic, SLICE_S)
        with self._judging("Registering the transactional producer"):
            self._until("init_transactions", time.monotonic() + INIT_S)
            self._recovered()

    def mark(self, topics: Sequence[str], key: bytes) -> bytes:
        """Write the mark in a transaction of its own, which is aborted; SinkUnavailable if that takes too long."""
        value = new_mark()
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
                f"Kafka did not take a record for {topics[0]} within {INIT_S:.0f} s{reason}"
            ) from error
        self.abort()
        self._ended_at = time.monotonic()
        return value

    def begin(self) -> None:
        """Start a transaction."""
        self._given_up.wait(max(0.0, self._ended_at + REST_S - time.monotonic()))
        self._deadline = time.monotonic() + self._options.timeout_s * DEADLINE_SHARE
        with self._judging("Beginning a Kafka transaction"):
            self._producer.begin_transaction()
        self._open = True

    def check(self, wait_s: float = 0.0) -> None:
        """Raise when a record was refused, the session was given up, or the transaction took too long."""
        try:
            super().check(wait_s)
        except SinkUnavailable as error:
            # The deadline's own doing: what could not be written in time is given up by librdkafka, too.
            raise self._too_late() if self._failed is not None and self._is_late else error from None
        if self._is_late:
            raise self._too_late()

    def _why_purged(self) -> PgsluiceError:
        """Return why the transaction failed: a call that is out of turn is refused with the reason, no other tells."""
        try:
            with self._judging("Writing to Kafka"):
                self._producer.begin_transaction()
        except PermissionDenied as error:
            topics = ", ".join(sorted(self._purged)[:TOPICS_NAMED])
            return PermissionDenied(f"{error} What was to be written: {topics}.")
        except PgsluiceError as error:
            return error
        return super()._why_purged()

    def commit(self) -> None:
        """Commit: the outcome is certain only when this returns."""
        if self._open:
            self.flush()  # as librdkafka would do, but here a stall is looked into
        with self._judging("Committing a Kafka transaction"):
            try:
                self._until("commit_transaction", self._deadline)
            except KafkaException as error:
                # Otherwise it may have been committed: aborting could hit the next one.
                self._open = error.args[0].txn_requires_abort()
                raise
            self._open = False
            self._ended_at = time.monotonic()
            self._recovered()

    def abort(self) -> None:
        """Abort the transaction: whoever was fenced hears of it now."""
        with self._judging("Aborting a Kafka transaction"):
            try:
                self._producer.abort_transaction(_ABORT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.INVALID_TXN_STATE:  # nothing of it has reached the coordinator
                    raise
        self._open = False

    def abandon(self) -> None:
        """Nothing: what is not committed is never seen."""

    def _end(self) -> None:
        """Abort the transaction, so that readers need not wait for its timeout."""
        if not self._open:
            return
        try:
            self.abort()
        except (Fenced, DeadlineMissed):
            pass  # the new owner has aborted it, or the broker
        except PgsluiceError as error:
            log.warning("a Kafka transaction stays open until its timeout", reason=str(error))

    def _waited(self, _left: int) -> None:
        """Nothing: the transaction has a deadline."""

    def _until(self, call: str, end: float) -> None:
        """Repeat a resumable call in slices until it succeeds; KafkaException when it fails or time is up.

        ``call`` is a name, because a bound method in the error's traceback would keep the client alive.
        """
        while True:
            try:
                getattr(self._producer, call)(SLICE_S)
            except KafkaException as error:
                self._producer.poll(0)  # has it report errors
                if not error.args[0].retriable() or time.monotonic() > end or self._given_up.wait(RETRY_S):
                    raise
            else:
                return

    def _broken(self, error: KafkaException, doing: str) -> PgsluiceError:
        found = super()._broken(error, doing)
        # Kafka says the same of a transaction that it has timed out.
        return self._too_late() if isinstance(found, Fenced) and self._is_late and self._deadline else found

    @property
    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _too_late(self) -> DeadlineMissed:
        return DeadlineMissed(
            f"A Kafka transaction did not finish within {self._options.timeout_s:.0f} s, so it is given up "
            "(delivery.transaction_timeout, and the brokers' transaction.max.timeout.ms)."
        )


def try_transactional_id(options: ProducerOptions) -> None:
    """Raise PermissionDenied if a right to the transactional id is missing; registers nothing.

    Call it only if the brokers refuse ``REFUSED_TIMEOUT_MS``: they look for the rights first, and at the timeout before
    they fence anybody. Any other error of Kafka is raised as what it means.
    """
    properties = {"transactional.id": options.transactional_id, "transaction.timeout.ms": REFUSED_TIMEOUT_MS}
    producer = options.client.make(Producer, properties)
    end = time.monotonic() + TRY_S
    while True:
        try:
            producer.init_transactions(SLICE_S)
        except KafkaException as error:
            with suppress(KafkaException, SystemError):  # the same again, if it was fatal
                producer.poll(0)  # has it report errors
            if error.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                return
            if not error.args[0].retriable() or time.monotonic() > end:
                doing = f"Asking for transactional id {options.transactional_id}"
                raise failure(error, doing, options.client.errors) from error
        else:
            return
