"""Merges the sources of settings, validates the result, and reports all problems together.

The commands use this module. The order of precedence is: flags, environment, secret files, file.

https://docs.pydantic.dev/latest/concepts/pydantic_settings/#customise-settings-sources
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Self

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pgsluice.config.http import Http
from pgsluice.config.keys import RULES, Names, all_keys, all_sections, nearest, section_keys
from pgsluice.config.model import Settings
from pgsluice.config.problems import KeyProblems, Path, Problem, SettingsError, did_you_mean, dotted
from pgsluice.config.sources import (
    CONFIG_VARIABLE,
    SECRETS_VARIABLE,
    Layer,
    environment_layer,
    file_layer,
    flags_layer,
    secrets_layer,
    variable,
)
from pgsluice.config.tables import Rule
from pgsluice.config.toml_text import toml_value

_FLAGS, _SECRETS, _FILE = 0, 2, 3
"""The indexes of three layers in ``Sources.layers``: the flags, the secret files, and the configuration file."""

_SENTENCES = {
    "literal_error": "must be {expected}",
    "int_type": "must be an integer",
    "bool_type": "must be true or false",
    "string_type": "must be a text in quotes",
    "string_too_short": "must not be empty: leave the key out instead",
    "list_type": "must be a list",
    "too_short": "must not be empty",
    "model_type": "must be a table",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}
"""Our sentence for each type of error of pydantic. The {names} come from the error's context, which never contains the
input."""


def load(file: str | None, environ: Mapping[str, str], flags: Sequence[str] = ()) -> Settings:
    """Return the settings from all sources. Raise SettingsError with all problems.

    If ``file`` is None, read the file that PGSLUICE_CONFIG names, if it names one.
    """
    return Sources.read(file, environ, flags).settings()


@dataclass(frozen=True, slots=True)
class Sources:
    """The values that were read, before they are validated. The first layer takes precedence."""

    layers: tuple[Layer, ...]

    @classmethod
    def read(
        cls,
        file: str | None,
        environ: Mapping[str, str],
        flags: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
    ) -> Self:
        """Read all sources. ``defaults`` has values for required settings that the caller does not use."""
        return cls(
            (
                flags_layer(flags),
                environment_layer(environ),
                # Our image sets PGSLUICE_SECRETS_DIR. If a user sets it to an empty text, no secret files are read.
                secrets_layer(environ.get(SECRETS_VARIABLE) or None),
                file_layer(file or environ.get(CONFIG_VARIABLE) or None),
                Layer("default", dict(defaults or {})),
            )
        )

    @property
    def file(self) -> Layer:
        """The layer of the file. If there is no file, the layer has only ``version``."""
        return self.layers[_FILE]

    @property
    def flags(self) -> Layer:
        """The layer of the ``--set`` flags."""
        return self.layers[_FLAGS]

    @property
    def secrets(self) -> Layer:
        """The layer of the secret files. The origin of each value is the name of its file."""
        return self.layers[_SECRETS]

    def settings(self) -> Settings:
        """Return the validated settings. Raise SettingsError with every problem of every source."""
        problems = [problem for layer in self.layers for problem in layer.problems]
        settings = None
        if not any(layer.broken for layer in self.layers):
            try:
                settings = self._merged()
            except ValidationError as error:
                problems += self._problems(error)
        if problems or settings is None:
            raise SettingsError(sorted(problems, key=_by_line))
        return settings

    def _merged(self) -> Settings:
        class Merged(Settings):
            layers = tuple(layer.values for layer in self.layers)

        return Merged.model_validate({})

    def origin(self, path: Path) -> str | None:
        """Return where the value of ``path`` was set, or None if no source sets it."""
        layers = self._layers_of(path)
        return next((layer.origin(path) for layer in layers if layer.get(path) is not None), None)

    def _layers_of(self, path: Path) -> Sequence[Layer]:
        """Return the layers that can set ``path``. Tables are merged from all layers, but a list comes from one."""
        names = tuple(takewhile(lambda part: isinstance(part, str), path))
        if names == path:
            return self.layers
        return [layer for layer in self.layers if layer.get(names) is not None][:1]

    def value(self, path: Path) -> object:
        """Return the value of ``path`` before validation, or None if no source sets it."""
        values = (layer.get(path) for layer in self.layers)
        return next((value for value in values if value is not None), None)

    def http(self) -> Http:
        """Return the settings of ``[http]``, for commands that only query a daemon. Ignore errors in other settings."""
        problems = [problem for layer in self.layers if layer.broken for problem in layer.problems]
        if problems:
            raise SettingsError(problems)
        values = {name: self.value(("http", name)) for name in Http.model_fields}
        try:
            return Http.model_validate({name: value for name, value in values.items() if value is not None})
        except ValidationError as error:
            raise SettingsError(self._problems(error, ("http",))) from None

    def _problems(self, error: ValidationError, below: Path = ()) -> Iterator[Problem]:
        for detail in error.errors(include_url=False):
            for at, sentence in _sentences(detail):
                path = (*below, *at)
                yield Problem(self._nearest_origin(path), f"{dotted(path)}: {sentence}")

    def _nearest_origin(self, path: Path) -> str:
        """Return the origin of ``path``, or of the nearest table or list around it that a source has."""
        if origin := self.origin(path):
            return origin
        for length in range(len(path) - 1, 0, -1):
            outer = path[:length]
            for layer in self._layers_of(outer):
                in_list = isinstance(outer[-1], int)
                if layer.get(outer) is not None and (in_list or outer in layer.origins):
                    return layer.origin(outer)
        return self.file.name


def _by_line(problem: Problem) -> tuple[str, int]:
    name, _, line = problem.origin.rpartition(":")
    return (name, int(line)) if line.isdecimal() else (problem.origin, 0)


def _sentences(detail: ErrorDetails) -> Iterator[tuple[Path, str]]:
    """Return sentences about one of pydantic's errors, each with its path.

    If a table is missing, there is a sentence for each of its required keys.
    """
    path, context = detail["loc"], detail.get("ctx", {})
    error = context.get("error")
    if detail["type"] == "missing":
        yield from ((key, _missing(key)) for key in _required(path))
    elif detail["type"] == "extra_forbidden":
        yield path, _unknown(path)
    elif isinstance(error, KeyProblems):
        yield from (((*path, *rest), sentence) for rest, sentence in error.found)
    elif error is not None:
        yield path, str(error)
    else:
        # If we have no sentence for this error, use pydantic's message. The message does not contain the input.
        words = _SENTENCES.get(detail["type"])
        yield path, words.format(**context) + _choice(detail) if words else detail["msg"]


def _required(path: Path) -> list[Path]:
    section = all_sections().get(_names(path))
    if section is None:
        return [path]
    return [key.path for key in section_keys(_names(path), section) if key.field.is_required()]


def _missing(path: Path) -> str:
    names = _names(path)
    key = next(key for key in (*all_keys().values(), *section_keys(RULES, Rule)) if key.path == names)
    place = {(): "at the top of the file", RULES: "under [[tables.rules]]"}.get(
        names[:-1], f"under [{dotted(names[:-1])}]"
    )
    or_variable = f", or set {variable(names)}" if names in all_keys() else ""
    return f"is missing: write {names[-1]} = {toml_value(key.example)} {place}{or_variable}"


def _unknown(path: Path) -> str:
    near = nearest(_names(path))
    return f"is not a setting: did you mean {dotted(near)}?" if near else "is not a setting"


def _choice(detail: ErrorDetails) -> str:
    if detail["type"] != "literal_error" or not isinstance(detail["input"], str):
        return ""
    return did_you_mean(detail["input"], re.findall(r"'([^']*)'", detail["ctx"]["expected"]))


def _names(path: Path) -> Names:
    return tuple(part for part in path if isinstance(part, str))
