"""One producer instance, from fencing to its end: what every one has in common, and the transactional one.

An instance is never used again after an error: a commit whose answer was lost could otherwise commit half of
the next transaction. Whoever gets an error out of it makes a new one and reads from Kafka what became of the last.

https://kafka.apache.org/documentation/#semantics and KIP-98.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pgsluice.cut import Cut
from pgsluice.errors import DeadlineMissed, Fenced, PermissionDenied, PgsluiceError, SinkUnavailable
from pgsluice.kafka.client import FATAL, MAX_RECORD_BYTES, PURGED, UNKNOWN_TOPIC, ClientOptions, connect, failure
from pgsluice.kafka.mark import new_mark
from pgsluice.kafka.refusals import FOR_CONTENT, Refusals
from pgsluice.native.speedups import COMPILED
from pgsluice.record import Record

if TYPE_CHECKING or not COMPILED:
    from pgsluice.kafka.runs import produce_run
else:
    from pgsluice.native.runs import produce_run

log = structlog.get_logger(__name__)

SLICE_S = 0.5
"""Longest single blocking call, so that giving up is noticed soon."""

RETRY_S = 0.05
"""Between two tries of a call that failed at once, as while a coordinator loads."""

REST_S = 0.002
"""Between two transactions: Kafka answers a commit before it has marked its end everywhere, for which it takes a
millisecond or two. Whoever writes before that is refused, and librdkafka then waits for 20 ms."""

INIT_S = 30.0
"""How long to wait for the transaction coordinator."""

DEADLINE_SHARE = 0.9
"""The part of the transaction timeout that we use: the broker's clock starts with the first partition registered."""

FULL_S = 0.01
"""How long to wait for room in librdkafka's queue: it says nothing of what was delivered well."""

RECORD_OVERHEAD_BYTES = 512
"""What librdkafka holds for a record beside its value, key included; its own limit counts the values only."""

REQUEST_OVERHEAD_BYTES = 1024
"""What a produce request holds beside its one batch: names, ids and the batch's own head."""

GATHER_S = 0.2
"""How long to listen for more reports after a bad one: batches that are on their way are answered within that."""

GATHERED_MAX = 1000
"""As often at most."""

STALL_S = 5.0
"""How long nothing reaches Kafka before somebody looks for the reason; again after as long."""

INFLIGHT_SHARE = 2
"""Half of what librdkafka may hold is sent before more is added; the other half is for a record as large."""

TOPICS_NAMED = 10
"""In a sentence, at most: Kafka does not say for which of them a right is missing."""

_ABORT_S = 5.0

TRY_S = 15.0
"""How long a check waits for the transaction coordinator."""


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """``queue_bytes``: what librdkafka may hold; ``timeout_s``: of a transaction, at most what brokers allow.

    ``request_bytes``: the brokers' socket.request.max.bytes, None when it cannot be known.
    """

    client: ClientOptions
    transactional_id: str
    queue_bytes: int
    timeout_s: float
    request_bytes: int | None = None

    def value_limit(self) -> tuple[int, str]:
        """Return the largest value that can be sent at all, and what it would exceed, with the remedy."""
        limits = [
            (self.queue_bytes, "the {limit} bytes that the producer may hold: raise delivery.inflight_max"),
            (MAX_RECORD_BYTES, "the {limit} bytes that a client can send at all"),
        ]
        if self.request_bytes is not None:
            # They close the connection on a larger one, without a word, however often it is sent.
            what = "the {limit} bytes that the brokers' socket.request.max.bytes leaves, before compression: raise that"
            limits.append((self.request_bytes - REQUEST_OVERHEAD_BYTES, what))
        return min(limits)


