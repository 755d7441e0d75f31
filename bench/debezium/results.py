"""The results of the comparison with Debezium, as bench/debezium/results.json stores them."""

from dataclasses import dataclass, field

from bench.debezium.rows import Digest
from bench.results import Moment, Stored


@dataclass(frozen=True, slots=True)
class Drained:
    """One run through a backlog, from the walsender's start until the last record was visible.

    The fields whose names begin with ``later`` are only about the second half of the records. ``cpu`` and ``later_cpu``
    are microseconds for each event, by role.
    """

    events_per_s: float
    later_events_per_s: float
    cpu: dict[str, float]
    later_cpu: dict[str, float]
    peak_mib: float


@dataclass(slots=True)
class Backlog:
    """All runs over one load, and the digest of each table. In each run, the topic of a table has the same digest."""

    title: str
    rows: int
    moment: Moment
    tables: dict[str, Digest]
    runs: dict[str, list[Drained]]


@dataclass(frozen=True, slots=True)
class Delay:
    """Milliseconds from COMMIT to the consumer. ``cores`` says how many processors each role kept busy."""

    rate: int
    achieved: float
    p50: float
    p95: float
    p99: float
    cores: dict[str, float]


@dataclass(frozen=True, slots=True)
class Restart:
    """Seconds until a consumer sees a row that was written while the process was down.

    ``again`` is counted from a start after an orderly end. ``killed`` is counted from ``kill -9``, after which the
    process is started again immediately.
    """

    again: float
    killed: float


@dataclass(slots=True)
class Live:
    """Latencies and restart times of each contender."""

    moment: Moment
    delays: dict[str, list[Delay]]
    restarts: dict[str, list[Restart]]


@dataclass(slots=True)
class Results(Stored):
    """Everything that was measured in one run."""

    machine: dict[str, str]
    scale: float
    backlogs: dict[str, Backlog] = field(default_factory=dict)
    live: Live | None = None
