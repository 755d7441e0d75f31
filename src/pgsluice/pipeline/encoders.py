"""The encoders of relations. An encoder is created when the first row of a new version of its table arrives.

Together with the encoder, the schemas are registered and the topic is created. This must happen only for committed
rows. When a Relation message arrives, it is too early, because the message may describe an ALTER TABLE that is rolled
back.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from pgsluice.avro.choices import ColumnChoice
from pgsluice.avro.encoder import FormerKey, KeyEncoder, RowEncoder
from pgsluice.avro.schema import (
    Field,
    FieldHistory,
    TableFields,
    envelope_schema,
    key_fields,
    key_schema,
    message_schema,
    namespace,
)
from pgsluice.avro.types import TypeOptions, check_choices
from pgsluice.envelope import ChangeEncoder, DeadLetters, InsertOp, MessageEncoder, OnIncomplete
from pgsluice.errors import PoisonError, TableRefused
from pgsluice.layout import Layout
from pgsluice.native.speedups import COMPILED
from pgsluice.pgbinary.conversions import TypeDescription, conversions, elements, unknown_arrays, unknown_types
from pgsluice.pgoutput import messages
from pgsluice.pipeline.ends import Registry, Sink, Source
from pgsluice.pipeline.keys import Key, Keys
from pgsluice.pipeline.quarantine import Quarantine, RefusedRows, open_dead_letters
from pgsluice.record import Target
from pgsluice.relation import Column, PublishedName, Relation, TableId, size_of
from pgsluice.tables import TablePolicy, Tables
from pgsluice.transaction import Change

if TYPE_CHECKING or not COMPILED:
    from pgsluice.rows import Rows, add_run, add_transactions
else:
    from pgsluice.native.rows import Rows, add_run, add_transactions

__all__ = ["Describe", "Encoders", "Rows", "add_run", "add_transactions", "refusals"]

log = structlog.get_logger(__name__)

TRUNCATE = b"T"
"""The kind of a Truncate message."""

FORMER_COLUMNS_MAX = 50_000
"""A table may have had at most this many columns over time. Everybody who may alter the table can rename columns again
and again, and each new version has to be compared with all former columns. PostgreSQL limits only the present columns
of a table, to 1,600."""

READY_MAX = 10_000
"""At most this many encoders are kept, including those of dropped tables. Creating an encoder again takes some
milliseconds, so this limit has to be higher than the number of tables that are busy at the same time."""

READY_BYTES_MAX = 256 * 1024 * 1024
"""The estimated memory that all kept encoders may take. An encoder takes 20 KiB for 20 columns, and 1.1 MiB for 1,600
columns with long names."""

ENCODER_BYTES = 4096
ENCODER_COLUMN_BYTES = 512
"""The estimated memory of an encoder, without its relation: a fixed part, and a part for each column. Measurements
showed 200 to 500 bytes for a column."""

TYPE_BYTES = 1024
TYPE_PART_BYTES = 128
"""The memory of an encoder for each type that the catalog described, and for each part of such a type."""

AnyRows = TypeVar("AnyRows", Rows, RefusedRows)

Describe = Callable[[Sequence[int]], Awaitable[Sequence[TypeDescription]]]
"""A function that asks the catalog about types, by OID."""

Relations = Callable[[Sequence[PublishedName]], AsyncIterator[Relation]]
"""A function that asks the catalog about tables."""


async def refusals(
    tables: Tables, types: TypeOptions, names: Sequence[PublishedName], relations: Relations, describe: Describe
) -> list[TableRefused]:
    """Return an error for each table that cannot be published with these settings.

    There are two reasons: the name of its topic, or a column that cannot have the type chosen for it.
    """
    found: list[TableRefused] = []
    choices: dict[int, tuple[ColumnChoice, ...]] = {}
    for name in names:
        try:
            policy = tables.policy(name.namespace, name.name)
        except TableRefused as error:
            found.append(error)
        else:
            if policy is not None and policy.types:
                choices[name.oid] = policy.types
    async for relation in relations([name for name in names if name.oid in choices]):
        try:
            arrays = unknown_arrays(relation)
            described = await describe(arrays) if arrays else []
            options = replace(types, choices=choices[relation.oid], elements=elements(relation, described))
            check_choices(relation, options)
        except TableRefused as error:
            found.append(error)
    return found


class Encoders:
    """The encoders of one session, by relation."""

    def __init__(  # noqa: PLR0913 - the arguments are the ends, and the settings for tables
        self,
        source: Source,
        sink: Sink,
        registry: Registry,
        tables: Tables,
        types: TypeOptions,
        *,
        dead_letters: DeadLetters | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        self.keys = Keys(source, registry)
        self._source = source
        self._sink = sink
        self._registry = registry
        self._tables = tables
        self._types = types
        self._dead_letters = dead_letters
        self.ready: dict[int, Rows] = {}
        """The encoder of the last known version of each table, by OID, in the order in which they were created."""
        self._watched: dict[int, OnIncomplete] = {}
        self._keys: dict[int, Key] = {}
        """The key of each table that has an encoder, by OID."""
        self._bytes: dict[int, int] = {}
        """The memory that each encoder takes, by OID."""
        self._ready_bytes = 0
        self._messages: MessageEncoder | None = None
        self._quarantine = quarantine
        self._refused: dict[int, RefusedRows] = {}
        """The tables in quarantine, by OID, as in ``ready``."""
        self._letters: DeadLetters | None = None

    def known(self, relation: Relation) -> Rows | RefusedRows | None:
        """Return the encoder of this version of the table if it exists already."""
        found = self.ready.get(relation.oid) or self._refused.get(relation.oid)
        return found if found is not None and found.relation is relation else None

    async def of(self, relation: Relation, others: Iterable[messages.Relation] = ()) -> Rows | RefusedRows:
        """Return the encoder of this version of the table, after its schemas are durable and its topic exists.

        ``others`` are tables whose rows are about to arrive. Their topics are created together, which is faster.
        """
        found = self.known(relation)
        if found is None:
            try:
                found = await self._rows(relation)
            except (TableRefused, PoisonError) as error:  # PoisonError: the table's schema is too large
                if self._quarantine is None:
                    raise
                self._quarantine.add(relation, str(error))
                found = await self._refuse(relation, str(error))
            # Create the topics of ``others`` after the topic of this table, because they may use up kafka.topics.max.
            await self._prepare(others)
        return found

    def policy(self, relation: TableId) -> TablePolicy | None:
        """Return how the table is published, or None if it is not. Raise TableRefused if it cannot be published."""
        return self._tables.policy(relation.namespace, relation.name)

    def possible_policy(self, relation: TableId) -> TablePolicy | None:
        """Return how the table is published, or None if it is not published or cannot be published.

        If a table cannot be published, its first change will raise the error.
        """
        try:
            return self.policy(relation)
        except TableRefused:
            return None

    def names(self, relation: TableId) -> bool:
        """Return whether the settings name the table without wildcards."""
        policy = self.possible_policy(relation)
        return policy is not None and policy.named

    def watch(self, oid: int, tell: OnIncomplete | None) -> None:
        """Call ``tell`` for each row of the table that arrives without all values.

        If ``tell`` is None, end these calls.
        """
        if tell is None:
            self._watched.pop(oid, None)
        else:
            self._watched[oid] = tell
        known = self.ready.get(oid)
        if known is not None and known.encoder is not None:
            known.encoder.on_incomplete = tell

    def forget(self, oid: int) -> None:
        """Drop the table's encoder, so that a new one is created for its next row."""
        self.ready.pop(oid, None)
        self._keys.pop(oid, None)
        self._refused.pop(oid, None)
        self._ready_bytes -= self._bytes.pop(oid, 0)

    async def of_loaded(self, relation: Relation, *, is_root: bool = False) -> Rows:
        """Return an encoder for rows that a load has read. It gets these rows as Insert messages.

        ``is_root``: whether the table is partitioned. Raise TableRefused or PoisonError if the table cannot be encoded.

        The encoder is not kept, because the stream may have another version of the table.
        """
        policy = self.policy(relation)
        assert policy is not None, "only tables that are published are read"
        described = await self._describe(relation)
        identified = await self.keys.identified_now(relation) if is_root else relation
        encoder, _ = await self._make(identified, policy, described, insert_op="r")
        return Rows(relation, encoder)

    async def _prepare(self, described: Iterable[messages.Relation]) -> None:
        """Create the topics of all new tables that certainly have keys, in one step. :meth:`of` creates the others."""
        policies = {policy.topic: policy for policy in map(self._policy_of_new, described) if policy is not None}
        if policies:
            await self._sink.prepare_topics(list(policies.values()))

    def _policy_of_new(self, described: messages.Relation) -> TablePolicy | None:
        """Return how a table is published if the table is new and certainly has a key. Otherwise return None."""
        policy = self.possible_policy(described)
        if policy is None or described.oid in self.ready or described.oid in self._refused:
            return None
        identity = [column.name for column in described.columns if column.is_key]
        key = (identity if described.replica_identity in "di" else ()) if policy.keys is None else policy.keys
        return policy if key else None

    async def _rows(self, relation: Relation) -> Rows:
        policy = self._tables.policy(relation.namespace, relation.name)
        if policy is None:
            return self._added(Rows(relation, None), Key())
        former = self.ready.get(relation.oid)
        if former is not None and await self._is_still_right(former, relation, policy):
            found = self.ready[relation.oid] = Rows(relation, former.encoder)
            return found
        described = await self._describe(relation)
        encoder, key = await self._make(await self.keys.identified(relation), policy, described)
        encoder.on_incomplete = self._watched.get(relation.oid)
        return self._added(Rows(relation, encoder), key, described)

    def _added(self, rows: Rows, key: Key, described: Sequence[TypeDescription] = ()) -> Rows:
        if self._quarantine is not None:
            self._quarantine.remove(rows.relation)
        self._keep(rows, self.ready, described)
        self._keys[rows.relation.oid] = key
        return rows

    async def _refuse(self, relation: Relation, detail: str) -> RefusedRows:
        if self._letters is None:
            await self._sink.open_topic(self._tables.dead_letters_policy(), keyed=True)
            # The reason was already logged when the table was refused.
            self._letters = await open_dead_letters(self._registry, self._tables.prefix, lambda _letter: None)
        found = RefusedRows(
            relation, self._tables.usual_topic(relation.namespace, relation.name), detail, self._letters
        )
        self._keep(found, self._refused)
        return found

    def delivers(self, change: Change) -> bool:
        """Return whether a record would be written for ``change``."""
        relation = change.relation
        known = self.known(relation)
        if isinstance(known, Rows) and known.encoder is None:
            return False
        try:
            policy = self._tables.policy(relation.namespace, relation.name)
        except TableRefused:
            return True  # the change becomes a dead letter, or stops the pipeline
        if policy is None:
            self._keep(Rows(relation, None), self.ready)
            return False
        return policy.truncate or not change.message.startswith(TRUNCATE)

    def _keep(self, rows: AnyRows, among: dict[int, AnyRows], described: Sequence[TypeDescription] = ()) -> None:
        """Add a new encoder to ``among``. Drop the oldest encoders if there are too many."""
        oid = rows.relation.oid
        self.forget(oid)
        among[oid] = rows
        self._bytes[oid] = size = _size_of(rows, described)
        self._ready_bytes += size
        while len(self._bytes) > 1 and (len(among) > READY_MAX or self._ready_bytes > READY_BYTES_MAX):
            self.forget(next(iter(among if len(among) > READY_MAX else self._bytes)))

    async def of_messages(self) -> MessageEncoder:
        """Return the encoder of messages, after its schemas are durable and its topic exists."""
        if self._messages is None:
            policy = self._tables.messages_policy()
            await self._sink.open_topic(policy, keyed=True)
            value_id = await self._registry.register(f"{policy.topic}-value", message_schema(self._tables.prefix))
            key_id = await self._registry.register(f"{policy.topic}-key", "string")
            self._messages = MessageEncoder(Target(policy.topic, value_id, key_id))
        return self._messages

    async def _make(
        self,
        relation: Relation,
        policy: TablePolicy,
        described: Sequence[TypeDescription],
        insert_op: InsertOp = "c",
    ) -> tuple[ChangeEncoder, Key]:
        space = namespace(self._tables.prefix, relation.namespace, relation.name)
        value_subject, key_subject = f"{policy.topic}-value", f"{policy.topic}-key"
        options = replace(self._types, choices=policy.types, elements=elements(relation, described))
        check_choices(relation, options)
        former = await self._registry.fields(value_subject, space)
        _check_past(relation, policy, former)
        self._check_alone(relation, policy, space, is_new=not len(former))
        fields = TableFields(options, former).assign(relation)
        key = await self.keys.of(relation, policy, space)
        await self._sink.open_topic(policy, keyed=bool(key.columns))
        layout = (await self._source.layouts([relation.oid])).get(relation.oid)
        description = _description(relation, key.columns, layout)
        value_id = await self._registry.register(value_subject, envelope_schema(space, fields), description)
        sent = conversions(relation, described) if self._types.binary else None
        key_encoder, key_id, former_key = None, None, None
        if key.former is not None:
            of_key = key_fields(relation, fields, key.former, options)
            former_key = await self._former_key(policy, space, of_key, KeyEncoder(relation, of_key, sent))
        if key.columns:
            of_key = key_fields(relation, fields, key.columns, options)
            key_id = await self._registry.register(key_subject, key_schema(space, of_key), description)
            key_encoder = KeyEncoder(relation, of_key, sent)
        log.info(
            "table",
            table=str(relation),
            topic=policy.topic,
            key=list(key.columns),
            schema_id=value_id,
        )
        encoder = ChangeEncoder(
            relation,
            Target(policy.topic, value_id, key_id),
            RowEncoder(relation, fields, sent),
            key_encoder,
            former_key=former_key,
            tombstones=policy.tombstones,
            truncate=policy.truncate,
            dead_letters=self._dead_letters,
            insert_op=insert_op,
        )
        return encoder, key

    async def _former_key(
        self, policy: TablePolicy, space: str, of_key: Sequence[Field], encoder: KeyEncoder
    ) -> FormerKey | None:
        """Return the key of rows that are older than the primary key, or None if such a row is an error.

        A schema of the former key that is not registered yet is not used, because it would become the newest one. If
        truncates are left out, the topic may be compacted, and then Kafka accepts no null keys.
        """
        subject, schema = f"{policy.topic}-key", key_schema(space, of_key)
        if of_key and (await self._registry.keys(subject, space)).has(schema):
            return FormerKey(await self._registry.register(subject, schema), encoder, is_optional=policy.truncate)
        return FormerKey(0, None) if policy.truncate else None

    async def _is_still_right(self, former: Rows, relation: Relation, policy: TablePolicy) -> bool:
        """Return whether an encoder can be used for a table that the server has described in the same way again.

        For such a table, the server sends all columns of old rows, or none. So the description does not show whether
        the primary key has changed.
        """
        if former.encoder is None or former.relation != relation:
            return False
        identified = await self.keys.identified(relation)
        space = namespace(self._tables.prefix, relation.namespace, relation.name)
        key = await self.keys.of(identified, policy, space)
        return (identified, key) == (former.encoder.relation, self._keys.get(relation.oid))

    async def _describe(self, relation: Relation) -> Sequence[TypeDescription]:
        """Return the descriptions of the columns' types from the catalog.

        Values in text format need only the element types of arrays. Values in binary format need the parts of all
        types.
        """
        unknown = unknown_types(relation) if self._types.binary else unknown_arrays(relation)
        return await self._source.describe_types(unknown) if unknown else []

    def _check_alone(self, relation: Relation, policy: TablePolicy, space: str, *, is_new: bool) -> None:
        """Raise TableRefused if the topic has the rows of another table, and no rule allows the tables to share it."""
        last = self._registry.record_namespace(f"{policy.topic}-value")
        if is_new and last not in (None, space) and not policy.shared:
            raise TableRefused(
                f"Table {relation} would go to topic {policy.topic}, which has the rows of another table. Name "
                'another topic with `topic = "..."` in a [[tables.rules]] entry.'
            )


