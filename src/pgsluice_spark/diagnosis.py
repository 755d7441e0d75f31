"""The findings of :mod:`.doctor`, as text and as JSON. This module does no I/O.

``tests/spark/test_cli.py`` covers this module.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

OK: Final = "ok"
WARNING: Final = "warning"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class Symptom:
    """The finding of one check. ``remedy`` is empty if nothing has to be done."""

    status: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.status:<8} {self.text}{f'. {self.remedy}' if self.remedy else ''}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, in the order of the checks."""

    symptoms: Sequence[Symptom]

    @property
    def healthy(self) -> bool:
        """Whether a mirror can run."""
        return not self.failed

    @property
    def failed(self) -> list[Symptom]:
        """The findings that keep a mirror from running."""
        return [one for one in self.symptoms if one.status == FAILED]

    def to_json(self) -> str:
        """Return the findings as a JSON object."""
        return json.dumps({"healthy": self.healthy, "checks": [asdict(one) for one in self.symptoms]})

    def __str__(self) -> str:
        return "\n".join(map(str, self.symptoms))
