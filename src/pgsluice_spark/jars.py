"""The packages that Spark needs in addition to PySpark, in tested versions. This module does no I/O.

The tests run with these packages on PySpark 4.0.0 and 4.1.1. A test checks that sandbox/pom.xml has the same versions.
"""

from typing import Final

from pgsluice_spark.config import ConfigError

_TARGETS: Final = {
    "4.0": ["io.delta:delta-spark_2.13:4.0.0"],
    "4.1": ["io.delta:delta-spark_4.1_2.13:4.4.0", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"],
}
"""The keys are the first two parts of Spark's version."""

SPARK_VERSIONS: Final = tuple(_TARGETS)
"""The versions that are supported."""

_POSTGRES: Final = "org.postgresql:postgresql:42.7.7"


def is_old_source_needed(spark: str) -> bool:
    """Return whether a version of Spark needs the older of its two Kafka sources, because of SPARK-55271."""
    return spark in ("4.1.0", "4.1.1")


def check_iceberg(spark: str) -> None:
    """Raise ConfigError if there is no tested package of Iceberg for a version of Spark."""
    if not any("iceberg" in package for package in packages(spark)):
        raise ConfigError(f"No package of Iceberg was tested with PySpark {spark}. Install PySpark 4.1 or use Delta")


def packages(spark: str) -> list[str]:
    """Return the Maven coordinates for a version of Spark. Spark's own packages have the same version."""
    targets = _TARGETS.get(".".join(spark.split(".")[:2]))
    if targets is None:
        raise ConfigError(
            f"PySpark {spark} is not supported, only {' and '.join(_TARGETS)}. Install a supported version: pip "
            "install 'pgsluice[spark]'"
        )
    own = [f"org.apache.spark:{name}_2.13:{spark}" for name in ("spark-sql-kafka-0-10", "spark-avro")]
    return [*own, *targets, _POSTGRES]
