"""pgsluice: change data capture from PostgreSQL to Apache Kafka, exactly once."""

__version__ = "0.1.0"
