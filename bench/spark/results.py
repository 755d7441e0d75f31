"""The results, in the form of bench/spark/results.json."""

from dataclasses import dataclass, field

from bench.results import Moment, Spread, Stored


@dataclass(slots=True)
class Race:
    """Events per second of several runs over the same ``events``, in turn by us and by the job of a user."""

    events: int
    ours: list[float]
    theirs: list[float]
    moment: Moment

    @property
    def ratio(self) -> float:
        """Our median rate, divided by that of the other job."""
        return Spread.of(self.ours).median / Spread.of(self.theirs).median


@dataclass(frozen=True, slots=True)
class Audited:
    """One audit of a table. ``commits``: how many transactions changed the table meanwhile.

    ``damage``: how many changed values, missing rows and extra rows the audit named.
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
    """The memory of the driver once it has applied this many cuts to this many tables.

    ``heap_mib``: the used part of Java's heap after a garbage collection. ``python_mib``: the resident set of Python.
    """

    tables: int
    cuts: int
    heap_mib: float
    python_mib: float


@dataclass(slots=True)
class DriverResult:
    """The driver's memory with more and more tables, and with more and more cuts."""

    moment: Moment
    by_tables: list[Step]
    by_cuts: list[Step]


@dataclass(slots=True)
class Results(Stored):
    """Everything that was measured. A part stays until it is measured again, so each part has its own scale."""

    machine: dict[str, str]
    scales: dict[str, float] = field(default_factory=dict)
    decode: Race | None = None
    load: Race | None = None
    updates: Race | None = None
    audit: AuditResult | None = None
    driver: DriverResult | None = None
