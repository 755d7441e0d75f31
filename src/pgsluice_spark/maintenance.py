"""Maintains a target between batches: compacts small files, and removes old states of the database.

Used by :mod:`.query`, :mod:`.pipeline` and :mod:`.commands`. Old rows of the control table are deleted before old
files, so no row ever names a state whose files do not exist any more. The time of the last maintenance is a property of
the control table, so that it survives restarts of the query.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pgsluice_spark.copies import PARALLELISM, Copies
from pgsluice_spark.errors import PipelineError
from pgsluice_spark.targets import Upkeep

_LOG: Final = logging.getLogger("pgsluice_spark")

_UNITS_S: Final[Mapping[str, int]] = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_DURATION: Final = re.compile(rf"(\d+) ({'|'.join(_UNITS_S)})s?")


@dataclass(frozen=True, slots=True)
class Maintenance:
    """How a target is maintained. Durations are texts such as ``"6 hours"``. Raise ValueError for any other text.

    ``every`` is the interval of maintenance, which runs between batches. ``keep`` is the time for which states of the
    database can be read as views. ``compact`` says whether small files are merged into large ones.
    """

    every: str = "6 hours"
    keep: str = "7 days"
    compact: bool = True

    def __post_init__(self) -> None:
        """Check the durations."""
        seconds(self.every)
        seconds(self.keep)


def seconds(duration: str) -> int:
    """Return the seconds of a duration such as ``"7 days"``. Raise ValueError if the text is not a duration."""
    found = _DURATION.fullmatch(duration.strip())
    if found is None:
        raise ValueError(f"{duration!r} is not a duration such as '6 hours'. The units are {', '.join(_UNITS_S)}")
    return int(found[1]) * _UNITS_S[found[2]]


class Keeper:
    """Maintains a target whenever maintenance is due."""

    def __init__(self, copies: Copies, maintenance: Maintenance) -> None:
        self._copies, self._compact = copies, maintenance.compact
        self._every_s, self._keep_s = seconds(maintenance.every), seconds(maintenance.keep)
        self._done: float | None = None

    def run_if_due(self) -> None:
        """Maintain the target if maintenance is due. Log the parts that fail. The next maintenance tries them again."""
        if self._copies.entry is None:
            return
        self._attempt("reading the time of the last maintenance", self._learn, "with the next batch")
        if self._done is not None and time.time() >= self._done + self._every_s:
            begin, self._done = time.monotonic(), time.time()
            if self._attempt("maintenance of the control table", lambda: self._run(time.time() - self._keep_s)):
                _LOG.info("maintenance took %.1f s", time.monotonic() - begin)

    def _learn(self) -> None:
        if self._done is None:
            self._done = self._copies.control.maintained

    def _run(self, before: float) -> None:
        control = self._copies.control
        control.forget(before)
        named = control.versions()
        with ThreadPoolExecutor(PARALLELISM) as pool:
            jobs = [pool.submit(self._maintain, name, self._upkeep(kept, before)) for name, kept in named.items()]
        for job in jobs:
            job.result()
        control.table.maintain(self._upkeep(frozenset(), before))
        control.note_maintained(time.time())

    def _maintain(self, table: str, upkeep: Upkeep) -> None:
        with self._copies.session() as spark:
            self._attempt(f"maintenance of {table}", lambda: self._copies.table(spark, table).maintain(upkeep))

    def _upkeep(self, kept: frozenset[int], before: float) -> Upkeep:
        return Upkeep(kept, before, self._keep_s, self._every_s + self._keep_s, self._compact)

    def _attempt(self, what: str, action: Callable[[], None], again: str = "") -> bool:
        """Carry out a part of the maintenance, and return whether it succeeded."""
        try:
            action()
        except (PipelineError, PySparkException, Py4JError) as error:
            _LOG.warning(
                "%s failed, and is attempted again %s. The query continues, and no data that is "
                "needed was deleted. The error is: %s",
                what,
                again or f"in {self._every_s} s",
                error,
            )
            return False
        return True
