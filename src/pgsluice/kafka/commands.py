"""The clients of the topic ``<prefix>.commands``: one for the pipeline, and one for the command line.

The topic has one partition. The sink (``kafka.sink``) writes the answers to commands, together with the checkpoint to
which they belong. Answers are in the same topic as commands, so that retention deletes both. They are not in
``<prefix>.snapshots``, because that topic is compacted, and would keep every answer forever.

``tests/integration/test_snapshot_commands.py`` covers this module.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, Self, TypeVar

import structlog
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from pgsluice.checkpoint import Checkpoint, last_checkpoint
from pgsluice.commands import COMMAND_BYTES_MAX, Answer, Command, CommandState, read_answer
from pgsluice.errors import SinkUnavailable, UnavailableError
from pgsluice.kafka.account import TopicState
from pgsluice.kafka.checkpoint import read_checkpoints, read_loaded
from pgsluice.kafka.client import ClientOptions, failure, has_lost_brokers
from pgsluice.kafka.tail import Tail
from pgsluice.kafka.topics import Topics
from pgsluice.loads import Loaded

log = structlog.get_logger(__name__)

T = TypeVar("T")

POLL_S: Final = 0.25
"""One read waits at most this long for a record. So ``close`` may have to wait equally long for the thread."""

BATCH: Final = 16
"""The most records that one read returns."""

LOOK_EVERY_S: Final = 30.0
"""The interval at which we check whether the consumer still finds the brokers."""

SEND_S: Final = 30.0
"""After this time, the command line gives up if no pipeline reads commands, or if Kafka has not accepted the
command."""

_FETCH_BYTES: Final = 2 * COMMAND_BYTES_MAX
_QUEUED_KIB: Final = 1024


class TopicCommandReader:
    """Reads the commands to one pipeline in a separate thread.

    Methods other than ``close`` may raise PgsluiceErrors.
    """

    def __init__(self, options: ClientOptions, topic: str) -> None:
        self._options = options
        self._topic = topic
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pgsluice-commands")
        self._given_up = threading.Event()
        self._consumer: Consumer | None = None
        self._next = 0
        """The offset after the last record that was read."""
        self._look_at = math.inf

    async def open(self, state: CommandState) -> CommandState:
        """Begin to read at the offset in ``state``. Return the state with the offset at which reading really begins.

        Begin at the end of the topic if ``state`` does not belong to this topic, for example because somebody has
        deleted the topic and created it again.
        """
        return await self._run(lambda: self._open(state))

    async def read(self) -> Sequence[tuple[int, bytes | None]]:
        """Wait for records for at most ``POLL_S``. Return the offset and the value of each record."""
        return await self._run(self._read)

    async def close(self) -> None:
        """Close the consumer, and end the thread."""
        self._given_up.set()
        await self._run(self._close)
        self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    # Everything below runs in the thread.

    def _open(self, state: CommandState) -> CommandState:
        with closing(Topics(self._options, self._given_up)) as topics:
            (found,) = _described(topics, self._topic)
            low, high = topics.bounds(self._topic, 0)
        is_known = found.id == state.topic_id != ""
        if is_known and state.offset > high:
            # Perhaps only this broker lacks the last records. So the offset in the state stays as it is. If it were
            # lowered, commands could be carried out twice.
            log.warning(
                "the topic of commands ends before the last command that was read: new commands are ignored until "
                "the topic has grown to its former end. If Kafka lost its records, delete the topic",
                topic=self._topic,
                end=high,
                offset=state.offset,
            )
        offset = max(state.offset, low) if is_known else high
        self._next = min(offset, high)
        self._assign()
        return replace(state, topic_id=found.id, offset=offset)

    def _assign(self) -> None:
        """Create the consumer, which begins to read at the next offset."""
        self._consumer = self._options.make(Consumer, _reading(self._options, "read_uncommitted"))
        self._consumer.assign([TopicPartition(self._topic, 0, self._next)])
        self._look_at = time.monotonic() + LOOK_EVERY_S

    def _read(self) -> list[tuple[int, bytes | None]]:
        assert self._consumer is not None, "open() comes first"
        found = [one for one in self._consumer.consume(BATCH, POLL_S) if _is_record(one, self._topic)]
        if found:
            self._next = found[-1].offset() + 1
        elif time.monotonic() > self._look_at:
            self._look()
        return [(one.offset(), one.value()) for one in found]

    def _look(self) -> None:
        """Replace a consumer that has lost all brokers."""
        assert self._consumer is not None, "open() comes first"
        if has_lost_brokers(self._consumer, self._topic, self._options, self._given_up):
            log.info("the reader of commands has lost all brokers: a new one continues", topic=self._topic)
            self._consumer.close()
            self._assign()
        self._look_at = time.monotonic() + LOOK_EVERY_S

    def _close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()


@dataclass(frozen=True, slots=True)
class CommandTopics:
    """The topics of a pipeline that the command line uses. ``is_atomic`` says whether cuts are Kafka transactions."""

    pipeline: str
    commands: str
    checkpoint: str
    snapshots: str
    is_atomic: bool


class CommandClient:
    """Sends commands to a pipeline in another process, and reads its answers. Every method blocks."""

    def __init__(self, options: ClientOptions, topics: CommandTopics) -> None:
        self._options = options
        self._names = topics
        self._given_up = threading.Event()
        self._topics = Topics(options, self._given_up)
        self._consumer: Consumer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._topics.close()

    def send(self, command: Command) -> None:
        """Send ``command``. When this method returns, the command is durable, and its answers can be read.

        Raise UnavailableError if no pipeline has begun to read commands. A pipeline that reads commands for the first
        time begins at the end of the topic, so it would never read this command.
        """
        topic, value = self._names.commands, command.to_json()
        self._wait_until_read()
        _, high = self._topics.bounds(topic, 0)
        self._consumer = self._options.make(Consumer, _reading(self._options, "read_committed"))
        self._consumer.assign([TopicPartition(topic, 0, high)])
        refused: list[KafkaError] = []
        producer = self._options.make(
            Producer,
            {
                "enable.idempotence": True,  # Kafka must not store the command twice
                "message.timeout.ms": int(SEND_S * 1000),
                "allow.auto.create.topics": False,
            },
        )
        producer.produce(
            topic,
            value,
            command.id.encode(),
            0,
            on_delivery=lambda error, _message: refused.append(error) if error is not None else None,
        )
        left = producer.flush(SEND_S + 1)
        doing = f"Sending the command to topic {topic}"
        if refused:
            raise failure(refused[0], doing, self._options.errors)
        if left:
            raise SinkUnavailable(f"{doing}: Kafka did not answer in time.")

    def _wait_until_read(self) -> None:
        give_up_at = time.monotonic() + SEND_S
        while True:
            (state,) = _described(self._topics, self._names.commands)
            checkpoint = self.checkpoint()
            if checkpoint is not None and checkpoint.commands.topic_id == state.id:
                return
            if time.monotonic() > give_up_at:
                raise UnavailableError(
                    f"No pipeline has read topic {self._names.commands} yet. The command was not sent. Start `pgsluice "
                    "run`, or see in its log why it does not stream."
                )
            time.sleep(POLL_S)

    def answer(self, identifier: str, timeout_s: float) -> Answer | None:
        """Wait for the next answer to a command. Return None if none comes in time."""
        assert self._consumer is not None, "send() comes first"
        give_up_at = time.monotonic() + timeout_s
        while (left_s := give_up_at - time.monotonic()) > 0:
            message = self._consumer.poll(left_s)
            if message is not None and _is_record(message, self._names.commands):
                answer = read_answer(message.value())
                if answer is not None and answer.id == identifier:
                    return answer
        return None

    def checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint that can be read without waiting for an open transaction."""
        _described(self._topics, self._names.checkpoint)
        with self._tail(self._names.checkpoint) as tail:
            return last_checkpoint(read_checkpoints(tail, self._names.pipeline, is_atomic=self._names.is_atomic))

    def loaded(self) -> list[Loaded]:
        """Return the tables whose load has ended (see :class:`Loaded`), sorted by schema and name."""
        topic = self._names.snapshots
        if not self._topics.describe([topic]):
            return []
        with self._tail(topic) as tail:
            found = read_loaded(tail)
        return [found[name] for name in sorted(found)]

    def _tail(self, topic: str) -> Tail:
        return Tail(self._options, self._topics, topic, patience_s=SEND_S, given_up=self._given_up, complete=False)


def _described(topics: Topics, topic: str) -> list[TopicState]:
    found = topics.describe([topic])
    if topic not in found:
        raise UnavailableError(
            f"There is no topic {topic}. `pgsluice run` creates it when it starts. Check kafka.topic_prefix."
        )
    return [found[topic]]


def _reading(options: ClientOptions, isolation: str) -> dict[str, object]:
    """Return the properties of a consumer.

    With the isolation level read_uncommitted, open transactions do not delay the consumer.
    """
    return {
        "group.id": options.client_id,  # the client requires a group, but no offset is ever committed
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "auto.offset.reset": "latest",
        "allow.auto.create.topics": False,
        "max.partition.fetch.bytes": _FETCH_BYTES,
        "queued.max.messages.kbytes": _QUEUED_KIB,
    }


def _is_record(message: Message, topic: str) -> bool:
    """Return whether this is a record and not an error.

    Raise PermissionDenied if the right to read is missing. Ignore all other errors, because librdkafka tries again.
    """
    error = message.error()
    if error is None:
        return True
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise failure(error, f"Reading topic {topic}")
    return False
