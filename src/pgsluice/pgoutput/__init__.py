"""PostgreSQL's logical replication protocol: turns bytes into messages, without any I/O.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""
