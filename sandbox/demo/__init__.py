"""``make demo``: a small shop whose changes go from PostgreSQL through Kafka to Spark, and are compared there.

``story`` has the steps. ``shop`` is the database with its transactions, ``pipeline`` runs pgsluice, ``cuts`` reads the
topics, ``events`` and ``screen`` show the events, and ``mirror`` keeps a copy in Delta Lake with ``pgsluice-spark``. At
the end, ``comparison`` and an audit compare the copy with PostgreSQL.
"""
