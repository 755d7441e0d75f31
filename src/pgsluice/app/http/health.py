"""What the HTTP server shows of the process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What ``/readyz`` is asked for: a process that does its part, or the one that owns the slot."""

    ANY = "any"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Health:
    """The process, as it sees itself. A string is the reason why not, None means yes."""

    status: Callable[[], Mapping[str, object]]
    live: Callable[[], str | None]
    ready: Callable[[Role], str | None]
