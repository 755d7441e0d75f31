"""The names of tables, written as in the namespaces of Avro schemas, such as ``public.orders``.

In these names, ``_xHHHH_`` replaces each character that Avro does not allow in the name of a schema or a table. So the
names are also valid as names of directories.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

_ESCAPE: Final = re.compile(r"\A[0-9]|[^A-Za-z0-9_]|_(?=x[0-9A-F]{4})")
_WORD: Final = re.compile(r"[\w$-]+")
_WILDCARD: Final = re.compile(r"[*?\[]")
_ESCAPED: Final = re.compile(r"_x([0-9A-F]{4,6})_")


def table_name(schema: str, table: str) -> str:
    """Return the name of a table. ``schema`` and ``table`` are PostgreSQL's names."""
    return f"{_escaped(schema)}.{_escaped(table)}"


def postgres_name(table: str) -> tuple[str, str]:
    """Return PostgreSQL's names of a table's schema and of the table."""
    schema, _, name = table.partition(".")
    return _plain(schema), _plain(name)


def load_command(tables: Iterable[str]) -> str:
    """Return the command that loads these tables, as it is written in a shell."""
    return shlex.join(["pgsluice", "snapshot", "start", *map(_pattern, tables)])


def is_chosen(table: str, patterns: Sequence[str]) -> bool:
    """Return whether a table's name matches one of these patterns. ``*`` and ``?`` are wildcards."""
    return any(fnmatchcase(table, pattern) for pattern in patterns)


def _pattern(table: str) -> str:
    """Return the pattern of pgsluice's settings and commands that matches only this table."""
    return ".".join(name if _WORD.fullmatch(name) else _in_quotes(name) for name in postgres_name(table))


def _in_quotes(name: str) -> str:
    return '"' + _WILDCARD.sub(r"[\g<0>]", name).replace('"', '""') + '"'


def _plain(name: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name)


def _escaped(name: str) -> str:
    return _ESCAPE.sub(lambda match: f"_x{ord(match[0]):04X}_", name)
