"""Values that TOML has no type for: durations, sizes, addresses and decimals. They are written as text.

The settings model uses them. A text is parsed exactly or refused. Nothing is rounded, and no unit is guessed.

https://docs.pydantic.dev/latest/concepts/types/#customizing-validation-with-__get_pydantic_core_schema__
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, ClassVar, Literal, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from pgsluice.avro.choices import parse_decimal

_MILLISECONDS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
MAX_PORT = 2**16 - 1


@dataclass(frozen=True, slots=True)
class Within:
    """The inclusive limits of a duration or size: ``Annotated[Duration, Within("1s", "1h")]``."""

    least: str
    most: str

    def __get_pydantic_core_schema__(
        self, source: type["TextValue"], handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        least, most = source.parse(self.least), source.parse(self.most)

        def check(value: Any) -> Any:  # noqa: ANN401 - the value and the limits have the annotated type
            if not least <= value <= most:
                raise ValueError(f"is {value}, but must be from {least} to {most}")
            return value

        return core_schema.no_info_after_validator_function(check, handler(source))


class TextValue(ABC):
    """A value that is written as text in every source of settings. ``str()`` gives the canonical text."""

    pattern: ClassVar[str]

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """Return the value of ``text``. If it is invalid, raise ValueError with a sentence that says what to write."""

    @classmethod
    def _validate(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls.parse(value)
        raise ValueError(cls.not_text(value))

    @classmethod
    def not_text(cls, value: object) -> str:
        """Return a sentence that says what to write instead of ``value``, which is not a text."""
        return f"must be a text in quotes, not {type(value).__name__}"

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: type[Any], _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _schema: core_schema.CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "pattern": cls.pattern}


def _split_unit(text: str, units: dict[str, int], example: str) -> int:
    match = re.fullmatch(r"([0-9]+) ?([A-Za-z]*)", text.strip(), re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is not a whole number with a unit: write it like {example!r}")
    number, unit = match.groups()
    if unit not in units:
        meant = number + _meant(unit, units)
        raise ValueError(f"{text!r} needs one of the units {', '.join(units)}: perhaps {meant!r}?")
    return int(number) * units[unit]


def _meant(unit: str, units: Iterable[str]) -> str:
    """Return the known unit that shares the longest prefix with ``unit``.

    If several units share a prefix of this length, return the largest of them, for example ``min`` for ``m``.
    """
    smallest_first = list(units)
    common = [_in_common(unit.lower(), known.lower()) for known in smallest_first]
    if not any(common):
        return smallest_first[0]
    return smallest_first[max(range(len(common)), key=lambda place: (common[place], place))]


def _in_common(one: str, other: str) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _join_unit(amount: int, units: dict[str, int]) -> str:
    name, factor = next(
        ((name, factor) for name, factor in reversed(units.items()) if amount and amount % factor == 0),
        next(iter(units.items())),
    )
    return f"{amount // factor}{name}"


@dataclass(frozen=True, slots=True, order=True)
class Duration(TextValue):
    """A length of time in whole milliseconds: ``50ms``, ``5s``, ``15min``, ``1h``, ``2d``."""

    milliseconds: int
    pattern: ClassVar[str] = r"^[0-9]+ ?(ms|s|min|h|d)$"

    @property
    def seconds(self) -> float:
        """The duration in seconds, for asyncio and sockets."""
        return self.milliseconds / 1000

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the duration that ``text`` stands for."""
        return cls(_split_unit(text, _MILLISECONDS, "5s"))

    @classmethod
    def not_text(cls, value: object) -> str:
        """Return a sentence that suggests a unit."""
        number = value if type(value) is int else 5
        return f'a duration is a text with a unit (ms, s, min, h, d): write "{number}s" or "{number}ms"'

    def __str__(self) -> str:
        return _join_unit(self.milliseconds, _MILLISECONDS)


@dataclass(frozen=True, slots=True, order=True)
class Size(TextValue):
    """A number of bytes: ``512B``, ``64KiB``, ``16MiB``, ``20GiB``, ``1TiB``."""

    bytes: int
    pattern: ClassVar[str] = r"^[0-9]+ ?(B|KiB|MiB|GiB|TiB)$"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the size that ``text`` stands for."""
        return cls(_split_unit(text, _BYTES, "16MiB"))

    @classmethod
    def not_text(cls, value: object) -> str:
        """Return a sentence that suggests a unit."""
        number = value if type(value) is int else 16
        return f'a size is a text with a unit (B, KiB, MiB, GiB, TiB): write "{number}B" or "{number}MiB"'

    def __str__(self) -> str:
        return _join_unit(self.bytes, _BYTES)


@dataclass(frozen=True, slots=True)
class ListenAddress(TextValue):
    """The address on which a server listens: ``127.0.0.1:8080``, ``[::1]:8080``. Port 0 lets the system choose."""

    host: str
    port: int
    pattern: ClassVar[str] = r"^(\[[0-9a-fA-F:.]+\]|[^:\[\]]+):[0-9]{1,5}$"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the address that ``text`` stands for."""
        match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]\s]+)):([0-9]{1,5})", text, re.ASCII)
        if match is None or int(match[3]) > MAX_PORT:
            raise ValueError(f"{text!r} is not an address with a port: write it like '0.0.0.0:8080'")
        host = match[1] or match[2]
        try:
            host.encode("idna")
        except UnicodeError:
            raise ValueError(f"no host can have the name {host!r}") from None
        return cls(host, int(match[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class NumericAs(TextValue):
    """The Avro type of numeric without precision: ``string``, or a chosen ``decimal(precision,scale)``."""

    decimal: tuple[int, int] | None = None
    pattern: ClassVar[str] = r"^(string|decimal\( *[0-9]+ *, *[0-9]+ *\))$"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the type that ``text`` names."""
        if text == "string":
            return cls()
        decimal = parse_decimal(text)
        if decimal is None:
            raise ValueError(f"{text!r} is neither 'string' nor a decimal: write it like 'decimal(38,9)'")
        return cls(decimal)

    @property
    def avro(self) -> Literal["string"] | tuple[int, int]:
        """The type in the form that ``TypeOptions`` takes."""
        return self.decimal or "string"

    def __str__(self) -> str:
        return "string" if self.decimal is None else f"decimal({self.decimal[0]},{self.decimal[1]})"
