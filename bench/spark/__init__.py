"""Compares the Spark side with jobs that users would write by hand (``make bench-spark``), all in one Spark session."""
