"""The base class of all producers that write cuts.

No producer is used again after an error. If the answer to a commit was lost, nobody knows whether the transaction
ended. If it did, a second commit could commit half of the next transaction. So an error of the producer ends the
session. The next session creates a new producer, and reads the outcome of the last cut from Kafka.

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
from pgsluice.kafka.client import (
    FATAL,
    MAX_RECORD_BYTES,
    PURGED,
    UNKNOWN_TOPIC,
    ClientOptions,
    failure,
    has_lost_brokers,
)
from pgsluice.kafka.files import ClientFiles
from pgsluice.kafka.refusals import FOR_CONTENT, Refusals
from pgsluice.native.speedups import COMPILED
from pgsluice.record import Record

if TYPE_CHECKING or not COMPILED:
    from pgsluice.kafka.runs import produce_run
else:
    from pgsluice.native.runs import produce_run

log = structlog.get_logger(__name__)

SLICE_S = 0.5
"""No call blocks for longer than this, so the end of a session is noticed after this time at the latest."""

FULL_S = 0.01
"""If librdkafka's queue is full, we try again after this time. We let librdkafka report only failed deliveries, so no
report says that there is room again."""

RECORD_OVERHEAD_BYTES = 512
"""The memory that a record needs in librdkafka in addition to its value. This size limits the number of records in the
queue, because librdkafka's own limit in bytes counts only values."""

REQUEST_OVERHEAD_BYTES = 1024
"""The bytes that a produce request needs in addition to its records, for names, ids and the header of the batch."""

GATHER_S = 0.2
"""How long we wait for further reports after a failed delivery. Usually, Kafka answers the batches in flight within
this time."""

GATHERED_MAX = 1000
"""We wait for further reports at most this many times."""

LINGER_MS = 1000
"""How long librdkafka waits for more records before it sends a batch that is not full. It sends one request for each
batch, so small batches are expensive if a cut has many partitions. Every cut ends with a flush, which sends batches
immediately, even if they are not full.

The linger is at most half of the transaction timeout, because librdkafka requires a message timeout that is longer than
the linger."""

STALL_S = 5.0
"""If nothing reaches Kafka for this time, we look for the reason. As long as nothing reaches Kafka, we look again at
this interval."""

LOST_S = 30.0
"""If nothing reaches Kafka for this time, we also look whether only a new producer would find the brokers again."""

