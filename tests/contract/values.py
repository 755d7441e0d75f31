"""The form of values in the golden JSON, which does not depend on the library that has read the values.

Dates and times are in ISO 8601. If the year is outside 1 to 9999, they are the numbers that Avro encodes. Decimals are
strings. Bytes are written as in Avro's JSON, one character each. Floats that JSON cannot express are written by name.
"""

import math
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, TypeAlias
from uuid import UUID

Json: TypeAlias = Any
Schema: TypeAlias = Any
"""A schema as parsed JSON."""

Leaf: TypeAlias = Callable[[str, dict[str, Any], Any], Json]
"""A function that converts a scalar to JSON. It takes the Avro type, the attributes of the schema, and the value."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"micros": timedelta(microseconds=1), "millis": timedelta(milliseconds=1)}
_EXACT = Context(prec=1000)


def physical(schema: Schema) -> Schema:
    """Return ``schema`` without logical types, so that values are read as plain numbers and bytes."""
    if isinstance(schema, list):
        return [physical(branch) for branch in schema]
    if isinstance(schema, str):
        return schema
    if "logicalType" in schema:
        return schema["type"]
    parts = {name: physical(schema[name]) for name in ("items", "values") if name in schema}
    if "fields" in schema:
        parts["fields"] = [{**field, "type": physical(field["type"])} for field in schema["fields"]]
    return {**schema, **parts}


def json_of(schema: Schema, value: Any) -> Json:  # noqa: ANN401 - whatever the schema says
    """Return the JSON of a value that was read with the ``physical`` schema, or that Avro wrote as JSON."""
    return walk(schema, value, _avro)


def walk(schema: Schema, value: Any, leaf: Leaf) -> Json:  # noqa: ANN401 - whatever the schema says
    """Convert a value to JSON. ``leaf`` converts the scalars in the value."""
    return _walk(schema, value, leaf, dict(_records(schema)))


def _records(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield the name and the schema of each record in ``schema``."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _records(branch)
    elif isinstance(schema, dict):
        for name in ("items", "values"):
            yield from _records(schema.get(name))
        for field in schema.get("fields", []):
            yield from _records(field["type"])
        if "fields" in schema:
            yield schema["name"], schema


def _walk(
    schema: Schema,
    value: Any,  # noqa: ANN401 - whatever the schema says
    leaf: Leaf,
    names: dict[str, Schema],
) -> Json:
    match schema:
        case ["null", branch]:
            return None if value is None else _walk(branch, value, leaf, names)
        case {"type": "record", "fields": fields}:
            return {field["name"]: _walk(field["type"], value[field["name"]], leaf, names) for field in fields}
        case {"type": "array", "items": items}:
            return [_walk(items, item, leaf, names) for item in value]
        case {"type": "map", "values": values}:
            return {name: _walk(values, value[name], leaf, names) for name in sorted(value)}
        case {"type": kind}:
            return leaf(kind, schema, value)
        case _:
            return _walk(names[schema], value, leaf, names) if schema in names else leaf(schema, {}, value)


def _avro(kind: str, schema: dict[str, Any], value: Any) -> Json:  # noqa: ANN401 - whatever the schema says
    match schema.get("logicalType"):
        case "decimal":
            return decimal_text(Decimal(_unscaled(value)).scaleb(-schema.get("scale", 0), _EXACT))
        case "date":
            return _moment(value, timedelta(days=1), lambda moment: moment.date().isoformat())
        case "time-micros" | "time-millis" as name:
            return _moment(value, _UNITS[name[-6:]], lambda moment: moment.time().isoformat())
        case "timestamp-micros" | "timestamp-millis" as name:
            return _moment(value, _UNITS[name[-6:]], datetime.isoformat)
        case "local-timestamp-micros" | "local-timestamp-millis" as name:
            return _moment(value, _UNITS[name[-6:]], lambda moment: moment.replace(tzinfo=None).isoformat())
        case _:
            return primitive(kind, value)


def primitive(kind: str, value: Any) -> Json:  # noqa: ANN401 - whatever the schema says
    """Return the JSON of a scalar without logical type."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if kind not in ("float", "double"):
        return value
    number = float(value)
    if not math.isfinite(number):
        return special(number)
    return struct.unpack("f", struct.pack("f", number))[0] if kind == "float" else number


def special(number: float) -> str:
    """Return the name of a float that JSON cannot express."""
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def decimal_text(number: Decimal) -> str:
    """Return a decimal as text, with all its digits."""
    return f"{number:f}"


def _unscaled(value: bytes | str) -> int:
    data = value.encode("latin-1") if isinstance(value, str) else value
    return int.from_bytes(data, "big", signed=True)


def _moment(number: int, unit: timedelta, text: Callable[[datetime], str]) -> str | int:
    try:
        return text(_EPOCH + number * unit)
    except OverflowError:
        return number


def plain(value: Any) -> Json:  # noqa: ANN401, PLR0911 - whatever fastavro read
    """Return a value that fastavro has read with logical types, in the form of the golden JSON."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return decimal_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return special(value)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return str(value) if isinstance(value, UUID) else value
