"""``make demo``: a small shop whose changes go from PostgreSQL through Kafka to Spark, and are compared there.

``story`` tells it, step by step. ``shop`` is the database and what happens in it, ``pipeline`` runs pgsluice,
``cuts`` reads the topics, ``events`` and ``screen`` show what comes, ``mirror`` is the Spark job and
``spark_job`` runs it, ``comparison`` has the last word.
"""
