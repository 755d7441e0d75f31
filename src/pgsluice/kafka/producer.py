"""One producer instance, from fencing to its end: what all kinds of producers have in common.

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
from typing import TYPE_CHECKING

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pgsluice.cut import Cut
from pgsluice.errors import Fenced, PgsluiceError, SinkUnavailable
from pgsluice.kafka.client import FATAL, MAX_RECORD_BYTES, PURGED, UNKNOWN_TOPIC, ClientOptions, failure
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
