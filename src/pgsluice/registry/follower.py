"""Reads schema topics into a :class:`SchemaStore`, for ever.

Used by :mod:`.builtin` for the daemon's own topic and by ``pgsluice registry`` for any number of topics. One
consumer without a group: followers know nothing of one another, and any number of them can run.

https://kafka.apache.org/documentation/#compaction
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from pgsluice.errors import HistoryError
from pgsluice.kafka.client import PARTITION_EOF, connect, failure
from pgsluice.registry.client import CONNECT_S, RegistryOptions, Retry, pauses
from pgsluice.registry.record import Registered, parse
from pgsluice.registry.store import SchemaStore
from pgsluice.registry.topic import TopicAdmin

log = structlog.get_logger(__name__)

SCHEMAS: Final = ".schemas"
"""What the name of a schema topic has behind its prefix."""

_NAMED: Final = 10
"""How many of the topics that there are an error names, those of the nearest names first."""
_POLL_S: Final = 0.25
_FIRST_POLL_S: Final = 0.01
"""While there is nothing to read yet: what is to be read is said by the same thread, between two polls."""
"""How long the reading thread waits for a record; ``close`` waits for that thread."""
_BATCH: Final = 500
"""Records taken into the store without letting the event loop go on."""
_LOOK_AFTER_S: Final = 5.0
"""How often to see whether a topic is still the one that was found."""
_MISSED_LOOKS: Final = 3
"""After so many in a row a topic is gone: a broker that is behind the others may not know a new one yet."""
_CONSUMER: Final = {
    "group.id": "pgsluice-registry",  # the client asks for one; nothing is committed in it
    "enable.auto.commit": False,
    "enable.partition.eof": True,  # offsets that compaction emptied are passed too
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",  # a foreign transaction must not hide what is behind it
}
_GONE: Final = frozenset(
    (
        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001 - librdkafka's own errors are named with an underscore
        KafkaError.OFFSET_OUT_OF_RANGE,
    )
)


class _Step(NamedTuple):
    """What reading brought: a record, or None at the end of a topic; ``position``: the offset behind it."""

    topic: str
    position: int
    record: Registered | None


class SchemaFollower:
    """Keeps ``store`` up to date with ``topics``; several can be read into one store."""

    def __init__(self, options: RegistryOptions, topics: Sequence[str], store: SchemaStore) -> None:
        self.retry = Retry(options.client.errors)
        self.admin = TopicAdmin(options.client)
        self.store = store
        self._topics = topics
        self._options = options
        self._consumer = options.client.make(Consumer, _CONSUMER)
        self._thread = ThreadPoolExecutor(1, "schema-topics")
        self._served: list[Callable[[], object]] = [self.admin.serve]
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None
        self._progress = asyncio.Event()
        self._closing = False
        self._missing: set[str] = set()
        self._found: dict[str, str] = {}
        """Topic to its id."""
        self._positions: dict[str, int] = {}
        """Topic to the offset up to which it is in the store."""

    async def start(self) -> None:
        """Return when the store has all that the topics hold now; one that does not exist holds nothing.

        SinkUnavailable when that takes longer than ``timeout_s``; reading goes on, and this can be called
        again. Also to be called later, to catch up with what others have written meanwhile.
        """
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
        """Return a sentence on the topics that do not exist, None when :meth:`start` found all of them."""
        missing = sorted(self._missing)
        if not missing:
            return None
        present = await self.admin.names(SCHEMAS)
        nearest = [name.removesuffix(SCHEMAS) for name in get_close_matches(missing[0], present, _NAMED, cutoff=0.0)]
        prefixes = f"prefixes that have schemas are {', '.join(nearest)}" if nearest else "no prefix has schemas"
        return f"There is no topic {', '.join(missing)} on these brokers, or we may not see it: {prefixes}."

    async def follow(self) -> None:
        """Never return; raise what ended the reading, if something does."""
        await self._until(lambda: False)

    async def reach(self, topic: str, position: int) -> None:
        """Return when every record of ``topic`` before ``position`` is in the store."""
        await self._until(lambda: self._positions.get(topic, 0) >= position)

    def serve(self, client: Callable[[], object]) -> None:
        """Have ``client`` called now and then by the reading thread, so that it can report and log."""
        self._served.append(client)

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
        self._consumer.close()
        self.admin.close()

    async def _catch_up(self, topic: str) -> None:
        await self.reach(topic, await self.retry.persist(lambda: self._end(topic)))

    async def _end(self, topic: str) -> int:
        # Looking for the topic comes first each time: it tells the client of a new leader, too.
        await self._is_there(topic)
        return await self.admin.end(topic)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for ``condition``, which can only change with progress; raise what ended the reading."""
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
        """Have ``topic`` read, from its beginning, as soon as it exists, and see to it that it stays the same."""
        again = pauses()
        while (found := await self._find(topic)) is None:
            self._missing.add(topic)
            self._progress.set()
            await asyncio.sleep(next(again))
        beginning = await self.retry.persist(lambda: self.admin.beginning(topic))
        await asyncio.get_running_loop().run_in_executor(self._thread, self._assign, topic, beginning)
        self._found[topic] = found
        self._missing.discard(topic)
        self._progress.set()
        missed = 0
        while missed < _MISSED_LOOKS:
            await asyncio.sleep(_LOOK_AFTER_S)
            missed = 0 if await self._is_there(topic) else missed + 1
        raise _gone(topic)

    def _assign(self, topic: str, beginning: int) -> None:
        """Begin to read ``topic``; in the reading thread."""
        connect(self._consumer, topic, CONNECT_S)
        self._consumer.incremental_assign([TopicPartition(topic, 0, beginning)])

    async def _find(self, topic: str) -> str | None:
        return await self.retry.persist(lambda: self.admin.find(topic))

    async def _is_there(self, topic: str) -> bool:
        """Return whether ``topic`` exists; HistoryError when it is another one than before."""
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
        """Wait for records, and parse them; in the reading thread."""
        for serve in self._served:
            serve()
        message = self._consumer.poll(_POLL_S if self._found else _FIRST_POLL_S)
        if message is None:
            return []
        steps = (_step(found) for found in (message, *self._consumer.consume(_BATCH, 0)))
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
    if error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # the client asks about its group, which we do not use
        log.warning("reading a schema topic", topic=topic, reason=error.str())
    return None


def _broken(topic: str, offset: int, error: ValueError) -> HistoryError:
    return HistoryError(
        f"Record {offset} of topic {topic} is not a schema: {error}. Only pgsluice may write there. Remove "
        'the record; or delete the topic, and let the pipeline start once with kafka.topics.changed = "accept": the '
        "schemas in use come back, under the same ids, as rows are published."
    )


def _gone(topic: str) -> HistoryError:
    return HistoryError(
        f"Topic {topic} was deleted, or made anew, while it was being read: without the schemas that it held, messages "
        "cannot be read. Bring it back from a copy, or let the pipeline start once with kafka.topics.changed = "
        '"accept": the schemas in use come back, under the same ids, as rows are published.'
    )
