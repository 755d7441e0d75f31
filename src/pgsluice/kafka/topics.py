"""Topics: created when first needed, with the configured partitions, and checked for what breaks delivery.

https://kafka.apache.org/documentation/#topicconfigs
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from pgsluice.errors import ConfigError, PermissionDenied, SinkUnavailable
from pgsluice.kafka.account import Account, Place, TopicState
from pgsluice.librdkafka import UNKNOWN_TOPIC, ClientOptions, failure

T = TypeVar("T")

REQUEST_S = 15.0
_LEADERS_S = 3.0
"""Until partitions are asked for their leaders again: a broker that died is asked in vain."""

_LOOK_S = 1.0

_SLICE_S = 0.5
_RETRY_S = 0.05
_SETTLE_S = 30.0
"""Until every partition of a new topic has a leader; librdkafka waits as long for its metadata."""

BATCH_BYTES = 1_000_000
"""librdkafka's default of ``batch.size``."""

_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What brokers older than topic ids (Kafka 2.8) say."""


class _UnknownTopic(SinkUnavailable):
    """The topic does not exist, or the broker asked has not heard of it yet."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as it is to be created; ``compactable``: every record in it has a key."""

    name: str
    partitions: int
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)
    compactable: bool = True


class Topics:
    """Administration of topics; every method blocks, until ``given_up`` is set at the latest."""

    def __init__(self, options: ClientOptions, given_up: threading.Event) -> None:
        self._errors = options.errors
        self._given_up = given_up
        self._admin = options.make(AdminClient, {"allow.auto.create.topics": False})
        self.batch_bytes = int(options.properties.get("batch.size", BATCH_BYTES))
        """How large a batch of records may get before it is compressed."""

    def ensure(self, spec: TopicSpec) -> TopicState:
        """Return the topic, which exists afterwards; else ConfigError."""
        state = self.describe([spec.name]).get(spec.name)
        if state is None:
            self._create(spec)
        if state is None or not state.has_leaders:
            state = self._settled(spec.name)
        if not spec.compactable and "compact" in self._topic_config(spec.name).get("cleanup.policy", ""):
            raise ConfigError(
                f"Topic {spec.name} has cleanup.policy=compact, but rows without key or truncates go to it, and Kafka "
                "refuses records without key there: give the table a key (`keys` in [[tables.rules]]), set "
                'truncate = "skip", or change the policy.'
            )
        return state

    def check_batches(self, topic: str) -> None:
        """Raise ConfigError if ``topic`` would refuse small records because many come together."""
        limit = self._limit(self._topic_config(topic))
        if limit < self.batch_bytes:
            raise ConfigError(
                f"Topic {topic} takes {limit} bytes at once (max.message.bytes), but the producer's batches may have "
                f"{self.batch_bytes} (batch.size), so it would refuse many small rows that come together. Raise the "
                f"one, or set batch.size under kafka.client to {limit} or less."
            )

    def _limit(self, config: Mapping[str, str]) -> int:
        return int(config.get("max.message.bytes", self.batch_bytes))

    def small_topics(self, prefix: str) -> dict[str, int]:
        """Return the max.message.bytes of those topics beginning with ``prefix`` that do not take our batches."""
        doing = "Listing topics"
        try:
            found = self._admin.list_topics(timeout=REQUEST_S).topics
        except KafkaException as error:
            raise failure(error, doing, self._errors) from error
        ours = (topic for topic in sorted(found) if topic.startswith(prefix))
        limits = {topic: self._limit(self._config(ConfigResource.Type.TOPIC, topic)) for topic in ours}
        return {topic: limit for topic, limit in limits.items() if limit < self.batch_bytes}

    def check_compacted(self, topic: str) -> None:
        """Raise ConfigError unless ``topic`` keeps the last record of every key for ever."""
        policy = self._topic_config(topic).get("cleanup.policy")
        if policy not in (None, "compact"):
            raise ConfigError(
                f"Topic {topic} has cleanup.policy={policy}, so Kafka would delete in time what a restart needs. Set "
                "it to compact."
            )

    def describe(self, topics: Collection[str]) -> dict[str, TopicState]:
        """Return what is known of each of ``topics``.

        Those that do not exist are left out; nothing is created by asking.
        """
        if not topics:
            return {}
        futures = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=REQUEST_S)
        states = {}
        for topic, future in futures.items():
            try:
                found = self._answer(future, f"Describing topic {topic}")
            except _UnknownTopic:
                continue
            identifier = str(found.topic_id)
            have_leaders = all(partition.leader is not None for partition in found.partitions)
            states[topic] = TopicState(
                "" if identifier == _NO_ID else identifier, len(found.partitions), has_leaders=have_leaders
            )
        return states

    def account(self, known: Account) -> Account:
        """Return the cluster's account of the topics and partitions that stand in ``known``."""
        states = self.describe(known.topics)
        places = [place for place in known.ends if place[0] in states and place[1] < states[place[0]].partitions]
        return Account(states, self.next_offsets(places))

    def max_transaction_timeout_ms(self) -> int | None:
        """Return the brokers' transaction.max.timeout.ms, None when it cannot be known."""
        return self._broker_setting("transaction.max.timeout.ms")

    def max_request_bytes(self) -> int | None:
        """Return the brokers' socket.request.max.bytes, None when it cannot be known."""
        return self._broker_setting("socket.request.max.bytes")

    def max_message_bytes(self, topic: str) -> int | None:
        """Return the topic's max.message.bytes, None when it cannot be known."""
        found = self._config(ConfigResource.Type.TOPIC, topic).get("max.message.bytes")
        return None if found is None else int(found)

    def _broker_setting(self, setting: str) -> int | None:
        """Return a setting that is the same on all brokers, None when it cannot be known."""
        found = self._config(ConfigResource.Type.BROKER, str(min(self.brokers()))).get(setting)
        return None if found is None else int(found)

    def brokers(self) -> list[int]:
        """Return the ids of the cluster's brokers."""
        future = self._admin.describe_cluster(request_timeout=REQUEST_S)
        return [node.id for node in self._answer(future, "Asking Kafka for its brokers").nodes]

    def refusal_to_create(self, spec: TopicSpec) -> str | None:
        """Return why Kafka would not create such a topic, None when it would; creates nothing."""
        new, doing = _new_topic(spec), f"Creating topic {spec.name}"
        try:
            self._wait(
                self._admin.create_topics([new], validate_only=True, request_timeout=REQUEST_S)[spec.name], doing
            )
        except KafkaException as error:
            exists = error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
            return None if exists else str(failure(error, doing, self._errors))
        return None

    def next_offsets(self, places: Sequence[Place]) -> dict[Place, int]:
        """Return the end of each partition, transactions still open included."""
        request = {TopicPartition(topic, partition): OffsetSpec.latest() for topic, partition in places}
        return self._offsets(request, IsolationLevel.READ_UNCOMMITTED) if request else {}

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition and its high watermark, transactions still open included."""
        place = TopicPartition(topic, partition)
        low, high = (
            self._offsets({place: spec}, IsolationLevel.READ_UNCOMMITTED)[topic, partition]
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
        return low, high

    def _offsets(self, request: dict[TopicPartition, OffsetSpec], isolation: IsolationLevel) -> dict[Place, int]:
        def ask() -> dict[Place, int]:
            futures = self._admin.list_offsets(request, isolation_level=isolation, request_timeout=_LEADERS_S)
            found = {
                (at.topic, at.partition): self._answer(one, f"Listing the offsets of topic {at.topic}").offset
                for at, one in futures.items()
            }
            if min(found.values()) < 0:  # no error, where only some of the leaders answered
                raise SinkUnavailable("Listing the offsets of topics: a partition's leader did not answer in time.")
            return found

        return self._patiently({place.topic for place in request}, ask)

    def _patiently(self, topics: Iterable[str], ask: Callable[[], T]) -> T:
        """Ask again for a while: of new topics, and of leaders that move, the brokers hear one after the other."""
        end = time.monotonic() + REQUEST_S
        while True:
            try:
                return ask()
            except SinkUnavailable:
                if time.monotonic() > end or self._given_up.wait(_RETRY_S):
                    raise
            self._look_for_leaders(topics)

    def _look_for_leaders(self, topics: Iterable[str]) -> None:
        """Tell the client of new leaders, and of brokers that are gone: by itself it asks the former ones again."""
        with suppress(KafkaException):
            for topic in topics:
                self._admin.list_topics(topic, _LOOK_S)

    def _answer(self, future: "Future[Any]", doing: str) -> Any:  # noqa: ANN401 - the requests' answers differ
        """Wait for an answer; raise what a refusal means."""
        try:
            return self._wait(future, doing)
        except KafkaException as error:
            if error.args[0].code() in UNKNOWN_TOPIC:
                raise _UnknownTopic(f"{doing}: {error.args[0].str()}.") from error
            raise failure(error, doing, self._errors) from error

    def _wait(self, future: "Future[Any]", doing: str) -> Any:  # noqa: ANN401 - as above
        """Wait for an answer in slices, so that giving up is noticed; KafkaException when it is a refusal."""
        while True:
            try:
                answer = future.result(_SLICE_S)
            except TimeoutError:
                self._admin.poll(0)  # has it report errors
                self._errors.raise_if_denied(doing)
                if self._given_up.is_set():
                    raise SinkUnavailable(f"{doing} was given up because the session ends.") from None
            else:
                self._admin.poll(0)  # what it still has to report is from before
                self._errors.recovered()
                return answer

    def _topic_config(self, topic: str) -> dict[str, str]:
        """Return the settings of a topic that may be new."""
        return self._patiently([topic], lambda: self._config(ConfigResource.Type.TOPIC, topic))

    def _config(self, kind: ConfigResource.Type, name: str) -> dict[str, str]:
        """Return all settings; none when we may not ask: then the records will tell."""
        resource = ConfigResource(kind, name)
        future = self._admin.describe_configs([resource], request_timeout=REQUEST_S)[resource]
        try:
            found = self._answer(future, f"Reading the configuration of {name}")
        except PermissionDenied:
            return {}
        return {setting: entry.value for setting, entry in found.items() if entry.value is not None}

    def _create(self, spec: TopicSpec) -> None:
        new, doing = _new_topic(spec), f"Creating topic {spec.name}"
        try:
            self._wait(self._admin.create_topics([new], request_timeout=REQUEST_S)[spec.name], doing)
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if code == KafkaError.TOPIC_EXCEPTION:
                raise ConfigError(
                    f"Kafka refuses topic {spec.name!r}: {error.args[0].str()}. Where it collides with another topic "
                    "in '.' and '_', name it with `topic = \"...\"` in a [[tables.rules]] entry."
                ) from error
            raise failure(error, doing, self._errors) from error

    def _settled(self, topic: str) -> TopicState:
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline and not self._given_up.wait(_RETRY_S):
            state = self.describe([topic]).get(topic)
            if state is not None and state.has_leaders:
                return state
        raise SinkUnavailable(f"Topic {topic} has partitions without a leader.")


def _new_topic(spec: TopicSpec) -> NewTopic:
    return NewTopic(spec.name, spec.partitions, spec.replication_factor, config=dict(spec.config))