INFLIGHT_SHARE = 2
"""When librdkafka's queue is half full, we send its records before we add more. The other half leaves room for one more
record, which may be large."""


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The options of a producer.

    ``queue_bytes`` limits the memory of librdkafka's queue. ``timeout_s`` is the timeout of a transaction, which must
    not exceed the brokers' limit. ``request_bytes`` is the brokers' socket.request.max.bytes, or None if that is not
    known.
    """

    client: ClientOptions
    transactional_id: str
    queue_bytes: int
    timeout_s: float
    request_bytes: int | None = None

    def value_limit(self) -> tuple[int, str]:
        """Return the size of the largest value that can be sent, and a text that explains the limit and the remedy."""
        limits = [
            (self.queue_bytes, "the {limit} bytes that the producer may hold: raise delivery.inflight_max"),
            (MAX_RECORD_BYTES, "the {limit} bytes that a client can send at all"),
        ]
        if self.request_bytes is not None:
            # If a request is larger, the brokers close the connection without a reason. Sending the request again does
            # not help.
            what = "the {limit} bytes that the brokers' socket.request.max.bytes allows, before compression: raise it"
            limits.append((self.request_bytes - REQUEST_OVERHEAD_BYTES, what))
        return min(limits)


class CutProducer(ABC):
    """Writes cuts. Every method blocks. After an error, only :meth:`close` may be called."""

    is_atomic: bool
    """Whether readers see a cut only as a whole, and only after :meth:`commit`."""

    def __init__(
        self,
        options: ProducerOptions,
        given_up: threading.Event,
        refusals: Refusals,
        find_reason: Callable[[], None] = lambda: None,
    ) -> None:
        """Create a producer. It does not connect to Kafka yet.

        ``find_reason`` is called when nothing reaches Kafka for a while, or when a topic is missing. It may raise the
        reason as an error.
        """
        self._options = options
        self._given_up = given_up
        self._refusals = refusals
        self._find_reason = find_reason
        self._looked_at = self._progress_at = 0.0
        self._known_topic = ""
        """A topic that exists, and that we may describe. :meth:`fence` sets it."""
        self._unsent = 0
        self._unsent_max = options.queue_bytes // INFLIGHT_SHARE
        self._value_limit, self._beyond_limit = options.value_limit()
        self._failed: PgsluiceError | None = None
        self._purged: set[str] = set()
        """Topics of records that librdkafka dropped because something else had failed."""
        common = {
            "message.max.bytes": MAX_RECORD_BYTES,
            "queue.buffering.max.messages": max(1, options.queue_bytes // RECORD_OVERHEAD_BYTES),
            "queue.buffering.max.kbytes": max(1, options.queue_bytes // 1024),
            "linger.ms": options.client.properties.get("linger.ms", min(LINGER_MS, int(options.timeout_s * 1000) // 2)),
            "delivery.report.only.error": True,
            "on_delivery": self._on_delivery,
            "allow.auto.create.topics": False,
        }
        self._files = ClientFiles(options.client.properties)
        self._producer = options.client.make(Producer, {**common, **self._properties()})

    @abstractmethod
    def _properties(self) -> dict[str, object]: ...

    @abstractmethod
    def fence(self, topic: str) -> None:
        """Prevent former owners from writing, as far as this kind of producer can.

        ``topic`` has to exist, and we need the right to describe it.
        """

    @abstractmethod
    def write_probe(self, topics: Sequence[str], key: bytes) -> bytes | None:
        """Write the probe, a record that readers normally do not see, to each of ``topics``. Return its unique value.

        Call :meth:`fence` first, so that no former owner can write anything after this record. Return None if this kind
        of producer cannot write such records.
        """

    @abstractmethod
    def begin(self) -> None:
        """Start a cut."""

    @abstractmethod
    def commit(self) -> None:
        """End the cut. Everything that was sent is durable and visible when this returns."""

    @abstractmethod
    def abort(self) -> None:
        """Abort the cut in progress. Raise an error if another owner has taken over, or if the deadline was missed."""

    @abstractmethod
    def abandon(self) -> None:
        """Write nothing more. Any thread may call this at any time."""

    def close(self) -> None:
        """End the producer without committing anything. Its threads have ended when this returns.

        We do not call the ``close`` of confluent_kafka, because it waits without limit while Kafka does not answer. We
        delete our reference to the client instead. Without this deletion, the client would live until the garbage
        collector runs, because the client and this object refer to each other.
        """
        self._end()
        with suppress(KafkaException, SystemError):
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)
            self._producer.flush(0)  # delivers the remaining reports, which refer to this object as well
        del self._producer

    @abstractmethod
    def _end(self) -> None:
        """Abort the uncommitted cut, if Kafka answers."""

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: int = 0) -> None:
        """Queue a record. Wait while librdkafka's queue is full."""
        if value is not None and len(value) > self._value_limit:
            raise self._refusals.too_large((topic, partition), key, value, self._value_limit, self._beyond_limit)
        waited = False
        while True:
            try:
                # Positional arguments are faster. The two None are the parameters ``callback`` and ``on_delivery``.
                self._producer.produce(topic, value, key, partition, None, None, timestamp_ms)
            except BufferError:
                self._look_if_stalled(moved=not waited)
                self._make_room()
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

    def _make_room(self) -> None:
        """Make librdkafka send its queue, even if no batch is full, and wait a little."""
        with self._judging("Writing to Kafka"):
            self._producer.flush(FULL_S)
        self.check()

    def send_run(self, records: list[Record], at: int, partitions: Callable[[str], int], cut: Cut) -> int:
        """Queue records, beginning with ``records[at]``, until the run ends, and count them in ``cut``.

        The module ``runs`` describes when a run ends. Return the index of the first record that was not queued. Send
        that record with :meth:`send`.
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
        """Raise an error if a record was refused, or if the session was abandoned."""
        with self._judging("Writing to Kafka"):
            self._producer.poll(wait_s)
        if self._refusals or self._failed is not None:
            raise self._verdict()
        if self._purged:
            raise self._why_purged()
        if self._given_up.is_set():
            raise SinkUnavailable("Writing to Kafka was abandoned because the session ends.")

    def flush(self) -> None:
        """Wait until all queued records are in Kafka. Raise SinkUnavailable if certificate files have changed."""
        before = 0
        self._files.check()
        with self._judging("Writing to Kafka"):
            while left := self._producer.flush(SLICE_S):
                self.check()
                self._look_if_stalled(moved=left != before)
                self._waited(left)
                before = left
        self._waited(0)
        self._unsent = 0
        self.check()

    def _look_if_stalled(self, *, moved: bool) -> None:
        """Look for the reason if there was no progress for a while, because librdkafka may wait forever."""
        now = time.monotonic()
        if moved:
            self._looked_at = self._progress_at = now
        elif now - self._looked_at > STALL_S:
            self._files.check()
            self._find_reason()
            if now - self._progress_at > LOST_S:
                self._check_brokers("Writing to Kafka")
            self._looked_at = time.monotonic()

    def _check_brokers(self, doing: str) -> None:
        """Raise SinkUnavailable if only a new producer would find the brokers again."""
        if has_lost_brokers(self._producer, self._known_topic, self._options.client, self._given_up):
            raise SinkUnavailable(
                f"{doing}: the Kafka client finds no broker any more, although a new client does. The next session "
                "has new clients."
            )

    def _why_purged(self) -> PgsluiceError:
        """Return why librdkafka dropped records that Kafka had not refused."""
        return SinkUnavailable("Records were dropped before Kafka had them. A new session sends them again.")

    @abstractmethod
    def _waited(self, left: int) -> None:
        """Record that Kafka does not have the last ``left`` records yet. If ``left`` is 0, the wait is over."""

    def _recovered(self) -> None:
        self._producer.poll(0)  # reports the errors that came before this success
        self._options.client.errors.recovered()

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Keep refused records and the first other failure, because the transaction's error gives no reason."""
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
        """Return the error that follows from the delivery reports, or ``found`` if they contain no failure.

        Wait for outstanding reports. If Kafka refused a record for its content, the report of this refusal explains
        more than all other reports, and it may come last.
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
        """Raise the pgsluice error for an error of librdkafka.

        Any call that serves callbacks may raise a fatal error.
        """
        try:
            yield
        except KafkaException as error:
            raise self._broken(error, doing) from error
        except SystemError as error:
            # Python raises SystemError if a delivery report is handled while a fatal error is about to be raised.
            if not isinstance(error.__cause__, KafkaException):
                raise
            raise self._broken(error.__cause__, doing) from error

    def _broken(self, error: KafkaException, doing: str) -> PgsluiceError:
        if error.args[0].code() == FATAL:
            # librdkafka reports only once which error was fatal, in the next call that serves callbacks.
            with self._judging(doing):
                self._producer.poll(GATHER_S)
        found = self._meaning(error, doing)
        if isinstance(found, Fenced):
            return found
        if error.args[0].code() in UNKNOWN_TOPIC:
            self._find_reason()
        return self._verdict(found)


class _Probe(Exception):
    """An exception that we raise in order to detect a pending exception."""


def _pending() -> BaseException | None:
    """Return and clear the exception that the calling librdkafka function is about to raise.

    Return None if no exception is pending.

    While librdkafka flushes, it may call a callback although it is about to raise a fatal error. Python would fail at
    the first statement of the callback that checks for exceptions. Raising an exception is such a statement, so we
    raise one here, where we can catch the failure.
    """
    try:
        raise _Probe  # noqa: TRY301 - it has to be raised here, in order to detect the pending exception
    except _Probe:
        return None
    except SystemError as complaint:
        return complaint.__cause__
