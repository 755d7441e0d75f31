"""Debezium beside pgsluice: ``make bench-debezium``. Both read the same WAL and write to the same Kafka, in turn."""
