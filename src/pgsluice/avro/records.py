"""Writes records of our own service topics, and reads records that other programs may have written to these topics.

fastavro trusts schemas. A schema that contains itself can crash the process, and an array can have billions of items if
an item takes no bytes. So fastavro gets only schemas that this module has put together.

https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
"""

from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

import fastavro
from fastavro.read import SchemaResolutionError

from pgsluice.avro.wire import header, read_json, unframe

_PRIMITIVES: Final = ("boolean", "int", "long", "float", "double", "bytes", "string")
DAMAGED: Final = (EOFError, IndexError, ValueError, OverflowError, SchemaResolutionError)
"""The errors that fastavro raises for bytes that do not follow a schema."""


def record_writer(schema_id: int, schema: dict[str, Any]) -> Callable[[dict[str, Any]], bytes]:
    """Return a function that writes a record of ``schema`` in Confluent's wire format."""
    parsed, head = fastavro.parse_schema(schema), header(schema_id)

    def write(record: dict[str, Any]) -> bytes:
        out = BytesIO(head)
        out.seek(len(head))
        fastavro.schemaless_writer(out, parsed, record)
        return out.getvalue()

    return write


def record_reader(schema: dict[str, Any], find: Callable[[int], str | None]) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that reads a framed record of ``schema``, or raises ValueError with the reason if it cannot.

    ``find`` returns the text of the schema with a given id, or None if the id is not known. The schema of the record
    has to be a version of ``schema``: it may lack fields that have a default, and may have further fields of primitive
    types. Logical types are ignored, so a timestamp is a number.
    """
    wanted = _plain(schema)
    reader, writers = fastavro.parse_schema(wanted), dict[int, Any]()

    def read(data: bytes) -> dict[str, Any]:
        identifier, body = unframe(data)
        if identifier not in writers:
            writers[identifier] = fastavro.parse_schema(_writer(find(identifier), wanted, identifier))
        stream = BytesIO(body)
        try:
            found = fastavro.schemaless_reader(stream, writers[identifier], reader)
        except DAMAGED:
            raise ValueError(f"it does not follow its schema {identifier}") from None
        if stream.tell() != len(body):
            raise ValueError(f"it has more bytes than its schema {identifier} describes")
        assert isinstance(found, dict), "the schema is that of a record"
        return found

    return read


def _plain(schema: Any) -> Any:  # noqa: ANN401 - any part of a schema
    """Return our own schema without logical types."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema["type"] in _PRIMITIVES:
        return schema["type"]
    inner = {name: _plain(schema[name]) for name in ("items", "values") if name in schema}
    if "fields" in schema:
        inner["fields"] = [{**field, "type": _plain(field["type"])} for field in schema["fields"]]
    return {**schema, **inner}


def _writer(text: str | None, wanted: dict[str, Any], identifier: int) -> Any:  # noqa: ANN401 - a record's schema
    if text is None:
        raise ValueError(f"its schema {identifier} is not known")
    try:
        return _version_of(wanted, read_json(text))
    except _Other:
        raise ValueError(f"its schema {identifier} describes something else") from None


class _Other(Exception):
    """The schema is not a version of the wanted one."""


def _version_of(wanted: Any, written: Any) -> Any:  # noqa: ANN401 - any part of a schema
    """Return the types of ``written``, built from parts of ``wanted``.

    Raise _Other if ``written`` is not a version of ``wanted``.
    """
    match wanted, written:
        case {"type": "record"}, {"type": "record", "fields": [*fields]}:
            return {**wanted, "fields": _fields_of(wanted["fields"], fields)}
        case {"type": "array"}, {"type": "array", "items": items}:
            return {**wanted, "items": _version_of(wanted["items"], items)}
        case {"type": "map"}, {"type": "map", "values": values}:
            return {**wanted, "values": _version_of(wanted["values"], values)}
        case [*ours], [*theirs] if len(ours) == len(theirs):
            return [_version_of(*branches) for branches in zip(ours, theirs, strict=True)]
        case str(), str() | {"type": str()}:
            return _primitive(wanted, written)
    raise _Other


def _primitive(wanted: str, written: Any) -> str:  # noqa: ANN401 - a name, or an object with one
    if wanted != (written if isinstance(written, str) else written["type"]):
        raise _Other
    return wanted


def _fields_of(wanted: list[dict[str, Any]], written: list[Any]) -> list[dict[str, Any]]:
    """Return the written fields, in their order.

    Raise _Other if a field without a default is missing. Each of our records has at least one field without a default,
    so no record is encoded in zero bytes.
    """
    known = {field["name"]: field for field in wanted}
    found = [_field(place, field, known) for place, field in enumerate(written)]
    names = [field["name"] for field in found]
    missing = [name for name, field in known.items() if "default" not in field and name not in names]
    if missing or len(set(names)) != len(names):
        raise _Other
    return found


def _field(place: int, written: Any, known: dict[str, dict[str, Any]]) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    match written:
        case {"name": str(name), "type": kind} if name in known:
            return {"name": name, "type": _version_of(known[name]["type"], kind)}
        case {"type": str(kind) | {"type": str(kind)}} if kind in _PRIMITIVES:
            return {"name": f"_unknown_{place}", "type": kind}
        case {"type": ["null", str(kind) | {"type": str(kind)}]} if kind in _PRIMITIVES:
            return {"name": f"_unknown_{place}", "type": ["null", kind]}
    raise _Other
