"""Reads pgsluice's topics with PySpark: returns the changes of rows with native types, and keeps copies of the tables.

The package needs PySpark and Spark's packages for Kafka and Avro. It shares the wire contract (docs/events.md) with the
daemon, but no code. Without PySpark, only ``pgsluice-spark --help`` works.

``tests/unit/pgsluice_spark/test_cli.py`` covers this module.
"""

from importlib.util import find_spec

if find_spec("pyspark") is not None:
    from pgsluice_spark.changes import read_changes
    from pgsluice_spark.control import View, consistent_view
    from pgsluice_spark.delta import Delta
    from pgsluice_spark.errors import (
        CountMismatch,
        ForeignWrite,
        NoSuchView,
        PipelineError,
        RetentionGap,
        TableRefused,
        TopicMissing,
        TopicRecreated,
    )
    from pgsluice_spark.iceberg import Iceberg
    from pgsluice_spark.lag import Lag
    from pgsluice_spark.latest import latest
    from pgsluice_spark.maintenance import Maintenance
    from pgsluice_spark.marks import read_marks
    from pgsluice_spark.parquet import Parquet
    from pgsluice_spark.pipeline import Pipeline
    from pgsluice_spark.registry import Registry, RegistryError, RestRegistry, TopicRegistry
    from pgsluice_spark.report import AuditReport, Difference, TableReport
    from pgsluice_spark.schema import SchemaError, SchemaVersion
else:
    from pgsluice_spark.errors import WITHOUT_PYSPARK

    def __getattr__(name: str) -> object:
        """Raise an error that says how to install PySpark, because the package exports nothing without PySpark."""
        error = ImportError if name in __all__ else AttributeError
        raise error(f"pgsluice_spark.{name} cannot be imported. {WITHOUT_PYSPARK}", name=name)


__all__ = [
    "AuditReport",
    "CountMismatch",
    "Delta",
    "Difference",
    "ForeignWrite",
    "Iceberg",
    "Lag",
    "Maintenance",
    "NoSuchView",
    "Parquet",
    "Pipeline",
    "PipelineError",
    "Registry",
    "RegistryError",
    "RestRegistry",
    "RetentionGap",
    "SchemaError",
    "SchemaVersion",
    "TableRefused",
    "TableReport",
    "TopicMissing",
    "TopicRecreated",
    "TopicRegistry",
    "View",
    "consistent_view",
    "latest",
    "read_changes",
    "read_marks",
]
