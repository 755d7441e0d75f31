"""Creates topics when they are first needed, and checks them for settings that prevent delivery.

https://kafka.apache.org/documentation/#topicconfigs
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, OffsetSpec

from pgsluice.errors import ConfigError, PermissionDenied, PgsluiceError, SinkUnavailable, TableRefused
from pgsluice.kafka.account import Account, Partition, TopicState
from pgsluice.kafka.client import UNKNOWN_TOPIC, ClientOptions, failure
from pgsluice.kafka.files import ClientFiles
from pgsluice.kafka.topic_spec import TopicSettings, TopicSpec, new_topic, other_service, portions, topic_settings
from pgsluice.tables import SERVICE_TOPICS

T = TypeVar("T")

REQUEST_S = 15.0
_LEADERS_S = 3.0
"""After this time we ask again which brokers are the leaders, because a dead broker never answers."""

_LOOK_S = 1.0

_SLICE_S = 0.5
_RETRY_FIRST_S = 0.005
_RETRY_S = 0.05
"""The first and the longest pause between two tries. Brokers usually learn of a new topic within milliseconds."""

_SETTLE_S = 30.0
"""We wait at most this long until every partition of a new topic has a leader. librdkafka waits equally long for the
metadata of a new topic."""

BATCH_BYTES = 1_000_000
"""librdkafka's default of ``batch.size``."""

SETTINGS_MAX = 25
"""One request reads the settings of at most this many topics. A broker sends all settings, which takes 0.5 to 1 ms per
topic."""

_LOOKS_MAX = 5
"""The most topics whose metadata we request one by one. For more topics, one request for all topics is faster."""

_PROPERTIES: Final = {"allow.auto.create.topics": False, "topic.metadata.refresh.interval.ms": 1000}
"""When a broker comes back, it does not know the controller at first. librdkafka looks up the controller again only
when it refreshes its metadata, by default every 5 minutes. Until then, every request would time out. So we make
librdkafka refresh its metadata every second."""

_TRANSACTION_TIMEOUT: Final = "transaction.max.timeout.ms"