def _size_of(rows: Rows | RefusedRows, described: Sequence[TypeDescription]) -> int:
    """Estimate the memory of an encoder, together with its version of the table."""
    columns = rows.relation.columns if isinstance(rows, Rows) and rows.encoder is not None else ()
    types = sum(TYPE_BYTES + TYPE_PART_BYTES * len(found.parts) for found in described)
    return size_of(rows.relation) + ENCODER_BYTES + ENCODER_COLUMN_BYTES * len(columns) + types


def _check_past(relation: Relation, policy: TablePolicy, former: FieldHistory) -> None:
    """Raise TableRefused if the table has had more columns than FORMER_COLUMNS_MAX."""
    if len(former) > FORMER_COLUMNS_MAX:
        raise TableRefused(
            f"Table {relation} has had more than {FORMER_COLUMNS_MAX} columns, and topic {policy.topic} cannot "
            'use their names again. Find out who renames columns. Then name another topic with `topic = "..."` in a '
            "[[tables.rules]] entry."
        )


def _description(relation: Relation, key: Sequence[str], layout: Layout | None) -> dict[str, Any]:
    """Return PostgreSQL's description of the table, which is registered together with the schema.

    The ``layout`` is the present one, but the relation may be older. So a column that does not exist any more has no
    ``attnum``.
    """
    return {
        "oid": relation.oid,
        "schema": relation.namespace,
        "table": relation.name,
        "replica_identity": relation.replica_identity,
        "key": list(key),
        "columns": [_column_description(column, layout) for column in relation.columns],
    }


def _column_description(column: Column, layout: Layout | None) -> dict[str, Any]:
    attnum = None if layout is None else layout.attnum(column.name, column.type.oid)
    return {
        "name": column.name,
        "type": column.type.name,
        "type_oid": column.type.oid,
        "typmod": column.typmod,
        **({} if attnum is None else {"attnum": attnum}),
    }
