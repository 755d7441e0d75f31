"""What is wrong with the settings: one sentence per problem, each with its place and its remedy.

Raised by the model's validators and by the sources; ``load`` reports all of them at once.
A sentence never contains the value of a secret.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from pgsluice.errors import ConfigError

_SECRET_PARTS = ("password", "passphrase", "secret", "scram_", "key.pem", "sasl.oauthbearer.config")
"""What the names of secrets of libpq and librdkafka have in common."""

Path = tuple[str | int, ...]
"""Where a value stands in the tree of settings: ``("tables", "rules", 0, "match")``."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend; ``origin`` is ``file:line``, a variable, a flag or a secret file."""

    origin: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.sentence}"


class SettingsError(ConfigError):
    """The settings as a whole cannot be used; ``problems`` has every reason."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> tuple[str, ...]:
        """A line that counts the problems, then one for each."""
        count = "one error" if len(self.problems) == 1 else f"{len(self.problems)} errors"
        return (f"the configuration has {count}:", *(f"  {problem}" for problem in self.problems))


class KeyProblems(ValueError):
    """What a validator found wrong below the key it looks at: sentences, each with the rest of its path."""

    def __init__(self, found: Iterable[tuple[Path, str]]) -> None:
        self.found = tuple(found)
        super().__init__("; ".join(sentence for _, sentence in self.found))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest of the words that are known, nothing when none is near."""
    near = get_close_matches(word, list(known), n=1)
    return f": did you mean {near[0]}?" if near else ""


def dotted(path: Path) -> str:
    """Return ``path`` as people write it: ``tables.rules[0].match``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def is_secret(name: str) -> bool:
    """Tell whether parameter or property ``name`` holds a secret, as far as its name tells."""
    return any(part in name for part in _SECRET_PARTS) and not name.endswith("_file")


def unreadable(error: OSError, if_absent: str = "") -> str:
    """Return why a file cannot be read, and what to do; ``if_absent`` is the remedy for one that does not exist."""
    match error:
        case IsADirectoryError():
            remedy = "Docker makes a directory where the file to be mounted does not exist: remove it, write the file"
        case PermissionError():
            remedy = f"pgsluice runs as uid {os.geteuid()}, gid {os.getegid()}, and has to be allowed to read it"
        case FileNotFoundError():
            remedy = if_absent
        case _:
            remedy = ""
    return f"cannot be read: {error.strerror}{remedy and f'. {remedy}'}"