_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The topic id that brokers report if they are too old for topic ids (before Kafka 2.8)."""

_Answer = tuple[int, int | None]
"""An offset, and the epoch of the leader that answered, if it is known."""


class _UnknownTopic(SinkUnavailable):
    """The topic does not exist, or the broker that answered has not learned of it yet."""


class Topics:
    """Administers topics. Every method blocks until Kafka answers, or until ``given_up`` is set."""

    def __init__(self, options: ClientOptions, given_up: threading.Event) -> None:
        self._options = options
        self._errors = options.errors
        self._given_up = given_up
        self._files = ClientFiles(options.properties)
        self._admin = options.make(AdminClient, _PROPERTIES)
        self.batch_bytes = int(options.properties.get("batch.size", BATCH_BYTES))
        """The largest size of a batch before compression."""

    def another(self) -> "Topics":
        """Return a copy with a new client, because this client's broker may be outdated. The caller has to close it."""
        return Topics(self._options, self._given_up)

    def close(self) -> None:
        """Close the client. Its threads have ended when this returns. May be called twice."""
        self._admin.__exit__(None, None, None)

    def ensure(self, *specs: TopicSpec) -> list[TopicState]:
        """Return the state of the topics, after creating those that do not exist. Raise ConfigError if that fails."""
        states = self.describe([spec.name for spec in specs])
        self._create([spec for spec in specs if spec.name not in states])
        states |= self._settled([spec.name for spec in specs if not _is_settled(states.get(spec.name))])
        return [states[spec.name] for spec in specs]

    def make(self, specs: Sequence[TopicSpec]) -> dict[str, TopicState]:
        """Create the topics that do not exist, with few requests. Return the states of the topics that exist now.

        Leave out a topic that Kafka refuses to describe or to create. A later call of :meth:`ensure` raises the reason.
        """
        states = self.describe([spec.name for spec in specs], lenient=True)
        missing = [spec for spec in specs if spec.name not in states]
        refused = {
            spec.name for some in portions(missing) for spec, error in self._refusals(some) if not _exists(error)
        }
        there = [spec.name for spec in specs if spec.name not in refused]
        return states | self._settled([name for name in there if not _is_settled(states.get(name))])

    def settings(self, topics: Collection[str]) -> dict[str, TopicSettings]:
        """Return the settings of each of ``topics`` that exists.

        New topics may be missing in the result, because brokers may not know them yet.
        """
        names, found = list(topics), dict[str, TopicSettings]()
        for at in range(0, len(names), SETTINGS_MAX):
            found |= self._settings(names[at : at + SETTINGS_MAX])
        return found

    def settings_of(self, *topics: str) -> list[TopicSettings]:
        """Return the settings of ``topics``, all of which exist.

        If a broker does not know one of them yet, ask again.
        """

        def ask() -> list[TopicSettings]:
            found = self._settings(topics)
            if missing := [topic for topic in topics if topic not in found]:
                raise SinkUnavailable(f"Reading the configuration of {missing[0]}: the broker does not know the topic.")
            return [found[topic] for topic in topics]

        return self._patiently(topics, ask)

    def check_owner(self, topic: str) -> None:
        """Raise TableRefused if this is a service topic of another pipeline.

        Such a topic can be recognised, because a second service topic with the same prefix exists.
        """
        prefix, _, ending = topic.rpartition(".")
        other = other_service(topic)
        if ending in SERVICE_TOPICS and self.describe([other]):
            raise TableRefused(
                f"Topic {topic} belongs to another pipeline, whose kafka.topic_prefix is {prefix!r}: topic {other} "
                'exists as well. Choose another topic with `topic = "..."` in a [[tables.rules]] entry.'
            )

    def check(self, spec: TopicSpec, settings: TopicSettings) -> None:
        """Raise TableRefused or ConfigError if the topic would refuse our records."""
        if not spec.compactable and "compact" in (settings.cleanup_policy or ""):
            raise TableRefused(
                f"Topic {spec.name} has cleanup.policy=compact, but truncates or rows without a key go to it, and "
                "Kafka refuses records without a key there. Give the table a key (`keys` in [[tables.rules]]), "
                'set truncate = "skip", or change the policy.'
            )
        limit = settings.max_message_bytes
        if limit is not None and limit < self.batch_bytes:
            raise ConfigError(
                f"Topic {spec.name} takes {limit} bytes at once (max.message.bytes), but the producer's batches may "
                f"have {self.batch_bytes} (batch.size), so Kafka would refuse a batch of many small rows. "
                f"Raise max.message.bytes, or set batch.size under kafka.client to {limit} or less."
            )

    def small_topics(self, prefix: str) -> dict[str, int]:
        """Return the topics that could refuse our batches, with their max.message.bytes.

        Consider only topics whose names begin with ``prefix``.
        """
        doing = "Listing topics"
        try:
            found = self._admin.list_topics(timeout=REQUEST_S).topics
        except KafkaException as error:
            raise failure(error, doing, self._errors) from error
        settings = self.settings([topic for topic in sorted(found) if topic.startswith(prefix)])
        limits = {topic: one.max_message_bytes for topic, one in settings.items()}
        return {topic: limit for topic, limit in limits.items() if limit is not None and limit < self.batch_bytes}

    def describe(self, topics: Collection[str], *, lenient: bool = False) -> dict[str, TopicState]:
        """Return the state of each of ``topics`` that exists. This creates no topic.

        If ``lenient`` is set, leave out topics that Kafka refuses to describe, or whose name is not valid. Otherwise
        raise PermissionDenied or ConfigError for them.
        """
        states = {}
        for topic, found in self._describe(topics, lenient=lenient):
            identifier = str(found.topic_id)
            have_leaders = all(partition.leader is not None for partition in found.partitions)
            states[topic] = TopicState(
                "" if identifier == _NO_ID else identifier, len(found.partitions), has_leaders=have_leaders
            )
        return states

    def rights_to(self, topic: str) -> set[AclOperation] | None:
        """Return our rights to a topic, or None if the brokers do not report them."""
        request = self._admin.describe_topics(
            TopicCollection([topic]), include_authorized_operations=True, request_timeout=REQUEST_S
        )
        found = self._answer(request[topic], f"Describing topic {topic}").authorized_operations
        return None if found is None else set(found)

    def out_of_sync(self, topics: Collection[str]) -> list[str]:
        """Return a description of each partition that has missing or lagging replicas."""
        return [
            f"{topic} [{one.id}]: {len(one.isr)} of {len(one.replicas)} replicas in sync"
            for topic, found in self._describe(topics)
            for one in found.partitions
            if len(one.isr) < len(one.replicas)
        ]

    def _describe(self, topics: Collection[str], *, lenient: bool = False) -> list[tuple[str, Any]]:
        """Return Kafka's description of each topic that exists."""

        def ask() -> list[tuple[str, Any]]:
            futures = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=REQUEST_S)
            found = []
            for topic, future in futures.items():
                try:
                    found.append((topic, self._answer(future, f"Describing topic {topic}")))
                except _UnknownTopic:
                    continue
                except (PermissionDenied, ConfigError):
                    if not lenient:
                        raise
            return found

        return self._patiently(topics, ask) if topics else []

    def account(self, known: Account) -> Account:
        """Return the present state of the topics and partitions in ``known``, according to the cluster."""
        states = self.describe(known.topics)
        partitions = [one for one in known.ends if one[0] in states and one[1] < states[one[0]].partitions]
        found = self._answers(partitions, IsolationLevel.READ_UNCOMMITTED)
        epochs = {partition: epoch for partition, (_, epoch) in found.items() if epoch is not None}
        return Account(states, {partition: offset for partition, (offset, _) in found.items()}, epochs)

    def max_transaction_timeout_ms(self) -> int | None:
        """Return the brokers' transaction.max.timeout.ms, or None if it cannot be read."""
        return self._broker_setting(_TRANSACTION_TIMEOUT)

    def max_request_bytes(self) -> int | None:
        """Return the brokers' socket.request.max.bytes, or None if it cannot be read."""
        return self._broker_setting("socket.request.max.bytes")

    def max_message_bytes(self, topic: str) -> int | None:
        """Return the topic's max.message.bytes, or None if it cannot be read."""
        return self.settings([topic]).get(topic, TopicSettings()).max_message_bytes

    def refuse_transaction_timeout_ms(self, timeout_ms: int) -> bool:
        """Return whether every broker's settings show that it refuses transactions with this timeout."""
        limits = [self._setting_of(broker, _TRANSACTION_TIMEOUT) for broker in self.brokers()]
        return all(limit is not None and limit < timeout_ms for limit in limits)

    def _broker_setting(self, setting: str) -> int | None:
        """Return a setting that is the same on all brokers, or None if it cannot be read."""
        return self._setting_of(min(self.brokers()), setting)

    def _setting_of(self, broker: int, setting: str) -> int | None:
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
        found = self._configs([resource]).get(resource.name, {}).get(setting)
        return None if found is None else int(found)

    def brokers(self) -> list[int]:
        """Return the ids of the cluster's brokers."""
        future = self._admin.describe_cluster(request_timeout=REQUEST_S)
        return [node.id for node in self._answer(future, "Asking Kafka for its brokers").nodes]

    def refusal_to_create(self, spec: TopicSpec) -> PgsluiceError | None:
        """Return why Kafka would not create this topic, or None if it would or if it exists. This creates no topic."""
        new, doing = new_topic(spec), f"Creating topic {spec.name}"
        try:
            self._wait(
                self._admin.create_topics([new], validate_only=True, request_timeout=REQUEST_S)[spec.name], doing
            )
        except KafkaException as error:
            return None if _exists(error) else failure(error, doing, self._errors)
        return None

    def next_offsets(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the offset after the last record of each partition. Records of open transactions count."""
        return self._latest(partitions, IsolationLevel.READ_UNCOMMITTED)

    def stable_offsets(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the last stable offset of each partition. Readers of committed records cannot read beyond it."""
        return self._latest(partitions, IsolationLevel.READ_COMMITTED)

    def _latest(self, partitions: Sequence[Partition], isolation: IsolationLevel) -> dict[Partition, int]:
        return {partition: offset for partition, (offset, _) in self._answers(partitions, isolation).items()}

    def _answers(self, partitions: Sequence[Partition], isolation: IsolationLevel) -> dict[Partition, _Answer]:
        request = {TopicPartition(topic, partition): OffsetSpec.latest() for topic, partition in partitions}
        return self._list_offsets(request, isolation) if request else {}

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition and its high watermark. Records of open transactions count."""
        request = TopicPartition(topic, partition)
        low, high = (
            self._offsets({request: spec}, IsolationLevel.READ_UNCOMMITTED)[topic, partition]
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
        return low, high

    def _offsets(self, request: dict[TopicPartition, OffsetSpec], isolation: IsolationLevel) -> dict[Partition, int]:
        return {partition: offset for partition, (offset, _) in self._list_offsets(request, isolation).items()}

    def _list_offsets(
        self, request: dict[TopicPartition, OffsetSpec], isolation: IsolationLevel
    ) -> dict[Partition, _Answer]:
        def ask() -> dict[Partition, _Answer]:
            futures = self._admin.list_offsets(request, isolation_level=isolation, request_timeout=_LEADERS_S)
            found = {
                (at.topic, at.partition): self._answer(one, f"Listing the offsets of topic {at.topic}")
                for at, one in futures.items()
            }
            if min(one.offset for one in found.values()) < 0:  # negative if a leader did not answer
                raise SinkUnavailable("Listing the offsets of topics: a partition's leader did not answer in time.")
            return {partition: (one.offset, one.leader_epoch) for partition, one in found.items()}

        return self._patiently({partition.topic for partition in request}, ask)

    def _patiently(self, topics: Iterable[str], ask: Callable[[], T]) -> T:
        """Repeat a request until it succeeds, for up to REQUEST_S, and return the answer.

        A later request may succeed for two reasons. First, brokers learn of new topics and leaders at different times.
        Second, the client drops requests to a broker that has left the cluster.
        """
        end, pause_s = time.monotonic() + REQUEST_S, _RETRY_FIRST_S
        while True:
            try:
                return ask()
            except SinkUnavailable:
                if time.monotonic() > end or self._given_up.wait(pause_s):
                    raise
            self._look_for_leaders(topics)
            pause_s = min(_RETRY_S, 2 * pause_s)

    def _look_for_leaders(self, topics: Iterable[str]) -> None:
        """Make the client look up the leaders, because it would keep asking former leaders that are gone."""
        names = list(topics)
        with suppress(KafkaException):
            for topic in names if len(names) <= _LOOKS_MAX else [None]:
                self._admin.list_topics(topic, _LOOK_S)

    def _answer(self, future: "Future[Any]", doing: str) -> Any:  # noqa: ANN401 - the requests' answers differ
        """Wait for an answer, and return it. Raise the pgsluice error if Kafka refuses the request."""
        try:
            return self._wait(future, doing)
        except KafkaException as error:
            if error.args[0].code() in UNKNOWN_TOPIC:
                raise _UnknownTopic(f"{doing}: {error.args[0].str()}.") from error
            raise failure(error, doing, self._errors) from error

    def _wait(self, future: "Future[Any]", doing: str) -> Any:  # noqa: ANN401 - the requests' answers differ
        """Return the answer when it comes, unless the session ends first. Raise KafkaException if Kafka refuses."""
        while True:
            try:
                answer = future.result(_SLICE_S)
            except TimeoutError:
                self._admin.poll(0)  # makes the client report errors
                self._errors.raise_if_denied(doing)
                self._files.check()
                if self._given_up.is_set():
                    raise SinkUnavailable(f"{doing} was abandoned because the session ends.") from None
            else:
                self._admin.poll(0)  # reports the errors that came before this answer
                self._errors.recovered()
                return answer

    def _settings(self, topics: Collection[str]) -> dict[str, TopicSettings]:
        found = self._configs([ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics])
        return {topic: topic_settings(values) for topic, values in found.items()}

    def _configs(self, resources: Collection[ConfigResource]) -> dict[str, dict[str, str]]:
        """Return the settings of each resource that exists. They are empty if we may not read them."""
        futures = self._admin.describe_configs(list(resources), request_timeout=REQUEST_S)
        configs = {}
        for resource, future in futures.items():
            try:
                found = self._answer(future, f"Reading the configuration of {resource.name}")
            except _UnknownTopic:
                continue
            except PermissionDenied:
                found = {}
            configs[resource.name] = {name: entry.value for name, entry in found.items() if entry.value is not None}
        return configs

    def _create(self, specs: Sequence[TopicSpec]) -> None:
        """Create all topics with one request. Accept topics that somebody else has just created."""
        for spec, error in self._refusals(specs):
            if not _exists(error):
                raise self._judge_creation(error, spec) from error

    def _refusals(self, specs: Sequence[TopicSpec]) -> Iterator[tuple[TopicSpec, KafkaException]]:
        """Create all topics with one request. Yield the topics that were not created, with the reason."""
        if not specs:
            return
        futures = self._admin.create_topics([new_topic(spec) for spec in specs], request_timeout=REQUEST_S)
        for spec in specs:
            try:
                self._wait(futures[spec.name], f"Creating topic {spec.name}")
            except KafkaException as error:
                yield spec, error

    def _judge_creation(self, error: KafkaException, spec: TopicSpec) -> PgsluiceError:
        if error.args[0].code() == KafkaError.TOPIC_EXCEPTION:
            return TableRefused(
                f"Kafka refuses topic {spec.name!r}: {error.args[0].str()}. If it collides with another topic whose "
                "name differs only in '.' and '_', choose another name with `topic = \"...\"` in a [[tables.rules]] "
                "entry, or another kafka.topic_prefix if it is one of pgsluice's own topics."
            )
        return failure(error, f"Creating topic {spec.name}", self._errors)

    def _settled(self, topics: Collection[str]) -> dict[str, TopicState]:
        """Wait until all partitions have a leader (usually for milliseconds). Return the states of the topics."""
        end, pause_s = time.monotonic() + _SETTLE_S, _RETRY_FIRST_S
        while True:
            states = self.describe(topics)
            missing = [topic for topic in topics if not _is_settled(states.get(topic))]
            if not missing:
                return states
            if time.monotonic() > end or self._given_up.wait(pause_s):
                raise SinkUnavailable(f"Topic {missing[0]} has partitions without a leader.")
            pause_s = min(_RETRY_S, 2 * pause_s)


def _exists(error: KafkaException) -> bool:
    return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)


def _is_settled(state: TopicState | None) -> bool:
    return state is not None and state.has_leaders
