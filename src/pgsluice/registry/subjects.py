"""Under which subject a registry server keeps a schema: the subject name strategies of Confluent's serializers.

Used by :mod:`.confluent` and :mod:`.export`. Pure. pgsluice itself, and ``<prefix>.schemas``, always go by topic.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#subject-name-strategy
"""

from typing import Literal, TypeAlias

from pgsluice.avro.wire import Schema

Strategy: TypeAlias = Literal["topic", "record", "topic-record"]


def subject_name(strategy: Strategy, subject: str, schema: Schema) -> str:
    """Return the subject of ``schema``, which is ``subject`` (topic and -key or -value) in the strategy by topic.

    Schemas without a name (the text keys of pgsluice's own topics) go by topic in every strategy.
    """
    name = full_name(schema)
    if strategy == "topic" or name is None:
        return subject
    topic = subject.rpartition("-")[0]
    return name if strategy == "record" else f"{topic}-{name}"


def full_name(schema: Schema) -> str | None:
    """Return the name of a record with its namespace, None for what is no record."""
    if not isinstance(schema, dict) or "name" not in schema:
        return None
    return f"{schema['namespace']}.{schema['name']}" if schema.get("namespace") else str(schema["name"])
