"""The commands that read the rows of a table.

Used by :mod:`.chunks`. All names and values are quoted. Only ``Shape.where`` is SQL that a user has written.

``tests/integration/test_snapshot_hostile.py`` covers this module.

https://www.postgresql.org/docs/current/sql-copy.html
"""

from collections.abc import Sequence

from pgsluice.postgres import queries
from pgsluice.snapshot import Shape


def copy_next(shape: Shape, after: Sequence[str], limit: int) -> str:
    """Return the command that copies the rows that follow the key ``after``."""
    condition = f"({_key(shape)}) > ({_literals(after)})" if after else ""
    return _copy(shape, condition, f" ORDER BY {_key(shape)} LIMIT {limit}")


def copy_those(shape: Shape, keys: Sequence[Sequence[str]]) -> str:
    """Return the command that copies the rows with these keys."""
    return _copy(shape, _is_one_of(shape, keys))


def select_those(shape: Shape, keys: Sequence[Sequence[str]]) -> str:
    """Return the query for the rows with these keys."""
    return _select(shape, _is_one_of(shape, keys))


def select_all(shape: Shape) -> str:
    """Return the query for all rows."""
    return _select(shape)


def select_condition(shape: Shape) -> str:
    """Return a query that is valid only if the condition of a user ends within its own parentheses.

    A parenthesis in the condition could end the one in which the other commands put the condition, so that the rest of
    the condition would apply to other rows. Within a bracket, such a parenthesis is a syntax error.
    """
    return f"SELECT ARRAY[{shape.where}\n] FROM {table_name(shape)} AS r"  # noqa: S608 - only where is a user's SQL


def table_name(shape: Shape) -> str:
    """Return the table as SQL: a root with its partitions, any other table without the tables that inherit from it."""
    name = f"{queries.identifier(shape.relation.namespace)}.{queries.identifier(shape.relation.name)}"
    return name if shape.is_root else f"ONLY {name}"


def array(names: Sequence[str]) -> str:
    """Return an array of strings as SQL."""
    return f"ARRAY[{_literals(names)}]"


def _copy(shape: Shape, condition: str, rest: str = "") -> str:
    return f"COPY ({_select(shape, condition)}{rest}) TO STDOUT"


def _select(shape: Shape, condition: str = "") -> str:
    columns = ", ".join(f"r.{queries.identifier(column.name)}" for column in shape.relation.columns)
    own = f"{shape.where}\n" if shape.where else ""  # the line break ends a comment
    conditions = " AND ".join(f"({one})" for one in (shape.filter, condition, own) if one)
    where = f" WHERE {conditions}" if conditions else ""
    return f"SELECT {columns} FROM {table_name(shape)} AS r{where}"  # noqa: S608 - names and values are quoted


def _is_one_of(shape: Shape, keys: Sequence[Sequence[str]]) -> str:
    return f"({_key(shape)}) IN ({', '.join(f'({_literals(key)})' for key in keys)})"


def _key(shape: Shape) -> str:
    return ", ".join(f"r.{queries.identifier(name)}" for name in shape.key)


def _literals(values: Sequence[str]) -> str:
    return ", ".join(_literal(value) for value in values)


def _literal(text: str) -> str:
    """Return a string literal that is correct even if standard_conforming_strings is off."""
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'" if "\\" in text else f"'{escaped}'"
