"""Compares pgsluice with Debezium (``make bench-debezium``). They run in turn, on the same WAL and the same broker."""
