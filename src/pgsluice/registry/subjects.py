"""Names the subject under which a registry server keeps a schema, by the strategies of Confluent's serializers.

:mod:`.confluent` and :mod:`.export` use it. pgsluice itself, and ``<prefix>.schemas``, always use the strategy
"topic".

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#subject-name-strategy
"""

from typing import Literal, TypeAlias

from pgsluice.avro.wire import Schema

Strategy: TypeAlias = Literal["topic", "record", "topic-record"]


def subject_name(strategy: Strategy, subject: str, schema: Schema) -> str:
    """Return the subject of ``schema``. ``subject`` is its subject by the strategy "topic", such as orders-value.

    A schema without a name keeps this subject in every strategy. An example is the schema of the keys in pgsluice's
    own topics, which are strings.
    """
    name = full_name(schema)
    if strategy == "topic" or name is None:
        return subject
    topic = subject.rpartition("-")[0]
    return name if strategy == "record" else f"{topic}-{name}"


def full_name(schema: Schema) -> str | None:
    """Return the name of a record with its namespace, or None if the schema is not a record."""
    if not isinstance(schema, dict) or "name" not in schema:
        return None
    return f"{schema['namespace']}.{schema['name']}" if schema.get("namespace") else str(schema["name"])
