"""Asks Kafka for the ids, offsets and settings of topics, with the client that is part of Spark's Kafka source.

Used by :mod:`.query`, :mod:`.job`, :mod:`.origin`, :mod:`.pipeline` and :mod:`.doctor`.

``tests/spark/test_audit.py`` covers this module.

https://kafka.apache.org/documentation/#adminapi
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
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


@dataclass(frozen=True, slots=True)
class Brokers:
    """The brokers of a pipeline. ``options`` are the options of Spark's Kafka source."""

    spark: SparkSession
    bootstrap_servers: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return Kafka's id of each topic. Raise TopicMissing if a topic does not exist."""
        with self._admin() as admin:
            found = _answer(lambda: admin.describeTopics(self._list(topics)).allTopicNames().get(), topics)
            return {topic: found.get(topic).topicId().toString() for topic in topics}

    def topics(self, places: Collection[Place]) -> dict[str, TopicNow]:
        """Return the present state of the topics to which these partitions belong."""
        ids = self.topic_ids({topic for topic, _ in places})
        begins: dict[str, dict[int, int]] = {topic: {} for topic in ids}
        for (topic, partition), offset in self._offsets(places, is_end=False).items():
            begins[topic][partition] = offset
        return {topic: TopicNow(identifier, begins[topic]) for topic, identifier in ids.items()}

    def end(self, topic: str) -> int:
        """Return the offset after the last record of ``topic``, which has only one partition."""
        self.topic_ids([topic])
        return self._offsets({(topic, 0)}, is_end=True)[topic, 0]

    def settings(self, topics: Collection[str], names: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the values of the settings with these ``names``, by topic."""
        resource = self._jvm.org.apache.kafka.common.config.ConfigResource
        request = self._list([resource(self._topic_type, topic) for topic in topics])
        with self._admin() as admin:
            found = _answer(lambda: admin.describeConfigs(request).all().get(), topics)
            return {
                at.getKey().name(): {name: at.getValue().get(name).value() for name in names} for at in found.entrySet()
            }

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
            raise TopicMissing(
                f"one of these topics does not exist: {named}. Nothing was read. Check the prefix of the pipeline. If "
                "the topic was deleted, see pgsluice's runbook (docs/runbook.md)"
            ) from None
        raise PipelineError(
            f"Kafka did not answer a request about {named}: {cause.getMessage()}. Nothing was read. Check "
            "bootstrap_servers and kafka_options, and the rights to describe these topics and their settings"
        ) from None
