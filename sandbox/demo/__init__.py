"""``make demo``: a small shop whose changes go from PostgreSQL through Kafka to Spark, and are compared there.

``story`` tells it, step by step. ``shop`` is the database and what happens in it, ``pipeline`` runs pgsluice,
``cuts`` reads the topics, ``events`` and ``screen`` show what comes, ``mirror`` keeps a copy in Delta Lake
with ``pgsluice-spark``, ``comparison`` and an audit have the last word.
"""
