"""Reads schema topics into a :class:`SchemaStore`, continuously.

:mod:`.builtin` uses it for the daemon's own topic, and ``pgsluice registry`` for any number of topics. A follower is
one consumer without a group. So followers are independent of each other, and any number of them can run.

``tests/integration/test_registry.py`` covers this module.

https://kafka.apache.org/documentation/#compaction
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from pgsluice.errors import HistoryError, SinkUnavailable
from pgsluice.kafka.client import PARTITION_EOF, connect, failure
from pgsluice.kafka.files import ClientFiles
from pgsluice.registry.client import CONNECT_S, RegistryOptions, Retry, pauses
from pgsluice.registry.schema_record import Registered, parse
from pgsluice.registry.store import SchemaStore
from pgsluice.registry.topic import TopicAdmin

log = structlog.get_logger(__name__)

SCHEMAS: Final = ".schemas"
"""The end of the name of a schema topic, after the prefix."""

_NAMED: Final = 10
"""If a topic is missing, the error names at most this many existing topics, beginning with the most similar names."""
_POLL_S: Final = 0.25
_FIRST_POLL_S: Final = 0.01
"""The reading thread waits for a record for _POLL_S, so ``close`` may have to wait as long for that thread. Before a
topic is assigned, each poll takes only _FIRST_POLL_S, because the same thread assigns topics between two polls."""
_BATCH: Final = 500
"""After this many records are added to the store, other tasks of the event loop run."""
_LOOK_AFTER_S: Final = 5.0
"""The interval at which the follower checks whether a topic is still the one that was found."""
_MISSED_LOOKS: Final = 3
"""A topic counts as deleted if this many checks in a row have not found it. A broker may not know a new topic yet."""
_CONSUMER: Final = {
    "group.id": "pgsluice-registry",  # the client requires it; nothing is committed for it
    "enable.auto.commit": False,
    "enable.partition.eof": True,  # shows the end even if compaction has deleted the last offsets
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",  # an open transaction of another program must not hide later records
}
_GONE: Final = frozenset(
    (
        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001 - librdkafka's own errors are named with an underscore
        KafkaError.OFFSET_OUT_OF_RANGE,
    )
)


class _Step(NamedTuple):
    """One step of reading: a record, or None at the end of a topic. ``position`` is where reading continues."""

    topic: str
    position: int
    record: Registered | None


class SchemaFollower:
    """Keeps ``store`` up to date with one or more ``topics``."""

    def __init__(self, options: RegistryOptions, topics: Sequence[str], store: SchemaStore) -> None:
        self.retry = Retry(options.client.errors)
        self.store = store
        self._topics = topics
        self._options = options
        self.files = ClientFiles(options.client.properties)
        """The files that the clients have read."""
        self.admin = TopicAdmin(options.client)
        self._consumer = options.client.make_if_possible(Consumer, _CONSUMER) if self.admin.is_open else None
        self._is_renewing = self._consumer is None
        """Whether clients are lacking, or :meth:`renew` has begun and has not succeeded."""
        self._thread = ThreadPoolExecutor(1, "schema-topics")
        self._served: list[Callable[[], object]] = [self.admin.serve]
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None
        self._progress = asyncio.Event()
        self._closing = False
        self._missing: set[str] = set()
        self._found: dict[str, str] = {}
        """The ids of the topics that were found."""
        self._positions: dict[str, int] = {}
        """The offset up to which each topic is in the store."""

    async def start(self) -> None:
        """Wait until the store has all records that are in the topics now. A missing topic is treated as empty.

        Raise SinkUnavailable if the records are not read within ``timeout_s``. Reading continues in the background. So
        the caller can call this method again after the error. The caller can also call it later, to wait for records
        that others have written meanwhile.
        """
        if self._is_renewing:
            await self.renew()
        if not self._tasks:
            self._tasks = [
                self._task(self._read()),
                *(self._task(self._keep(topic)) for topic in self._topics),
            ]
        doing = f"Reading the schemas in {', '.join(self._topics)}"
        async with self.retry.time_limit(self._options.timeout_s, doing):
            await self._until(lambda: self._missing.union(self._found).issuperset(self._topics))
            for topic in sorted(self._found):
                await self._catch_up(topic)
        self.store.complete = True

    async def missing(self) -> str | None:
        """Return a sentence about the topics that do not exist, or None if :meth:`start` has found all of them."""
        missing = sorted(self._missing)
        if not missing:
            return None
        present = await self.admin.names(SCHEMAS)
        nearest = [name.removesuffix(SCHEMAS) for name in get_close_matches(missing[0], present, _NAMED, cutoff=0.0)]
        prefixes = f"The prefixes that have schemas are {', '.join(nearest)}." if nearest else "No prefix has schemas."
        topics = ", ".join(missing)
        return f"There is no topic {topics} on these brokers, or we do not have the right to see it. {prefixes}"

    @property
    def _open_consumer(self) -> Consumer:
        assert self._consumer is not None, "start() has made it"
        return self._consumer

    async def follow(self) -> None:
        """Raise the error that ends the reading. Otherwise never return."""
        await self._until(lambda: False)

    async def reach(self, topic: str, position: int) -> None:
        """Wait until every record of ``topic`` before ``position`` is in the store."""
        await self._until(lambda: self._positions.get(topic, 0) >= position)

    def serve(self, client: Callable[[], object]) -> None:
        """Have the reading thread call ``client`` from time to time, so that the client can report errors and log."""
        self._served.append(client)

    @property
    def is_outdated(self) -> bool:
        """Whether new clients are needed.

        Files of certificates have changed, the password may be old, Kafka did not answer in time, or a renewal failed.
        """
        errors = self._options.client.errors
        is_refused = errors.credentials_change and errors.refused
        return self._is_renewing or self.retry.has_expired or self.files.changed or is_refused

    async def renew(self) -> None:
        """Replace the clients with new ones, which have read the certificate files again. Reading continues."""
        client, self._is_renewing = self._options.client, True
        self.files, client.errors.refused = ClientFiles(client.properties), False
        await self.admin.renew(self._thread)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._renew)
        client.errors.forget()
        self.retry.renewed()
        self._is_renewing = False

    def _renew(self) -> None:
        """Replace the consumer. Call it in the reading thread."""
        former, self._consumer = self._consumer, self._options.client.make(Consumer, _CONSUMER)
        if former is not None:
            former.close()
        read = [TopicPartition(topic, 0, position) for topic, position in self._positions.items()]
        self._open_consumer.incremental_assign(read)

    async def close(self) -> None:
        """Stop reading."""
        self._closing = True
        for finding in self._tasks[1:]:
            finding.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close_clients)
        self._thread.shutdown(wait=False)

    def _close_clients(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self.admin.close()

    async def _catch_up(self, topic: str) -> None:
        await self.reach(topic, await self.retry.persist(lambda: self._end(topic)))

    async def _end(self, topic: str) -> int:
        # Look for the topic first each time, because the client then also learns of a new leader.
        await self._is_there(topic)
        return await self.admin.end(topic)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` is true. Check it again after each read. Raise the error that ends the reading."""
        while True:
            if self._failure is not None:
                raise self._failure
            if condition():
                return
            self._progress.clear()
            await self._progress.wait()

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failed := task.exception()) is not None:
            self._failure = failed
            self._progress.set()

    async def _keep(self, topic: str) -> None:
        """Begin to read ``topic`` as soon as it exists. After that, check regularly that it is still the same topic."""
        found, beginning = await self._appeared(topic)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._assign, topic, beginning)
        self._found[topic] = found
        self._missing.discard(topic)
        self._progress.set()
        missed = 0
        while missed < _MISSED_LOOKS:
            await asyncio.sleep(_LOOK_AFTER_S)
            async with self._limit(topic):
                missed = 0 if await self._is_there(topic) else missed + 1
                if not missed:
                    await self.reach(topic, await self.retry.persist(lambda: self.admin.end(topic)))
        raise _gone(topic)

    async def _appeared(self, topic: str) -> tuple[str, int]:
        """Wait until ``topic`` exists. Return its id and the offset of its first record."""
        again = pauses()
        while True:
            async with self._limit(topic):
                if (found := await self._find(topic)) is not None:
                    return found, await self.retry.persist(lambda: self.admin.beginning(topic))
                self._missing.add(topic)
                self._progress.set()
            await asyncio.sleep(next(again))

    @asynccontextmanager
    async def _limit(self, topic: str) -> AsyncIterator[None]:
        """Limit the time of this block. If the time is up, end the block without an error. The clients are outdated."""
        with suppress(SinkUnavailable):
            async with self.retry.time_limit(self._options.timeout_s, f"Following topic {topic}"):
                yield

    def _assign(self, topic: str, beginning: int) -> None:
        """Begin to read ``topic``. Call it in the reading thread."""
        connect(self._open_consumer, topic, CONNECT_S)
        self._positions[topic] = beginning  # where _renew continues if no record has been read until then
        self._open_consumer.incremental_assign([TopicPartition(topic, 0, beginning)])

    async def _find(self, topic: str) -> str | None:
        return await self.retry.persist(lambda: self.admin.find(topic))

    async def _is_there(self, topic: str) -> bool:
        """Return whether ``topic`` exists. Raise HistoryError if it was deleted and created again."""
        found = await self._find(topic)
        if found not in (None, self._found[topic]):
            raise _gone(topic)
        return found is not None

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._closing:
            for step in await loop.run_in_executor(self._thread, self._poll):
                self._take(step)
            self._progress.set()

    def _poll(self) -> list[_Step]:
        """Wait for records, and parse them. Call it in the reading thread."""
        for serve in self._served:
            serve()
        message = self._open_consumer.poll(_POLL_S if self._found else _FIRST_POLL_S)
        if message is None:
            return []
        steps = (_step(found) for found in (message, *self._open_consumer.consume(_BATCH, 0)))
        return [step for step in steps if step is not None]

    def _take(self, step: _Step) -> None:
        if step.record is not None:
            try:
                self.store.add(step.record, step.topic)
            except ValueError as error:
                raise _broken(step.topic, step.position - 1, error) from None
        self._positions[step.topic] = step.position


