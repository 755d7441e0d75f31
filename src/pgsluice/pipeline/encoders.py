"""The encoder of each relation: made when the first row of a new version of the table arrives.

By then the row is known to be committed, so this is also when its schemas are registered and its topic is
created. A Relation message alone would be too early: it may describe an ALTER TABLE that is rolled back.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from pgsluice.avro.encoder import KeyEncoder, RowEncoder
from pgsluice.avro.schema import (
    TableFields,
    envelope_schema,
    key_fields,
    key_schema,
    message_schema,
    namespace,
    pg_name,
)
from pgsluice.avro.sent.types import TypeDescription, conversions, elements, unknown_arrays, unknown_types
from pgsluice.avro.types import TypeOptions, check_choices
from pgsluice.envelope import ChangeEncoder, DeadLetters, MessageEncoder
from pgsluice.errors import ConfigError
from pgsluice.pipeline.ends import Registry, Sink, Source
from pgsluice.record import Target
from pgsluice.relation import Relation
from pgsluice.speedups import COMPILED
from pgsluice.tables import TablePolicy, Tables

if TYPE_CHECKING or not COMPILED:
    from pgsluice.rows import Rows, add_run
else:
    from pgsluice._rows import Rows, add_run

__all__ = ["Describe", "Encoders", "Rows", "add_run", "check_types"]

log = structlog.get_logger(__name__)

Describe = Callable[[Sequence[int]], Awaitable[Sequence[TypeDescription]]]
"""What asks the catalog about types, by OID."""


async def check_types(tables: Tables, types: TypeOptions, relations: Sequence[Relation], describe: Describe) -> None:
    """Raise ConfigError when a column of ``relations`` cannot have the type that ``tables`` chooses for it."""
    for relation in relations:
        policy = tables.policy(relation.namespace, relation.name)
        if policy is not None and policy.types:
            arrays = unknown_arrays(relation)
            described = await describe(arrays) if arrays else []
            check_choices(relation, replace(types, choices=policy.types, elements=elements(relation, described)))


class Encoders:
    """The encoders of one session, by relation."""

    def __init__(
        self,
        source: Source,
        sink: Sink,
        registry: Registry,
        tables: Tables,
        types: TypeOptions,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        self._source = source
        self._sink = sink
        self._registry = registry
        self._tables = tables
        self._types = types
        self._dead_letters = dead_letters
        self.ready: dict[int, Rows] = {}
        """By OID, of the version of each table that was seen last."""
        self._messages: MessageEncoder | None = None

    async def of(self, relation: Relation) -> Rows:
        """Return the encoder of this version of the table: its schemas are durable and its topic exists then."""
        found = self.ready.get(relation.oid)
        if found is None or found.relation is not relation:
            policy = self._tables.policy(relation.namespace, relation.name)
            encoder = None if policy is None else await self._make(relation, policy)
            found = self.ready[relation.oid] = Rows(relation, encoder)
        return found

    async def of_messages(self) -> MessageEncoder:
        """Return the encoder of messages, which are readable and have a topic then."""
        if self._messages is None:
            policy = self._tables.messages_policy()
            await self._sink.open_topic(policy, keyed=True)
            value_id = await self._registry.register(f"{policy.topic}-value", message_schema(self._tables.prefix))
            key_id = await self._registry.register(f"{policy.topic}-key", "string")
            self._messages = MessageEncoder(Target(policy.topic, value_id, key_id))
        return self._messages

    async def _make(self, relation: Relation, policy: TablePolicy) -> ChangeEncoder:
        space = namespace(self._tables.prefix, relation.namespace, relation.name)
        value_subject, key_subject = f"{policy.topic}-value", f"{policy.topic}-key"
        described = await self._describe(relation)
        options = replace(self._types, choices=policy.types, elements=elements(relation, described))
        check_choices(relation, options)
        fields = TableFields(options, self._versions(value_subject, space)).assign(relation)
        key = await self._key(relation, policy, key_subject, space)
        await self._sink.open_topic(policy, keyed=bool(key))
        description = _description(relation, key)
        value_id = await self._registry.register(value_subject, envelope_schema(space, fields), description)
        sent = conversions(relation, described) if self._types.binary else None
        key_encoder, key_id = None, None
        if key:
            of_key = key_fields(relation, fields, key, options)
            key_id = await self._registry.register(key_subject, key_schema(space, of_key), description)
            key_encoder = KeyEncoder(relation, of_key, sent)
        log.info(
            "table",
            table=f"{relation.namespace}.{relation.name}",
            topic=policy.topic,
            key=list(key),
            schema_id=value_id,
        )
        return ChangeEncoder(
            relation,
            Target(policy.topic, value_id, key_id),
            RowEncoder(relation, fields, sent),
            key_encoder,
            tombstones=policy.tombstones,
            truncate=policy.truncate,
            dead_letters=self._dead_letters,
        )

    async def _describe(self, relation: Relation) -> Sequence[TypeDescription]:
        """Return what only the catalog knows of the columns' types: what arrays, or all binary values, consist of."""
        unknown = unknown_types(relation) if self._types.binary else unknown_arrays(relation)
        return await self._source.describe_types(unknown) if unknown else []

    def _versions(self, subject: str, space: str) -> list[dict[str, Any]]:
        """Return this table's schemas among those of the subject: a rule may send several tables to one topic."""
        return [dict(schema) for schema in self._registry.versions(subject) if schema.get("namespace") == space]

    async def _key(self, relation: Relation, policy: TablePolicy, subject: str, space: str) -> Sequence[str]:
        """Return the names of the key's columns; empty: no key."""
        identity = [column.name for column in relation.columns if column.is_key]
        is_partial = relation.replica_identity in "di" and bool(identity)
        if policy.keys is not None:
            if is_partial and not set(policy.keys) <= set(identity):
                raise ConfigError(
                    f"`keys` of table {relation.namespace}.{relation.name} name columns outside its replica identity "
                    f"({', '.join(identity)}), whose old values PostgreSQL does not send: set REPLICA IDENTITY FULL, "
                    "or choose others."
                )
            return policy.keys
        if is_partial:
            return identity
        published = {column.name for column in relation.columns}
        primary_key = await self._source.primary_key(relation.oid)
        if primary_key is not None and set(primary_key) <= published:
            return primary_key
        # The catalog is of now, the row of then: the table was dropped, or a column of the primary key was
        # renamed or replaced meanwhile.
        for schema in reversed(self._versions(subject, space)):
            last = [field.get("pg.name", pg_name(field["name"])) for field in schema["fields"]]
            if set(last) <= published:
                return last
        if primary_key is None:
            return ()
        raise ConfigError(
            f"The primary key of table {relation.namespace}.{relation.name} ({', '.join(primary_key)}) is not among "
            "its published columns: publish them, or name the key with `keys` in [[tables.rules]]."
        )


def _description(relation: Relation, key: Sequence[str]) -> dict[str, Any]:
    """Return what PostgreSQL said of the table, which stands beside the schema in the registry."""
    return {
        "oid": relation.oid,
        "schema": relation.namespace,
        "table": relation.name,
        "replica_identity": relation.replica_identity,
        "key": list(key),
        "columns": [
            {
                "name": column.name,
                "type": column.type.name,
                "type_oid": column.type.oid,
                "typmod": column.typmod,
            }
            for column in relation.columns
        ],
    }
