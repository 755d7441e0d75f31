"""Finds the line of each key in a TOML document, because the standard library's parser does not report it.

``sources`` uses this module for documents that ``tomllib`` has accepted, so their syntax is not checked again.

https://toml.io/en/v1.0.0
"""

import re
import tomllib

from pgsluice.config.problems import Path

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY_PART = re.compile(r"""[ \t]*([A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')[ \t]*""")
_TEXT = re.compile(
    r"""
    "{3} (?:[^\\]|\\.)*? "{3,5} | '{3} .*? '{3,5} | "(?:[^"\\]|\\.)*" | '[^']*'
    """,
    re.DOTALL | re.VERBOSE,
)
_PLAIN = re.compile(r"[^,\]}#\n]+")


def key_lines(text: str) -> dict[Path, int]:
    """Return the line, counted from 1, of every key, table header and list entry of a valid document."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.lines: dict[Path, int] = {}
        self.last_entry: dict[Path, int] = {}  # list of tables → index of the entry that is being read

    def document(self) -> None:
        table: Path = ()
        self.blank()
        while self.position < len(self.text):
            if self.text.startswith("[", self.position):
                table = self.header()
            else:
                self.pair(table)
            self.blank()

    def blank(self) -> None:
        self.match(_BLANK)

    def match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.position)
        assert found is not None, f"not TOML at {self.position}"
        self.position = found.end()
        return found[1] if pattern.groups else found[0]

    def header(self) -> Path:
        of_list = self.text.startswith("[[", self.position)
        brackets = len("[[" if of_list else "[")
        self.position += brackets
        start = self.position
        path: Path = ()
        names = self.key()
        for depth, name in enumerate(names, start=1):
            path = (*path, name)
            if of_list and depth == len(names):
                self.last_entry[path] = self.last_entry.get(path, -1) + 1
            if path in self.last_entry:
                self.note(path, start)
                path = (*path, self.last_entry[path])
            self.note(path, start)
        self.position += brackets
        return path

    def key(self) -> list[str]:
        names = [self.name()]
        while self.text.startswith(".", self.position):
            self.position += 1
            names.append(self.name())
        return names

    def name(self) -> str:
        written = self.match(_KEY_PART)
        if written[0] == '"':
            return str(tomllib.loads(f"name = {written}")["name"])
        return written.strip("'")

    def pair(self, table: Path) -> None:
        start = self.position
        path = table
        for name in self.key():
            path = (*path, name)
            self.note(path, start)
        self.step()  # over the equals sign
        self.value(path)

    def note(self, path: Path, position: int) -> None:
        self.lines.setdefault(path, self.text.count("\n", 0, position) + 1)

    def value(self, path: Path) -> None:
        first = self.text[self.position]
        if first == "[":
            self.array(path)
        elif first == "{":
            self.inline_table(path)
        else:
            self.match(_TEXT if first in "\"'" else _PLAIN)

    def array(self, path: Path) -> None:
        self.step()
        index = 0
        while not self.closes("]"):
            entry = (*path, index)
            self.note(entry, self.position)
            self.value(entry)
            self.separator()
            index += 1

    def inline_table(self, path: Path) -> None:
        self.step()
        while not self.closes("}"):
            self.pair(path)
            self.separator()

    def step(self) -> None:
        self.position += 1
        self.blank()

    def separator(self) -> None:
        self.blank()
        if self.text.startswith(",", self.position):
            self.step()

    def closes(self, bracket: str) -> bool:
        if not self.text.startswith(bracket, self.position):
            return False
        self.position += 1
        return True
