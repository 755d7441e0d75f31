"""Writes settings for people to read: the example file, the reference, and the values in force with their sources.

``pgsluice config`` uses this module to make ``config.example.toml`` and the tables of ``docs/configuration.md``.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from pgsluice.config.keys import RULES, Key, Kind, all_sections, section_keys
from pgsluice.config.loading import Sources
from pgsluice.config.model import Settings
from pgsluice.config.problems import Path
from pgsluice.config.tables import Rule
from pgsluice.config.toml_text import toml_key, toml_value
from pgsluice.config.units import Duration, ListenAddress, Size, TextValue, Within
from pgsluice.printable import printable, without_url_secrets

_EXAMPLE_HEAD = """\
# pgsluice: all settings with their defaults. A setting without a default is commented out, with an example.
# Made by `pgsluice config example`. docs/configuration.md explains the other sources of settings.
"""
_COMMENT_WIDTH = 100
_INT_MAX = 2**31 - 1
_OWN_TYPES: dict[object, str] = {Duration: "duration", Size: "size", ListenAddress: "host:port"}
# Characters that Markdown would take for emphasis, a tag, or the end of a cell.
_MARKUP = re.compile(r"(?<!\w)_|_(?!\w)|[*<|]")


class _WrittenDefaults(GenerateJsonSchema):
    """Shows the default of a setting as it is written in a file, for example ``5min`` and not 300000."""

    def encode_default(self, dft: Any) -> Any:  # noqa: ANN401 - as in pydantic
        """Return the default as JSON."""
        return str(dft) if isinstance(dft, TextValue) else super().encode_default(dft)


def schema() -> dict[str, Any]:
    """Return the JSON schema of the settings."""
    return Settings.model_json_schema(schema_generator=_WrittenDefaults)


def example() -> str:
    """Return a file with every key and its default."""
    blocks = [_EXAMPLE_HEAD]
    for path, section in all_sections().items():
        if path:
            blocks.append(f"{_comment(_meaning(section))}[{'.'.join(path)}]\n")
        blocks += [_example_key(key) for key in section_keys(path, section) if key.path != RULES]
        if path == RULES[:-1]:
            blocks += [_example_rules()]
    return "\n".join(blocks)


def _example_rules() -> str:
    keys = [f"# {_pair(key, key.example)}\n" for key in section_keys(RULES, Rule)]
    return "".join([_comment(_meaning(Rule)), "# [[tables.rules]]\n", *keys])


def _example_key(key: Key) -> str:
    comment = _comment(f"{key.field.description} ({_type(key)})")
    if key.field.is_required():
        return f"{comment}{_pair(key, key.example)}\n"
    if key.field.default is None:
        return f"{comment}# {_pair(key, key.example)}\n"
    beside = f"   # e.g. {toml_value(key.example)}" if key.example else ""
    return f"{comment}{_pair(key, key.field.default)}{beside}\n"


def _pair(key: Key, value: object) -> str:
    return f"{toml_key(key.path[-1])} = {toml_value(value)}"


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(text, _COMMENT_WIDTH, break_on_hyphens=False))


def _meaning(section: type[BaseModel]) -> str:
    return " ".join((inspect.getdoc(section) or "").split())


def markdown() -> str:
    """Return tables of all keys, for ``docs/configuration.md``."""
    blocks = []
    for path, section in all_sections().items():
        title = f"`[{'.'.join(path)}]`" if path else "Top of the file"
        blocks.append(_markdown_section(title, section, section_keys(path, section)))
        if path == RULES[:-1]:
            blocks.append(_markdown_section("`[[tables.rules]]`", Rule, section_keys(RULES, Rule)))
    return "\n".join(blocks)


def _markdown_section(title: str, section: type[BaseModel], keys: list[Key]) -> str:
    rows = "".join(_markdown_row(key) for key in keys)
    return (
        f"### {title}\n\n{_escape(_meaning(section))}\n\n| Key | Type | Default | Meaning |\n|---|---|---|---|\n{rows}"
    )


def _markdown_row(key: Key) -> str:
    meaning = _escape(key.field.description or "")
    return f"| `{key.path[-1]}` | {_type(key)} | {_markdown_default(key)} | {meaning} |\n"


def _escape(text: str) -> str:
    return _MARKUP.sub(lambda found: f"\\{found[0]}", text)


def _markdown_default(key: Key) -> str:
    if key.field.is_required():
        return "required"
    return "" if key.field.default is None else f"`{toml_value(key.field.default)}`"


def _type(key: Key) -> str:
    if get_origin(key.type) is Literal:
        return " or ".join(map(toml_value, get_args(key.type)))
    if key.path == RULES:
        return "list of tables"
    names = {Kind.SECRET: "text, secret", Kind.LIST: "list of texts", Kind.BOOLEAN: "true or false"}
    name = names.get(key.kind) or _OWN_TYPES.get(key.type) or str(key.kind)
    return ", ".join([name, *_limits(key)])


def _limits(key: Key) -> Iterator[str]:
    least = next((limit.ge for limit in key.limits if isinstance(limit, Ge)), None)
    most = next((limit.le for limit in key.limits if isinstance(limit, Le)), None)
    if least is not None:
        yield f"{least} or more" if most == _INT_MAX else f"{least} to {most}"
    yield from (f"{limit.least} to {limit.most}" for limit in key.limits if isinstance(limit, Within))


def show(settings: Settings, sources: Sources | None = None) -> str:
    """Return the values in force as TOML. Secrets, even those in URLs, become three stars.

    If ``sources`` is given, each value has its origin beside it.
    """
    blocks = []
    for path, section in all_sections().items():
        head = f"[{'.'.join(path)}]\n" if path else ""
        keys = [key for key in section_keys(path, section) if key.path != RULES]
        blocks.append(head + "".join(_shown(key, settings, sources) for key in keys))
    rules = settings.tables.rules
    blocks += [_shown_rule(rule, _because(sources, (*RULES, index))) for index, rule in enumerate(rules)]
    return "\n".join(blocks)


def _shown(key: Key, settings: Settings, sources: Sources | None) -> str:
    value: object = settings
    for name in key.path:
        value = getattr(value, name)
    if key.path == ("postgres", "slot"):
        value = settings.slot_name
    if isinstance(value, dict):
        table = toml_key(key.path[-1])
        return "".join(
            f"{table}.{toml_key(name)} = {toml_value(_public(entry))}{_because(sources, (*key.path, name))}"
            for name, entry in value.items()
        )
    return f"{_pair(key, _public(value))}{_because(sources, key.path)}" if value is not None else ""


def _public(value: object) -> object:
    return without_url_secrets(value) if isinstance(value, str) else value


def _because(sources: Sources | None, path: Path) -> str:
    return "\n" if sources is None else f"  # {printable(sources.origin(path) or 'default')}\n"


def _shown_rule(rule: Rule, because: str) -> str:
    values = {name: getattr(rule, name) for name in Rule.model_fields}
    lines = [f"{name} = {toml_value(value)}\n" for name, value in values.items() if value not in (None, {})]
    return f"[[tables.rules]]{because}{''.join(lines)}"
