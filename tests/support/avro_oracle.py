"""The values that psycopg reads from PostgreSQL's texts, and those that fastavro reads from our Avro records."""

import io
import math
import struct
from fractions import Fraction
from typing import Any

import fastavro
from psycopg.adapt import Transformer
from psycopg.pq import Format
from psycopg.types.hstore import HstoreLoader

from pgsluice.avro.encoder import RowEncoder
from pgsluice.avro.schema import TableFields, value_schema
from pgsluice.avro.types import TypeOptions
from pgsluice.avro.wire import Schema
from pgsluice.pgoutput import messages
from pgsluice.relation import BUILTIN_TYPES, Relation, RelationCache

OID = {pg_type.name: oid for oid, pg_type in BUILTIN_TYPES.items()}
EXTENSIONS = {"hstore": 16_400, "vector": 16_401}

Kind = tuple[str, int]
"""The name and the modifier of a type."""

_LOADERS = Transformer()
_STRINGS = ("text", "varchar", "jsonb", "json", "interval", "timetz", "inet", "cidr", "money", "int4range")


def numeric(precision: int, scale: int) -> Kind:
    return "numeric", (precision << 16 | scale & 0x7FF) + 4


def table(*kinds: Kind) -> Relation:
    """Return a relation with a column for each of ``kinds``: ``c0``, ``c1``, ... The first column is the key."""
    cache = RelationCache()
    for name, oid in EXTENSIONS.items():
        cache.on_type(messages.Type(None, oid, "public", name))
    columns = [
        messages.RelationColumn(index == 0, f"c{index}", EXTENSIONS.get(name) or OID[name], typmod)
        for index, (name, typmod) in enumerate(kinds)
    ]
    return cache.on_relation(messages.Relation(None, 16_385, "public", "orders", "d", tuple(columns)))


def read(schema: Schema, body: bytes) -> Any:  # noqa: ANN401 - whatever the schema defines
    """Return the value that fastavro reads, and check that it reads all bytes."""
    stream = io.BytesIO(body)
    value = fastavro.schemaless_reader(stream, schema, None)
    assert not stream.read(1)
    return value


def encoded(relation: Relation, texts: list[bytes], options: TypeOptions) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Encode a row. Return the value that fastavro reads, and the texts that did not fit into their fields."""
    fields = TableFields(options).assign(relation)
    raw: list[tuple[bytes, bytes]] = []
    body = RowEncoder(relation, fields).encode(list(texts), [], raw)
    return read(value_schema("a.b.c", fields), body), {name.decode(): text for name, text in raw}


def value_of(kind: Kind, text: bytes) -> Any:  # noqa: ANN401 - whatever the type holds
    """Return the value of ``text``. Raise psycopg's error if the text is not valid for the type."""
    name, typmod = kind
    if name == "float4":
        return nearest_single(text)
    if name == "vector":
        return [nearest_single(part) for part in text[1:-1].split(b",")]
    if name == "hstore":
        return HstoreLoader(0).load(text)
    if name in _STRINGS or (name == "numeric" and typmod < 0):
        return text.decode()
    if name in ("_float4", "_bytea") or kind == ("_numeric", -1):
        # psycopg's loaders of these arrays read the items differently from this function
        items = _load("_text", text)
        return [item if item is None else value_of((name[1:], typmod), item.encode()) for item in items]
    return _load(name, text)


def _load(name: str, text: bytes) -> Any:  # noqa: ANN401 - whatever the type holds
    return _LOADERS.get_loader(OID[name], Format.TEXT).load(text)


def nearest_single(text: bytes) -> float:
    """Return the float4 that is nearest to ``text``. Compare it with its neighbours in exact arithmetic."""
    number = float(text)
    if number == 0 or not math.isfinite(number):  # also covers 0e123456789, which would take Fraction too long
        return number
    exact = Fraction(text.decode())
    bits = struct.unpack("<i", struct.pack("<f", abs(number)))[0]
    around = [_single(bits + step) for step in (-1, 0, 1) if 0 <= bits + step < 0x7F800000]
    # If two floats are equally near, take the even one.
    distances = [(abs(Fraction(single) - abs(exact)), struct.pack("<f", single)[0] & 1, single) for single in around]
    sign = -1.0 if text.startswith(b"-") else 1.0
    return sign * min(distances)[2]


def _single(bits: int) -> float:
    number: float = struct.unpack("<f", struct.pack("<i", bits))[0]
    return number


def same(one: object, other: object) -> bool:
    """Compare values. NaN equals NaN, and 0.0 does not equal -0.0."""
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other
