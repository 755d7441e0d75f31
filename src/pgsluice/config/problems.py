"""Problems of the settings: one sentence per problem, each with its origin and its remedy.

The model's validators and the sources find the problems, and ``load`` reports all of them together. A sentence never
contains the value of a secret.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from pgsluice.errors import ConfigError

_SECRET_PARTS = ("password", "passphrase", "secret", "scram_", "key.pem", "sasl.oauthbearer.config")
"""Words that occur in the names of secret parameters of libpq and librdkafka."""

Path = tuple[str | int, ...]
"""The path of a value in the tree of settings: ``("tables", "rules", 0, "match")``."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. ``origin`` is ``file:line``, a variable, a flag or a secret file."""

    origin: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.sentence}"


class SettingsError(ConfigError):
    """The settings cannot be used. ``problems`` has all reasons."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> tuple[str, ...]:
        """A line with the number of problems, and then one line for each problem."""
        count = "one error" if len(self.problems) == 1 else f"{len(self.problems)} errors"
        return (f"the configuration has {count}:", *(f"  {problem}" for problem in self.problems))


class KeyProblems(ValueError):
    """The problems that a validator found in the entries of a key: sentences, each with its path below the key."""

    def __init__(self, found: Iterable[tuple[Path, str]]) -> None:
        self.found = tuple(found)
        super().__init__("; ".join(sentence for _, sentence in self.found))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question that names the known word most similar to ``word``, or an empty string if none is similar."""
    near = get_close_matches(word, list(known), n=1)
    return f": did you mean {near[0]}?" if near else ""


def dotted(path: Path) -> str:
    """Return ``path`` as people write it: ``tables.rules[0].match``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def is_secret(name: str) -> bool:
    """Return whether parameter or property ``name`` holds a secret, judged by its name."""
    return any(part in name for part in _SECRET_PARTS) and not name.endswith("_file")


def unreadable(error: OSError, if_absent: str = "") -> str:
    """Return why a file cannot be read, and what to do. ``if_absent`` says what to do if the file does not exist."""
    match error:
        case IsADirectoryError():
            remedy = (
                "Docker creates a directory if the file to be mounted does not exist. Remove the directory, and write "
                "the file"
            )
        case PermissionError():
            remedy = f"pgsluice runs as uid {os.geteuid()}, gid {os.getegid()}. Give it the right to read the file"
        case FileNotFoundError():
            remedy = if_absent
        case _:
            remedy = ""
    return f"cannot be read: {error.strerror}{remedy and f'. {remedy}'}"
