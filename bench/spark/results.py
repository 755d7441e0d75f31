"""The results of Spark's bench, as bench/spark/results.json stores them."""

from dataclasses import dataclass, field

from bench.results import Moment, Spread, Stored


@dataclass(slots=True)
class Race:
    """Events per second of several runs. pgsluice and a handwritten job process the same ``events`` events in turn."""

    events: int
    ours: list[float]
    theirs: list[float]
    moment: Moment

    @property
    def ratio(self) -> float:
        """The median rate of pgsluice divided by the median rate of the handwritten job."""
        return Spread.of(self.ours).median / Spread.of(self.theirs).median


@dataclass(frozen=True, slots=True)
class Audited:
    """One audit of a table. ``commits`` says how many transactions changed the table during the audit.

    ``damage`` says how many changed rows, missing rows and extra rows the audit found.
    """

    title: str
    rows: int
    seconds: float
    commits: int
    damage: tuple[int, int, int]


@dataclass(slots=True)
class AuditResult:
    """The audits of one table."""

    moment: Moment
    audits: list[Audited]


@dataclass(frozen=True, slots=True)
class Step:
    """The memory of the driver after it has mirrored ``tables`` tables and ``cuts`` cuts.

    ``heap_mib`` is the used part of Java's heap after a garbage collection, ``python_mib`` the resident set of Python.
    """

    tables: int
    cuts: int
    heap_mib: float
    python_mib: float


@dataclass(slots=True)
class DriverResult:
    """The driver's memory as the number of tables grows, and then as the number of cuts grows."""

    moment: Moment
    by_tables: list[Step]
    by_cuts: list[Step]


@dataclass(slots=True)
class Results(Stored):
    """Everything that was measured. Each part is kept until it is measured again, so the scales of parts may differ."""

    machine: dict[str, str]
    scales: dict[str, float] = field(default_factory=dict)
    decode: Race | None = None
    load: Race | None = None
    updates: Race | None = None
    audit: AuditResult | None = None
    driver: DriverResult | None = None
