"""Converts decoded Avro values back to PostgreSQL's texts, based only on the contract's table of types.

The PostgreSQL session whose texts are compared must have the settings in ``SESSION``. Floats of both sides are
converted to Python's shortest form, because servers before 12 print more digits than necessary.
"""

import json
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

SESSION = """
SET DateStyle = ISO; SET IntervalStyle = iso_8601; SET TimeZone = 'UTC'; SET extra_float_digits = 3;
SET bytea_output = hex; SET lc_monetary = 'C'; SET search_path = ''; SET client_encoding = 'UTF8'
"""

INTEGERS = ("int2", "int4", "int8")

# If an element contains one of these characters, array_out quotes it. It also quotes empty elements and the word NULL.
_QUOTED = re.compile(r'["\\{}\s]')
_FLOAT = re.compile(r"[^{},]+")

Converter = Callable[[Any], str]


def converter(schema: Any, pg_type: str) -> Converter:  # noqa: ANN401 - an Avro schema as JSON
    """Return a function that converts values of a non-null Avro type to the text of ``pg_type``."""
    if not isinstance(schema, dict):
        return _integer if schema == "double" and pg_type in INTEGERS else _PRIMITIVES[schema]
    if "logicalType" in schema:
        return _LOGICAL[schema["logicalType"]]
    if schema["type"] == "map":
        return _hstore
    if schema["type"] == "array":
        return _vector if pg_type == "vector" else _array(schema["items"][1], pg_type)
    return _PRIMITIVES[schema["type"]]


def canonical_floats(text: str) -> str:
    """Return the text of a float8, or of a one-dimensional array of float8, in the form that ``converter`` writes."""
    return _FLOAT.sub(lambda match: match[0] if match[0] == "NULL" else repr(float(match[0])), text)


def _array(items: Any, pg_type: str) -> Converter:  # noqa: ANN401 - an Avro schema as JSON
    to_text, delimiter = converter(items, pg_type.removeprefix("_")), ";" if pg_type == "_box" else ","

    def write(values: list[Any]) -> str:
        texts = ["NULL" if value is None else _element(to_text(value), delimiter) for value in values]
        return "{" + delimiter.join(texts) + "}"

    return write


def _element(text: str, delimiter: str) -> str:
    if text and text.upper() != "NULL" and not _QUOTED.search(text) and delimiter not in text:
        return text
    return _quoted(text)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'


def _hstore(pairs: dict[str, str | None]) -> str:
    texts = (f"{_quoted(key)}=>{'NULL' if value is None else _quoted(value)}" for key, value in pairs.items())
    return ", ".join(texts)


def _vector(values: list[float]) -> str:
    return json.dumps(values, separators=(",", ":"))


def _boolean(value: bool) -> str:  # noqa: FBT001 - the value itself
    return "t" if value else "f"


def _integer(value: float) -> str:
    assert value == int(value), f"{value} in an integer column"
    return str(int(value))


def _bytea(value: bytes) -> str:
    return f"\\x{value.hex()}"


def _date(value: date) -> str:
    return value.isoformat()


def _time(value: time) -> str:
    return _without_zeros(value.isoformat("microseconds"))


def _timestamp(value: datetime) -> str:
    return _without_zeros(value.replace(tzinfo=None).isoformat(" ", "microseconds"))


def _timestamptz(value: datetime) -> str:
    assert value.utcoffset() == timedelta(0), "timestamptz is read as UTC"
    return f"{_timestamp(value)}+00"


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def _decimal(value: Decimal) -> str:
    return format(value, "f")


_PRIMITIVES: dict[str, Converter] = {
    "boolean": _boolean,
    "int": _integer,
    "long": _integer,
    "float": repr,
    "double": repr,
    "string": str,
    "bytes": _bytea,
}

_LOGICAL: dict[str, Converter] = {
    "date": _date,
    "time-micros": _time,
    "time-millis": _time,
    "local-timestamp-micros": _timestamp,
    "local-timestamp-millis": _timestamp,
    "timestamp-micros": _timestamptz,
    "timestamp-millis": _timestamptz,
    "interval-micros": _integer,
    "decimal": _decimal,
    "uuid": str,
}
