"""The tree of keys, derived from the model: all settings, and the kind of each.

``sources`` uses this module to interpret the names and values of settings in environment variables, secret
files and flags. ``reference`` uses it to list the settings.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from pgsluice.config.model import Settings
from pgsluice.config.section import Section
from pgsluice.config.tables import Rule

Names = tuple[str, ...]

RULES = ("tables", "rules")
"""The path of the rules, the only list of TOML tables. The keys of its entries can be set only in the file."""


class Kind(StrEnum):
    """The form of a value in the file."""

    TEXT = "text"
    SECRET = "secret"  # noqa: S105 - a kind of value, not a password
    INTEGER = "integer"
    BOOLEAN = "boolean"
    LIST = "list"
    TABLE = "table"


_KINDS: dict[object, Kind] = {
    SecretStr: Kind.SECRET,
    bool: Kind.BOOLEAN,
    int: Kind.INTEGER,
    list: Kind.LIST,
    dict: Kind.TABLE,
}


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: its path, its type without ``None``, and the limits of its values."""

    path: Names
    field: FieldInfo
    type: object
    limits: tuple[object, ...]

    @property
    def example(self) -> object:
        """A value to show, or None if the default is a good example."""
        return self.field.examples[0] if self.field.examples else None

    @property
    def kind(self) -> Kind:
        """The kind of the setting's values. Values of our own types, such as durations, are written as texts."""
        if get_origin(self.type) is Literal:
            return _KINDS.get(type(get_args(self.type)[0]), Kind.TEXT)
        return _KINDS.get(get_origin(self.type) or self.type, Kind.TEXT)


@cache
def all_keys() -> dict[Names, Key]:
    """Return all keys of the file except those of rules, in the order of the file."""
    return {key.path: key for section, model in all_sections().items() for key in section_keys(section, model)}


@cache
def all_sections() -> dict[Names, type[BaseModel]]:
    """Return all tables of the file except rules, in the order of the file. The first one is the file itself."""
    return dict(_sections((), Settings))


def _sections(path: Names, model: type[BaseModel]) -> Iterator[tuple[Names, type[BaseModel]]]:
    yield path, model
    for name, field in model.model_fields.items():
        if (section := _section(field.annotation)) is not None:
            yield from _sections((*path, name), section)


def section_keys(path: Names, model: type[BaseModel]) -> list[Key]:
    """Return the keys of the table ``model`` at ``path``, without those of its inner tables."""
    return [
        Key((*path, name), field, *_bare(field.annotation, tuple(field.metadata)))
        for name, field in model.model_fields.items()
        if _section(field.annotation) is None
    ]


def _section(annotation: object) -> type[Section] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def _bare(annotation: object, limits: tuple[object, ...]) -> tuple[object, tuple[object, ...]]:
    """Return two values: the type without ``| None`` and ``Annotated``, and its annotations."""
    if get_origin(annotation) is Annotated:
        bare, *more = get_args(annotation)
        inner = [limit for entry in more for limit in getattr(entry, "metadata", [entry])]
        return _bare(bare, (*limits, *inner))
    if get_origin(annotation) in {Union, UnionType}:
        (bare,) = (part for part in get_args(annotation) if part is not NoneType)
        return _bare(bare, limits)
    return annotation, limits


def nearest(path: Names) -> Names | None:
    """Return the key or table that was probably meant by the unknown ``path``, or None if there is no similar one."""
    known = [*all_sections(), *all_keys(), *(key.path for key in section_keys(RULES, Rule))]
    siblings = [name[-1] for name in known if name and name[:-1] == path[:-1]]
    if near := get_close_matches(path[-1], siblings, n=1):
        return (*path[:-1], near[0])
    elsewhere = [name for name in known if name[-1:] == path[-1:]]
    return elsewhere[0] if elsewhere else None