class CutProducer(ABC):
    """Writes cuts. Every method blocks; any error out of them is its end, except for :meth:`close`."""

    is_atomic: bool
    """Whether a cut is seen whole, however it was sent, and nothing of it before :meth:`commit`."""

    def __init__(
        self,
        options: ProducerOptions,
        given_up: threading.Event,
        refusals: Refusals,
        find_reason: Callable[[], None] = lambda: None,
    ) -> None:
        """``find_reason``, called when nothing reaches Kafka for a while or a topic is gone, may raise the reason."""
        self._options = options
        self._given_up = given_up
        self._refusals = refusals
        self._find_reason = find_reason
        self._moved_at = 0.0
        self._unsent = 0
        self._unsent_max = options.queue_bytes // INFLIGHT_SHARE
        self._value_limit, self._beyond_limit = options.value_limit()
        self._failed: PgsluiceError | None = None
        self._purged: set[str] = set()
        """Topics of records that were given up because something else had failed."""
        common = {
            "message.max.bytes": MAX_RECORD_BYTES,
            "queue.buffering.max.messages": max(1, options.queue_bytes // RECORD_OVERHEAD_BYTES),
            "queue.buffering.max.kbytes": max(1, options.queue_bytes // 1024),
            "delivery.report.only.error": True,
            "on_delivery": self._on_delivery,
            "allow.auto.create.topics": False,
        }
        self._producer = options.client.make(Producer, {**common, **self._properties()})

    @abstractmethod
    def _properties(self) -> dict[str, object]: ...

    @abstractmethod
    def fence(self, topic: str) -> None:
        """Keep former owners out, as far as this kind of producer can. ``topic``: one that exists, and may be seen."""

    @abstractmethod
    def mark(self, topics: Sequence[str], key: bytes) -> bytes | None:
        """Write a record to each of ``topics`` that readers never see, and return its value, which is unique.

        Call it after :meth:`fence`: then no former owner has written anything behind it. None if this cannot be done.
        """

    @abstractmethod
    def begin(self) -> None:
        """Start a cut."""

    @abstractmethod
    def commit(self) -> None:
        """End the cut: everything sent is durable and visible when this returns."""

    @abstractmethod
    def abort(self) -> None:
        """Give up the cut in progress, and raise if another owner has taken over, or time was up."""

    @abstractmethod
    def abandon(self) -> None:
        """Write nothing more; for any thread, at any time."""

    def close(self) -> None:
        """End it, without what was not committed; its threads have ended when this returns.

        Not with confluent_kafka's own ``close``, which waits without limit while Kafka does not answer. The client
        refers to us by its callback, so it would otherwise live until the garbage collector comes round.
        """
        self._end()
        with suppress(KafkaException, SystemError):
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)
            self._producer.flush(0)  # what is still to be reported refers to us, too
        del self._producer

    @abstractmethod
    def _end(self) -> None:
        """Give up what was not committed, as far as Kafka answers."""

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: int = 0) -> None:
        """Queue a record; waits while librdkafka's queue is full."""
        if value is not None and len(value) > self._value_limit:
            raise self._refusals.too_large((topic, partition), key, value, self._value_limit, self._beyond_limit)
        waited = False
        while True:
            try:
                # by position, which is faster: the callback has two names, so two places
                self._producer.produce(topic, value, key, partition, None, None, timestamp_ms)
            except BufferError:
                self._look_if_stalled(moved=not waited)
                self.check(FULL_S)
                self._waited(len(self._producer))
                waited = True
            except KafkaException as error:
                raise self._broken(error, f"Producing to {topic}") from error
            else:
                if waited:
                    self._waited(0)
                break
        self._unsent += len(value) if value is not None else 0
        if self._unsent > self._unsent_max:
            self.flush()

    def send_run(self, records: list[Record], at: int, partitions: Callable[[str], int], cut: Cut) -> int:
        """Queue the records that begin at ``records[at]``, and count them in ``cut``, while they are simple.

        Where that ended: the next one has to be sent by itself.
        """
        at, room = produce_run(
            self._producer.produce,
            records,
            at,
            partitions,
            cut,
            room=self._unsent_max - self._unsent,
            largest=self._value_limit,
        )
        self._unsent = self._unsent_max - room
        if self._unsent > self._unsent_max:
            self.flush()
        return at

    def check(self, wait_s: float = 0.0) -> None:
        """Raise when a record was refused, or the session was given up."""
        with self._judging("Writing to Kafka"):
            self._producer.poll(wait_s)
        if self._refusals or self._failed is not None:
            raise self._verdict()
        if self._purged:
            raise self._why_purged()
        if self._given_up.is_set():
            raise SinkUnavailable("Writing to Kafka was given up because the session ends.")

    def flush(self) -> None:
        """Return when everything queued is in Kafka."""
        before = 0
        with self._judging("Writing to Kafka"):
            while left := self._producer.flush(SLICE_S):
                self.check()
                self._look_if_stalled(moved=left != before)
                self._waited(left)
                before = left
        self._unsent = 0
        self.check()

    def _look_if_stalled(self, *, moved: bool) -> None:
        """Look for the reason when nothing has moved for a while: what librdkafka waits for may never come."""
        now = time.monotonic()
        if moved:
            self._moved_at = now
        elif now - self._moved_at > STALL_S:
            self._find_reason()
            self._moved_at = time.monotonic()

    def _why_purged(self) -> PgsluiceError:
        """Return why records were given up that nobody refused."""
        return SinkUnavailable("Records were given up that Kafka did not have yet.")

    @abstractmethod
    def _waited(self, left: int) -> None:
        """Take note that Kafka does not have the last ``left`` records yet; 0: that there is room again."""

    def _recovered(self) -> None:
        self._producer.poll(0)  # what it still has to report is from before
        self._options.client.errors.recovered()

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Keep what was refused, and the first other failure: a transaction's error only says that there was one."""
        fatal = _pending()
        if error is not None and error.code() in FOR_CONTENT:
            self._refusals.add(error, message)
        elif error is not None and error.code() in PURGED:
            self._purged.add(message.topic())
        elif error is not None and self._failed is None:
            self._failed = self._meaning(error, f"Writing a record to {message.topic()} [{message.partition()}]")
        if fatal is not None:
            raise fatal

    def _verdict(self, found: PgsluiceError | None = None) -> PgsluiceError:
        """Return what follows from the reports, those that are on their way included; else ``found``.

        What was refused for its content says more than all the rest, and may come after it.
        """
        for _ in range(GATHERED_MAX):
            with suppress(KafkaException, SystemError):
                if not self._producer.poll(GATHER_S):
                    break
        verdict = self._refusals.verdict() if self._refusals else self._failed or found
        assert verdict is not None, "something was reported"
        return verdict

    def _meaning(self, error: KafkaException | KafkaError, doing: str) -> PgsluiceError:
        return failure(error, doing, self._options.client.errors)

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
        if error.args[0].code() == FATAL:
            # Which one it was is reported once, to whoever serves callbacks next.
            with self._judging(doing):
                self._producer.poll(GATHER_S)
        found = self._meaning(error, doing)
        if isinstance(found, Fenced):
            return found
        if error.args[0].code() in UNKNOWN_TOPIC:
            self._find_reason()
        return self._verdict(found)


class _Probe(Exception):
    """Raised to find another."""


def _pending() -> BaseException | None:
    """Return, and clear, the exception on its way out of the librdkafka call that called back.

    While it flushes, librdkafka calls back although a fatal error is to be raised as soon as it returns. The first
    thing in Python that looks for exceptions would stumble over that one; making an exception does look.
    """
    try:
        raise _Probe  # noqa: TRY301 - that it is raised here is the point
    except _Probe:
        return None
    except SystemError as complaint:
        return complaint.__cause__


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


REFUSED_TIMEOUT_MS: Final = 2**31 - 1
"""The longest timeout of a transaction that a client can ask for, longer than brokers allow, as a rule."""


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