def _step(message: Message) -> _Step | None:
    topic, offset, error = message.topic(), message.offset(), message.error()
    if error is None:
        try:
            return _Step(topic, offset + 1, parse(message.value()))
        except ValueError as wrong:
            raise _broken(topic, offset, wrong) from None
    if error.code() == PARTITION_EOF:
        return _Step(topic, offset, None)
    if error.code() in _GONE:
        raise _gone(topic)
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise failure(error, f"Reading topic {topic}")
    if error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # librdkafka asks for the group, but we use none
        log.warning("reading a schema topic", topic=topic, reason=error.str())
    return None


def _broken(topic: str, offset: int, error: ValueError) -> HistoryError:
    return HistoryError(
        f"Record {offset} of topic {topic} is not a schema: {error}. Only pgsluice may write there. Remove the "
        'record. Or delete the topic, and let the pipeline start once with kafka.topics.changed = "accept". The '
        "schemas in use are then registered again, under the same ids, as rows are published."
    )


def _gone(topic: str) -> HistoryError:
    return HistoryError(
        f"Topic {topic} was deleted, or created again, while it was being read. Without its schemas, messages cannot "
        'be read. Restore it from a copy, or let the pipeline start once with kafka.topics.changed = "accept". The '
        "schemas in use are then registered again, under the same ids, as rows are published."
    )
