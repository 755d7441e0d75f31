"""Combines the Avro schemas of one subject, so that Spark can read the records of all its versions.

Used above all by :mod:`.decode`, :mod:`.reading` and :mod:`.cuts`. Each record has to be decoded with the schema with
which it was written, but all records have to get the same type. So the writers' schemas become the branches of one Avro
union. A record names its branch by number, and the reader's schema has the fields of all versions. This module does no
I/O, and only transforms JSON.

https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Final, TypeAlias, TypeGuard

Schema: TypeAlias = str | dict[str, Any] | list[Any]
"""A schema as parsed JSON."""

Record: TypeAlias = dict[str, Any]
"""A schema of type record as parsed JSON."""

_PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_CONTAINERS: Final = {"array": "items", "map": "values"}
_LOGICAL: Final[Sequence[str]] = ("logicalType", "precision", "scale")

# The changes of a field's type that are allowed. Apart from these, only decimals may change: they may get more digits.
_WIDENINGS: Final = {("int", "long"), ("int", "double"), ("float", "double")}

_PARSED_MAX: Final = 4096
"""The number of schemas whose parsed form is cached."""

_ENVELOPE_FIELDS: Final = frozenset(("op", "before", "after", "unchanged", "epoch", "lsn", "seq"))


class SchemaError(ValueError):
    """The schemas of a subject were not written by pgsluice, or cannot be combined into one type."""


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a subject in the registry. ``schema`` is the schema's text."""

    subject: str
    version: int
    id: int
    schema: str


@dataclass(frozen=True, slots=True)
class Reading:
    """How the framed records of one subject are decoded."""

    writers: str
    """The union of the writers' schemas as JSON, or the schema itself if there is only one."""
    reader: str
    """The reader's schema, as JSON. All records are read as this type."""
    branches: Mapping[int, int]
    """The number of the branch in the union, by schema id."""
    fields: Mapping[int, tuple[str, ...]]
    """The names of the row's fields, by schema id. They are empty for keys."""

    @property
    def is_union(self) -> bool:
        """Whether ``writers`` is a union. This is the case if the subject has schemas with different types."""
        return len(set(self.branches.values())) > 1


def value_reading(versions: Sequence[SchemaVersion]) -> Reading:
    """Return how envelopes are decoded. ``versions`` must not be empty, and is sorted from the oldest to the newest."""
    return _reading(versions, [_envelope(version) for version in versions])


def record_reading(versions: Sequence[SchemaVersion]) -> Reading:
    """Return how keys, cut records or dead letters are decoded.

    ``versions`` must not be empty, and is sorted from the oldest to the newest.
    """
    return _reading(versions, [_record(version) for version in versions])


def table_of(version: SchemaVersion) -> str:
    """Return the table of a schema, such as ``public.orders``. It is the end of the schema's namespace."""
    _record(version)  # raises an error if pgsluice has not written this schema
    return _table(version.schema)


@lru_cache(maxsize=_PARSED_MAX)
def _table(text: str) -> str:
    schema = json.loads(text)
    return ".".join(f"{schema.get('namespace')}.{schema.get('name')}".split(".")[-3:-1])


def field_names(version: SchemaVersion) -> tuple[str, ...]:
    """Return the names of a record's fields, such as the columns of a key."""
    return tuple(field["name"] for field in _record(version)["fields"])


def columns_of(version: SchemaVersion) -> dict[str, str]:
    """Return PostgreSQL's column name for each field of a row. ``version`` is the schema of a change event."""
    envelope = json.loads(version.schema)
    kinds = [_split(field["type"])[1] for field in envelope["fields"] if field["name"] in ("before", "after")]
    row: Record = next(kind for kind in kinds if isinstance(kind, dict))
    return {field["name"]: field.get("pg.name", field["name"]) for field in row["fields"]}


def ambiguous_names(reading: Reading) -> list[str]:
    """Return the names of fields that differ only in case from another field of the same record."""
    return sorted(set(_ambiguous(json.loads(reading.reader))))


