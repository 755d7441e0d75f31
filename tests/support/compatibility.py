"""Uses fastavro and Avro's Java library to check whether the versions of a subject are compatible.

A reader with any schema of a table's values can read the messages of all earlier and later schemas, and gets the same
values. Fields that the reader's schema lacks are omitted, and fields that the writer's schema lacks are null. There is
one exception: if a field has become wider, a reader with an earlier schema refuses values that are not null.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import permutations
from typing import Any

import fastavro
from fastavro.read import SchemaResolutionError

from tests.contract.values import json_of, physical
from tests.support.java_avro import Task, ask
from tests.support.reader import Event
from tests.support.replay import row_fields

SAMPLES = 2
"""The number of messages of each schema that are read with all other schemas."""

WIDER = (("int", "long"), ("int", "double"), ("float", "double"))
"""The changes of a column's type after which readers with earlier schemas refuse the new values.

The column keeps its field after these changes. Changes between decimals are not listed.
"""


@dataclass(frozen=True)
class Version:
    """One version of a subject. ``messages`` are the bodies of messages that were written with it."""

    subject: str
    number: int
    schema: Any
    messages: Sequence[bytes] = ()

    @property
    def is_value(self) -> bool:
        return self.subject.endswith("-value")

    def __str__(self) -> str:
        return f"{self.subject} {self.number}"


@dataclass(frozen=True)
class Pair:
    """The schema of a writer and the schema of a reader."""

    writer: Version
    reader: Version

    @property
    def narrow(self) -> set[str]:
        """The fields that have a narrower type in the reader's schema than in the writer's schema."""
        wide = {entry["name"]: entry["type"][1] for entry in row_fields(self.writer.schema)}
        read = {entry["name"]: entry["type"][1] for entry in row_fields(self.reader.schema)}
        return {name for name in read.keys() & wide.keys() if (read[name], wide[name]) in WIDER}

    @property
    def compatible(self) -> bool:
        """Whether Avro must consider the schemas compatible.

        The fields of keys have no defaults, so the writer's schema must have every field of the reader's schema.
        """
        if self.writer.is_value:
            return not self.narrow
        types = {entry["name"]: entry["type"] for entry in self.writer.schema["fields"]}
        read = {entry["name"]: entry["type"] for entry in self.reader.schema["fields"]}
        return all(name in types and types[name] in (kind, *_narrower(kind)) for name, kind in read.items())

    def expected(self, message: bytes) -> Any:  # noqa: ANN401 - JSON, or None
        """Return the value that the reader must get from a message, or None if the reader must refuse the message."""
        written = _read(self.writer.schema, self.writer.schema, message)
        names = [entry["name"] for entry in row_fields(self.reader.schema)]
        rows = [row for row in (written["before"], written["after"]) if row is not None]
        if any(row[name] is not None for row in rows for name in self.narrow):
            return None
        seen = {
            part: written[part] and {name: written[part].get(name) for name in names} for part in ("before", "after")
        }
        return {**written, **seen}

    def __str__(self) -> str:
        return f"{self.writer} read as version {self.reader.number}"


def _narrower(kind: Any) -> list[Any]:  # noqa: ANN401 - JSON
    return [narrow for narrow, wide in WIDER if wide == kind]


def _read(writer: Any, reader: Any, message: bytes) -> Any:  # noqa: ANN401 - JSON
    """Read a message with fastavro, and return its value as JSON."""
    value = fastavro.schemaless_reader(BytesIO(message), physical(writer), physical(reader))
    return json_of(reader, value)


def pairs(schemas: Iterable[Mapping[str, Any]], events: Iterable[Event]) -> list[Pair]:
    """Return all pairs of schemas of the same table and the same subject, with some of their messages.

    ``schemas`` is the content of ``<prefix>.schemas``.
    """
    messages: dict[tuple[str, int | None], list[bytes]] = defaultdict(list)
    for event in events:
        found = messages[f"{event.topic}-value", event.schema_id]
        if len(found) < SAMPLES and event.value_bytes is not None:
            found.append(event.value_bytes[5:])
    tables: dict[tuple[str, str], dict[int, Version]] = defaultdict(dict)
    for entry in schemas:
        subject, schema = entry["subject"], json.loads(entry["schema"])
        if isinstance(schema, dict):
            version = Version(subject, entry["version"], schema, messages[subject, entry["id"]])
            tables[subject, schema["namespace"]][entry["id"]] = version
    return [Pair(*pair) for versions in tables.values() for pair in permutations(versions.values(), 2)]


def fastavro_problems(found: Sequence[Pair]) -> list[str]:
    """Return the differences between the values that fastavro reads and the expected values."""
    problems = []
    for pair in found:
        for message in pair.writer.messages if pair.writer.is_value else ():
            try:
                seen = _read(pair.writer.schema, pair.reader.schema, message)
            except SchemaResolutionError:
                seen = None
            if seen != pair.expected(message):
                problems.append(f"{pair}: {seen} instead of {pair.expected(message)}")
    return problems


def java_problems(found: Sequence[Pair]) -> list[str]:
    """Return the values and the verdicts of Avro's Java library that differ from the expected ones."""
    asked = [
        (pair, message)
        for pair in found
        for message in (pair.writer.messages if pair.writer.is_value else ()) or (None,)
    ]
    answers = ask(Task(pair.writer.schema, pair.reader.schema, message) for pair, message in asked)
    problems = []
    for (pair, message), answer in zip(asked, answers, strict=True):
        if answer.compatible != pair.compatible:
            problems.append(f"{pair}: compatible: {answer.compatible}")
        if message is not None:
            seen = None if answer.value is None else json_of(pair.reader.schema, answer.value)
            if seen != pair.expected(message):
                problems.append(f"{pair}: {seen} ({answer.error}) instead of {pair.expected(message)}")
    return problems
