"""Topics: created when first needed, with the configured partitions, and checked for what breaks delivery.

https://kafka.apache.org/documentation/#topicconfigs
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from pgsluice.errors import ConfigError, PermissionDenied, SinkUnavailable
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

    def ensure(self, spec: TopicSpec) -> int:
        """Return the number of partitions of the topic, which exists afterwards; else ConfigError."""
        known = self.partitions([spec.name])
        if spec.name not in known:
            self._create(spec)
        partitions = known.get(spec.name) or self._settled(spec.name)
        if not spec.compactable and "compact" in (self._cleanup_policy(spec.name) or ""):
            raise ConfigError(
                f"Topic {spec.name} has cleanup.policy=compact, but rows without key or truncates go to it, and Kafka "
                "refuses records without key there: give the table a key (`keys` in [[tables.rules]]), set "
                'truncate = "skip", or change the policy.'
            )
        return partitions

    def check_compacted(self, topic: str) -> None:
        """Raise ConfigError unless ``topic`` keeps the last record of every key for ever."""
        policy = self._cleanup_policy(topic)
        if policy not in (None, "compact"):
            raise ConfigError(
                f"Topic {topic} has cleanup.policy={policy}, so Kafka would delete in time what a restart needs. Set "
                "it to compact."
            )

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Return how many partitions each of ``topics`` has: 0 while some have no leader.

        Those that do not exist are left out; nothing is created by asking.
        """
        if not topics:
            return {}
        futures = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=REQUEST_S)
        counts = {}
        for topic, future in futures.items():
            try:
                found = self._answer(future, f"Describing topic {topic}").partitions
            except _UnknownTopic:
                continue
            counts[topic] = len(found) if all(partition.leader is not None for partition in found) else 0
        return counts

    def max_transaction_timeout_ms(self) -> int | None:
        """Return the brokers' transaction.max.timeout.ms, None when it cannot be known."""
        return self._broker_setting("transaction.max.timeout.ms")

    def max_request_bytes(self) -> int | None:
        """Return the brokers' socket.request.max.bytes, None when it cannot be known."""
        return self._broker_setting("socket.request.max.bytes")

    def max_message_bytes(self, topic: str) -> int | None:
        """Return the topic's max.message.bytes, None when it cannot be known."""
        found = self._setting(ConfigResource.Type.TOPIC, topic, "max.message.bytes")
        return None if found is None else int(found)

    def _broker_setting(self, setting: str) -> int | None:
        """Return a setting that is the same on all brokers, None when it cannot be known."""
        found = self._setting(ConfigResource.Type.BROKER, str(min(self.brokers())), setting)
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

    def next_offsets(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
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

    def _offsets(
        self, request: dict[TopicPartition, OffsetSpec], isolation: IsolationLevel
    ) -> dict[tuple[str, int], int]:
        def ask() -> dict[tuple[str, int], int]:
            futures = self._admin.list_offsets(request, isolation_level=isolation, request_timeout=_LEADERS_S)
            doing = "Listing the offsets of topics"
            found = {(at.topic, at.partition): self._answer(one, doing).offset for at, one in futures.items()}
            if min(found.values()) < 0:  # no error, where only some of the leaders answered
                raise SinkUnavailable(f"{doing}: the leader of a partition did not answer in time.")
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

    def _cleanup_policy(self, topic: str) -> str | None:
        """Return the topic's policy, None when it cannot be known: then the records will tell."""
        return self._patiently([topic], lambda: self._setting(ConfigResource.Type.TOPIC, topic, "cleanup.policy"))

    def _setting(self, kind: ConfigResource.Type, name: str, setting: str) -> str | None:
        """Return one setting, None when we may not ask, or when this kind of broker does not have it."""
        resource = ConfigResource(kind, name)
        future = self._admin.describe_configs([resource], request_timeout=REQUEST_S)[resource]
        try:
            found = self._answer(future, f"Reading the configuration of {name}")
        except PermissionDenied:
            return None
        return found[setting].value if setting in found else None

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

    def _settled(self, topic: str) -> int:
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline and not self._given_up.wait(_RETRY_S):
            if partitions := self.partitions([topic]).get(topic):
                return partitions
        raise SinkUnavailable(f"Topic {topic} has partitions without a leader.")


def _new_topic(spec: TopicSpec) -> NewTopic:
    return NewTopic(spec.name, spec.partitions, spec.replication_factor, config=dict(spec.config))
