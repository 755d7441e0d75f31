"""Reads the TOML file of ``pgsluice-spark``. If the file has a mistake, the error names the file and the key.

Used by :mod:`.commands`, :mod:`.submit` and :mod:`.jars`. This module reads only the TOML file, and the password files
that the TOML file names.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PATTERN_ALL: Final = ("*",)

DELTA: Final = "delta"
PARQUET: Final = "parquet"
"""The values of ``target.format``."""

_KEYS: Final[Mapping[str, Mapping[str, type]]] = {
    "pipeline": {"prefix": str, "bootstrap_servers": str, "kafka_options": dict},
    "registry": {"url": str, "username": str, "password_file": str, "topic": str},
    "target": {"path": str, "format": str, "catalog": str, "namespace": str, "tables": list},
    "query": {"checkpoint": str, "trigger": str, "max_events": int},
    "maintenance": {"every": str, "keep": str, "compact": bool},
    "postgres": {"dsn": str, "password_file": str},
    "spark": {},
}
"""The tables of the file and their keys. ``spark`` may have any setting of Spark."""

_REQUIRED: Final = ("pipeline.prefix", "pipeline.bootstrap_servers")
_NAMES: Final[Mapping[type, str]] = {
    str: "a string",
    dict: "a table",
    list: "an array of strings",
    int: "a number",
    bool: "true or false",
}


class ConfigError(Exception):
    """The file cannot be read, or has a key or a value that is not allowed."""


@dataclass(frozen=True, slots=True)
class Config:
    """The content of the file."""

    file: str
    values: Mapping[str, Mapping[str, Any]] = field(repr=False)

    def get(self, key: str) -> Any:  # noqa: ANN401 - of the type that _KEYS says
        """Return the value of a key that a command needs. Raise ConfigError if the file does not have the key."""
        found = self.find(key)
        if found is None:
            raise ConfigError(f"{self.file}: {key} is missing, but this command needs it. Add it")
        return found

    def find(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - of the type that _KEYS says
        """Return the value of a key, or ``default`` if the file does not have the key."""
        table, _, name = key.partition(".")
        return self.values.get(table, {}).get(name, default)

    def secret(self, key: str) -> str | None:
        """Return the content of the file whose path is the value of ``key``, or None if the key is not set."""
        path = self.find(key)
        if path is None:
            return None
        try:
            return Path(path).read_text(encoding="utf-8").rstrip("\n")
        except OSError as error:
            raise ConfigError(f"{self.file}: {key}: {path} cannot be read: {error.strerror}") from None

    @property
    def tables(self) -> Sequence[str]:
        """The names or patterns of the tables."""
        found: Sequence[str] = self.find("target.tables", PATTERN_ALL)
        return found

    @property
    def maintenance(self) -> Mapping[str, Any] | None:
        """The settings in ``[maintenance]``. None if the file does not have this table."""
        return self.values.get("maintenance")

    @property
    def spark(self) -> dict[str, str]:
        """Settings of Spark."""
        return {name: _text(value) for name, value in self.values.get("spark", {}).items()}


def read(path: str) -> Config:
    """Read a file and return its content. Raise ConfigError if the file has a mistake."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    for name, table in values.items():
        _check_table(path, name, table)
    config = Config(path, values)
    for key in _REQUIRED:
        config.get(key)
    if (config.find("registry.url") is None) == (config.find("registry.topic") is None):
        raise ConfigError(f"{path}: registry needs one of url and topic (such as shop.schemas)")
    _check_target(config)
    return config


def _check_target(config: Config) -> None:
    is_set = {key: config.find(f"target.{key}") is not None for key in ("path", "catalog", "namespace")}
    if is_set["catalog"] != is_set["namespace"] or is_set["path"] == is_set["catalog"]:
        raise ConfigError(
            f"{config.file}: target needs either path, for Delta tables, or both catalog and namespace, for Iceberg "
            "tables. Give one of the two"
        )
    kind = config.find("target.format", DELTA)
    if kind not in (DELTA, PARQUET) or not (is_set["path"] or config.find("target.format") is None):
        raise ConfigError(f"{config.file}: target.format must be {DELTA} or {PARQUET}, and needs target.path")


def _check_table(path: str, name: str, table: object) -> None:
    if name not in _KEYS:
        raise ConfigError(f"{path}: {name} is unknown. The file has the tables {', '.join(_KEYS)}")
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {name} must be a table: [{name}]")
    if name == "spark":
        return
    for key, value in table.items():
        kind = _KEYS[name].get(key)
        if kind is None:
            raise ConfigError(f"{path}: {name}.{key} is unknown. [{name}] has {', '.join(_KEYS[name])}")
        if not _is_of(value, kind):
            raise ConfigError(f"{path}: {name}.{key} must be {_NAMES[kind]}")


def _is_of(value: object, kind: type) -> bool:
    if isinstance(value, list):
        return kind is list and all(isinstance(item, str) for item in value)
    if isinstance(value, dict):
        return kind is dict and all(isinstance(item, str) for item in value.values())
    return type(value) is kind


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
