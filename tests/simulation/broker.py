"""The scripted Kafka: logs, a transaction coordinator, and the clients of confluent_kafka that talk to it.

Transactions work as in Kafka. Each producer has an epoch. A request to end a transaction (EndTxn) decides the outcome
before the markers reach the partitions. An open transaction hides all later records from read_committed readers. The
timeout of a transaction begins with its first record. The clients block in virtual time
(:mod:`tests.simulation.virtual`). :class:`Weather` contains the faults between clients and brokers.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from pgsluice.kafka.client import ClientErrors, ClientOptions
from tests.simulation import virtual
from tests.simulation.virtual import Process

T = TypeVar("T")

MAX_TIMEOUT_MS = 60_000

OUTDATED_IN_A_ROW = 12
"""The maximum number of consecutive new clients of one process that reach the isolated broker (:class:`Outdated`).

If a topic seems to have changed, a process asks again with about twenty new clients, and stops if all answers agree. So
the isolated broker must not answer all of them.
"""


@dataclass(slots=True)
class Entry:
    """One offset of a partition: a record, or a transaction marker (``marker``), which has no key and no value."""

    transaction: "Transaction | None"
    key: bytes | None
    value: bytes | None
    marker: bool = False
    shown: bool | None = None
    """Set if a late copy of a marker has made the record visible (True) or hidden it (False).

    The outcome of the record's own transaction then no longer affects its visibility.
    """

    @property
    def is_visible(self) -> bool:
        """Whether read_committed readers get the record when they reach this offset."""
        if self.marker or self.shown is not None:
            return bool(self.shown)
        return self.transaction is None or bool(self.transaction.committed)


@dataclass(slots=True)
class Partition:
    """A log, and the offsets at which its open transactions begin."""

    log: list[Entry] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)

    @property
    def stable(self) -> int:
        """The last stable offset. read_committed readers read up to it."""
        return min(self.open.values(), default=len(self.log))

    def lose(self, key: bytes, is_lost: Callable[[bytes], bool]) -> bool:
        """Truncate the log after the last record of ``key`` that ``is_lost`` does not select.

        Return False and change nothing if there is no such record, or if no later record of ``key`` would be lost.
        """
        visible = [offset for offset, entry in enumerate(self.log) if entry.is_visible and entry.key == key]
        kept = [offset for offset in visible if not is_lost(self.log[offset].value or b"")]
        if not kept or kept[-1] == visible[-1]:
            return False
        del self.log[kept[-1] + 1 :]
        return True


@dataclass(slots=True)
class Transaction:
    """One transaction. ``committed`` is None until its outcome is decided."""

    number: int
    producer: str
    epoch: int = -1
    partitions: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """The offsets of its records in each partition, in order."""
    committed: bool | None = None
    unmarked: set[tuple[str, int]] = field(default_factory=set)
    """The partitions that do not have the marker of this transaction yet."""


@dataclass(slots=True)
class _Coordinated:
    """The coordinator's state for one transactional.id."""

    epoch: int = -1
    transaction: Transaction | None = None


@dataclass(slots=True)
class Weather:
    """The faults between clients and brokers, as probabilities for each request."""

    answer_lost: float = 0.0
    never_arrives: float = 0.0
    arrives_late: float = 0.0
    not_delivered: float = 0.0
    slow: float = 0.0
    marked_twice: float = 0.0
    """The probability that a marker is written twice, as after a lost answer. The copy has an offset of its own."""
    is_away: bool = False


