"""The jars that Spark needs besides PySpark's own, for ``spark.jars``. Spark's tests and the demo use it."""

from pathlib import Path

from sandbox.artifacts import fetch

NEWEST = "4.1.1"
FLOOR = "4.0.0"


def jars(version: str = NEWEST) -> list[Path]:
    """Return the jars for a version of PySpark: Kafka source, Avro, Delta, and their dependencies."""
    return sorted(fetch(f"spark-{version}").glob("*.jar"))
