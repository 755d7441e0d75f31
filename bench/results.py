"""What was measured, as it stands in bench/results.json. Written by the rounds, read by report and plot."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter

OPENED_MAX = 0.9
"""The part of a load that may have been delivered when the opening was seen to be."""

DRAIN = "drain"
"""The contender that all others are measured by."""

LOADING = "loading"
"""The daemon, reading the rows from the tables."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a load: ``rows`` row changes in ``seconds``, and the CPU seconds by role."""

    seconds: float
    rows: float
    cpu: dict[str, float]

    @property
    def rate(self) -> float:
        """Row changes a second."""
        return self.rows / self.seconds

    def cpu_us(self, role: str) -> float | None:
        """Microseconds of CPU time for each row change; what others used may come out less than nothing."""
        return max(0.0, self.cpu[role] / self.rows * 1e6) if role in self.cpu else None

    def __sub__(self, begin: "Part") -> "Part":
        cpu = {role: seconds - begin.cpu[role] for role, seconds in self.cpu.items()}
        return Part(self.seconds - begin.seconds, self.rows - begin.rows, cpu)


@dataclass(frozen=True, slots=True)
class Run:
    """One contender's way through a load, from the begin of its walsender.

    ``opening``: up to the moment when the first row of each table was seen delivered.
    """

    whole: Part
    opening: Part | None
    peak_mib: float | None

    @property
    def afterwards(self) -> Part:
        """What came after the opening; all of it, if nearly nothing was left by then."""
        if self.opening is None or self.opening.rows > OPENED_MAX * self.whole.rows:
            return self.whole
        return self.whole - self.opening


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of some runs."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Summarise ``values``, at least one."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(slots=True)
class Moment:
    """When something was measured, and the load average of the last minute, before and after."""

    begun: str
    load_average: tuple[float, float]


@dataclass(slots=True)
class LoadResult:
    """All runs over one load; ``bytes_per_row`` of pgoutput's messages, as the server sends them."""

    title: str
    rows: int
    bytes_per_row: float
    opened: bool
    """Whether only what comes after the opening counts."""
    series: str
    moment: Moment
    runs: dict[str, list[Run]]

    def parts(self, contender: str) -> list[Part]:
        """Return what counts of a contender's runs."""
        return [run.afterwards if self.opened else run.whole for run in self.runs[contender]]

    def rate(self, contender: str) -> Spread:
        """Return row changes a second."""
        return Spread.of([part.rate for part in self.parts(contender)])

    def ratio(self, contender: str) -> float:
        """Return the median rate, measured by that of the bare drain."""
        return self.rate(contender).median / self.rate(DRAIN).median

    def later_ratio(self, contender: str) -> float:
        """Return the same for what comes after the opening: without the time that a start takes."""
        later = {name: Spread.of([run.afterwards.rate for run in self.runs[name]]) for name in (contender, DRAIN)}
        return later[contender].median / later[DRAIN].median

    def megabytes(self, contender: str) -> float:
        """Return megabytes a second of pgoutput's messages."""
        return self.rate(contender).median * self.bytes_per_row / 1e6

    def peak_mib(self, contender: str) -> float | None:
        """Return the most memory that any run took, None where that is not known."""
        return max((run.peak_mib for run in self.runs[contender] if run.peak_mib is not None), default=None)

    def cpu_us(self, contender: str, role: str) -> float | None:
        """Return the median of the CPU time for each row change, None where the role does not take part."""
        # the walsender works ahead during the opening, as far as buffers reach
        parts = [run.whole for run in self.runs[contender]] if role == "walsender" else self.parts(contender)
        found = [value for part in parts if (value := part.cpu_us(role)) is not None]
        return Spread.of(found).median if found else None


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from COMMIT to the consumer; ``rate``: what was asked for, ``achieved``: what the writer could do.

    ``cores``: how many processors each role kept busy.
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
    """Seconds: from the first start to the first event, from a later one, from ``kill -9`` to streaming again."""

    first: list[float]
    again: list[float]
    killed: list[float]


@dataclass(slots=True)
class LatencyResult:
    """Latencies of one encoder, and the median milliseconds of each step of a bare Kafka transaction."""

    encoder: str
    moment: Moment
    latencies: list[Latency]
    transaction: dict[str, float]


@dataclass(slots=True)
class LoadingLatencyResult:
    """The latency of changes while another table was loaded, and rows of that one in a second."""

    encoder: str
    moment: Moment
    latency: Latency
    loaded_per_s: float


@dataclass(slots=True)
class StartsResult:
    """Starts of one encoder."""

    encoder: str
    moment: Moment
    starts: Starts


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waited for its commit: seconds until the last commit, and until all of it was in Kafka; MiB at most."""

    written_s: float
    delivered_s: float
    resident_mib: float
    spilled_mib: float


@dataclass(slots=True)
class MemoryResult:
    """Transactions that wait, by what they are, with one encoder."""

    encoder: str
    moment: Moment
    loads: dict[str, Waiting]


@dataclass(slots=True)
class Results:
    """Everything that was measured on one machine."""

    machine: dict[str, str]
    loads: dict[str, LoadResult] = field(default_factory=dict)
    latency: LatencyResult | None = None
    loading_latency: LoadingLatencyResult | None = None
    starts: StartsResult | None = None
    memory: MemoryResult | None = None
    left_out: list[str] = field(default_factory=list)
    """Contenders that could not be had."""

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read what ``write`` wrote; None when there is nothing."""
        return TypeAdapter(cls).validate_json(path.read_bytes()) if path.exists() else None

    def write(self, path: Path) -> None:
        """Write all of it as JSON."""
        path.write_bytes(TypeAdapter(type(self)).dump_json(self, indent=1) + b"\n")
