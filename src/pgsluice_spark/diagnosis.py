"""What a doctor has found, as text and as JSON. Pure; made by :mod:`.doctor`.

``tests/spark/test_cli.py`` covers it.
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
    """What one check has found. ``remedy`` says what to do; it is empty if nothing has to be done."""

    status: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.status:<8} {self.text}{f'. {self.remedy}' if self.remedy else ''}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, in the order of the checks."""

    symptoms: Sequence[Symptom]

    @property
    def healthy(self) -> bool:
        """Whether nothing is in the way of a mirror."""
        return not self.failed

    @property
    def failed(self) -> list[Symptom]:
        """What is in the way."""
        return [one for one in self.symptoms if one.status == FAILED]

    def to_json(self) -> str:
        """Return it as a JSON object."""
        return json.dumps({"healthy": self.healthy, "checks": [asdict(one) for one in self.symptoms]})

    def __str__(self) -> str:
        return "\n".join(map(str, self.symptoms))
