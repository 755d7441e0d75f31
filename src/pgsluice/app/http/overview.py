"""The data that the status page of a pipeline shows besides the status: the last minutes, and the settings.

``app.recent`` collects these data, and :mod:`.page` shows them.

``tests/unit/app/http/test_page.py`` covers this module.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.app.log import Warned
from pgsluice.metrics import Delivered

Curve = Sequence[tuple[float, float | None]]
"""Samples as (age in seconds, value), the oldest first. None: the value was not known."""


@dataclass(frozen=True, slots=True)
class TopicRate:
    """Events of one topic: per second in the last minute, and all since the start."""

    topic: str
    per_s: float
    total: int


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has not been delivered. ``kind``: ``large``, ``open`` or ``prepared``."""

    kind: str
    xid: int
    age_s: float
    detail: str


@dataclass(frozen=True, slots=True)
class Overview:
    """The last minutes of a pipeline. ``more_topics`` and ``more_open``: how many entries the lists leave out."""

    lag: Curve
    events_per_s: Curve
    topics: Sequence[TopicRate]
    more_topics: int
    open: Sequence[OpenTransaction]
    more_open: int
    last_minute: Delivered
    delivered: Delivered
    warnings: Sequence[Warned]
    settings: str
    """As TOML, without secrets."""
