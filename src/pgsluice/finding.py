"""What a check of the surroundings found: one named line, good or bad, with its remedy.

Made by the ``checks`` modules of the shell packages, printed by ``pgsluice check``.
"""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How bad a finding is: WARN lets ``run`` start, FAIL would stop it."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of ``pgsluice check``: what was looked at, what was seen, what to do about it."""

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""
    exit_code: int = 78
    """What ``run`` would end with, if it is a failure."""
