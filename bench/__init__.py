"""How fast the daemon is, beside a client that only drains the same WAL. ``python -m bench --help``.

A change of the bench itself goes from ``loads`` (what is written) over ``contenders`` (who reads it) and ``rounds``
(in which order) to ``results``, which ``report`` and ``plot`` turn into docs/performance.md.
"""
