"""Compares pgsluice with Debezium (``make bench-debezium``). Both run in turn, on the same WAL and the same broker."""
