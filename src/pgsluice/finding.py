"""The result of one check of the settings or servers: a named line, good or bad, with its remedy.

The ``checks`` modules of the shell packages create findings, and ``pgsluice check`` prints them.
"""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The severity of a finding. WARN lets ``run`` start, FAIL would stop it."""

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
    """The exit code with which ``run`` would end because of a failure."""
