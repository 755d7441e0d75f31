"""The HTTP server of the daemon and of ``pgsluice registry``: health, metrics, status, and the registry's API.

:mod:`.server` listens and routes. :mod:`.connections` keeps clients from using up the server's connections, and
:mod:`.hosts` keeps web pages from using the server through a browser. :mod:`.page` shows the status as a page. Nothing
here accesses PostgreSQL or Kafka, because every answer comes from memory.
"""
