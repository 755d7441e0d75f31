"""Registers schemas at a separate server that has the API of Confluent's Schema Registry.

The server assigns the ids. ``<prefix>.schemas`` keeps every schema with its id and with PostgreSQL's description of the
table, because pgsluice needs all of this after a restart, even if the server has lost its schemas. The pipeline uses
this module.

``tests/integration/test_registry_server.py`` covers this module.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/schema-evolution.html
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal

import structlog

from pgsluice.avro.key_history import KeyHistory
from pgsluice.avro.schema import FieldHistory
from pgsluice.avro.wire import Schema, normalise
from pgsluice.errors import ConfigError, HistoryError, IncompatibleSchema, PermissionDenied
from pgsluice.registry.builtin import BuiltinRegistry
from pgsluice.registry.canonical import shape
from pgsluice.registry.difference import difference, table_of
from pgsluice.registry.rest import Conflict, RestClient, RestOptions
from pgsluice.registry.store import SchemaStore
from pgsluice.registry.subjects import Strategy, subject_name

log = structlog.get_logger(__name__)

RECHECK_S: Final = 60.0
"""The server's answers are trusted for this long. A standby begins a session every second, and must not ask the server
each time."""

IDS_MAX: Final = 20_000
"""At most this many ids of the server are kept. Each takes 200 bytes. This is enough for the value and the key of all
tables that have encoders. If an id was dropped, the server is asked for it again."""

_NONE: Final = "NONE"

_NOTHING_LOST: Final = "Nothing is lost: what was not delivered was not confirmed either, and will be sent again."


@dataclass(frozen=True, slots=True)
class ConfluentOptions:
    """The options of this registry.

    ``rest`` is called for every new connection, and returns the current options, because passwords change.
    """

    rest: Callable[[], RestOptions]
    strategy: Strategy = "topic"
    on_incompatible: Literal["stop", "force"] = "stop"


class ConfluentRegistry:
    """Registers schemas at a server, and records their ids in ``journal``."""

    def __init__(self, options: ConfluentOptions, journal: BuiltinRegistry) -> None:
        self._options = options
        self._journal = journal
        self._client: RestClient | None = None
        self._opened_at = 0.0
        self._ids: dict[tuple[str, bytes], int] = {}
        """The server's ids, by subject and digest of the schema."""
        self._lowered: dict[str, str | None] = {}
        """The subjects whose compatibility level we have set to NONE, with the level that each of them had before."""

    @property
    def store(self) -> SchemaStore:
        """All schemas recorded so far."""
        return self._journal.store

    async def start(self) -> None:
        """Read all schemas recorded so far. Forget old answers of the server, so that it is asked again."""
        await self._journal.start()
        if self._client is not None and time.monotonic() - self._opened_at < RECHECK_S:
            return
        await self._forget()
        for subject in tuple(self._lowered):
            await self._raise_level(await self._connected(), subject)

    async def follow(self) -> None:
        """Raise the error that ends the reading of the topic. Otherwise never return."""
        await self._journal.follow()

    def subjects(self) -> list[str]:
        """Return every subject, named by the strategy "topic"."""
        return self._journal.subjects()

    def record_name(self, subject: str) -> str | None:
        """Return the name of the schema that was recorded last for ``subject``, or None if it is not a record."""
        return self._journal.record_name(subject)

    def record_namespace(self, subject: str) -> str | None:
        """Return the namespace of the schema that was recorded last for ``subject``, or None if it has none."""
        return self._journal.record_namespace(subject)

    async def fields(self, subject: str, namespace: str) -> FieldHistory:
        """Return the fields that the schemas recorded for ``subject`` with this namespace have had."""
        return await self._journal.fields(subject, namespace)

    async def keys(self, subject: str, namespace: str) -> KeyHistory:
        """Return the keys that were recorded for ``subject`` with this namespace."""
        return await self._journal.keys(subject, namespace)

    async def register(self, subject: str, schema: Schema, postgres: Mapping[str, Any] | None = None) -> int:
        """Return the server's id for ``schema``. When this returns, the server has the schema, and the id is recorded.

        Raise RegistryUnavailable or SinkUnavailable if the server or Kafka is not available now. Registering a schema
        again is always safe.
        """
        text = normalise(schema)
        asked = subject, _digest(text)
        identifier = self._ids.get(asked)
        if identifier is None:
            try:
                identifier = await self._ask_as_known_now(subject, schema, postgres)
            except BaseException:
                await self._forget()  # the next attempt may need a newer password
                raise
            self._warn_of_earlier(subject, text, identifier)
            if len(self._ids) == IDS_MAX:
                del self._ids[next(iter(self._ids))]
            self._ids[asked] = identifier
        return (await self._journal.record(subject, self._kept(subject, schema, identifier), postgres, identifier)).id

    async def close(self) -> None:
        """Close the connections to the server and to Kafka."""
        await self._forget()
        await self._journal.close()

    async def _connected(self) -> RestClient:
        if self._client is None:
            self._client = await RestClient.open(await asyncio.to_thread(self._options.rest))
            self._opened_at = time.monotonic()
        return self._client

    async def _forget(self) -> None:
        """Close the connection, and forget the server's answers."""
        client, self._client = self._client, None
        self._ids.clear()
        if client is not None:
            await client.close()

    async def _ask_as_known_now(self, subject: str, schema: Schema, postgres: Mapping[str, Any] | None) -> int:
        """Return the server's id. If the server refuses us, read secrets and certificates again, and try once more."""
        is_new = self._client is None
        try:
            return await self._ask(subject, schema, postgres)
        except (PermissionDenied, ConfigError):
            if is_new:
                raise
        await self._forget()
        return await self._ask(subject, schema, postgres)

    async def _ask(self, subject: str, schema: Schema, postgres: Mapping[str, Any] | None) -> int:
        """Return the server's id.

        First ask whether the server knows the schema, because this needs no right to write and works in any mode.
        """
        client, text = await self._connected(), normalise(schema)
        name = subject_name(self._options.strategy, subject, schema)
        known = await client.look_up(name, text)
        if known is not None:
            return known
        try:
            return await client.register(name, text)
        except Conflict as conflict:
            change = difference(self._last(subject, postgres), postgres)
            level = await client.subject_level(name)
            if self._options.on_incompatible == "force":
                log.warning("an incompatible schema is registered", subject=name, level=level, change=change)
                return await self._force(client, name, text, level)
            raise _incompatible(
                name, table_of(postgres, schema), level or await client.level(), conflict, change
            ) from None

    async def _force(self, client: RestClient, name: str, text: str, level: str | None) -> int:
        """Register a schema. Meanwhile, the subject's level is NONE, so that the subject accepts the schema.

        A subject whose own level is NONE refuses no schema. So if a subject has refused a schema although the server
        reports level NONE for it, we conclude that the subject has no level of its own. In this case, we delete the
        subject's level after the registration, instead of setting it to NONE.
        """
        self._lowered[name] = None if level == _NONE else level
        await client.set_level(name, _NONE)
        try:
            return await client.register(name, text)
        finally:
            await self._raise_level(client, name)

    async def _raise_level(self, client: RestClient, name: str) -> None:
        await client.set_level(name, self._lowered[name])
        del self._lowered[name]

    def _last(self, subject: str, postgres: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return PostgreSQL's last description of the same table."""
        described = (entry.postgres for entry in reversed(self.store.versions(subject)) if entry.postgres is not None)
        return next((one for one in described if postgres is not None and _table(one) == _table(postgres)), None)

    def _kept(self, subject: str, schema: Schema, identifier: int) -> Schema:
        """Return the schema to record for ``identifier``. If an equivalent schema is already recorded, return that one.

        Some servers return the old id if only properties of the schema have changed. Raise HistoryError if the id
        belongs to a schema that reads bytes in another way.
        """
        uses = self.store.uses(identifier)
        if not uses:
            return schema
        known: Schema = json.loads(uses[0].schema)
        if not _is_read_alike(known, schema):
            raise HistoryError(
                f"The schema registry gives id {identifier} to a schema of subject {subject}, but there are messages "
                "with this id and another schema. So this is not the registry that was used before, or it was emptied. "
                "Restore its schemas from a backup, or export them into an empty registry with `pgsluice registry "
                "export`, which keeps the ids."
            )
        return known

    def _warn_of_earlier(self, subject: str, text: str, identifier: int) -> None:
        """Warn once if the server's id for a schema is not the id that was recorded last for this schema."""
        earlier = self.store.ids_of(subject, text)
        if earlier and earlier[-1] != identifier:
            log.warning(
                "the schema registry has another id for a schema than earlier messages: if it does not know the "
                "earlier id, copy the schema to it with `pgsluice registry export`",
                subject=subject,
                schema_id=identifier,
                earlier=earlier,
            )


def _table(postgres: Mapping[str, Any]) -> tuple[object, object]:
    return postgres.get("schema"), postgres.get("table")


def _digest(text: str) -> bytes:
    return sha256(text.encode()).digest()


def _is_read_alike(known: Schema, schema: Schema) -> bool:
    try:
        return shape(known) == shape(schema)
    except ValueError:  # another program has written something else to the topic
        return False


def _incompatible(name: str, table: str, level: str | None, conflict: Conflict, change: str) -> IncompatibleSchema:
    return IncompatibleSchema(
        f"The schema registry refuses the new schema of {table}: subject {name} has compatibility "
        f"{level or 'unknown'}, and {change}. The registry says: {conflict.words}. {_NOTHING_LOST} To continue, set "
        f"the subject's compatibility to NONE (PUT /config/{name}) and start again, or start with "
        'schema_registry.on_incompatible = "force". Undoing the ALTER TABLE does not help, because rows were written '
        "after it."
    )
