"""The package that talks to PostgreSQL: the replication stream, the catalog, and the checks of a server.

Everything here uses a socket. ``pgsluice.pgoutput`` knows what the bytes mean.
"""
