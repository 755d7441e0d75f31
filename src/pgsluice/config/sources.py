"""The sources of settings: file, secret files, environment and flags. Each source keeps the origin of every value.

``loading`` merges the layers. A source records a problem for everything that it cannot parse.
"""

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from pgsluice.config import librdkafka
from pgsluice.config.keys import Key, Kind, all_keys, all_sections, nearest
from pgsluice.config.problems import Path, Problem, unreadable
from pgsluice.config.toml_lines import key_lines

CONFIG_VARIABLE = "PGSLUICE_CONFIG"
SECRETS_VARIABLE = "PGSLUICE_SECRETS_DIR"
NO_FILE = "settings (no file was given with -c or PGSLUICE_CONFIG)"
NEW_FILE = "Start from `pgsluice config example`. In a container, mount the file at this path"
_PREFIX = "PGSLUICE_"
_LEVEL = "__"
_DOTTED = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)
"""The form of a key in a flag. Text in another form is not shown, because it may contain a secret, as in ``--set
'postgres.password aGVsbG8='``."""


@dataclass(slots=True)
class Layer:
    """The values of one source. ``origins`` has the origin of each value, and ``name`` names the source itself."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    broken: bool = False
    """Whether the file could not be read or parsed. If so, missing keys are not worth reporting."""

    def get(self, path: Path) -> object:
        """Return the value at ``path``, or None if the source does not set it."""
        value: Any = self.values
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def origin(self, path: Path) -> str:
        """Return the origin of ``path``. If it has none, return that of the nearest table or list around it."""
        around = (path[:length] for length in range(len(path), 0, -1))
        return next((self.origins[outer] for outer in around if outer in self.origins), self.name)

    def put(self, path: tuple[str, ...], value: object, origin: str) -> None:
        """Set ``path``. Do nothing if there is a value in place of a table, because validation reports that."""
        table = self.values
        for part in path[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                return
        table[path[-1]] = value
        self.origins[path] = origin


def file_layer(name: str | None) -> Layer:
    """Read the TOML file. There may be no file, because the other sources can provide all settings."""
    if name is None:
        return Layer(NO_FILE, {"version": 1})
    layer = Layer(name)
    try:
        text = FilePath(name).read_bytes().decode()
        layer.values = tomllib.loads(text)
    except OSError as error:
        layer.problems.append(Problem(name, unreadable(error, NEW_FILE)))
    except UnicodeDecodeError:
        layer.problems.append(Problem(name, "is not UTF-8 text"))
    except tomllib.TOMLDecodeError as error:
        layer.problems.append(_syntax_problem(name, text, str(error)))
    else:
        layer.origins = {path: f"{name}:{line}" for path, line in key_lines(text).items()}
    layer.broken = bool(layer.problems)
    return layer


def _syntax_problem(name: str, text: str, message: str) -> Problem:
    # The messages of tomllib are like "Invalid value (at line 3, column 8)" and "... (at end of document)".
    fault, _, position = message.rpartition(" (at ")
    line, _, column = position.rstrip(")").removeprefix("line ").partition(", ")
    if not column:
        return Problem(name, f"is not TOML: {message}")
    is_value = fault.startswith(("Invalid value", "Expected newline"))
    hint = ". A text has to be in quotes" if is_value and _lacks_quotes(text.split("\n")[int(line) - 1]) else ""
    return Problem(f"{name}:{line}", f"is not TOML: {fault}, at {column}{hint}")


def _lacks_quotes(line: str) -> bool:
    """Return whether the value in this line begins like a text without quotes, or like a number with a unit."""
    _, _, value = line.partition("=")
    return re.match(r"\s*([A-Za-z_/.@$]|[0-9]+ ?[A-Za-z])", value) is not None


def secrets_layer(directory: str | None) -> Layer:
    """Read files with names like ``postgres__password``. Files without ``__`` in their names are not for pgsluice."""
    layer = Layer(SECRETS_VARIABLE)
    if directory is None:
        return layer
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if _may_hold_secret(entry))
    except OSError as error:
        layer.problems.append(Problem(SECRETS_VARIABLE, f"{directory} {unreadable(error)}"))
        return layer
    for name in names:
        _read_secret(layer, directory, name)
    return layer


def _may_hold_secret(entry: "os.DirEntry[str]") -> bool:
    """Return whether to read a file.

    A directory or a broken link with the name of a setting is read as well, so that the error is reported.
    """
    if _LEVEL not in entry.name or entry.name.startswith("."):
        return False
    key, _ = _find(entry.name.lower().split(_LEVEL))
    absent = entry.is_dir() or not FilePath(entry.path).exists()
    return entry.is_file() or (absent and key is not None)


def _read_secret(layer: Layer, directory: str, name: str) -> None:
    origin = f"{directory}/{name}"
    try:
        text = FilePath(origin).read_bytes().decode()
    except OSError as error:
        layer.problems.append(Problem(origin, unreadable(error)))
    except UnicodeDecodeError:
        layer.problems.append(Problem(origin, "is not UTF-8 text"))
    else:
        # Editors and `echo` end a file with a newline, which is not part of the secret.
        _put_text(layer, name.lower().split(_LEVEL), text.removesuffix("\n").removesuffix("\r"), origin, _LEVEL.join)


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """Read ``PGSLUICE_NAME`` and variables named ``PGSLUICE_SECTION__KEY``.

    Ignore all other variables that begin with ``PGSLUICE_``, for example service links of Kubernetes. But record a
    problem if such a variable is probably a misspelt setting.
    """
    layer = Layer("environment")
    for name in sorted(environ):
        key = name.removeprefix(_PREFIX)
        if key != name and (_LEVEL in key or key == "NAME"):
            if _has_wrong_bytes(environ[name]):
                layer.problems.append(Problem(name, "is not UTF-8 text"))
                continue
            _put_text(layer, key.lower().split(_LEVEL), environ[name], name, variable)
        elif key != name and (meant := _with_one_underscore(key, environ[name])) is not None:
            layer.problems.append(Problem(name, f"is not a setting: did you mean {meant}?"))
    return layer


def _has_wrong_bytes(value: str) -> bool:
    """Return whether a variable has bytes that are not UTF-8. Python represents them by surrogates."""
    return any("\ud800" <= character <= "\udfff" for character in value)


def _with_one_underscore(name: str, value: str) -> str | None:
    """Return the variable that was probably meant by ``name``, if ``name`` has one underscore in place of two.

    Return None otherwise, and also if ``value`` is a URL, because Kubernetes sets the variable PGSLUICE_POSTGRES_PORT
    to a URL if there is a service pgsluice-postgres.
    """
    if re.match("(tcp|udp|sctp)://", value):
        return None
    for path, key in all_keys().items():
        spelled = "_".join(path).upper()
        if name == spelled and len(path) > 1:
            return variable(path)
        if key.kind is Kind.TABLE and name.startswith(f"{spelled}_"):
            return f"{variable(path)}{_LEVEL}{name.removeprefix(f'{spelled}_')}"
    return None


def variable(path: Iterable[str]) -> str:
    """Return the environment variable of a key."""
    return _PREFIX + _LEVEL.join(path).upper()


def flags_layer(flags: Sequence[str]) -> Layer:
    """Read the ``KEY=VALUE`` of each ``--set``."""
    layer = Layer("--set")
    for number, flag in enumerate(flags, start=1):
        name, equals, text = flag.partition("=")
        name = name.strip()
        if equals and _DOTTED.fullmatch(name):
            _put_text(layer, name.split("."), text, f"--set {name}", ".".join)
        else:
            layer.problems.append(Problem(_flag_origin(flag, number), "is not KEY=VALUE: write it with an equals sign"))
    return layer


def _flag_origin(flag: str, number: int) -> str:
    """Return a name for a flag that cannot be parsed. It contains only known keys, because other text may be secret."""
    found = _DOTTED.match(flag.strip())
    parts = found[0].split(".") if found else []
    key, _ = _find(parts)
    if key is not None:
        return f"--set {'.'.join(key.path)}"
    return f"--set {'.'.join(parts)}" if parts and tuple(parts) in all_sections() else f"--set number {number}"


def _put_text(layer: Layer, parts: list[str], text: str, origin: str, spell: Callable[[Iterable[str]], str]) -> None:
    key, rest = _find(parts)
    if key is None:
        near = nearest(tuple(parts))
        question = f": did you mean {spell(near)}?" if near else ""
        layer.problems.append(Problem(origin, f"is not a setting{question}"))
    elif rest:
        layer.put((*key.path, _entry_name(key, rest)), text, origin)
    else:
        _put_value(layer, key, text, origin)


def _find(parts: list[str]) -> tuple[Key | None, list[str]]:
    """Return the key that ``parts`` name, and the remaining parts, which name an entry if the key is a table."""
    keys = all_keys()
    for length in range(len(parts), 0, -1):
        key = keys.get(tuple(parts[:length]))
        if key is not None and (length == len(parts) or key.kind is Kind.TABLE):
            return key, parts[length:]
    return None, []


def _entry_name(key: Key, rest: list[str]) -> str:
    name = ".".join(rest)
    return librdkafka.with_dots(name) if key.path[0] == "kafka" else name


def _put_value(layer: Layer, key: Key, text: str, origin: str) -> None:
    try:
        layer.put(key.path, _decode(key.kind, text), origin)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at").removesuffix(" starting")  # "Unterminated string starting at"
        layer.problems.append(Problem(origin, f"is not JSON: {what}, at column {error.colno}"))


def _decode(kind: Kind, text: str) -> object:
    """Return ``text`` as a value of ``kind``. If it is not one, return ``text`` itself, which the model refuses."""
    match kind:
        case Kind.INTEGER if re.fullmatch(r"[+-]?[0-9]{1,20}", text, re.ASCII):
            return int(text)
        case Kind.BOOLEAN if text in {"true", "false"}:
            return text == "true"
        case Kind.LIST | Kind.TABLE if text.lstrip().startswith(("[", "{")):
            return json.loads(text)
        case Kind.LIST:
            return [item.strip() for item in text.split(",")]
        case _:
            return text
