"""Shows whether Avro schemas that are written differently are equal, and whether they read bytes in the same way.

:mod:`.look_up` uses this module to find a schema among the versions of a subject. Other modules use it to compare a
registry server's schemas with ours. Clients and servers send a schema as their own Avro library writes it. Java's
library, for example, omits inherited namespaces and writes ``{"type": "string"}`` as ``"string"``. Avro's parsing
canonical form is not enough, because it drops attributes. :func:`canonical` keeps everything that has a meaning:
logical types, defaults, documentation and properties.

https://avro.apache.org/docs/1.12.0/specification/#names
"""

import json
import re
from typing import Any, Final

from pgsluice.avro.wire import Schema, normalise

_PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_NAMED: Final = frozenset(("record", "error", "enum", "fixed"))
_CONTAINERS: Final = {"array": "items", "map": "values"}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)


NAME_MAX: Final = 4096
"""The longest full name, in characters. Our names consist of prefix, schema, table and column. With all escapes, they
have at most 1,500 characters."""

NAMES_MAX: Final = 8 * 1024 * 1024
"""The maximum number of characters in all full names of a schema together. A namespace is written once, but can apply
to thousands of names, so the full names can be a thousand times as long as the schema."""

_SHOWN: Final = 100
"""An error message repeats at most this many characters of a wrong schema."""

_SHAPE: Final = frozenset(
    ("type", "name", "fields", "items", "values", "symbols", "size", "logicalType", "precision", "scale")
)
"""The attributes of a schema that decide which values are read from given bytes."""


def shape(schema: Schema) -> str:
    """Return a text that is equal for all schemas that read the same bytes as the same values."""
    return normalise(_shape(json.loads(canonical(schema))))


def _shape(part: Any) -> Any:  # noqa: ANN401 - any part of a schema
    if isinstance(part, list):
        return [_shape(one) for one in part]
    if isinstance(part, dict):
        return {name: _shape(one) for name, one in part.items() if name in _SHAPE}
    return part


def canonical(schema: Schema) -> str:
    """Return a text that is equal for all ways of writing ``schema``.

    Raise ValueError if ``schema`` is not an Avro schema, or is too large.
    """
    try:
        return normalise(_Names().schema(schema, ""))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class _Names:
    """Writes every name in full, and knows the names that are defined so far."""

    def __init__(self) -> None:
        self._defined: set[str] = set()
        self._written = 0
        """The characters of all names so far."""

    def schema(self, schema: object, namespace: str) -> Schema:
        if isinstance(schema, str):
            return schema if schema in _PRIMITIVES else self._reference(schema, namespace)
        if isinstance(schema, list):
            return [self.schema(branch, namespace) for branch in schema]
        if isinstance(schema, dict):
            return self._annotated(schema, namespace)
        raise ValueError(f"{_shown(schema)} is not a schema")

    def _reference(self, name: str, namespace: str) -> str:
        full = self._full_name(name, namespace)
        if full not in self._defined:
            raise ValueError(f"unknown type {_shown(name)}")
        return full

    def _annotated(self, schema: dict[str, Any], namespace: str) -> Schema:
        kind = schema.get("type")
        if not isinstance(kind, str):
            return self.schema(kind, namespace)
        if kind in _NAMED:
            return self._definition(schema, kind, namespace)
        if kind in _CONTAINERS:
            part = _CONTAINERS[kind]
            return {**schema, part: self.schema(schema.get(part), namespace)}
        plain = self.schema(kind, namespace)
        return schema if kind in _PRIMITIVES and len(schema) > 1 else plain

    def _definition(self, schema: dict[str, Any], kind: str, namespace: str) -> Schema:
        name = self._full_name(schema.get("name"), schema.get("namespace", namespace))
        self._defined.add(name)
        attributes = {key: value for key, value in schema.items() if key != "namespace"}
        attributes["name"] = name
        if kind in {"record", "error"}:
            inner = name.rpartition(".")[0]
            attributes["fields"] = [self._field(field, inner) for field in _fields(schema)]
        return attributes

    def _field(self, field: object, namespace: str) -> dict[str, Any]:
        if not isinstance(field, dict):
            raise ValueError(f"{_shown(field)} is not a field")  # noqa: TRY004 - wrong data, not a wrong argument
        self._full_name(field.get("name"), "")
        return {**field, "type": self.schema(field.get("type"), namespace)}

    def _full_name(self, name: object, namespace: object) -> str:
        if not isinstance(name, str) or not isinstance(namespace or "", str):
            raise ValueError(f"{_shown(name)} is not a name")  # noqa: TRY004 - wrong data, not a wrong argument
        full = f"{namespace}.{name}" if namespace and "." not in name else name
        if len(full) > NAME_MAX:
            raise ValueError(f"{_shown(full)} is longer than {NAME_MAX} characters")
        if not _NAME.fullmatch(full):
            raise ValueError(f"{_shown(name)} is not a name")
        self._written += len(full)
        if self._written > NAMES_MAX:
            raise ValueError(f"its names take more than {NAMES_MAX} characters")
        return full


def _shown(mistake: object) -> str:
    text = repr(mistake)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _fields(record: dict[str, Any]) -> list[object]:
    fields = record.get("fields")
    if not isinstance(fields, list):
        raise ValueError("a record without fields")  # noqa: TRY004 - wrong data, not a wrong argument
    return fields
