"""``make demo``: a small shop whose changes go from PostgreSQL through Kafka to Spark, where the tables are compared.

``story`` has the steps. ``shop`` has the database and its transactions, ``pipeline`` runs pgsluice, ``cuts`` reads the
topics, ``events`` and ``screen`` show the events, and ``mirror`` maintains a copy in Delta Lake with
``pgsluice-spark``. At the end, ``comparison`` and an audit compare the copy with PostgreSQL.
"""
