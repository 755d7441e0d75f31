"""The life of one slot: from its changes to what is delivered.

The package knows PostgreSQL and Kafka only as the protocols in :mod:`.ends`.
"""
