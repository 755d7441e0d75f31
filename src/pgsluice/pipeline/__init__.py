"""The work on one slot, from receiving its changes to delivering them.

The package knows PostgreSQL and Kafka only as the protocols in :mod:`.ends`.
"""
