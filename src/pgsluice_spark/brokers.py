"""Asks Kafka for the ids, offsets and settings of topics, with the client that is part of Spark's Kafka source.

Used by :mod:`.query`, :mod:`.job`, :mod:`.origin`, :mod:`.pipeline` and :mod:`.doctor`.

``tests/spark/test_audit.py`` covers this module.

https://kafka.apache.org/documentation/#adminapi
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pgsluice_spark.errors import PipelineError, TopicMissing

_KAFKA: Final = "kafka."
_MISSING: Final = "UnknownTopicOrPartitionException"

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class TopicNow:
    """A topic as it is now: its id, and the first offset that each partition still has."""

    id: str
    begins: Mapping[int, int]


MISSING: Final = TopicNow("", {})
"""A topic that does not exist."""


@dataclass(frozen=True, slots=True)
class Brokers:
    """The brokers of a pipeline. ``options`` are the options of Spark's Kafka source."""

    spark: SparkSession
    bootstrap_servers: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return Kafka's id of each topic. Raise TopicMissing if a topic does not exist."""
        found = self._described(topics)
        if missing := sorted(set(topics) - set(found)):
            raise _missing(missing[:1])
        return {topic: description.topicId().toString() for topic, description in found.items()}

    def topics(self, places: Collection[Place]) -> dict[str, TopicNow]:
        """Return the present state of the topics to which these partitions belong.

        A topic that does not exist is MISSING. A partition that does not exist has no first offset, because a topic
        that was created again may have fewer partitions than before.
        """
        found = self._described({topic for topic, _ in places})
        existing = {place for place in places if place[0] in found and place[1] < found[place[0]].partitions().size()}
        begins: dict[str, dict[int, int]] = {topic: {} for topic in found}
        for (topic, partition), offset in self._offsets(existing, is_end=False).items():
            begins[topic][partition] = offset
        now = {topic: TopicNow(one.topicId().toString(), begins[topic]) for topic, one in found.items()}
        return {topic: now.get(topic, MISSING) for topic, _ in places}

    def begin(self, topic: str) -> int:
        """Return the first offset that ``topic`` still has. The topic has only one partition."""
        self.topic_ids([topic])
        return self._offsets({(topic, 0)}, is_end=False)[topic, 0]

    def end(self, topic: str) -> int:
        """Return the offset after the last record of ``topic``, which has only one partition."""
        self.topic_ids([topic])
        return self._offsets({(topic, 0)}, is_end=True)[topic, 0]

    def settings(self, topics: Collection[str], names: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the values of the settings with these ``names``, by topic. Raise TopicMissing if one is missing."""
        self.topic_ids(topics)
        resource = self._jvm.org.apache.kafka.common.config.ConfigResource
        request = self._list([resource(self._topic_type, topic) for topic in topics])
        with self._admin() as admin:
            found = _answer(lambda: admin.describeConfigs(request).all().get(), topics)
            return {
                at.getKey().name(): {name: at.getValue().get(name).value() for name in names} for at in found.entrySet()
            }

    def _described(self, topics: Collection[str]) -> dict[str, Any]:
        """Return Kafka's descriptions of those topics that exist."""
        with self._admin() as admin:
            answers = admin.describeTopics(self._list(topics)).topicNameValues()
            found = {}
            for topic in topics:
                with suppress(TopicMissing):
                    found[topic] = _answer(answers.get(topic).get, [topic])
            return found

    @property
    def _topic_type(self) -> Any:  # noqa: ANN401 - py4j has no types
        return getattr(self._jvm, "org.apache.kafka.common.config.ConfigResource$Type").TOPIC

    def _offsets(self, places: Collection[Place], *, is_end: bool) -> dict[Place, int]:
        jvm = self._jvm
        request, spec = jvm.java.util.HashMap(), jvm.org.apache.kafka.clients.admin.OffsetSpec
        for topic, partition in places:
            key = jvm.org.apache.kafka.common.TopicPartition(topic, partition)
            request.put(key, spec.latest() if is_end else spec.earliest())
        with self._admin() as admin:
            found = _answer(lambda: admin.listOffsets(request).all().get(), {topic for topic, _ in places})
            return {(at.getKey().topic(), at.getKey().partition()): at.getValue().offset() for at in found.entrySet()}

    @property
    def _jvm(self) -> Any:  # noqa: ANN401 - py4j has no types
        return self.spark._jvm  # noqa: SLF001 - PySpark has no other way to Java

    def _list(self, items: Collection[object]) -> Any:  # noqa: ANN401 - py4j has no types
        found = self._jvm.java.util.ArrayList()
        for item in items:
            found.add(item)
        return found

    @contextmanager
    def _admin(self) -> Iterator[Any]:
        properties = self._jvm.java.util.Properties()
        options = {name: value for name, value in self.options.items() if name.lower().startswith(_KAFKA)}
        for name, value in {**options, "kafka.bootstrap.servers": self.bootstrap_servers}.items():
            properties.setProperty(name[len(_KAFKA) :], value)
        admin = self._jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        try:
            yield admin
        finally:
            admin.close()


def _answer(ask: Callable[[], Any], topics: Collection[str]) -> Any:  # noqa: ANN401 - py4j has no types
    try:
        return ask()
    except Py4JJavaError as error:
        java = error.java_exception
        cause = java.getCause() or java
        named = ", ".join(sorted(topics))
        if cause.getClass().getSimpleName() == _MISSING:
            raise _missing(sorted(topics)) from None
        raise PipelineError(
            f"Kafka did not answer a request about {named}: {cause.getMessage()}. Nothing was read. Check "
            "bootstrap_servers and kafka_options, and the rights to describe these topics and their settings"
        ) from None


def _missing(topics: Sequence[str]) -> TopicMissing:
    what = "topic" if len(topics) == 1 else "one of the topics"
    return TopicMissing(
        f"{what} {', '.join(topics)} does not exist. Nothing was read. Check the prefix of the pipeline. If the topic "
        "was deleted, see pgsluice's runbook (docs/runbook.md)"
    )
