"""Copies the schemas of schema topics to a registry server, with the ids that messages contain.

``pgsluice registry export`` uses this module. Operators run it before they set ``schema_registry.type`` to "confluent",
or when a server has lost its schemas. The export can be repeated, because it does not change schemas that the server
already has.

https://docs.confluent.io/platform/current/schema-registry/installation/migrate.html
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from pgsluice.errors import UnavailableError
from pgsluice.registry.canonical import shape
from pgsluice.registry.rest import RestClient, RestOptions
from pgsluice.registry.schema_record import Registered
from pgsluice.registry.store import SchemaStore
from pgsluice.registry.subjects import Strategy, subject_name

_IMPORT: Final = "IMPORT"
"""In this mode, a subject accepts schemas with given ids, and the server does not check compatibility."""


class Exported(NamedTuple):
    """How many schemas of a subject were exported, and how many the server already had."""

    exported: int
    known: int


async def export(store: SchemaStore, options: RestOptions, strategy: Strategy) -> dict[str, Exported]:
    """Export all schemas, and return the result for every subject. Raise UnavailableError if the server changes ids."""
    async with await RestClient.open(options) as client:
        return {name: await _export(client, name, entries) for name, entries in _by_name(store, strategy).items()}


def _by_name(store: SchemaStore, strategy: Strategy) -> dict[str, list[Registered]]:
    """Return the schemas by their subjects at the server, oldest first.

    Topics that share a subject share its schemas.
    """
    found: dict[str, dict[int, Registered]] = {}
    for subject in store.subjects():
        for entry in store.versions(subject):
            name = subject_name(strategy, subject, json.loads(entry.schema))
            found.setdefault(name, {}).setdefault(entry.id, entry)
    return {name: list(entries.values()) for name, entries in found.items()}


async def _export(client: RestClient, name: str, entries: list[Registered]) -> Exported:
    new = [entry for entry in entries if not await _is_there(client, name, entry)]
    if new:
        async with _importing(client, name):
            last = max(await client.versions(name), default=0)
            for version, entry in enumerate(new, last + 1):
                await _bring_in(client, name, entry, version)
    return Exported(len(new), len(entries) - len(new))


async def _is_there(client: RestClient, name: str, entry: Registered) -> bool:
    subjects = await client.subjects_of(entry.id)
    if subjects and not _is_same(await client.text_of(entry.id), entry.schema):
        raise UnavailableError(
            f"The registry uses id {entry.id} for a schema of subject {subjects[0]}, but messages of {entry.subject} "
            "use this id for another schema. Export to a separate registry, or to a context of this one (the address "
            "followed by /contexts/:.pgsluice:)."
        )
    return name in subjects


def _is_same(theirs: str, ours: str) -> bool:
    try:
        return shape(json.loads(theirs)) == shape(json.loads(ours))
    except ValueError:  # the server's schema is not Avro, but for example Protobuf
        return False


@asynccontextmanager
async def _importing(client: RestClient, name: str) -> AsyncIterator[None]:
    before = await client.subject_mode(name)
    await client.set_mode(name, _IMPORT)
    try:
        yield
    finally:
        await client.set_mode(name, None if before == _IMPORT else before)


async def _bring_in(client: RestClient, name: str, entry: Registered, version: int) -> None:
    assigned = await client.bring_in(name, entry.schema, entry.id, version)
    if assigned != entry.id:
        raise UnavailableError(
            f"The registry gave id {assigned} to a schema that has id {entry.id} in messages, so it does not import "
            f"schemas with their ids. Delete subject {name} there, and use a server that knows mode IMPORT. Or serve "
            "the schemas with `pgsluice registry`, for as long as messages with these ids are read."
        )
