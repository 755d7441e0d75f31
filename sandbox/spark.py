"""The jars that Spark needs in addition to PySpark's own. The tests of the Spark side and the demo use this module."""

from pathlib import Path

from sandbox.artifacts import fetch

NEWEST = "4.1.1"
FLOOR = "4.0.0"


def jars(version: str = NEWEST) -> list[Path]:
    """Return the jars for a version of PySpark: the Kafka source, Avro, Delta, and their dependencies."""
    return sorted(fetch(f"spark-{version}").glob("*.jar"))
