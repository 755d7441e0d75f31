"""Measures the memory of Spark's driver in one session: first the number of tables grows, then the number of cuts."""

import gc
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from bench import machine
from bench.servers import wait_until
from bench.spark.results import DriverResult, Step
from bench.spark.stage import Stage

TABLES = 1_000
CUTS = 10_000
STEPS = 4
PATTERN = "public.t*"
CUTS_PER_S = 100


def measure(stage: Stage, scale: float, say: Callable[[str], object]) -> DriverResult:
    """Mirror a quarter of the tables, then two quarters, and so on. Then write many small transactions to one table."""
    result = DriverResult(machine.begin(), [], [])
    tables, cuts = max(STEPS, round(TABLES * scale)), max(STEPS, round(CUTS * scale))
    for step in range(STEPS):
        for number in range(tables * step // STEPS, tables * (step + 1) // STEPS):
            stage.connection.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, note text)".encode())
            stage.connection.execute(f"INSERT INTO t{number} VALUES (1, 'one')".encode())
        result.by_tables.append(_mirrored(stage, tables * (step + 1) // STEPS))
        say(f"driver: {result.by_tables[-1]}")
    for _ in range(STEPS):
        _write_cuts(stage, cuts // STEPS)
        result.by_cuts.append(_mirrored(stage, tables))
        say(f"driver: {result.by_cuts[-1]}")
    result.moment = machine.end(result.moment)
    return result


def _mirrored(stage: Stage, tables: int) -> Step:
    wait_until(lambda: stage.daemon.log_text().count('"event": "loaded"') >= tables)
    stage.wait_until_delivered()
    stage.mirror("driven", [PATTERN])
    cuts = stage.pipeline.cuts(streaming=False).select("cut").distinct().count()
    return Step(tables, cuts, heap_mib(stage.spark), python_mib())


def _write_cuts(stage: Stage, cuts: int) -> None:
    """Commit transactions slowly enough that each is likely to get its own cut."""
    begin = time.monotonic()
    for number in range(cuts):
        stage.connection.execute(b"UPDATE t0 SET note = note || '.' WHERE id = 1")
        time.sleep(max(0.0, begin + number / CUTS_PER_S - time.monotonic()))


def heap_mib(spark: SparkSession) -> float:
    """Return how much of the driver's heap is in use after garbage collections."""
    gc.collect()  # because references in Python keep Java objects alive
    heap = spark._jvm.java.lang.management.ManagementFactory.getMemoryMXBean()  # noqa: SLF001 - PySpark has no other way to Java
    for _ in range(3):
        heap.gc()
    return float(heap.getHeapMemoryUsage().getUsed()) / 1024**2


def python_mib() -> float:
    """Return the resident set of this process."""
    status = Path("/proc/self/status").read_text()
    (resident,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(resident) / 1024
