"""The package that talks to PostgreSQL: the replication stream, the catalog, and the checks of a server.

All code in this package works with connections. ``pgsluice.pgoutput`` decodes the bytes that the connections receive.
"""
