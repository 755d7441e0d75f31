"""Tests that docs/runbook.md and docs/dead-letters.md explain exactly the messages of the code."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pgsluice import errors

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "pgsluice").rglob("*.py"))
PAGES = [ROOT / "docs" / name for name in ("runbook.md", "dead-letters.md")]
ANYTHING = "…"
"""Stands for a part of a message that depends on the situation."""

EXPLAINED_ELSEWHERE = {"ProtocolError", "UsageError", "StopError"}
"""Errors that are bugs to report, and errors that the command line itself explains."""


def stops() -> set[str]:
    kinds = [errors.StopError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return {kind.__name__ for kind in kinds} - EXPLAINED_ELSEWHERE


def text(node: ast.expr) -> str | None:
    """Return the text of a string or f-string, with ``ANYTHING`` in place of each formatted value."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join((text(part) or "") if isinstance(part, ast.Constant) else ANYTHING for part in node.values)
    return None


@cache
def nodes() -> list[ast.AST]:
    return [node for path in SOURCES for node in ast.walk(ast.parse(path.read_text()))]


@cache
def strings() -> str:
    """Return all strings of the code, one per line, so that each message is within one line."""
    found = {text(node) or "" for node in nodes() if isinstance(node, ast.expr)}
    return "\n".join(one.replace("\n", " ") for one in found)


def said() -> Iterator[str]:
    """Yield the messages of errors that stop the process, and of warnings and errors in the log."""
    for node in nodes():
        if not isinstance(node, ast.Call) or not node.args:
            continue
        function = node.func
        is_stop = isinstance(function, ast.Name) and function.id in stops()
        is_warning = (
            isinstance(function, ast.Attribute)
            and function.attr in {"warning", "error"}
            and isinstance(function.value, ast.Name)
            and function.value.id == "log"
        )
        found = text(node.args[0])
        if (is_stop or is_warning) and found is not None and re.search(r"\w", found):
            yield found


def explained() -> dict[str, re.Pattern[str]]:
    """Return the messages that the pages quote, in headings and in the first column of tables of messages."""
    quoted: list[str] = []
    for page in PAGES:
        in_messages = False
        for line in page.read_text().splitlines():
            in_messages = line.startswith("| message |") or (in_messages and line.startswith("|"))
            if line.startswith("### ") or in_messages:
                cell = line.split(" | ")[0] if in_messages else line
                quoted += re.findall(r"`(.+?)`", cell)
    return {one: re.compile(".*".join(map(re.escape, one.split(ANYTHING)))) for one in quoted}


def test_every_message_is_explained() -> None:
    patterns = explained().values()
    assert patterns
    missing = [one for one in said() if not any(pattern.search(one) for pattern in patterns)]
    assert missing == []


@pytest.mark.parametrize("message", explained())
def test_the_code_has_the_message(message: str) -> None:
    assert explained()[message].search(strings())
