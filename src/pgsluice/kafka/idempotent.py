"""Writes cuts without transactions. ``sink`` uses this producer if ``delivery.mode`` is ``at_least_once``.

The producer is idempotent. If a cut fails, some of its records may stay in Kafka. In each partition, these are the
records that were sent first. The next session sends the whole cut again.

https://kafka.apache.org/documentation/#semantics and KIP-679.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import structlog

from pgsluice.errors import ConfigError, PermissionDenied, SinkUnavailable
from pgsluice.kafka.client import connect
from pgsluice.kafka.producer import SLICE_S, CutProducer
from pgsluice.kafka.transactional import TransactionalProducer

log = structlog.get_logger(__name__)


class IdempotentProducer(CutProducer):
    """Writes records that readers see as they arrive, in the order sent.

    Former owners are not fenced. The only time limit applies to a wait in which Kafka accepts no record.
    """

    is_atomic = False

    _former: TransactionalProducer | None = None
    """The transactional producer that :meth:`fence` has used. It is kept until it has written the probe."""
    _transactions_work = False
    _left = 0
    _left_since = 0.0

    def _properties(self) -> dict[str, object]:
        return {
            "enable.idempotence": True,
            # If a record is dropped or refused, it is sent again later. The records after it must not be written now,
            # because they would come before the record that is sent again.
            "enable.gapless.guarantee": True,
            "message.timeout.ms": 0,
        }

    def fence(self, topic: str) -> None:
        """End the transaction that a killed owner in mode exactly once may have left open.

        A read_committed reader sees no record after the beginning of an open transaction, and so no new checkpoint.
        """
        self._known_topic = topic
        former = self._transactional()
        try:
            with self._if_possible():
                former.fence(topic)
                self._former, self._transactions_work = former, True
        finally:
            if self._former is None:
                former.close()
        connect(self._producer, topic, SLICE_S)

    def write_probe(self, topics: Sequence[str], key: bytes) -> bytes | None:
        """Write the probe with a transactional producer. Return None if transactions did not work in :meth:`fence`.

        If transactions worked in :meth:`fence`, but fail now, the failure is temporary. In this case, raise
        SinkUnavailable, because continuing without a probe would be wrong.
        """
        if not self._transactions_work:
            return None
        former, self._former = self._former, None
        again = former is None
        with closing(former or self._transactional()) as writing:
            if again:
                writing.fence(topics[0])
            return writing.write_probe(topics, key)

    def _transactional(self) -> TransactionalProducer:
        return TransactionalProducer(self._options, self._given_up, self._refusals)

    @contextmanager
    def _if_possible(self) -> Iterator[None]:
        """Log and suppress an error that shows that transactions may not be used or do not work."""
        try:
            yield
        except (PermissionDenied, ConfigError) as error:
            # A pipeline that may not use transactions has left no transaction open.
            log.info("transactions cannot be used, and are not needed", reason=str(error))
        except SinkUnavailable as error:
            if self._given_up.is_set():
                raise
            # Some clusters have never had a transaction coordinator that works, and this mode does not need one.
            log.warning(
                "transactions do not work: if a former owner left one open, readers wait for its timeout",
                reason=str(error),
            )

    def begin(self) -> None:
        """Do nothing, because readers see each record as it arrives."""

    def commit(self) -> None:
        """Wait until everything sent so far is in Kafka."""
        self.flush()
        self._recovered()

    def abort(self) -> None:
        """Do the same as :meth:`abandon`, because there is no transaction to abort."""
        self.abandon()

    def _end(self) -> None:
        if self._former is not None:
            self._former.close()
        self.abandon()

    def abandon(self) -> None:
        """Drop unsent records. The producer is not fenced, so it could write them after records of the next owner."""
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)

    def _waited(self, left: int) -> None:
        """Raise SinkUnavailable if Kafka has accepted nothing for too long."""
        now = time.monotonic()
        if left != self._left or not left:
            self._left, self._left_since = left, now
        if now - self._left_since > self._options.timeout_s:
            last = self._options.client.errors.last
            raise SinkUnavailable(
                f"Kafka has taken none of {left} records for {self._options.timeout_s:g} s "
                f"(delivery.transaction_timeout), so they are dropped{f': {last.str()}' if last else ''}. They will "
                "be sent again."
            )
