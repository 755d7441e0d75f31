"""The results, as bench/results.json stores them. The command line writes the file. The report and the plot read it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter

OPENED_MAX = 0.9
"""The bench notices the end of the opening with a delay. If more than this share of the load was delivered by then, the
result includes the opening."""

DRAIN = "drain"
"""The contender with which all others are compared."""

LOADING = "loading"
"""The contender that reads the rows from the tables."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a load: ``rows`` row changes took ``seconds``. ``cpu`` has the CPU seconds by role."""

    seconds: float
    rows: float
    cpu: dict[str, float]

    @property
    def rate(self) -> float:
        """Row changes per second."""
        return self.rows / self.seconds

    def cpu_us(self, role: str) -> float | None:
        """Return the microseconds of CPU time for each row change, or None if there is no such role.

        The time of ``others`` is a difference, so it may be negative. A negative time counts as 0.
        """
        return max(0.0, self.cpu[role] / self.rows * 1e6) if role in self.cpu else None

    def __sub__(self, begin: "Part") -> "Part":
        cpu = {role: seconds - begin.cpu[role] for role, seconds in self.cpu.items()}
        return Part(self.seconds - begin.seconds, self.rows - begin.rows, cpu)


@dataclass(frozen=True, slots=True)
class Run:
    """One contender's run through a load, from the start of its walsender.

    ``opening`` is the part up to the moment when the bench noticed that the opening had been delivered.
    """

    whole: Part
    opening: Part | None
    peak_mib: float | None

    @property
    def afterwards(self) -> Part:
        """The part after the opening, or the whole load if hardly any rows remained after the opening."""
        if self.opening is None or self.opening.rows > OPENED_MAX * self.whole.rows:
            return self.whole
        return self.whole - self.opening


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, the least and the greatest of several values."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Summarise ``values``. There must be at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(slots=True)
class Moment:
    """The time at which a measurement began, and the load average (of one minute) at its beginning and at its end."""

    begun: str
    load_average: tuple[float, float]


@dataclass(slots=True)
class LoadResult:
    """All runs over one load. ``bytes_per_row`` is the size of the pgoutput messages that the server sends."""

    title: str
    rows: int
    bytes_per_row: float
    opened: bool
    """Whether the measurement leaves out the opening."""
    series: str
    moment: Moment
    runs: dict[str, list[Run]]

    def parts(self, contender: str) -> list[Part]:
        """Return the measured part of each of a contender's runs."""
        return [run.afterwards if self.opened else run.whole for run in self.runs[contender]]

    def rate(self, contender: str) -> Spread:
        """Return the row changes per second."""
        return Spread.of([part.rate for part in self.parts(contender)])

    def ratio(self, contender: str) -> float:
        """Return the median rate divided by the median rate of the bare drain."""
        return self.rate(contender).median / self.rate(DRAIN).median

    def later_ratio(self, contender: str) -> float:
        """Return the same ratio as ``ratio``, but without the opening, and so without the contender's start."""
        later = {name: Spread.of([run.afterwards.rate for run in self.runs[name]]) for name in (contender, DRAIN)}
        return later[contender].median / later[DRAIN].median

    def megabytes(self, contender: str) -> float:
        """Return the megabytes of pgoutput messages per second."""
        return self.rate(contender).median * self.bytes_per_row / 1e6

    def peak_mib(self, contender: str) -> float | None:
        """Return the largest peak memory of a contender's runs, or None if it is not known."""
        return max((run.peak_mib for run in self.runs[contender] if run.peak_mib is not None), default=None)

    def cpu_us(self, contender: str, role: str) -> float | None:
        """Return the median CPU time for each row change, or None if there is no such role."""
        # For the walsender, include the opening, because the walsender decodes later rows in advance until the buffers
        # are full.
        parts = [run.whole for run in self.runs[contender]] if role == "walsender" else self.parts(contender)
        found = [value for part in parts if (value := part.cpu_us(role)) is not None]
        return Spread.of(found).median if found else None


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from COMMIT to the consumer.

    ``rate`` is the intended rate, and ``achieved`` the actual rate of the writer. ``cores`` says how many processors
    each role kept busy.
    """

    mode: str
    rate: int
    achieved: float
    rows: int
    p50: float
    p95: float
    p99: float
    greatest: float
    cores: dict[str, float]


@dataclass(frozen=True, slots=True)
class Starts:
    """Seconds until an event is visible: from the first start, from a later start, and from ``kill -9``."""

    first: list[float]
    again: list[float]
    killed: list[float]


@dataclass(slots=True)
class LatencyResult:
    """The latencies with one encoder, and the median milliseconds of each step of a bare Kafka transaction."""

    encoder: str
    moment: Moment
    latencies: list[Latency]
    transaction: dict[str, float]


@dataclass(slots=True)
class LoadingLatencyResult:
    """The latency of changes while another table was loaded, and the number of rows loaded per second."""

    encoder: str
    moment: Moment
    latency: Latency
    loaded_per_s: float


@dataclass(slots=True)
class StartsResult:
    """The start times with one encoder."""

    encoder: str
    moment: Moment
    starts: Starts


@dataclass(frozen=True, slots=True)
class Waiting:
    """A test of transactions that wait for their commit.

    ``written_s`` are the seconds until the last commit, and ``delivered_s`` those until all rows were in Kafka.
    ``resident_mib`` and ``spilled_mib`` are peaks.
    """

    written_s: float
    delivered_s: float
    resident_mib: float
    spilled_mib: float


@dataclass(slots=True)
class MemoryResult:
    """The tests of waiting transactions with one encoder. ``loads`` has the result of each test by name."""

    encoder: str
    moment: Moment
    loads: dict[str, Waiting]


class Stored:
    """Results that a file keeps as JSON. Subclasses are dataclasses."""

    __slots__ = ()

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read results from a file. Return None if there is no file."""
        return TypeAdapter(cls).validate_json(path.read_bytes()) if path.exists() else None

    def write(self, path: Path) -> None:
        """Write the results as JSON."""
        path.write_bytes(TypeAdapter(type(self)).dump_json(self, indent=1) + b"\n")


@dataclass(slots=True)
class Results(Stored):
    """Everything that was measured on one machine."""

    machine: dict[str, str]
    loads: dict[str, LoadResult] = field(default_factory=dict)
    latency: LatencyResult | None = None
    loading_latency: LoadingLatencyResult | None = None
    starts: StartsResult | None = None
    memory: MemoryResult | None = None
    left_out: list[str] = field(default_factory=list)
    """The contenders that were not available."""
