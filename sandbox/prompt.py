"""SQL from the command line: through psql where it is installed, else a few lines of Python. Used by cli."""

import os
import shutil
from collections.abc import Iterator

import psycopg


def run(conninfo: str, statement: str | None) -> None:
    """Run one statement, or ask for statements until end of file."""
    if shutil.which("psql"):
        command = ["psql", conninfo, *(["-c", statement] if statement else [])]
        os.execvp(command[0], command)  # noqa: S606 - psql takes the place of this process
    else:
        run_in_python(conninfo, [statement] if statement else _ask())


def run_in_python(conninfo: str, statements: Iterator[str] | list[str]) -> None:
    """Print what each statement answers, columns separated by tabs."""
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
    """Yield what is typed, up to each line that ends in a semicolon."""
    lines: list[str] = []
    while True:
        try:
            lines.append(input("sandbox-> " if lines else "sandbox=> "))
        except EOFError:
            return
        if lines[-1].rstrip().endswith(";"):
            yield "\n".join(lines)
            lines.clear()
