"""The Spark side beside jobs that users would write by hand: ``make bench-spark``. All run in one session of Spark."""
