"""What the daemon and ``pgsluice registry`` serve over HTTP: health, metrics, status, and the registry's API.

:mod:`.server` listens and routes. :mod:`.connections` and :mod:`.hosts` keep neighbours from stopping it, or from
having a browser ask for them; :mod:`.page` is the status as a page. Nothing here asks PostgreSQL or Kafka: every answer
comes from memory.
"""
