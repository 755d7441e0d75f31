"""Confluent's wire format: how a schema is written, identified, and named in front of a message.

Used by the registries (ids), the envelope (framing of keys and values) and everything that reads them back.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

import hashlib
import json
import struct
from typing import Any, Final, TypeAlias

Schema: TypeAlias = str | dict[str, Any] | list[Any]
"""A schema as parsed JSON: a name, a record, array, map or annotated type, or a union."""

_HEADER: Final = struct.Struct(">bI")
_MAX_ID: Final = 2**31 - 1  # ids are Java ints


def normalise(schema: Schema) -> str:
    """Return the one text of ``schema`` that is hashed, registered and compared."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def schema_id(normalised: str) -> int:
    """Return the id that the text of a schema has everywhere: 31 bits of its SHA-256, never 0."""
    return _id_of_digest(hashlib.sha256(normalised.encode()).digest())


def _id_of_digest(digest: bytes) -> int:
    return int.from_bytes(digest[:4], "big") & _MAX_ID or 1


def header(identifier: int) -> bytes:
    """Return what stands before the Avro body of a message under this schema id."""
    return _HEADER.pack(0, identifier)


def unframe(data: bytes) -> tuple[int, bytes]:
    """Split a framed message into schema id and Avro body; ValueError when it is not framed."""
    if len(data) < _HEADER.size or data[0] != 0:
        raise ValueError("not in Confluent's wire format (expected a zero byte and a 4-byte schema id)")
    return _HEADER.unpack_from(data)[1], data[_HEADER.size :]
