"""The schemas of one or more schema topics, in memory: subjects, versions and ids. This module does no I/O.

:mod:`.follower` fills it in the order of the topic, and :mod:`.api` and :mod:`.builtin` read it. So every process that
reads a topic has the same content. A schema's id is a hash of its text, so writers need not coordinate.
"""

import itertools
import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pgsluice.avro.wire import Schema, normalise, schema_id, unframe
from pgsluice.registry.schema_record import MAX_ID, Registered


@dataclass(slots=True)
class _Subject:
    versions: dict[int, Registered] = field(default_factory=dict)
    by_id: dict[int, int] = field(default_factory=dict)
    """The version of each id."""
    by_text: dict[str, int] = field(default_factory=dict)
    """The version of each normalised schema."""
    displaced: set[int] = field(default_factory=set)
    """The ids of schemas whose recorded version was already taken by another schema."""
    highest: int = 0
    """The highest version that ever existed."""
    rearranged: int = 0
    """How often a schema got another version, or a version was added before an existing one."""

    def next_version(self) -> int:
        """Return the version after the highest one, or the lowest free version if the highest possible one is taken."""
        highest = max(self.versions, default=0)
        if highest < MAX_ID:
            return highest + 1
        return next(version for version in itertools.count(1) if version not in self.versions)


class SchemaStore:
    """Subjects with versions 1, 2, ... A schema has the same id in every subject."""

    def __init__(self) -> None:
        self.complete = False
        """Whether all records that the topics had at the start have been read. Until then, schemas may be missing."""
        self._subjects: dict[str, _Subject] = {}
        self._by_id: dict[int, dict[str, Registered]] = {}
        self._texts: dict[tuple[str, int], str] = {}
        """The schema for each topic and id. Within a prefix, an id stands for one schema."""
        self._ids: dict[str, int] = {}

    def propose(
        self, subject: str, schema: Schema, postgres: Mapping[str, Any] | None, identifier: int | None = None
    ) -> tuple[Registered, bool]:
        """Return ``schema`` as it is or would be registered, and whether it still has to be recorded.

        This method changes nothing. A known schema keeps its version and id. It has to be recorded again if
        ``postgres`` has changed, or if another schema had already taken its version. ``identifier`` is the id that a
        registry server gave to the schema.
        """
        text = normalise(schema)
        known = self._subjects.get(subject, _Subject())
        if postgres is not None:
            postgres = json.loads(json.dumps(postgres))  # as it will be read back, with lists instead of tuples
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
        """Add the next record of ``topic``. A record that was read before changes nothing.

        Raise ValueError if the id of ``record`` already stands for another schema of the topic or of the subject.
        """
        subject = self._subjects.setdefault(record.subject, _Subject())
        old = subject.versions.get(subject.by_id.get(record.id, 0))
        texts = {self._texts.setdefault((topic, record.id), record.schema), old.schema if old else record.schema}
        if texts != {record.schema}:
            raise ValueError(f"id {record.id}, here of subject {reprlib.repr(record.subject)}, stands for two schemas")
        holder = subject.versions.get(record.version)
        version = record.version
        if holder is not None and holder.id != record.id:
            version = old.version if old is not None else subject.next_version()
        if old is not None:
            subject.rearranged += old.version != version
            del subject.versions[old.version]
        elif version < subject.highest:
            subject.rearranged += 1
        self._place(subject, replace(record, version=version), displaced=version != record.version)

    def _place(self, subject: _Subject, entry: Registered, *, displaced: bool) -> None:
        subject.versions[entry.version] = entry
        subject.highest = max(subject.highest, entry.version)
        subject.by_id[entry.id] = entry.version
        subject.by_text[entry.schema] = entry.version
        (subject.displaced.add if displaced else subject.displaced.discard)(entry.id)
        self._by_id.setdefault(entry.id, {})[entry.subject] = entry
        self._ids.setdefault(entry.schema, entry.id)

    def subjects(self) -> list[str]:
        """Return every subject, sorted."""
        return sorted(self._subjects)

    def versions(self, subject: str, after: int = 0) -> list[Registered]:
        """Return the versions of ``subject`` after version ``after``, oldest first. An unknown subject has none."""
        known = self._subjects.get(subject, _Subject())
        return [known.versions[version] for version in sorted(one for one in known.versions if one > after)]

    def last(self, subject: str) -> Registered | None:
        """Return the highest version of ``subject``, or None if it is unknown."""
        known = self._subjects.get(subject, _Subject())
        return known.versions[max(known.versions)] if known.versions else None

    def ids_of(self, subject: str, text: str) -> list[int]:
        """Return the ids of the normalised schema ``text`` in ``subject``, oldest first."""
        if text not in self._subjects.get(subject, _Subject()).by_text:
            return []
        return [entry.id for entry in self.versions(subject) if entry.schema == text]

    def rearranged(self, subject: str) -> int:
        """Return a number that stays the same as long as versions of ``subject`` are only added at the end."""
        return self._subjects.get(subject, _Subject()).rearranged

    def version(self, subject: str, version: int) -> Registered | None:
        """Return one version of ``subject``, or None if it does not exist."""
        return self._subjects.get(subject, _Subject()).versions.get(version)

    def uses(self, identifier: int, subject: str | None = None) -> list[Registered]:
        """Return every version with this id, sorted by subject, but with ``subject`` first.

        Schemas of different prefixes can have the same id by chance. The subject tells them apart.
        """
        found = self._by_id.get(identifier, {})
        return sorted(found.values(), key=lambda entry: (entry.subject != subject, entry.subject))

    def ambiguous(self) -> list[int]:
        """Return the ids that stand for several schemas. Schemas of different topics can have the same id by chance."""
        return [
            identifier for identifier, uses in self._by_id.items() if len({one.schema for one in uses.values()}) > 1
        ]

    def schema_of(self, message: bytes | None) -> dict[str, Any] | None:
        """Return the schema of a framed message. Return None if it is not known, or is not the schema of a record."""
        if message is None:
            return None
        schemas = [json.loads(entry.schema) for entry in self.uses(unframe(message)[0])]
        return next((schema for schema in schemas if isinstance(schema, dict)), None)

    def max_id(self) -> int:
        """Return the largest id, or 0 if there is none."""
        return max(self._by_id, default=0)

    def _id(self, text: str) -> int:
        return self._ids[text] if text in self._ids else self._next_free(schema_id(text))

    def _next_free(self, identifier: int) -> int:
        """Return ``identifier``, or the next id after it that no other schema has."""
        while identifier in self._by_id:
            identifier = identifier % MAX_ID + 1
        return identifier