class Broker:
    """The Kafka cluster. It exists as long as its simulated world."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, dice: random.Random, on_commit: Callable[[Transaction], None]
    ) -> None:
        self.loop = loop
        self.topics: dict[str, list[Partition]] = {}
        self.weather = Weather()
        self.outdated: Outdated | None = None
        self.leader_epoch = 0
        self._coordinated: dict[str, _Coordinated] = {}
        self._dice = dice
        self._on_commit = on_commit
        self.sessions = 0
        self.on_record: Callable[[int, str, int, bytes], None] = lambda *_: None
        """Called for every record outside transactions, with session, topic, partition and value."""
        self.on_fence: Callable[[Process], None] = lambda _: None
        """Called with a process that is about to fence the other processes."""
        self.count = 0
        """The number of transactions so far."""
        self.on_append: Callable[[Transaction, tuple[str, int]], None] = lambda *_: None
        """Called for every record in a transaction, with the transaction and the partition."""
        self._delayed: list[Callable[[], None]] = []

    def partition(self, place: tuple[str, int]) -> Partition:
        return self.topics[place[0]][place[1]]

    def lose_touch(self, topics: Collection[str], share: float) -> None:
        """Isolate the broker that leads ``topics`` from its cluster, and make another broker the leader."""
        places = [(topic, number) for topic in topics for number in range(len(self.topics[topic]))]
        led = {place: (len(self.partition(place).log), self.partition(place).stable) for place in places}
        self.outdated = Outdated(self, set(self.topics), led, share)
        self.leader_epoch += 1

    # The coordinator.

    @property
    def producer_epoch(self) -> int:
        """The epoch of the producer that has fenced all others."""
        return max((one.epoch for one in self._coordinated.values()), default=-1)

    def init(self, name: str) -> int | None:
        """Fence earlier producers and return the new epoch.

        Return None if their last transaction has not ended yet.
        """
        found = self._coordinated.setdefault(name, _Coordinated())
        transaction = found.transaction
        if transaction is not None and transaction.committed is None:
            found.epoch += 1
            self.decide(transaction, committed=False)
        if transaction is not None and transaction.unmarked:
            return None
        found.epoch += 1
        found.transaction = None
        return found.epoch

    def write(self, name: str, epoch: int, timeout_s: float, records: "Sequence[_Queued]") -> bool:
        """Append records to their partitions. Return False if the last transaction has not ended yet."""
        found = self._checked(name, epoch)
        transaction = found.transaction
        if transaction is not None and transaction.committed is not None:
            if transaction.unmarked:
                return False
            transaction = None
        if transaction is None:
            transaction = found.transaction = self.open(name, timeout_s, epoch)
        for record in records:
            self.append(transaction, (record.topic, record.partition), record.key, record.value)
        if self._delayed and self._dice.random() < 0.8:
            # Let a delayed request arrive in the middle of a transaction, because it does the most harm there.
            _late(self._delayed.pop())
        return True

    def delay(self, request: Callable[[], None]) -> None:
        """Let a request arrive after its client has given up."""
        if self._dice.random() < 0.8:
            self._delayed.append(request)
        else:
            self.loop.call_later(self._dice.choice((0.5, 1.0, 10.0, 50.0)), _late, request)

    def open(self, name: str, timeout_s: float, epoch: int = -1) -> Transaction:
        """Open a transaction. It is aborted if it does not end in time."""
        self.count += 1
        transaction = Transaction(self.count, name, epoch)
        # A simulated thread may set a timer, because the loop does not run at the same time.
        self.loop.call_later(timeout_s, self._time_out, transaction)
        return transaction

    def write_at_once(self, session: int, record: "_Queued") -> None:
        """Append a record outside transactions. Readers see the record immediately."""
        partition = self.partition((record.topic, record.partition))
        partition.log.append(Entry(None, record.key, record.value))
        self.on_record(session, record.topic, record.partition, record.value or b"")

    def append(self, transaction: Transaction, place: tuple[str, int], key: bytes | None, value: bytes | None) -> None:
        partition = self.partition(place)
        offset = len(partition.log)
        partition.log.append(Entry(transaction, key, value))
        partition.open.setdefault(transaction.number, offset)
        transaction.partitions.setdefault(place, []).append(offset)
        self.on_append(transaction, place)

    def mark_again(self, transaction: Transaction, place: tuple[str, int]) -> bool | None:
        """Let a late copy of an earlier marker end ``transaction`` in one partition.

        Return whether the copy makes the records visible. Return None if the partition has no marker that could be
        copied.
        """
        log = self.partition(place).log
        ended = (one.transaction for one in reversed(log) if one.marker and one.transaction is not None)
        former = next((one for one in ended if one.producer == transaction.producer), None)
        if former is None or former.epoch != transaction.epoch:
            return None
        for offset in transaction.partitions[place]:
            log[offset].shown = former.committed
        self.partition(place).open.pop(transaction.number, None)
        log.append(Entry(former, None, None, marker=True))
        return former.committed

    def end(self, name: str, epoch: int, *, commit: bool) -> None:
        """Handle EndTxn. The outcome is decided immediately, and the markers are written later."""
        found = self._checked(name, epoch)
        transaction = found.transaction
        if transaction is None:
            return  # nothing was written
        if transaction.committed is None:
            self.decide(transaction, committed=commit)
        elif transaction.committed is not commit:
            raise _error(KafkaError.INVALID_TXN_STATE, fatal=True)

    def _checked(self, name: str, epoch: int) -> _Coordinated:
        found = self._coordinated[name]
        if epoch != found.epoch:
            raise _error(KafkaError._FENCED, fatal=True)
        return found

    def decide(self, transaction: Transaction, *, committed: bool) -> None:
        """Decide the outcome of a transaction if it is still open. The markers are written later."""
        if transaction.committed is not None:
            return
        transaction.committed = committed
        transaction.unmarked = set(transaction.partitions)
        if committed:
            self._on_commit(transaction)
        for place in transaction.partitions:
            delay_s = self._dice.choice((0.0, 0.0, 0.001, 0.02)) + (
                2.0 if self._dice.random() < self.weather.slow else 0
            )
            self.loop.call_later(delay_s, self._mark, transaction, place)

    def _mark(self, transaction: Transaction, place: tuple[str, int]) -> None:
        partition, marker = self.partition(place), Entry(transaction, None, None, marker=True)
        partition.log.append(marker)
        if self._dice.random() < self.weather.marked_twice:
            delay_s = self._dice.choice((0.0, 0.0, 0.005, 0.02, 0.5))
            self.loop.call_later(delay_s, partition.log.append, marker)
        partition.open.pop(transaction.number, None)
        transaction.unmarked.discard(place)

    def time_out(self) -> None:
        """Abort all open transactions, as if they had timed out. A commit that is in flight then fails."""
        for one in self._coordinated.values():
            if one.transaction is not None:
                self._time_out(one.transaction)

    def _time_out(self, transaction: Transaction) -> None:
        if transaction.committed is None:
            found = self._coordinated.get(transaction.producer)
            if found is not None and found.transaction is transaction:
                found.epoch += 1
            self.decide(transaction, committed=False)


def _error(code: int, *, fatal: bool = False, retriable: bool = False, abort: bool = False) -> KafkaException:
    return KafkaException(KafkaError(code, "scripted", fatal, retriable, abort))


@dataclass(slots=True)
class _Queued:
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None


class View:
    """The logs as one client sees them: as they are now, or as they were when its broker was isolated."""

    def __init__(self, broker: Broker, *, asks: float) -> None:
        """``asks`` is a number from 0 to 1 that decides which broker the client asks."""
        self._broker = broker
        self._asks = asks

    def end(self, place: tuple[str, int]) -> int:
        """Return a partition's high watermark."""
        former = self._former
        return len(self._broker.partition(place).log) if former is None else former.ends(place)[0]

    def stable(self, place: tuple[str, int]) -> int:
        """Return a partition's last stable offset."""
        former = self._former
        return self._broker.partition(place).stable if former is None else former.ends(place)[1]

    def knows(self, topic: str) -> bool:
        """Return whether a topic exists."""
        former = self._former
        return topic in (self._broker.topics if former is None else former.topics)

    @property
    def epoch(self) -> int:
        """The leader epoch of the topics, as this client sees it."""
        return self._broker.leader_epoch - (self._former is not None)

    @property
    def _former(self) -> "Outdated | None":
        outdated = self._broker.outdated
        return outdated if outdated is not None and self._asks < outdated.share else None


