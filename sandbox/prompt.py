"""Runs SQL from the command line, in psql if it is installed, and otherwise in Python. ``cli`` uses this module."""

import os
import shutil
from collections.abc import Iterator

import psycopg


def run(conninfo: str, statement: str | None) -> None:
    """Run one statement, or prompt for statements until the end of the input."""
    if shutil.which("psql"):
        command = ["psql", conninfo, *(["-c", statement] if statement else [])]
        os.execvp(command[0], command)  # noqa: S606 - psql replaces this process
    else:
        run_in_python(conninfo, [statement] if statement else _ask())


def run_in_python(conninfo: str, statements: Iterator[str] | list[str]) -> None:
    """Print the result of each statement, with columns separated by tabs."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in statements:
            try:
                _print_result(connection.execute(statement.encode()))
            except psycopg.Error as error:
                print(error)


def _print_result(cursor: psycopg.Cursor[tuple[object, ...]]) -> None:
    if cursor.description is None:
        print(cursor.statusmessage)
        return
    print(*(column.name for column in cursor.description), sep="\t")
    for row in cursor:
        print(*row, sep="\t")


def _ask() -> Iterator[str]:
    """Prompt for statements, and yield them. A statement ends at a semicolon at the end of a line."""
    lines: list[str] = []
    while True:
        try:
            lines.append(input("sandbox-> " if lines else "sandbox=> "))
        except EOFError:
            return
        if lines[-1].rstrip().endswith(";"):
            yield "\n".join(lines)
            lines.clear()
