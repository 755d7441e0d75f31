"""PySpark jobs over pgsluice's topics: row changes with native types, and the rows they leave behind.

Stands alone: needs PySpark and its Kafka and Avro packages, and shares the wire contract with the daemon,
but no code.
"""

from pgsluice_spark.changes import read_changes
from pgsluice_spark.latest import latest
from pgsluice_spark.marks import read_marks
from pgsluice_spark.registry import Registry, RegistryError, RestRegistry, TopicRegistry
from pgsluice_spark.schema import SchemaError, SchemaVersion

__all__ = [
    "Registry",
    "RegistryError",
    "RestRegistry",
    "SchemaError",
    "SchemaVersion",
    "TopicRegistry",
    "latest",
    "read_changes",
    "read_marks",
]
