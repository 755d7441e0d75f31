"""Decides from the ``[tables]`` section whether and how a table is published, and to which topic.

The pipeline asks for this decision once per relation. Two tables never get the same topic, unless a topic's template
leaves out the placeholder that would distinguish them.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Self

from pgsluice.avro.choices import Choice, ColumnChoice
from pgsluice.errors import TableRefused
from pgsluice.printable import quoted

SERVICE_TOPICS = ("transactions", "checkpoint", "schemas", "messages", "dead_letters", "snapshots", "commands")
"""The topics under the prefix that are not topics of tables."""

MAX_TOPIC_NAME = 249
"""Kafka's limit (org.apache.kafka.common.internals.Topic)."""

_SHORTENED = "-_xFFFFFF_"
"""The text before the hash in a shortened name. It looks like an escape, but no other name contains it, because no
character has this number. The hyphen separates it from an escape that the shortening has cut in two."""

_HASH_CHARACTERS = 32
"""How many hexadecimal digits of the hash are used. They have 128 bits, so nobody can find two tables with the same
hash."""

_PART = r'(?:"((?:[^"]|"")+)"|([^".]+))'
_PATTERN = re.compile(rf"{_PART}\.{_PART}")
_COLUMN = re.compile(rf"{_PART}\.{_PART}\.{_PART}")

_WILDCARD = re.compile(r"[*?\[]")
_CHARACTER_SET = re.compile(r"\[!?+\]?+[^\]]*\]")

# Three kinds of characters are escaped: those that Kafka does not allow in a topic's name; the dot, because it
# separates the parts of a topic's name; and an underscore that would look like the beginning of an escape. Such an
# underscore is followed by an x, by four to six hexadecimal digits, and by an underscore or a character that is escaped
# itself. The escape of that character begins with an underscore, which would look like the end of the first escape.
_TO_ESCAPE = re.compile(r"[^A-Za-z0-9_-]|_(?=x[0-9A-F]{4,6}[^A-Za-z0-9-])")


@dataclass(frozen=True, slots=True)
class TablePattern:
    """One glob for the schema's name and one for the table's, so that a name with a dot is not taken for two names."""

    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the pattern ``schema.table``. Raise ValueError if ``text`` is not a pattern.

        A part with a dot has to be in double quotes, as in SQL.
        """
        found = _PATTERN.fullmatch(text)
        if found is None and _COLUMN.fullmatch(text):
            raise ValueError(
                f"{text!r} names a column, but must be a pattern of schema and table, like public.orders. To leave out "
                "a column, use a column list in the publication (PostgreSQL 15). Put a name with a dot in it in double "
                'quotes, like public."a.b"'
            )
        if found is None:
            raise ValueError(
                f"{text!r} must be a pattern of schema and table, like public.* or *.*; put a name with a dot in it "
                'in double quotes, like public."a.b"'
            )
        quoted_schema, schema, quoted_table, table = found.groups()
        if any("[" in _CHARACTER_SET.sub("", part or "") for part in found.groups()):
            raise ValueError(
                f"{text!r} has a '[' without a ']' after it: write '[[]' for a '[' in a name, '[*]' for a '*', and "
                "'[?]' for a '?'"
            )
        return cls(schema or quoted_schema.replace('""', '"'), table or quoted_table.replace('""', '"'))

    def __str__(self) -> str:
        """Return the text that :meth:`parse` reads. A name that is not one plain word is in quotes."""
        return quoted(self.schema, self.table)

    @property
    def only(self) -> tuple[str, str] | None:
        """The schema and name of the only table that the pattern matches, or None if the pattern has a wildcard."""
        return None if _WILDCARD.search(self.schema) or _WILDCARD.search(self.table) else (self.schema, self.table)

    def matches(self, schema: str, table: str) -> bool:
        """Return whether the pattern matches both names. It distinguishes upper and lower case."""
        return fnmatchcase(schema, self.schema) and fnmatchcase(table, self.table)


class _Patterns:
    """Several patterns. Names without wildcards are looked up in a dict, because there can be thousands of them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._globs: list[tuple[int, TablePattern]] = []
        self._names: dict[tuple[str, str], int] = {}
        """The index of the first pattern for each table that is named without wildcards."""
        for place, pattern in enumerate(map(_pattern, texts)):
            if pattern.only is None:
                self._globs.append((place, pattern))
            else:
                self._names.setdefault(pattern.only, place)

    def first(self, schema: str, table: str) -> int | None:
        """Return the index of the first pattern that matches, or None if no pattern does."""
        named = self._names.get((schema, table))
        for place, pattern in self._globs:
            if named is not None and named < place:
                break
            if pattern.matches(schema, table):
                return place
        return named

    def has(self, schema: str, table: str) -> bool:
        """Return whether the table is named without wildcards."""
        return (schema, table) in self._names


