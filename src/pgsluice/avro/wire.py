"""Confluent's wire format: the text and the id of a schema, and the header with the id in front of a message.

The registries use this module for ids. The envelope uses it to put the header in front of keys and values. Code that
reads keys and values uses it to remove the header.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

import hashlib
import json
import struct
from collections.abc import Iterable
from math import isinf
from typing import Any, Final, TypeAlias

Schema: TypeAlias = str | dict[str, Any] | list[Any]
"""A schema as parsed JSON. A string is the name of a type, and a list is a union. A dict is a record, an array, a map,
or a type with attributes."""

NESTING_MAX: Final = 128
"""How deeply arrays and objects may be nested in the JSON of service topics. Our own JSON has fewer than a hundred
levels. A schema has two levels for each level of a nested PostgreSQL array, and ``pgbinary.conversions`` limits the
array's levels."""

_HEADER: Final = struct.Struct(">bI")
_MAX_ID: Final = 2**31 - 1  # ids are Java ints


def normalise(schema: Schema) -> str:
    """Return the canonical text of ``schema``, which is hashed, registered and compared."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def read_json(text: str) -> object:
    """Return the value of a JSON text that anybody may have written. Raise ValueError with the reason if it is invalid.

    The value can be written again as JSON in UTF-8, and recursive functions can process it.
    """
    try:
        found = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        # Half of a surrogate pair cannot be written in UTF-8. The text was UTF-8, so only an escape can contain such a
        # half.
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
    if isinf(found):  # the number would be written as Infinity, which is not JSON
        raise ValueError("its JSON has a number that is too large")
    return found


def _is_deeper(value: Any, levels: int) -> bool:  # noqa: ANN401 - any JSON
    """Return whether ``value`` (an array or an object) is nested more than ``levels`` levels deep."""
    row = [value]
    for _ in range(levels):
        row = [inner for outer in row for inner in _parts(outer) if isinstance(inner, dict | list)]
    return bool(row)


def _parts(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def schema_id(normalised: str) -> int:
    """Return the id of a schema's text: 31 bits of its SHA-256, but never 0. Every process computes the same id."""
    return _id_of_digest(hashlib.sha256(normalised.encode()).digest())


def _id_of_digest(digest: bytes) -> int:
    return int.from_bytes(digest[:4], "big") & _MAX_ID or 1


def header(identifier: int) -> bytes:
    """Return the header that precedes the Avro body of a message with this schema id."""
    return _HEADER.pack(0, identifier)


def unframe(data: bytes) -> tuple[int, bytes]:
    """Return the schema id and the Avro body of a framed message. Raise ValueError if it is not framed."""
    if len(data) < _HEADER.size or data[0] != 0:
        raise ValueError("not in Confluent's wire format (expected a zero byte and a 4-byte schema id)")
    return _HEADER.unpack_from(data)[1], data[_HEADER.size :]
