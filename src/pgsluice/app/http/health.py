"""The state of the process, as the HTTP server shows it.

``tests/unit/app/http/test_page.py`` covers this module.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pgsluice.app.http.overview import Overview


class Role(StrEnum):
    """The role that ``/readyz`` asks about: any process that works as it should, or the one that owns the slot."""

    ANY = "any"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the process. ``live`` and ``ready`` return None if it is live or ready, or the reason why not."""

    status: Callable[[], Mapping[str, object]]
    live: Callable[[], str | None]
    ready: Callable[[Role], str | None]
    overview: Callable[[], Overview] | None = None
    """Returns the data that the page shows besides the status. None if there are no such data."""
