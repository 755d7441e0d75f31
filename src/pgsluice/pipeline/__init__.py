"""The work on one slot, from receiving its changes to delivering them.

The package uses PostgreSQL and Kafka only through the protocols in :mod:`.ends`.
"""
