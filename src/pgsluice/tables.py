"""Which tables are published, to which topic, and how: the ``[tables]`` section applied to one table.

Decided once per relation by the pipeline. Topic names are injective: two tables never share one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from pgsluice.avro.choices import Choice, ColumnChoice
from pgsluice.errors import ConfigError

SERVICE_TOPICS = ("transactions", "checkpoint", "schemas", "messages", "dead_letters")
"""What pgsluice writes under the prefix beside the tables."""

MAX_TOPIC_NAME = 249
"""Kafka's limit (org.apache.kafka.common.internals.Topic)."""

# What Kafka does not allow in a topic's name, the dot (it separates the parts here), and an
# underscore that would read as the beginning of an escape.
_TO_ESCAPE = re.compile(r"[^A-Za-z0-9_-]|_(?=x[0-9A-F]{4,6}_)", re.ASCII)


@dataclass(frozen=True, slots=True)
class TableRule:
    """One ``[[tables.rules]]`` entry; None: as the section above it says."""

    match: str
    keys: tuple[str, ...] | None = None
    topic: str | None = None
    partitions: int | None = None
    replication_factor: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    tombstones: bool | None = None
    truncate: bool | None = None
    types: Mapping[str, Choice] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """How one table is published. ``keys`` None: its replica identity or primary key."""

    topic: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]
    keys: tuple[str, ...] | None
    tombstones: bool
    truncate: bool
    types: tuple[ColumnChoice, ...] = ()


@dataclass(frozen=True, slots=True)
class Tables:
    """The ``[tables]`` and ``[kafka.topics]`` sections; patterns are globs over ``schema.table``."""

    prefix: str
    topic: str = "{prefix}.{schema}.{table}"
    partitions: int = 3
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)
    include: Sequence[str] = ("*.*",)
    exclude: Sequence[str] = ()
    tombstones: bool = False
    truncate: bool = True
    rules: Sequence[TableRule] = ()

    def policy(self, schema: str, table: str) -> TablePolicy | None:
        """Return how ``schema.table`` is published, None when it is not; ConfigError if no topic is possible."""
        name = f"{schema}.{table}"
        if not _matches(name, self.include) or _matches(name, self.exclude):
            return None
        rule = next((rule for rule in self.rules if fnmatchcase(name, rule.match)), TableRule(name))
        return TablePolicy(
            topic=self._topic(rule.topic or self.topic, schema, table),
            partitions=rule.partitions or self.partitions,
            replication_factor=rule.replication_factor or self.replication_factor,
            config={**self.config, **rule.config},
            keys=rule.keys,
            tombstones=self.tombstones if rule.tombstones is None else rule.tombstones,
            truncate=self.truncate if rule.truncate is None else rule.truncate,
            types=tuple(ColumnChoice(pattern, choice) for pattern, choice in rule.types.items()),
        )

    @property
    def choose_types(self) -> bool:
        """Whether some rule chooses the types of columns."""
        return any(rule.types for rule in self.rules)

    def messages_policy(self) -> TablePolicy:
        """Return how messages of pg_logical_emit_message are published: one topic, in one order, every message."""
        return TablePolicy(
            topic=f"{self.prefix}.messages",
            partitions=1,
            replication_factor=self.replication_factor,
            config={**self.config, "cleanup.policy": "delete"},  # their key is no identity: compaction would lose some
            keys=None,
            tombstones=False,
            truncate=False,
        )

    def _topic(self, template: str, schema: str, table: str) -> str:
        topic = template.format(prefix=self.prefix, schema=escape(schema), table=escape(table))
        if len(topic) > MAX_TOPIC_NAME:
            raise ConfigError(
                f"The topic name for table {schema}.{table} would be {len(topic)} characters long, Kafka allows "
                f"{MAX_TOPIC_NAME}: "
                'name it with `topic = "..."` in a [[tables.rules]] entry.'
            )
        if topic in {f"{self.prefix}.{name}" for name in SERVICE_TOPICS}:
            raise ConfigError(
                f"Table {schema}.{table} would go to topic {topic}, which pgsluice keeps for itself: name another with "
                '`topic = "..."` in a [[tables.rules]] entry.'
            )
        return topic


def escape(name: str) -> str:
    """Return ``name`` as one part of a topic's name; different names never give the same part."""
    return _TO_ESCAPE.sub(lambda match: f"_x{ord(match[0]):04X}_", name)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