@dataclass(slots=True)
class Outdated:
    """A broker that was isolated from its cluster. It answers as if nothing had been written since then."""

    broker: Broker
    topics: set[str]
    led: dict[tuple[str, int], tuple[int, int]]
    """The high watermark and the last stable offset of each partition that the broker believes it leads."""
    share: float
    """The share of clients that ask this broker, including clients that were already connected."""

    def ends(self, place: tuple[str, int]) -> tuple[int, int]:
        """Return the high watermark and the last stable offset of a partition as this broker reports them."""
        partition = self.broker.partition(place)
        return self.led.get(place) or (len(partition.log), partition.stable)


class Client:
    """The network between one daemon's clients and the brokers."""

    def __init__(self, broker: Broker, process: Process, dice: random.Random, lag_s: Callable[[], float]) -> None:
        self.broker = broker
        self.process = process
        self.dice = dice
        self.lag_s = lag_s
        self._outdated = 0
        """How many new clients in a row have reached the outdated broker."""

    def view(self) -> View:
        """Return the view of a new client. A client always asks the same broker."""
        asks, outdated = self.dice.random(), self.broker.outdated
        self._outdated = self._outdated + 1 if outdated is not None and asks < outdated.share else 0
        if self._outdated > OUTDATED_IN_A_ROW:
            asks, self._outdated = 1.0, 0
        return View(self.broker, asks=asks)

    def begin_session(self) -> int:
        """Begin a session of a producer without transactions, and return its number."""
        self.broker.sessions += 1
        return self.broker.sessions

    def travel(self, timeout_s: float, code: int = KafkaError._TIMED_OUT) -> None:
        """Let a request take some time. Raise a time-out if Kafka is down or slow."""
        weather = self.broker.weather
        self.process.step()
        if lag_s := self.lag_s():
            virtual.sleep(self.dice.uniform(0.0, lag_s))
        elif not weather.is_away:
            virtual.sleep(self.dice.choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.001, 0.01)))
        if weather.is_away or self.dice.random() < weather.slow / 2:
            virtual.sleep(timeout_s)
            raise _error(code, retriable=True)


