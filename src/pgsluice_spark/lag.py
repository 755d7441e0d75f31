"""The lag of a mirror or a change log behind the topics. Used by :mod:`.pipeline`.

``tests/spark/test_audit.py`` covers this module.
"""

import json
import time
from dataclasses import asdict, dataclass

from pgsluice_spark.control import NAME, ControlTable
from pgsluice_spark.cuts import collected, joined, last_of_each_number
from pgsluice_spark.errors import NoSuchView
from pgsluice_spark.origin import Origin
from pgsluice_spark.targets import Target


@dataclass(frozen=True, slots=True)
class Lag:
    """The distance between a target's last cut and the end of the topics.

    ``events`` is the number of changes that the target lacks. ``wal_bytes`` is the distance in PostgreSQL's WAL between
    the end of the target's last cut and the end of the newest cut. ``seconds`` is the age of the oldest cut that
    the target lacks: the time since the commit of this cut's last transaction, by this machine's clock. ``seconds`` is
    0 if the target lacks no transaction.
    """

    cut: int
    newest_cut: int
    events: int
    wal_bytes: int
    seconds: float

    def to_json(self) -> str:
        """Return the lag as a JSON object."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        return (
            f"at cut {self.cut} of {self.newest_cut}: {self.events} changes, {self.wal_bytes} bytes of WAL and "
            f"{self.seconds:.1f} s behind"
        )


def lag_of(origin: Origin, target: Target) -> Lag:
    """Return the lag of ``target``."""
    entry = ControlTable(target.table(origin.spark, NAME)).last()
    if entry is None:
        raise NoSuchView(f"{target.place} has no state of the database yet. Start the mirror or the change log")
    cuts = last_of_each_number(joined(collected(origin.cuts_from(entry.offset + 1))))
    times = [cut.ts_us for cut in cuts if cut.ts_us is not None]
    return Lag(
        cut=entry.cut,
        newest_cut=cuts[-1].number if cuts else entry.cut,
        events=sum(cut.events for cut in cuts),
        wal_bytes=max(0, cuts[-1].end_lsn - entry.end_lsn) if cuts else 0,
        seconds=max(0.0, time.time() - min(times) / 1e6) if times else 0.0,
    )
