"""The state of the process, as the HTTP server shows it.

``tests/unit/app/http/test_page.py`` covers it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pgsluice.app.http.overview import Overview


class Role(StrEnum):
    """What ``/readyz`` asks for: a process that does its part, or the one that owns the slot."""

    ANY = "any"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the process. A string says why it is not live or not ready, and None means that it is."""

    status: Callable[[], Mapping[str, object]]
    live: Callable[[], str | None]
    ready: Callable[[Role], str | None]
    overview: Callable[[], Overview] | None = None
    """What the page shows besides the status. None if there is nothing."""