class ScriptedOptions(ClientOptions):
    """Makes scripted clients, which replace those of confluent_kafka."""

    def make(self, kind: Callable[[dict[str, Any]], T], own: Mapping[str, Any] | None = None) -> T:
        client: Client = self.properties["client"]  # type: ignore[assignment]
        kinds: dict[Any, Any] = {Producer: _producer, Consumer: ScriptedConsumer, AdminClient: ScriptedAdmin}
        made: T = kinds[kind](client, {**(own or {})})
        return made


def client_options(client: Client, errors: ClientErrors) -> ClientOptions:
    return ScriptedOptions({"client": client}, "simulated", errors)  # type: ignore[dict-item]


def _producer(client: Client, properties: Mapping[str, Any]) -> "ScriptedProducer | ScriptedIdempotentProducer":
    kind = ScriptedProducer if "transactional.id" in properties else ScriptedIdempotentProducer
    return kind(client, properties)


class _Queue(ABC):
    """The base class of both producers: a queue of records that have not reached the broker yet."""

    def __init__(self, client: Client, properties: Mapping[str, Any]) -> None:
        self._client = client
        self._broker = client.broker
        self._dice = client.dice
        self._on_delivery = properties["on_delivery"]
        self._queue: list[_Queued] = []
        self._fatal: KafkaException | None = None

    def list_topics(self, _topic: str, timeout: float) -> None:
        self._client.travel(timeout)

    def purge(self, **_: object) -> None:
        self._queue.clear()

    def _check(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    def flush(self, timeout: float) -> int:
        self._check()
        if not self._queue:
            return 0
        try:
            self._client.travel(timeout)
        except KafkaException:
            return len(self._queue)
        self._arrive()
        return len(self._queue)

    @abstractmethod
    def _arrive(self) -> None:
        """Deliver the queued records to the broker, or lose them."""


class ScriptedIdempotentProducer(_Queue):
    """confluent_kafka.Producer with enable.idempotence.

    Readers see a record as soon as it arrives. Records of one partition arrive in the order in which they were sent.
    """

    def __init__(self, client: Client, properties: Mapping[str, Any]) -> None:
        assert properties["enable.gapless.guarantee"]
        super().__init__(client, properties)
        self._session = client.begin_session()
        self._is_sending = False

    def __len__(self) -> int:
        return len(self._queue)

    def produce(self, topic: str, value: bytes | None, key: bytes | None, partition: int, *_rest: object) -> None:
        self._check()
        self._queue.append(_Queued(topic, partition, key, value))
        if not self._is_sending:
            self._send_soon()

    def _send_soon(self) -> None:
        self._is_sending = True
        self._broker.loop.call_later(self._dice.choice((0.001, 0.1, 1.0, 10.0)), self._send_in_background)

    def _send_in_background(self) -> None:
        self._is_sending = False
        if not self._client.process.alive or self._fatal is not None:
            return
        if not self._broker.weather.is_away:
            self._send_some()
        if self._queue:
            self._send_soon()

    def poll(self, timeout: float = 0) -> int:
        self._check()
        if timeout:
            virtual.sleep(timeout)
        return 0

    def _arrive(self) -> None:
        if self._queue and self._dice.random() < self._broker.weather.not_delivered:
            self._break()
        self._send_some()
        virtual.sleep(self._dice.choice((0.0, 0.0, 0.001, 0.02)))

    def _send_some(self) -> None:
        """Write the queued records of some partitions. The order is kept only within a partition."""
        places = sorted({(one.topic, one.partition) for one in self._queue})
        chosen = {place for place in places if self._dice.random() < 0.7}
        for record in [one for one in self._queue if (one.topic, one.partition) in chosen]:
            self._queue.remove(record)
            self._broker.write_at_once(self._session, record)
            self._client.process.step()

    def _break(self) -> None:
        """Lose one queued record and all later ones, so that readers see no gap. The producer fails."""
        lost = self._dice.choice(self._queue)
        first = self._queue.index(lost)
        for record in self._queue[:first]:
            self._broker.write_at_once(self._session, record)
        self._queue.clear()
        self._fatal = _error(KafkaError._GAPLESS_GUARANTEE, fatal=True)
        self._on_delivery(KafkaError(KafkaError._MSG_TIMED_OUT, "scripted"), _report(lost))
        raise self._fatal


def _report(record: _Queued) -> Any:  # noqa: ANN401 - confluent_kafka's Message has no public constructor
    return SimpleNamespace(
        key=lambda: record.key,
        value=lambda: record.value,
        topic=lambda: record.topic,
        partition=lambda: record.partition,
    )


class ScriptedProducer(_Queue):
    """confluent_kafka.Producer with a transactional.id."""

    def __init__(self, client: Client, properties: Mapping[str, Any]) -> None:
        super().__init__(client, properties)
        self._name = properties["transactional.id"]
        self._timeout_s = properties["transaction.timeout.ms"] / 1000
        self._epoch: int | None = None
        self._in_transaction = False
        self._failed = False
        self._answer_lost = False

    def _request(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except KafkaException as error:
            if error.args[0].fatal():
                self._fatal = error
            raise

    def init_transactions(self, timeout: float) -> None:
        self._client.travel(timeout)
        self._broker.on_fence(self._client.process)
        epoch = self._broker.init(self._name)
        if epoch is None:
            virtual.sleep(0.05)
            raise _error(KafkaError.CONCURRENT_TRANSACTIONS, retriable=True)
        self._epoch = epoch

    def begin_transaction(self) -> None:
        self._check()
        if self._epoch is None or self._in_transaction:
            raise _error(KafkaError._STATE)
        self._in_transaction, self._failed, self._answer_lost = True, False, False

    def produce(self, topic: str, value: bytes | None, key: bytes | None, partition: int, *_rest: object) -> None:
        self._check()
        if not self._in_transaction:
            raise _error(KafkaError._STATE)
        self._queue.append(_Queued(topic, partition, key, value))

    def poll(self, timeout: float = 0) -> int:
        self._check()
        if self._queue and self._dice.random() < 0.1 and not self._broker.weather.is_away:
            self._send(self._dice.randrange(len(self._queue) + 1))
        elif timeout:
            virtual.sleep(timeout)
        return 0

    def _arrive(self) -> None:
        if self._dice.random() < self._broker.weather.not_delivered:
            self._refuse(self._dice.randrange(len(self._queue)))
        elif not self._send(len(self._queue)):
            virtual.sleep(0.01)

    def _send(self, count: int) -> bool:
        if not count:
            return True
        epoch = self._epoch
        assert epoch is not None
        records = self._queue[:count]
        if not self._request(lambda: self._broker.write(self._name, epoch, self._timeout_s, records)):
            return False
        del self._queue[:count]
        self._client.process.step()
        return True

    def _refuse(self, which: int) -> None:
        refused = self._queue.pop(which)
        self._queue.clear()
        self._failed = True
        self._on_delivery(KafkaError(KafkaError._MSG_TIMED_OUT, "scripted"), _report(refused))

    def commit_transaction(self, timeout: float) -> None:
        self._check()
        if self._failed:
            raise _error(KafkaError._STATE, abort=True)
        if not self._in_transaction:
            raise _error(KafkaError._STATE)
        self._client.travel(timeout)
        if self._queue and not self._send(len(self._queue)):
            virtual.sleep(0.01)
            raise _error(KafkaError._TIMED_OUT, retriable=True)
        self._end(timeout)
        self._in_transaction = False

    def _end(self, timeout: float) -> None:
        """Request the commit. ``Weather`` decides whether the request and its answer arrive."""
        weather, chance = self._broker.weather, self._dice.random()
        epoch = self._epoch
        assert epoch is not None

        def end() -> None:
            self._broker.end(self._name, epoch, commit=True)

        if self._answer_lost or chance < weather.never_arrives:
            self._answer_lost = True
            virtual.sleep(timeout)
            raise _error(KafkaError._TIMED_OUT, retriable=True)
        if chance < weather.never_arrives + weather.answer_lost:
            self._request(end)
            self._answer_lost = self._dice.random() < 0.5
            virtual.sleep(timeout)
            raise _error(KafkaError._TIMED_OUT, retriable=self._answer_lost or self._dice.random() < 0.5)
        if chance < weather.never_arrives + weather.answer_lost + weather.arrives_late:
            self._broker.delay(end)
            raise _error(KafkaError._TRANSPORT)
        self._request(end)
        self._client.process.step()
        virtual.sleep(self._dice.choice((0.0, 0.0, 0.001, 0.02)))  # the latency of the answer
        self._client.process.step()

    def abort_transaction(self, timeout: float) -> None:
        self._check()
        self._client.travel(timeout)
        epoch = self._epoch
        assert epoch is not None
        self._queue.clear()
        self._request(lambda: self._broker.end(self._name, epoch, commit=False))
        self._in_transaction = False


def _late(end: Callable[[], None]) -> None:
    with suppress(KafkaException):  # the broker may refuse a request that comes too late
        end()


def _message(topic: str, entry: Entry, offset: int) -> Any:  # noqa: ANN401 - confluent_kafka's Message has no public constructor
    return SimpleNamespace(
        error=lambda: None,
        topic=lambda: topic,
        key=lambda: entry.key,
        value=lambda: entry.value,
        offset=lambda: offset,
    )


class ScriptedConsumer:
    """confluent_kafka.Consumer. It reports the ends of partitions if enable.partition.eof is set."""

    def __init__(self, client: Client, properties: Mapping[str, Any]) -> None:
        self._client = client
        self._committed = properties["isolation.level"] == "read_committed"
        self._tells_end = properties.get("enable.partition.eof", False)
        self._view = client.view()
        self._positions: dict[tuple[str, int], int] = {}

    def list_topics(self, _topic: str, timeout: float) -> None:
        self._client.travel(timeout)

    def assign(self, places: list[TopicPartition]) -> None:
        self._positions = {(place.topic, place.partition): place.offset for place in places}

    def poll(self, timeout: float) -> Any:  # noqa: ANN401 - confluent_kafka's Message has no public constructor
        weather = self._client.broker.weather
        if weather.is_away:
            virtual.sleep(timeout)
            return None
        virtual.sleep(self._client.dice.choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.001)))
        for place in self._positions:
            if (message := self._next(place)) is not None:
                return message
        if not self._tells_end:
            virtual.sleep(0.05)
            return None
        (place,) = self._positions
        position, error = self._positions[place], KafkaError(KafkaError._PARTITION_EOF, "scripted")
        if position < len(self._client.broker.partition(place).log):
            virtual.sleep(0.05)
        return SimpleNamespace(error=lambda: error, offset=lambda: position)

    def consume(self, count: int, timeout: float) -> list[Any]:
        """Return up to ``count`` records of each partition. If there are none, wait for the timeout first."""
        if self._client.broker.weather.is_away:
            virtual.sleep(timeout)
            return []
        found = [one for place in self._positions for _ in range(count) if (one := self._next(place)) is not None]
        virtual.sleep(0.001 if found else timeout)
        return found

    def _next(self, place: tuple[str, int]) -> Any:  # noqa: ANN401 - confluent_kafka's Message has no public constructor
        """Return the next visible record of a partition, or None."""
        partition = self._client.broker.partition(place)
        end = self._view.stable(place) if self._committed else self._view.end(place)
        while self._positions[place] < end:
            entry = partition.log[self._positions[place]]
            self._positions[place] += 1
            if entry.is_visible or not (self._committed or entry.marker):
                return _message(place[0], entry, self._positions[place] - 1)
        return None

    def close(self) -> None:
        pass


