"""Confluent's wire format: how a schema is written, identified, and named in front of a message.

Used by the registries (ids), the envelope (framing of keys and values) and everything that reads them back.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

import hashlib
import json
import struct
from collections.abc import Iterable
from math import isinf
from typing import Any, Final, TypeAlias

Schema: TypeAlias = str | dict[str, Any] | list[Any]
"""A schema as parsed JSON: a name, a record, array, map or annotated type, or a union."""

NESTING_MAX: Final = 128
"""How many levels of arrays and objects JSON in service topics may have. Our own has less than a hundred: two for each
level of arrays in arrays, which ``sent.types`` limits."""

_HEADER: Final = struct.Struct(">bI")
_MAX_ID: Final = 2**31 - 1  # ids are Java ints


def normalise(schema: Schema) -> str:
    """Return the one text of ``schema`` that is hashed, registered and compared."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def read_json(text: str) -> object:
    """Return the value of a text that anybody may have written; ValueError, saying why, when it is not usable as JSON.

    The value can be written again, as JSON in UTF-8, and functions that call themselves can walk through it.
    """
    try:
        found = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        # Half of a surrogate pair has no UTF-8. Without an escape there is none: the text itself came as UTF-8.
        if "\\u" in text:
            normalise(found).encode()
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("its JSON has half of a surrogate pair") from None
    is_large = text.count("[") + text.count("{") > NESTING_MAX and isinstance(found, dict | list)
    if is_large and _is_deeper(found, NESTING_MAX):
        raise ValueError("its JSON is nested too deeply")
    return found


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _finite(number: str) -> float:
    found = float(number)
    if isinf(found):  # it would be written as Infinity
        raise ValueError("its JSON has a number that is too large")
    return found


def _is_deeper(value: Any, levels: int) -> bool:  # noqa: ANN401 - any JSON
    """Return whether ``value``, an array or an object, has more levels of them."""
    row = [value]
    for _ in range(levels):
        row = [inner for outer in row for inner in _parts(outer) if isinstance(inner, dict | list)]
    return bool(row)


def _parts(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


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
