"""The registry that is a server of its own: anything that speaks the API of Confluent's Schema Registry.

The server gives the ids; ``<prefix>.schemas`` keeps what pgsluice itself has to know after a restart, whatever
becomes of the server: every schema with its id, and what PostgreSQL said of the table. Used by the pipeline.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/schema-evolution.html
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal

import structlog

from pgsluice.avro.schema import FieldHistory, KeyHistory
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
"""How long the server's word is taken for granted: a standby begins a session every second."""

IDS_MAX: Final = 20_000
"""Ids that the server has told and that are kept, of 200 bytes each: value and key of as many tables as have encoders.
One that is forgotten is asked for again."""

_NONE: Final = "NONE"

_NOTHING_LOST: Final = "Nothing is lost: what was not delivered was not confirmed either, and will be sent again."


@dataclass(frozen=True, slots=True)
class ConfluentOptions:
    """``rest`` reads what to connect with, again for every connection: passwords change."""

    rest: Callable[[], RestOptions]
    strategy: Strategy = "topic"
    on_incompatible: Literal["stop", "force"] = "stop"


class ConfluentRegistry:
    """Registers schemas at a server, and records in ``journal`` under which ids."""

    def __init__(self, options: ConfluentOptions, journal: BuiltinRegistry) -> None:
        self._options = options
        self._journal = journal
        self._client: RestClient | None = None
        self._opened_at = 0.0
        self._ids: dict[tuple[str, bytes], int] = {}
        """What the server said: subject and digest of a schema to its id."""
        self._lowered: dict[str, str | None] = {}
        """Subjects whose level was set to NONE, with the level that they had of their own."""

    @property
    def store(self) -> SchemaStore:
        """Every schema recorded so far."""
        return self._journal.store

    async def start(self) -> None:
        """Know every schema recorded so far. The server is asked again for what it said a while ago."""
        await self._journal.start()
        if self._client is not None and time.monotonic() - self._opened_at < RECHECK_S:
            return
        await self._forget()
        for subject in tuple(self._lowered):
            await self._raise_level(await self._connected(), subject)

    async def follow(self) -> None:
        """Never return; raise what ended the reading of the topic, if something does."""
        await self._journal.follow()

    def subjects(self) -> list[str]:
        """Return every subject, by topic."""
        return self._journal.subjects()

    def record_name(self, subject: str) -> str | None:
        """Return the name of the record that was recorded last for ``subject``, None if that is no record."""
        return self._journal.record_name(subject)

    def record_namespace(self, subject: str) -> str | None:
        """Return the namespace of the record that was recorded last for ``subject``, None if it has none."""
        return self._journal.record_namespace(subject)

    async def fields(self, subject: str, namespace: str) -> FieldHistory:
        """Return the fields that the schemas recorded for ``subject`` with this namespace have had."""
        return await self._journal.fields(subject, namespace)

    async def keys(self, subject: str, namespace: str) -> KeyHistory:
        """Return the keys that were recorded for ``subject`` with this namespace."""
        return await self._journal.keys(subject, namespace)

    async def register(self, subject: str, schema: Schema, postgres: Mapping[str, Any] | None = None) -> int:
        """Return the id that the server has for ``schema``: it is readable there, and recorded with the id.

        RegistryUnavailable and SinkUnavailable when server or Kafka cannot do their part now; registering again is
        always safe.
        """
        text = normalise(schema)
        asked = subject, _digest(text)
        identifier = self._ids.get(asked)
        if identifier is None:
            try:
                identifier = await self._ask_as_known_now(subject, schema, postgres)
            except BaseException:
                await self._forget()  # perhaps it is for want of a newer password
                raise
            self._warn_of_earlier(subject, text, identifier)
            if len(self._ids) == IDS_MAX:
                del self._ids[next(iter(self._ids))]
            self._ids[asked] = identifier
        return (await self._journal.record(subject, self._kept(subject, schema, identifier), postgres, identifier)).id

    async def close(self) -> None:
        """Let go of server and Kafka."""
        await self._forget()
        await self._journal.close()

    async def _connected(self) -> RestClient:
        if self._client is None:
            self._client = await RestClient.open(self._options.rest())
            self._opened_at = time.monotonic()
        return self._client

    async def _forget(self) -> None:
        """Close the connection, and forget what the server said."""
        client, self._client = self._client, None
        self._ids.clear()
        if client is not None:
            await client.close()

    async def _ask_as_known_now(self, subject: str, schema: Schema, postgres: Mapping[str, Any] | None) -> int:
        """Return the server's id. Who is refused with secrets and certificates of earlier reads them again first."""
        is_new = self._client is None
        try:
            return await self._ask(subject, schema, postgres)
        except (PermissionDenied, ConfigError):
            if is_new:
                raise
        await self._forget()
        return await self._ask(subject, schema, postgres)

    async def _ask(self, subject: str, schema: Schema, postgres: Mapping[str, Any] | None) -> int:
        """Return the server's id. It is asked first what it has: that takes no right to write, in any mode."""
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
        """Register a schema while the subject takes all.

        A subject that refused a schema and says NONE has no level of its own, whatever its server means by that.
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
        """Return what PostgreSQL said of the same table with the schema before this one."""
        described = (entry.postgres for entry in reversed(self.store.versions(subject)) if entry.postgres is not None)
        return next((one for one in described if postgres is not None and _table(one) == _table(postgres)), None)

    def _kept(self, subject: str, schema: Schema, identifier: int) -> Schema:
        """Return the schema to record under ``identifier``: what is recorded already, if bytes are read alike.

        Some servers give the old id when only properties changed. HistoryError when it stands for anything else.
        """
        uses = self.store.uses(identifier)
        if not uses:
            return schema
        known: Schema = json.loads(uses[0].schema)
        if not _is_read_alike(known, schema):
            raise HistoryError(
                f"The schema registry gives id {identifier} to a schema of subject {subject}, but there are messages "
                "with this id and another schema: the registry is another one than before, or was emptied. Bring its "
                "schemas back from a backup, or into an empty one with `pgsluice registry export`, which keeps the ids."
            )
        return known

    def _warn_of_earlier(self, subject: str, text: str, identifier: int) -> None:
        """Say once that the server has another id for a schema than the one that was recorded last."""
        earlier = self.store.ids_of(subject, text)
        if earlier and earlier[-1] != identifier:
            log.warning(
                "the schema registry has another id for a schema than messages before: if it does not know theirs, "
                "`pgsluice registry export` gives it to it",
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
    except ValueError:  # another program wrote something else into the topic
        return False


def _incompatible(name: str, table: str, level: str | None, conflict: Conflict, change: str) -> IncompatibleSchema:
    return IncompatibleSchema(
        f"The schema registry refuses the new schema of {table}: subject {name} has compatibility "
        f"{level or 'unknown'}, and {change}. In its words: {conflict.words}. {_NOTHING_LOST} To go on, start again "
        f"after setting the subject's compatibility to NONE (PUT /config/{name}), or with "
        'schema_registry.on_incompatible = "force". Taking the ALTER TABLE back does not help: rows were written after '
        "it."
    )