class _Answer:
    """A future that a method of the admin client returns."""

    def __init__(self, client: Client, answer: Callable[[], Any]) -> None:
        self._client = client
        self._answer = answer

    def result(self, timeout: float) -> Any:  # noqa: ANN401 - the answer to any request
        try:
            self._client.travel(timeout)
        except KafkaException:
            raise TimeoutError from None
        return self._answer()


class ScriptedAdmin:
    """confluent_kafka.admin.AdminClient, with the methods that pgsluice uses."""

    def __init__(self, client: Client, _properties: Mapping[str, Any]) -> None:
        self._client = client
        self._topics = client.broker.topics
        self._view = client.view()

    def __exit__(self, *_: object) -> None:
        pass

    def poll(self, _timeout: float = 0) -> int:
        return 0

    def describe_topics(self, topics: Any, **_: object) -> dict[str, _Answer]:  # noqa: ANN401 - a TopicCollection has no type hints
        def describe(topic: str) -> Any:  # noqa: ANN401 - a TopicDescription has no public constructor
            if not self._view.knows(topic):
                raise _error(KafkaError.UNKNOWN_TOPIC_OR_PART)
            return SimpleNamespace(
                topic_id=f"id of {topic}",
                partitions=[
                    SimpleNamespace(leader=1, id=n, replicas=[1], isr=[1]) for n in range(len(self._topics[topic]))
                ],
            )

        return {topic: _Answer(self._client, partial(describe, topic)) for topic in sorted(topics.topic_names)}

    def create_topics(self, new: list[NewTopic], **_: object) -> dict[str, _Answer]:
        def create(topic: NewTopic) -> None:
            if topic.topic in self._topics:
                raise _error(KafkaError.TOPIC_ALREADY_EXISTS)
            self._topics[topic.topic] = [Partition() for _ in range(topic.num_partitions)]

        return {topic.topic: _Answer(self._client, partial(create, topic)) for topic in new}

    def describe_cluster(self, **_: object) -> _Answer:
        return _Answer(self._client, lambda: SimpleNamespace(nodes=[SimpleNamespace(id=1)]))

    def describe_configs(self, resources: list[ConfigResource], **_: object) -> dict[ConfigResource, _Answer]:
        def settings(name: str) -> dict[str, Any]:
            policy = "compact" if name.endswith((".checkpoint", ".snapshots")) else "delete"
            values = {"cleanup.policy": policy, "transaction.max.timeout.ms": str(MAX_TIMEOUT_MS)}
            return {setting: SimpleNamespace(value=value) for setting, value in values.items()}

        return {one: _Answer(self._client, partial(settings, one.name)) for one in resources}

    def list_offsets(
        self, places: Mapping[TopicPartition, Any], *, isolation_level: IsolationLevel, **_: object
    ) -> dict[TopicPartition, _Answer]:
        def offset(place: TopicPartition, spec: Any) -> Any:  # noqa: ANN401 - an OffsetSpec, and its answer
            at = place.topic, place.partition
            end = self._view.stable(at) if isolation_level == IsolationLevel.READ_COMMITTED else self._view.end(at)
            return SimpleNamespace(offset=end if spec._value == LATEST else 0, leader_epoch=self._view.epoch)

        return {place: _Answer(self._client, partial(offset, place, spec)) for place, spec in places.items()}


LATEST = -1
