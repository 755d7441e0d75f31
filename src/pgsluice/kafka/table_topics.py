"""Creates the topic of a table when the table's first row arrives. ``sink`` uses this module.

If a topic cannot be used, only its table is refused (TableRefused), so all other tables can continue.

``tests/integration/test_kafka_sink.py`` covers this module.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from pgsluice.errors import ConfigError, PermissionDenied, PgsluiceError, SinkUnavailable, TableRefused
from pgsluice.kafka.account import TopicState
from pgsluice.kafka.ledger import Ledger
from pgsluice.kafka.options import SinkOptions
from pgsluice.kafka.topic_spec import TopicSettings, TopicSpec, other_service
from pgsluice.kafka.topics import Topics
from pgsluice.tables import SERVICE_TOPICS


class TableTopics:
    """Creates the topics of tables in one session. Every method blocks."""

    def __init__(self, options: SinkOptions, topics: Topics, ledger: Ledger) -> None:
        self._options = options
        self._topics = topics
        self._ledger = ledger
        self._settings: dict[str, TopicSettings] = {}
        """The settings that :meth:`prepare` has read and :meth:`open` has not checked yet, by topic."""

    def prepare(self, specs: Sequence[TopicSpec]) -> None:
        """Create all topics that later calls of :meth:`open` need. This is faster than creating them one by one.

        If a topic cannot be created, :meth:`open` tries again and raises the reason.
        """
        new = [spec for spec in specs if spec.name not in self._ledger and not _may_be_anothers(spec.name)]
        if self._has_room(spec.name for spec in new):
            self._ledger.pin(self._topics.make(new))
        self._settings = self._topics.settings([spec.name for spec in specs if spec.name in self._ledger])

    def open(self, spec: TopicSpec) -> None:
        """Create the topic if it does not exist, add it to the ledger, and check that it accepts the records."""
        if spec.name not in self._ledger:
            self._ledger.pin({spec.name: self._ensure(spec)})
        self._topics.check(spec, self._settings_of(spec.name))

    def _ensure(self, spec: TopicSpec) -> TopicState:
        """Create a topic if it does not exist.

        Raise TableRefused if this is the topic of a table, and we must not create this topic or write to it.
        """
        is_ours = spec.name in self._services()
        if not is_ours:
            self._check_owner(spec.name)
            self._check_room(spec)
        try:
            (state,) = self._topics.ensure(spec)
        except (PermissionDenied, ConfigError) as error:
            if is_ours or not _is_of_one_topic(error):
                raise
            remedy = (
                "give pgsluice the right to create it (Create)"
                if isinstance(error, PermissionDenied)
                else "correct kafka.topics or the rule in tables.rules"
            )
            raise TableRefused(
                f"{error} Create topic {spec.name} yourself, {remedy}, or leave the table out with tables.exclude. "
                "Then start pgsluice again."
            ) from error
        return state

    def _services(self) -> set[str]:
        """Return the names of pgsluice's own topics."""
        prefix = self._options.checkpoint_topic.name.removesuffix("checkpoint")
        return {prefix + service for service in SERVICE_TOPICS}

    def _check_owner(self, topic: str) -> None:
        """Raise TableRefused if this is a service topic of another pipeline.

        This can happen if that pipeline's prefix consists of our prefix and the name of a schema.
        """
        if other_service(topic) not in self._ledger:
            self._topics.check_owner(topic)

    def _check_room(self, spec: TopicSpec) -> None:
        """Raise TableRefused if ``spec`` has yet to be created, and the limit for topics is reached.

        Anybody who can create tables in a published schema can make us create topics, with all their partitions. The
        limit counts the topics that earlier sessions and this session have written to. It also keeps room for the
        tables that the settings name. A topic that already exists costs nothing more, so it is always accepted.
        """
        known = self._counted() - {spec.name}
        if len(known) >= self._options.topics_max and not self._topics.describe([spec.name]):
            raise TableRefused(
                f"Topic {spec.name} was not created, because this pipeline already has {len(known)} topics, including "
                f"reserved ones, and may have {self._options.topics_max} (kafka.topics.max). If all these tables are "
                "to be published, raise kafka.topics.max, and make sure that the brokers have room for the partitions. "
                "Otherwise leave tables out with tables.exclude, and find out who creates them."
            )

    def _counted(self) -> set[str]:
        """Return the topics that the limit counts."""
        return (self._ledger.ids().keys() | self._options.reserved_topics) - self._services()

    def _has_room(self, topics: Iterable[str]) -> bool:
        return len(self._counted().union(topics)) <= self._options.topics_max

    def _settings_of(self, topic: str) -> TopicSettings:
        if (known := self._settings.pop(topic, None)) is not None:
            return known
        try:
            (settings,) = self._topics.settings_of(topic)
        except SinkUnavailable:
            self._ledger.examine()  # raises the reason if the topic is gone
            raise
        return settings


def _may_be_anothers(topic: str) -> bool:
    """Return whether this may be a service topic, of this pipeline or of another one."""
    return topic.rpartition(".")[2] in SERVICE_TOPICS


_OF_ONE_TOPIC: Final = frozenset(
    (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_CONFIG,
    )
)


def _is_of_one_topic(error: PgsluiceError) -> bool:
    """Return whether Kafka's refusal concerns only this topic, and not all our requests."""
    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() in _OF_ONE_TOPIC