def _ambiguous(record: Record) -> Iterator[str]:
    names: dict[str, list[str]] = {}
    for field in record["fields"]:
        names.setdefault(field["name"].lower(), []).append(field["name"])
        row = _split(field["type"])[1]
        yield from _ambiguous(row) if _is_record(row) else ()
    for alike in names.values():
        yield from alike if len(alike) > 1 else ()


def _reading(versions: Sequence[SchemaVersion], records: Sequence[Record]) -> Reading:
    try:
        reader = _merged(list(reversed(records)))
    except SchemaError as error:
        raise SchemaError(f"subject {versions[0].subject}: {error}{_advice(versions)}") from None
    texts = [_text(record) for record in records]
    branches = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    writers = [_render(json.loads(text), f"writer{n}") for text, n in branches.items()]
    return Reading(
        writers=json.dumps(writers if len(writers) > 1 else writers[0]),
        reader=json.dumps(_render(reader, "reader")),
        branches={version.id: branches[text] for version, text in zip(versions, texts, strict=True)},
        fields={version.id: _row_names(record) for version, record in zip(versions, records, strict=True)},
    )


def _advice(versions: Sequence[SchemaVersion]) -> str:
    """Return the remedy for schemas that cannot be combined, or "" if they all belong to one table."""
    tables = sorted({table_of(version) for version in versions})
    return f". They belong to several tables ({', '.join(tables)}): read one table at a time" if len(tables) > 1 else ""


def _row_names(record: Record) -> tuple[str, ...]:
    rows = [_split(field["type"])[1] for field in record["fields"] if field["name"] == "after"]
    return tuple(field["name"] for row in rows if _is_record(row) for field in row["fields"])


# --- parsing: keeps only the parts of a schema on which the bytes and the values of records depend


def _envelope(version: SchemaVersion) -> Record:
    record = _record(version)
    missing = _ENVELOPE_FIELDS - {field["name"] for field in record["fields"]}
    if missing:
        raise SchemaError(
            f"version {version.version} of subject {version.subject} is not a change event of pgsluice: "
            f"it lacks {', '.join(sorted(missing))}"
        )
    return record


@lru_cache(maxsize=_PARSED_MAX)
def _record(version: SchemaVersion) -> Record:
    where = f"version {version.version} of subject {version.subject}"
    try:
        record = _plain(json.loads(version.schema), {})
    except (ValueError, TypeError, KeyError) as error:
        raise SchemaError(f"{where} is not an Avro schema that pgsluice writes: {error}") from error
    if not _is_record(record):
        raise SchemaError(f"{where} is not a record")
    return record


def _plain(schema: Schema, names: dict[str, Schema]) -> Schema:
    """Return ``schema`` without properties and namespaces, with each name replaced by its definition."""
    if isinstance(schema, list):
        return [_plain(branch, names) for branch in schema]
    if isinstance(schema, str):
        return schema if schema in _PRIMITIVES else names[_unqualified(schema)]
    kind = schema["type"]
    if kind == "record":
        return _plain_record(schema, names)
    if kind in _CONTAINERS:
        part = _CONTAINERS[kind]
        return {"type": kind, part: _plain(schema[part], names)}
    return _plain_primitive(schema) if kind in _PRIMITIVES else _plain(kind, names)


def _plain_record(schema: Record, names: dict[str, Schema]) -> Record:
    name = _unqualified(schema["name"])
    record = {"type": "record", "name": name, "fields": [_plain_field(field, names) for field in schema["fields"]]}
    if names.setdefault(name, record) != record:
        raise SchemaError(f"it has two records named {name}")
    return record


def _plain_field(field: dict[str, Any], names: dict[str, Schema]) -> dict[str, Any]:
    default = {"default": field["default"]} if "default" in field else {}
    return {"name": field["name"], "type": _plain(field["type"], names), **default}