@dataclass(frozen=True, slots=True)
class TableRule:
    """One ``[[tables.rules]]`` entry. If a value is None, the value for all tables applies."""

    match: str
    keys: tuple[str, ...] | None = None
    topic: str | None = None
    partitions: int | None = None
    replication_factor: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    tombstones: bool | None = None
    truncate: bool | None = None
    is_loaded: bool = True
    where: str = ""
    types: Mapping[str, Choice] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """How one table is published.

    ``keys``: the columns of the key; None means the replica identity or primary key. ``shared``: several tables may go
    to this topic, because its name has no table name in it, or because the rule's topic does not distinguish all tables
    that the rule matches. ``named``: the settings name the table without wildcards, so nobody can get this policy by
    creating a table that matches a pattern. ``is_loaded``: the rows that the table already has are read, if snapshots
    are on. ``where``: an SQL condition for these rows; empty means all rows.
    """

    topic: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]
    keys: tuple[str, ...] | None
    tombstones: bool
    truncate: bool
    types: tuple[ColumnChoice, ...] = ()
    shared: bool = False
    named: bool = False
    is_loaded: bool = True
    where: str = ""


@dataclass(frozen=True, slots=True)
class Tables:
    """The ``[tables]`` and ``[kafka.topics]`` sections. :class:`TablePattern` explains the patterns."""

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
    _reserved: dict[str, list[tuple[str, tuple[str, str]]]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    """The reserved topics, each with its table. The keys are topic names as :func:`_as_kafka_compares` returns them.
    The dict is filled on first use."""

    def policy(self, schema: str, table: str) -> TablePolicy | None:
        """Return how ``schema.table`` is published, or None if the table is left out.

        Raise TableRefused if the table cannot have a topic.
        """
        if not self._includes(schema, table):
            return None
        rule = self._rule(schema, table)
        template = rule.topic or self.topic
        topic = self._topic(template, schema, table)
        if self._is_named_by_another(rule, topic, schema):
            raise TableRefused(
                f"Table {quoted(schema, table)} would go to topic {topic}, which a [[tables.rules]] entry gives to "
                "other tables. It cannot be published. Write an entry for this table with another "
                '`topic = "..."`, or with the same topic to share it.'
            )
        self._check_not_reserved(topic, schema, table)
        return TablePolicy(
            topic=topic,
            partitions=rule.partitions or self.partitions,
            replication_factor=rule.replication_factor or self.replication_factor,
            config={**self.config, **rule.config},
            keys=rule.keys,
            tombstones=self.tombstones if rule.tombstones is None else rule.tombstones,
            truncate=self.truncate if rule.truncate is None else rule.truncate,
            types=tuple(ColumnChoice(pattern, choice) for pattern, choice in rule.types.items()),
            shared=_is_shared(template, rule),
            named=any(_patterns(texts).has(schema, table) for texts in (tuple(self.include), self._matches())),
            is_loaded=rule.is_loaded,
            where=rule.where,
        )

    @property
    def reserved_topics(self) -> set[str]:
        """The topics of those tables that are named without wildcards, in `include` or in a rule."""
        return {self._named(rule.topic or self.topic, *table) for table, rule in self._reserving()}

    def _reserving(self) -> list[tuple[tuple[str, str], TableRule]]:
        """Return the published tables that are named without wildcards, each with its rule."""
        patterns = map(_pattern, (*self.include, *(rule.match for rule in self.rules)))
        named = dict.fromkeys(pattern.only for pattern in patterns if pattern.only is not None)
        return [(table, self._rule(*table)) for table in named if self._includes(*table)]

    def collisions(self, names: Iterable[tuple[str, str]]) -> list[TableRefused]:
        """Return an error for each table in ``names`` whose topic collides with the topic of an earlier table.

        ``names`` has the schema and the name of each table.
        """
        taken: dict[str, tuple[str, tuple[str, str]]] = {}
        found = []
        for schema, table in names:
            try:
                policy = self.policy(schema, table)
            except TableRefused:
                continue  # policy() refuses this table, so it takes no topic from another table
            if policy is None:
                continue
            topic, holder = taken.setdefault(_as_kafka_compares(policy.topic), (policy.topic, (schema, table)))
            if topic != policy.topic or (holder != (schema, table) and not policy.shared):
                found.append(
                    TableRefused(
                        f"Table {quoted(schema, table)} would go to topic {policy.topic}, which Kafka cannot "
                        f"distinguish from {topic} of table {quoted(*holder)}. It cannot be published. Name another "
                        'topic with `topic = "..."` in a [[tables.rules]] entry.'
                    )
                )
        return found

    def _check_not_reserved(self, topic: str, schema: str, table: str) -> None:
        """Raise TableRefused if the topic, as Kafka compares names, belongs to another table that the settings name.

        Without this check, somebody who may create tables could create a table with this topic before the named table
        exists, and so take the topic of the named table.
        """
        if not self._reserved:
            self._reserve()
        for reserved, named in self._reserved.get(_as_kafka_compares(topic), ()):
            if named != (schema, table):
                raise TableRefused(
                    f"Table {quoted(schema, table)} would go to topic {topic}, but {reserved} is reserved for table "
                    f"{quoted(*named)}, which tables.include or a [[tables.rules]] entry names. It cannot be "
                    'published. Name another topic with `topic = "..."` in an entry of its own.'
                )

    def _reserve(self) -> None:
        for named, rule in self._reserving():
            template = rule.topic or self.topic
            if not _is_shared(template, rule):
                reserved = self._named(template, *named)
                self._reserved.setdefault(_as_kafka_compares(reserved), []).append((reserved, named))

    def _includes(self, schema: str, table: str) -> bool:
        included, excluded = _patterns(tuple(self.include)), _patterns(tuple(self.exclude))
        return included.first(schema, table) is not None and excluded.first(schema, table) is None

    def _rule(self, schema: str, table: str) -> TableRule:
        place = _patterns(self._matches()).first(schema, table)
        return _NO_RULE if place is None else self.rules[place]

    def _matches(self) -> tuple[str, ...]:
        return tuple(rule.match for rule in self.rules)

    @property
    def choose_types(self) -> bool:
        """Whether some rule chooses the types of columns."""
        return any(rule.types for rule in self.rules)

    def usual_topic(self, schema: str, table: str) -> str:
        """Return the topic that a table would have without rules.

        The dead letters of a table that cannot have a topic have this name as their key.
        """
        return self._named(self.topic, schema, table)

    def messages_policy(self) -> TablePolicy:
        """Return how messages of pg_logical_emit_message are published: in one partition, and without compaction."""
        return TablePolicy(
            topic=f"{self.prefix}.messages",
            partitions=1,
            replication_factor=self.replication_factor,
            # Several messages have the same key, so compaction would lose some.
            config={**self.config, "cleanup.policy": "delete"},
            keys=None,
            tombstones=False,
            truncate=False,
        )

    def dead_letters_policy(self) -> TablePolicy:
        """Return how dead letters are published: in one partition, and without compaction."""
        return replace(self.messages_policy(), topic=f"{self.prefix}.dead_letters")

    def _is_named_by_another(self, own: TableRule, topic: str, schema: str) -> bool:
        """Return whether a rule other than ``own`` gives ``topic`` to the table that it names, or to several tables.

        No other table may use such a topic. Otherwise, somebody who may create tables could create one whose usual
        topic has this name, and so write to the topic.
        """
        for rule in self.rules:
            if rule.topic is None or rule is own or rule.topic == own.topic:
                continue
            pattern = _pattern(rule.match)
            varies = "{table}" in rule.topic or ("{schema}" in rule.topic and not fnmatchcase(schema, pattern.schema))
            if pattern.only is None and varies:
                continue
            if self._named(rule.topic, *(pattern.only or (schema, ""))) == topic:
                return True
        return False

    def _named(self, template: str, schema: str, table: str) -> str:
        topic = template.format(prefix=self.prefix, schema=escape(schema), table=escape(table))
        return topic if len(topic) <= MAX_TOPIC_NAME else _shortened(topic)

    def _topic(self, template: str, schema: str, table: str) -> str:
        topic = self._named(template, schema, table)
        if _as_kafka_compares(topic) in {_as_kafka_compares(f"{self.prefix}.{name}") for name in SERVICE_TOPICS}:
            raise TableRefused(
                f"Table {quoted(schema, table)} would go to topic {topic}, which pgsluice keeps for itself. It cannot "
                'be published. Name another topic with `topic = "..."` in a [[tables.rules]] entry.'
            )
        return topic


def escape(name: str) -> str:
    """Return ``name`` as one part of a topic's name. Different names never give the same part.

    To decode the name, read it from left to right: ``_xHHHH_`` stands for a character, and all else for itself.
    """
    return _TO_ESCAPE.sub(lambda match: f"_x{ord(match[0]):04X}_", name)


def missing_placeholders(template: str, glob: str) -> list[str]:
    """Return the placeholders that ``template`` lacks.

    With these placeholders, no two tables that ``glob`` matches would share a topic.
    """
    pattern = _pattern(glob)
    parts = (("{schema}", pattern.schema), ("{table}", pattern.table))
    needed = [name for name, part in parts if _WILDCARD.search(part)]
    return [placeholder for placeholder in needed if placeholder not in template]


def _is_shared(template: str, rule: TableRule) -> bool:
    """Return whether several tables may go to the topic. ``template``: the rule's topic, or the general one."""
    return "{table}" not in template or (rule.topic is not None and bool(missing_placeholders(rule.topic, rule.match)))


def _shortened(topic: str) -> str:
    """Return a topic's name with a hash in place of its end. Different names never give the same result."""
    end = _SHORTENED + hashlib.sha256(topic.encode()).hexdigest()[:_HASH_CHARACTERS]
    return topic[: MAX_TOPIC_NAME - len(end)] + end


def _as_kafka_compares(topic: str) -> str:
    """Return ``topic`` as Kafka compares it. Dots and underscores are equal, because Kafka's metrics mix them up."""
    return topic.replace(".", "_")


_NO_RULE = TableRule("*.*")
_pattern = lru_cache(maxsize=1024)(TablePattern.parse)
_patterns = lru_cache(maxsize=16)(_Patterns)
