"""PostgreSQL's side of the daemon: the replication stream, the catalog beside it, the checks of a server.

Everything here talks to a socket. What the bytes mean is the business of ``pgsluice.pgoutput``.
"""
