"""Writes values and keys of settings as TOML.

This module is used wherever settings are shown: in messages, ``config show``, the example and the reference.
"""

import json
import re
from collections.abc import Mapping

from pydantic import SecretStr

_LONG_ESCAPES = 0x10000
"""The first character whose escape needs eight digits."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def toml_key(name: str) -> str:
    """Return ``name`` as a key, in quotes if necessary."""
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def toml_value(value: object) -> str:
    """Return ``value`` on one line. A secret becomes three stars."""
    match value:
        case bool() | int():
            return str(value).lower()
        case list():
            return f"[{', '.join(map(toml_value, value))}]"
        case Mapping():
            pairs = (f"{toml_key(name)} = {toml_value(entry)}" for name, entry in value.items())
            return f"{{ {', '.join(pairs)} }}" if value else "{}"
        case SecretStr():
            return '"***"'
        case _:
            return _text(str(value))


def _text(text: str) -> str:
    # Strings of JSON are also strings of TOML, except that JSON writes two escapes for a character beyond U+FFFF.
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if quoted.isprintable() else "".join(map(_escape, quoted))


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < _LONG_ESCAPES else f"\\U{code:08x}"
