"""The expected values of columns for which the settings choose an Avro type. ``proof`` uses this module.

The values are derived from the documentation, independently of pgsluice's code.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, time
from decimal import Decimal
from typing import Any, Final

from tests.support.avro_oracle import nearest_single

CHOICES: Mapping[str, Sequence[str]] = {
    "int2": ["long"],
    "int4": ["long"],
    "xid8": ["long"],
    "float4": ["double"],
    "numeric": ["decimal(38,9)", "decimal(12,2)", "double", "long"],
    "time": ["time-millis"],
    "timestamp": ["local-timestamp-millis", "timestamp-millis", "timestamp-micros"],
    "timestamptz": ["timestamp-millis"],
    "interval": ["interval-micros"],
}
"""The Avro types that can be chosen for each type, besides its usual Avro type and ``string``.

``string`` can always be chosen.
"""

UNFIT: Final = object()
"""Stands for a value that is marked, because the Avro type cannot hold it."""

_LONG_MAX = 2**63
_MOMENT = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?(?:\+00)?")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?")
_PART = re.compile(r"(-?[0-9.]+)([YMDHS])")
_PARTS_US = {"D": 86_400_000_000, "H": 3_600_000_000, "M": 60_000_000, "S": 1_000_000}


def expected(choice: str, pg_type: str, text: str) -> Any:  # noqa: ANN401 - any value
    """Return the value that has to arrive for the server's ``text``, or UNFIT if the value has to be marked."""
    if choice == "string":
        return text
    if choice.startswith("decimal"):
        precision, scale = map(int, choice[8:-1].split(","))
        return _decimal(text, precision, scale)
    if choice == "double":
        return _double(text) if pg_type == "numeric" else nearest_single(text.encode())
    return _OTHERS[choice](text)


def arrived(value: Any) -> Any:  # noqa: ANN401 - any value
    """Return fastavro's value. Remove the time zone, which is always UTC."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def _decimal(text: str, precision: int, scale: int) -> Any:  # noqa: ANN401 - UNFIT is an object
    if text in ("NaN", "Infinity", "-Infinity"):
        return UNFIT
    number = Decimal(text)
    whole, _, fraction = text.lstrip("-").partition(".")
    fits = len(fraction.rstrip("0")) <= scale and len(whole.lstrip("0")) <= precision - scale
    return number if fits else UNFIT


def _double(text: str) -> Any:  # noqa: ANN401 - UNFIT is an object
    number = float(text)
    if not math.isfinite(number):
        return number if text.lstrip("-") in ("NaN", "Infinity") else UNFIT
    return number if Decimal(repr(number)) == Decimal(text) else UNFIT


def _long(text: str) -> Any:  # noqa: ANN401 - UNFIT is an object
    if len(text) > 20 or not re.fullmatch("-?[0-9]+", text):
        return UNFIT
    return int(text) if -_LONG_MAX <= int(text) < _LONG_MAX else UNFIT


def _moment(digits: int) -> Callable[[str], Any]:
    def read(text: str) -> Any:  # noqa: ANN401 - UNFIT is an object
        match = _MOMENT.fullmatch(text)
        if match is None or len(match[7] or "") > digits:
            return UNFIT
        return datetime.fromisoformat(f"{text[:19]}.{match[7] or '0':<06}")

    return read


def _time_millis(text: str) -> Any:  # noqa: ANN401 - UNFIT is an object
    match = _TIME.fullmatch(text)
    assert match is not None
    if text == "24:00:00" or len(match[4] or "") > 3:
        return UNFIT
    return time.fromisoformat(f"{text[:8]}.{match[4] or '0':<06}")


def _interval_micros(text: str) -> Any:  # noqa: ANN401 - UNFIT is an object
    days, _, hours = text.partition("T")
    parts = [*_PART.findall(days), *_PART.findall(hours)]
    if "infinity" in text or any(unit in "YM" for _, unit in _PART.findall(days)):
        return UNFIT
    number = int(sum(Decimal(amount) * _PARTS_US[unit] for amount, unit in parts))
    return number if -_LONG_MAX <= number < _LONG_MAX else UNFIT


_OTHERS: Mapping[str, Callable[[str], Any]] = {
    "long": _long,
    "time-millis": _time_millis,
    "local-timestamp-millis": _moment(3),
    "timestamp-millis": _moment(3),
    "timestamp-micros": _moment(6),
    "interval-micros": _interval_micros,
}
