"""Compares ``pgsluice_spark`` with jobs that users would write by hand, in one Spark session (``make bench-spark``)."""
