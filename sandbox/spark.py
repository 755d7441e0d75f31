"""The jars that Spark needs in addition to PySpark's own jars. The tests, the bench of Spark and the demo use them."""

from pathlib import Path

from sandbox.artifacts import fetch

NEWEST = "4.1.1"
FLOOR = "4.0.0"


def jars(version: str = NEWEST) -> list[Path]:
    """Return the jars for a version of PySpark.

    The jars contain the Kafka source, Avro, the table formats to which mirrors can write with this version,
    PostgreSQL's JDBC driver, and the dependencies of all of these.
    """
    return sorted(fetch(f"spark-{version}").glob("*.jar"))
