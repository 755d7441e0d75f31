"""Administration of schema topics: checks whether a topic exists and is suitable, and finds its end.

:mod:`.builtin`, which creates the topic, and :mod:`.follower`, which reads it, use this module.

``tests/integration/test_registry.py`` covers this module.

https://kafka.apache.org/documentation/#topicconfigs_cleanup.policy
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, ConfigResource, NewTopic, OffsetSpec

from pgsluice.errors import ConfigError, SinkUnavailable
from pgsluice.kafka.client import UNKNOWN_TOPIC, ClientOptions, failure

if TYPE_CHECKING:
    from concurrent.futures import Future

_REQUEST_S: Final = 5.0
_LOOK_S: Final = 1.0
_ADMIN: Final = {"allow.auto.create.topics": False}
_SERVE_S: Final = 0.1
"""While a request is under way, the client reports errors at this interval."""


class TopicAdmin:
    """Describes and creates schema topics. No method blocks the event loop."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._errors = options.errors
        self._admin = options.make_if_possible(AdminClient, _ADMIN)
        self._in_use = Lock()
        """Held by requests that block a thread, so that no client is closed during such a request."""

    async def find(self, topic: str) -> str | None:
        """Return the id of ``topic``, or None if it does not exist. This does not create the topic.

        Raise ConfigError if the topic does not have exactly one partition.
        """
        doing = f"Looking for topic {topic}"
        collection = TopicCollection([topic])
        try:
            found = await self._result(
                lambda admin: admin.describe_topics(collection, request_timeout=_REQUEST_S)[topic], doing
            )
        except KafkaException as error:
            if error.args[0].code() in UNKNOWN_TOPIC:
                return None
            await asyncio.get_running_loop().run_in_executor(None, self._look_for_brokers, topic)
            raise failure(error, doing, self._errors) from error
        if len(found.partitions) != 1:
            raise ConfigError(
                f"Topic {topic} has {len(found.partitions)} partitions, but a schema topic has one, because the order "
                "of its records matters. Delete the topic if it is empty, or choose another kafka.topic_prefix."
            )
        return str(found.topic_id)

    async def names(self, ending: str) -> list[str]:
        """Return the topics whose names end with ``ending``, and that we have the right to see."""
        doing, loop = "Listing topics", asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(None, self._list)
        except KafkaException as error:
            raise failure(error, doing, self._errors) from error
        return sorted(name for name in found.topics if name.endswith(ending))

    async def check_policy(self, topic: str) -> None:
        """Raise ConfigError unless ``topic`` keeps the last record of every key."""
        doing = f"Reading the configuration of topic {topic}"
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        try:
            found = await self._result(
                lambda admin: admin.describe_configs([resource], request_timeout=_REQUEST_S)[resource], doing
            )
        except KafkaException as error:
            raise failure(error, doing, self._errors) from error
        policy = found["cleanup.policy"].value
        if policy != "compact":
            raise ConfigError(
                f"Topic {topic} has cleanup.policy={policy}, so Kafka would delete schemas that messages "
                "still need. Set it to compact."
            )

    async def create(self, topic: str, replication_factor: int, config: Mapping[str, str]) -> None:
        """Create ``topic``. Do nothing if somebody else has just created it."""
        doing = f"Creating topic {topic}"
        new = NewTopic(topic, 1, replication_factor, config={**config, "cleanup.policy": "compact"})
        try:
            await self._result(lambda admin: admin.create_topics([new], request_timeout=_REQUEST_S)[topic], doing)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise failure(error, doing, self._errors) from error

    async def end(self, topic: str) -> int:
        """Return the offset after the last record of ``topic``. Every acknowledged record is before this offset.

        This is true even after an election, because a new leader answers only after it has learned this offset.
        """
        return await self._offset(topic, OffsetSpec.latest(), f"Asking for the end of topic {topic}")

    async def beginning(self, topic: str) -> int:
        """Return the offset of the first record. A consumer would take half a second to find it."""
        return await self._offset(topic, OffsetSpec.earliest(), f"Asking for the beginning of topic {topic}")

    async def _offset(self, topic: str, spec: OffsetSpec, doing: str) -> int:
        partition = TopicPartition(topic, 0)

        def ask(admin: AdminClient) -> "Future[Any]":
            isolation = IsolationLevel.READ_UNCOMMITTED
            answers: dict[TopicPartition, Future[Any]] = admin.list_offsets(
                {partition: spec}, isolation_level=isolation, request_timeout=_REQUEST_S
            )
            return answers[partition]

        try:
            found = await self._result(ask, doing)
        except KafkaException as error:
            raise failure(error, doing, self._errors) from error
        if found.offset < 0:  # negative if the leader did not answer in time
            raise SinkUnavailable(f"{doing}: its leader did not answer in time.")
        return int(found.offset)

    def _look_for_brokers(self, topic: str) -> None:
        """Make the client look up the brokers again. Otherwise it would keep asking brokers that are gone."""
        with suppress(KafkaException):
            self._list(topic, _LOOK_S)

    def _list(self, topic: str | None = None, timeout_s: float = _REQUEST_S) -> ClusterMetadata:
        """Ask for one topic, or for all of them. This blocks."""
        with self._in_use:
            return self._client.list_topics(topic, timeout_s)

    @property
    def is_open(self) -> bool:
        """Whether there is a client. If not, call :meth:`renew` before anything else."""
        return self._admin is not None

    @property
    def _client(self) -> AdminClient:
        assert self._admin is not None, "renew() is called first"
        return self._admin

    async def renew(self, thread: Executor) -> None:
        """Replace the client with a new one, which reads the certificate files again. Pending requests fail.

        ``thread`` is the thread that calls :meth:`serve`. It creates and closes the clients, because both may block.
        """
        loop = asyncio.get_running_loop()
        new = await loop.run_in_executor(thread, self._options.make, AdminClient, _ADMIN)
        former, self._admin = self._admin, new
        await loop.run_in_executor(thread, self._end, former)

    def close(self) -> None:
        """Close the client. Its threads have ended when this returns, which may take a moment."""
        self._end(self._admin)

    def _end(self, admin: AdminClient | None) -> None:
        if admin is not None:
            with self._in_use:
                admin.__exit__(None, None, None)

    def serve(self) -> None:
        """Let the client report errors and log."""
        self._client.poll(0)

    async def _result(self, ask: Callable[[AdminClient], "Future[Any]"], doing: str) -> Any:  # noqa: ANN401 - of many types
        """Send a request, and return its answer. Raise SinkUnavailable if the client is replaced meanwhile."""
        admin = self._client
        result = asyncio.wrap_future(ask(admin))
        try:
            while not result.done():
                await asyncio.wait({result}, timeout=_SERVE_S)
                if self._admin is not admin:  # a closed client does not answer
                    raise SinkUnavailable(f"{doing}: a new Kafka client has replaced the client of this request.")
                self.serve()
                self._errors.raise_if_denied(doing)
            answer = await result
        finally:
            result.cancel()
        self.serve()  # the client now reports its older errors, so that recovered() also clears them
        self._errors.recovered()
        return answer
