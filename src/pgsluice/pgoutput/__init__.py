"""PostgreSQL's logical replication protocol: bytes to messages, no I/O.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""
