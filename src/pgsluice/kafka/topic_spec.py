"""Describes the topics that we need, and the settings that Kafka reports for topics, without any I/O.

https://kafka.apache.org/documentation/#topicconfigs
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka.admin import NewTopic

from pgsluice.errors import ConfigError
from pgsluice.tables import TablePolicy

PARTITIONS_MAX = 500
"""One request creates at most this many partitions, unless a single topic has more. A broker needs some milliseconds
for each partition, and a request must not take longer than ``topics.REQUEST_S``."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic that may have to be created. It is ``compactable`` if every record in it has a key."""

    name: str
    partitions: int
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)
    compactable: bool = True

    @classmethod
    def of(cls, policy: TablePolicy, *, keyed: bool) -> "TopicSpec":
        """Return the topic of a table. ``keyed`` says whether the table's rows have keys."""
        compactable = keyed and not policy.truncate
        return cls(policy.topic, policy.partitions, policy.replication_factor, policy.config, compactable)


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings of a topic that decide which records it accepts. None means that the setting is not known."""

    cleanup_policy: str | None = None
    max_message_bytes: int | None = None


def other_service(topic: str) -> str:
    """Return the name of another topic that has to exist if ``topic`` is a service topic of a pipeline."""
    prefix, _, ending = topic.rpartition(".")
    return f"{prefix}.{'transactions' if ending == 'checkpoint' else 'checkpoint'}"


def check_compacted(topic: str, settings: TopicSettings) -> None:
    """Raise ConfigError unless ``topic`` keeps the last record of every key."""
    policy = settings.cleanup_policy
    if policy not in (None, "compact"):
        raise ConfigError(
            f"Topic {topic} has cleanup.policy={policy}, so Kafka would delete records that a restart needs. Set it "
            "to compact."
        )


def new_topic(spec: TopicSpec) -> NewTopic:
    """Return ``spec`` in the form that the admin client needs to create the topic.

    A topic for records without a key gets ``cleanup.policy=delete``, because the brokers' default may be compaction.
    """
    config = dict(spec.config) if spec.compactable else {"cleanup.policy": "delete", **spec.config}
    return NewTopic(spec.name, spec.partitions, spec.replication_factor, config=config)


def portions(specs: Sequence[TopicSpec]) -> Iterator[list[TopicSpec]]:
    """Divide topics among requests of limited size (PARTITIONS_MAX). Yield the topics of each request."""
    portion, room = list[TopicSpec](), PARTITIONS_MAX
    for spec in specs:
        if portion and spec.partitions > room:
            yield portion
            portion, room = [], PARTITIONS_MAX
        portion.append(spec)
        room -= spec.partitions
    if portion:
        yield portion


def topic_settings(values: Mapping[str, str]) -> TopicSettings:
    """Select the settings that we need from all settings that Kafka reports for a topic."""
    limit = values.get("max.message.bytes")
    return TopicSettings(values.get("cleanup.policy"), None if limit is None else int(limit))
