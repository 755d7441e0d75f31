"""Measures how fast pgsluice's daemon is, compared with a client that reads the same changes and discards them.

See ``python -m bench --help``.

``loads`` defines the rows that are written, ``contenders`` the programs that read these rows, and ``rounds`` the order
of the runs. ``report`` and ``plot`` turn the ``results`` into docs/performance.md.
"""
