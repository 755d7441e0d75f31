"""The jars that Spark needs beside PySpark's own, for ``spark.jars``. Used by Spark's tests and the demo."""

from pathlib import Path

from sandbox.artifacts import fetch

NEWEST = "4.1.1"
FLOOR = "4.0.0"


def jars(version: str = NEWEST) -> list[Path]:
    """Return the jars for a version of PySpark: Kafka source, Avro, Delta, and what only these need."""
    return sorted(fetch(f"spark-{version}").glob("*.jar"))
