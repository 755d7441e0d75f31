"""``pgsluice tail``: prints changes as they arrive, from PostgreSQL or from the topics of a pipeline.

``shown`` defines a change that can be printed, ``postgres`` and ``kafka`` yield changes, and ``command`` prints them.
"""
