"""The output of the demo: headings, commands, text, and progress.

All modules of the demo that print use this module. The output is in colour if standard output is a terminal, unless
NO_COLOR is set.

https://no-color.org/
"""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

WIDTH_MIN, WIDTH_DEFAULT, WIDTH_MAX = 100, 140, 160

INDENT = "   "
CONTINUED = " \\"

BOLD, DIM, RED, GREEN, YELLOW, CYAN = "1", "2", "31", "32", "33", "36"


class Screen:
    """Standard output. ``width`` is the number of columns for text, without the indentation."""

    def __init__(self) -> None:
        """Detect the width of the terminal, and whether it has colours."""
        columns = shutil.get_terminal_size((WIDTH_DEFAULT, 0)).columns
        self.width = min(max(columns, WIDTH_MIN), WIDTH_MAX) - len(INDENT)
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._steps = 0

    def step(self, title: str, remark: str = "") -> None:
        """Print the heading of the next step."""
        self._steps += 1
        print(f"\n{self.painted(f'{self._steps}. {title}', BOLD)}", flush=True)
        self.say(remark)

    def say(self, text: str, colour: str | None = None) -> None:
        """Print text with indentation. Print nothing if the text is empty."""
        for line in text.splitlines():
            print(f"{INDENT}{self.painted(line, colour)}".rstrip(), flush=True)

    def typed(self, text: str) -> None:
        """Print input that a user would type, such as SQL."""
        self.say(text, CYAN)

    def command(self, words: Sequence[str]) -> None:
        """Print a command as a user would type it in the current directory."""
        self.typed("\n" + shell(words, Path.cwd(), self.width))

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Print what is being done, and ``done`` when the context ends."""
        print(f"{INDENT}{what} ... ", end="", flush=True)
        try:
            yield
        except BaseException:
            print(flush=True)
            raise
        print("done", flush=True)

    def painted(self, text: str, colour: str | None) -> str:
        """Return text in a colour, if colours are on."""
        return f"\033[{colour}m{text}\033[0m" if self._colour and colour and text else text


def fitted(text: str, width: int) -> str:
    """Return text that is filled or shortened to exactly ``width`` columns."""
    return text.ljust(width) if len(text) <= width else f"{text[: width - 3]}..."


def shell(words: Sequence[str], directory: Path, width: int) -> str:
    """Return a command for a shell in ``directory``, on several lines if it is longer than ``width``."""
    lines = ["$"]
    for word in words:
        shown = shlex.quote(word).replace(f"{directory}{os.sep}", "")
        if len(f"{lines[-1]} {shown}{CONTINUED}") > width:
            lines.append(f"    {shown}")
        else:
            lines[-1] += f" {shown}"
    return f"{CONTINUED}\n".join(lines)
