"""The schemas of one or more schema topics, in memory: subjects, versions, ids.

Pure. Filled in the order of the topic by :mod:`.follower`, read by :mod:`.api` and :mod:`.builtin`, so every
process that reads a topic holds the same. A schema's id is a hash of its text, so writers need no agreement.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pgsluice.avro.wire import Schema, normalise, schema_id, unframe
from pgsluice.registry.canonical import canonical
from pgsluice.registry.record import MAX_ID, Registered


@dataclass(slots=True)
class _Subject:
    versions: dict[int, Registered] = field(default_factory=dict)
    by_id: dict[int, int] = field(default_factory=dict)
    """Id to version."""
    by_text: dict[str, int] = field(default_factory=dict)
    """Normalised schema to version."""
    displaced: set[int] = field(default_factory=set)
    """Ids whose recorded version another schema had taken before."""

    def next_version(self) -> int:
        return max(self.versions, default=0) + 1


class SchemaStore:
    """Subjects with versions 1, 2, ...; the same schema has the same id in every subject."""

    def __init__(self) -> None:
        self.complete = False
        """Whether all was read that the topics held at first; before that, what is missing here may exist."""
        self._subjects: dict[str, _Subject] = {}
        self._by_id: dict[int, dict[str, Registered]] = {}
        self._texts: dict[tuple[str, int], str] = {}
        """Topic and id to the one schema that messages under this prefix mean by it."""
        self._ids: dict[str, int] = {}
        self._canonical: dict[str, str | None] = {}

    def propose(
        self, subject: str, schema: Schema, postgres: Mapping[str, Any] | None, identifier: int | None = None
    ) -> tuple[Registered, bool]:
        """Return ``schema`` as it is, or would be, registered, and whether that has yet to be recorded.

        Changes nothing. A known schema keeps version and id; it has to be recorded again when ``postgres``
        changed, or when its version turned out to be taken. ``identifier``: the id that a registry server gave it.
        """
        text = normalise(schema)
        known = self._subjects.get(subject, _Subject())
        if postgres is not None:
            postgres = json.loads(json.dumps(postgres))  # as it reads back: tuples are lists
        version = known.by_text.get(text) if identifier is None else known.by_id.get(identifier)
        if version is None:
            identifier = self._id(text) if identifier is None else identifier
            return Registered(subject, known.next_version(), identifier, text, postgres), True
        registered = known.versions[version]
        if postgres is None:
            postgres = registered.postgres
        changed = postgres != registered.postgres or registered.id in known.displaced
        return replace(registered, postgres=postgres), changed

    def add(self, record: Registered, topic: str = "") -> None:
        """Take in the next record of ``topic``; one that was read before changes nothing.

        ValueError when its id already stands for another schema of the topic, or of the subject.
        """
        subject = self._subjects.setdefault(record.subject, _Subject())
        old = subject.versions.get(subject.by_id.get(record.id, 0))
        texts = {self._texts.setdefault((topic, record.id), record.schema), old.schema if old else record.schema}
        if texts != {record.schema}:
            raise ValueError(f"id {record.id}, here of subject {record.subject!r}, stands for two schemas")
        holder = subject.versions.get(record.version)
        version = record.version
        if holder is not None and holder.id != record.id:
            version = old.version if old is not None else subject.next_version()
        if old is not None:
            del subject.versions[old.version]
        self._place(subject, replace(record, version=version), displaced=version != record.version)

    def _place(self, subject: _Subject, entry: Registered, *, displaced: bool) -> None:
        subject.versions[entry.version] = entry
        subject.by_id[entry.id] = entry.version
        subject.by_text[entry.schema] = entry.version
        (subject.displaced.add if displaced else subject.displaced.discard)(entry.id)
        self._by_id.setdefault(entry.id, {})[entry.subject] = entry
        self._ids.setdefault(entry.schema, entry.id)

    def subjects(self) -> list[str]:
        """Return every subject, sorted."""
        return sorted(self._subjects)

    def versions(self, subject: str) -> list[Registered]:
        """Return the versions of ``subject``, oldest first; none when it is unknown."""
        known = self._subjects.get(subject, _Subject())
        return [known.versions[version] for version in sorted(known.versions)]

    def version(self, subject: str, version: int) -> Registered | None:
        """Return one version of ``subject``, None when there is none."""
        return self._subjects.get(subject, _Subject()).versions.get(version)

    def uses(self, identifier: int, subject: str | None = None) -> list[Registered]:
        """Return every version that has this id, in the order of their subjects; ``subject`` first of all.

        Schemas of different prefixes can share an id by chance; the subject tells them apart.
        """
        found = self._by_id.get(identifier, {})
        return sorted(found.values(), key=lambda entry: (entry.subject != subject, entry.subject))

    def ambiguous(self) -> list[int]:
        """Return the ids that stand for several schemas, as those of different topics can by chance."""
        return [
            identifier for identifier, uses in self._by_id.items() if len({one.schema for one in uses.values()}) > 1
        ]

    def schema_of(self, message: bytes | None) -> dict[str, Any] | None:
        """Return the schema of a framed message; None when it is not known, or not a record's."""
        if message is None:
            return None
        schemas = [json.loads(entry.schema) for entry in self.uses(unframe(message)[0])]
        return next((schema for schema in schemas if isinstance(schema, dict)), None)

    def look_up(self, subject: str, schema: Schema) -> Registered | None:
        """Return the version of ``subject`` that is this schema; ValueError when it is not a schema.

        Another way of writing the same schema is found too, as Avro libraries each print it their own way.
        """
        wanted = canonical(schema)
        version = self._subjects.get(subject, _Subject()).by_text.get(normalise(schema))
        if version is not None:
            return self.version(subject, version)
        return next((entry for entry in self.versions(subject) if self._same(entry.schema, wanted)), None)

    def max_id(self) -> int:
        """Return the largest id, 0 when there is none."""
        return max(self._by_id, default=0)

    def _same(self, text: str, wanted: str) -> bool:
        if text not in self._canonical:
            self._canonical[text] = None
            with suppress(ValueError):  # others can write to the topic
                self._canonical[text] = canonical(json.loads(text))
        return self._canonical[text] == wanted

    def _id(self, text: str) -> int:
        return self._ids[text] if text in self._ids else self._next_free(schema_id(text))

    def _next_free(self, identifier: int) -> int:
        """Return ``identifier``, or the next one after it that no other schema has."""
        while identifier in self._by_id:
            identifier = identifier % MAX_ID + 1
        return identifier