def _plain_primitive(schema: dict[str, Any]) -> Schema:
    kind: str = schema["type"]
    logical = {name: schema[name] for name in _LOGICAL if name in schema}
    if "precision" in logical:
        logical.setdefault("scale", 0)
    return {"type": kind} | logical if logical else kind


def _unqualified(name: str) -> str:
    return name.rpartition(".")[2]


# --- merging: one record with the fields of all records


def _merged(records: Sequence[Record]) -> Record:
    """Return a record that can read all of ``records``.

    It has the fields of the first record, then the fields of the others that the first record lacks.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        for field in record["fields"]:
            found.setdefault(field["name"], []).append(field)
    fields = [_merged_field(name, fields, len(records)) for name, fields in found.items()]
    return {"type": "record", "name": records[0]["name"], "fields": fields}


def _merged_field(name: str, found: Sequence[dict[str, Any]], records: int) -> dict[str, Any]:
    """Return the field that can read all of ``found``. ``records`` counts all records, even those without the field."""
    schema = reduce(lambda one, other: _widest(name, one, other), (field["type"] for field in found))
    everywhere = len(found) == records
    if _split(schema)[0] or not (everywhere or "default" in found[0]):
        return {"name": name, "type": ["null", _split(schema)[1]], "default": None}
    return {**found[0], "type": schema}


def _widest(name: str, one: Schema, other: Schema) -> Schema:
    if one == other:
        return one
    (one_nullable, one), (other_nullable, other) = _split(one), _split(other)
    if one_nullable or other_nullable:
        return ["null", _widest(name, one, other)]
    if _is_record(one) and _is_record(other):
        return _merged([one, other])
    if _is_array(one) and _is_array(other) and _is_record(one["items"]) and _is_record(other["items"]):
        return {"type": "array", "items": _merged([one["items"], other["items"]])}
    if _widens(other, one):
        return one
    if _widens(one, other):
        return other
    raise SchemaError(
        f"field {name} has the types {json.dumps(one)} and {json.dumps(other)} in different versions; neither "
        "can be read as the other without changing values"
    )


def _widens(narrow: Schema, wide: Schema) -> bool:
    if isinstance(narrow, str) and isinstance(wide, str):
        return (narrow, wide) in _WIDENINGS
    if isinstance(narrow, dict) and isinstance(wide, dict) and "precision" in narrow and "precision" in wide:
        return bool(narrow["precision"] < wide["precision"] and narrow == {**wide, "precision": narrow["precision"]})
    return False


def _is_record(schema: Schema) -> TypeGuard[Record]:
    return isinstance(schema, dict) and schema["type"] == "record"


def _is_array(schema: Schema) -> TypeGuard[dict[str, Any]]:
    return isinstance(schema, dict) and schema["type"] == "array"


def _split(schema: Schema) -> tuple[bool, Schema]:
    """Return whether ``schema`` is nullable, and the schema without null."""
    if not isinstance(schema, list) or "null" not in schema:
        return False, schema
    rest = [branch for branch in schema if branch != "null"]
    return True, rest[0] if len(rest) == 1 else rest


# --- rendering


def _text(record: Record) -> str:
    return json.dumps(record, sort_keys=True)


def _render(record: Record, namespace: str) -> Schema:
    """Return ``record`` in Avro's form: each named type is defined where it first occurs."""
    return _named_once({**record, "namespace": namespace}, set())


def _named_once(schema: Schema, defined: set[str]) -> Schema:
    if isinstance(schema, list):
        return [_named_once(branch, defined) for branch in schema]
    if isinstance(schema, str):
        return schema
    if _is_record(schema):
        return _record_once(schema, defined)
    part = _CONTAINERS.get(schema["type"])
    return schema if part is None else {**schema, part: _named_once(schema[part], defined)}


def _record_once(record: Record, defined: set[str]) -> Schema:
    if record["name"] in defined:
        return str(record["name"])
    defined.add(record["name"])
    fields = [{**field, "type": _named_once(field["type"], defined)} for field in record["fields"]]
    return {**record, "fields": fields}
