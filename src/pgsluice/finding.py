"""The result of one check of the settings or servers: its name, verdict, detail and remedy.

The checks of the settings, PostgreSQL, Kafka, the registry and the spill directory return findings. ``pgsluice check``
prints them.
"""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The severity of a finding. ``run`` starts despite WARN, but FAIL prevents the start."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of ``pgsluice check``: what was checked, what was found, and what to do about it."""

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""
    exit_code: int = 78
    """The exit code of ``run`` if the verdict is FAIL."""
